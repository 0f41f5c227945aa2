"""What the journal says after the last checkpoint, found again when a log is opened."""

from __future__ import annotations

from penstock.errors import JournalDamaged
from penstock.log import frame as fr
from penstock.log.ends import Ends
from penstock.log.journal import Journal, Mark
from penstock.log.producers import Producers


class Recovered:
    """Where the journal ends, and what was found on the way."""

    def __init__(self) -> None:
        self.lsn = 0
        self.frames = 0
        self.records = 0
        self.torn = False
        """A frame that was being written stood behind the last whole one."""


def recover(
    journal: Journal,
    mark: Mark,
    ends: Ends,
    producers: Producers,
    checkpoint: int,
    epoch: int,
    since: tuple[int, int],
) -> Recovered:
    """Take up the frames behind `checkpoint` into `ends` and `producers`.

    `since` is the catalog's epoch and the lsn it began at.

    Raises `JournalDamaged`, having changed nothing on disk, if confirmed frames do not check.
    """
    found = Recovered()
    lsn = checkpoint
    for frame, _ in journal.frames(checkpoint):
        if frame.epoch < epoch or (frame.lsn >= since[1] and frame.epoch < since[0]):
            break  # left over from before an earlier crash, or from a group that was refused
        epoch = frame.epoch
        lsn = frame.lsn + frame.length
        if frame.flags & fr.PAD:
            continue
        found.frames += 1
        found.records += frame.rows
        _take_up(journal, frame, ends, producers)
    journal.check_nothing_follows(lsn, epoch)
    confirmed = mark.get()
    if confirmed > lsn:
        raise journal.damaged(lsn, f"the log was confirmed up to lsn {confirmed}")
    broken = journal.read_head(lsn)
    found.torn = broken is not None and broken.epoch >= epoch
    found.lsn = lsn
    return found


def _take_up(journal: Journal, frame: fr.Frame, ends: Ends, producers: Producers) -> None:
    known = frame.pids < len(ends.alive)
    known[known] = ends.alive[frame.pids[known]]
    pids, bases, counts = frame.pids[known], frame.bases[known], frame.counts[known]
    if (ends.assigned[pids] != bases).any():
        raise _not_following(journal, frame)
    ends.assigned[pids] = ends.end[pids] = bases + counts
    ends.staged_lsn[pids] = ends.tail_lsn[pids] = frame.lsn
    if frame.producer:
        for pid, last_id in zip(pids.tolist(), frame.last_ids[known].tolist(), strict=True):
            producers.recovered(frame.producer, pid, last_id)


def _not_following(journal: Journal, frame: fr.Frame) -> JournalDamaged:
    return journal.damaged(frame.lsn, "its records do not follow those in the segments")
