"""Producers: how far each sender got in each partition.

A producer's last id travels in the frame with its records, so "this was stored" and "this is how
far the producer got" can never disagree. Ids are unsigned 64-bit numbers the sender chooses; they
rise within one (producer, partition).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from penstock import limits
from penstock.errors import BadBatch, BadName, TooMany
from penstock.log.names import check_label

if TYPE_CHECKING:
    from penstock.log.committer import Pending

Ids = NDArray[np.uint64]
RESERVED: Final = "penstock:"
"""Begins the names of the log's own producers: their ids must not be a caller's."""


class Sequenced:
    """A producer's name and its id for each record of a batch."""

    __slots__ = ("drop_resent", "ids", "name")

    def __init__(self, name: bytes, ids: Ids, drop_resent: bool) -> None:
        self.name = name
        self.ids = ids
        self.drop_resent = drop_resent

    def only(self, kept: NDArray[np.bool_]) -> Sequenced:
        return Sequenced(self.name, self.ids[kept], self.drop_resent)


def sequenced(name: str | None, ids: object, count: int, drop_resent: bool) -> Sequenced | None:
    """Check what the caller gave; None when there is no producer."""
    if name is None:
        if ids is not None:
            raise BadBatch("ids were given without the name of their producer")
        return None
    if ids is None:
        raise BadBatch(f"producer {name!r} gave no ids: one is needed for each record")
    label = check_label(name, "producer", limits.PRODUCER_NAME_BYTES_MAX)
    if label.startswith(RESERVED):
        raise BadName(f"producer names that begin with {RESERVED!r} are the log's own: use another")
    try:
        column = np.asarray(ids)
        if column.dtype.kind in "fO" and isinstance(ids, Sequence) and _are_whole(ids):
            column = np.array(ids, np.uint64)  # NumPy takes small and very large ints for floats
        if column.dtype.kind not in "iu" or (column.dtype.kind == "i" and (column < 0).any()):
            raise ValueError
        column = column.astype(np.uint64, copy=False)
    except (ValueError, OverflowError, TypeError):
        raise BadBatch("producer ids must be whole numbers from 0 to 2**64 - 1") from None
    if column.shape != (count,):
        raise BadBatch(f"{column.size} producer ids for {count} records")
    return Sequenced(label.encode(), column, drop_resent)


def _are_whole(ids: Sequence[object]) -> bool:
    return all(type(each) is int for each in ids)


class Producers:
    """Last ids by (producer, partition), written by the commit thread, from begin to confirm."""

    def __init__(self, known: dict[tuple[bytes, int], int]) -> None:
        self._last = known
        self._group: dict[tuple[bytes, int], int] = {}
        self._dirty: dict[tuple[bytes, int], int] = {}

    def last_id(self, name: bytes, pid: int) -> int | None:
        """The id of the last record of this producer that is on disk in this partition."""
        return self._last.get((name, pid))

    def check_room(self) -> None:
        if len(self._last) >= limits.PRODUCERS_MAX:
            raise TooMany(
                f"{len(self._last)} pairs of producer and partition are kept already, at most "
                f"{limits.PRODUCERS_MAX}: use fewer producer names, or delete streams"
            )

    def all(self) -> dict[tuple[bytes, int], int]:
        return dict(self._last)

    def begin(self) -> None:
        self._group = {}

    def roll_back(self) -> None:
        self._group = {}

    def confirm(self) -> None:
        if self._group:
            self._last.update(self._group)
            self._dirty.update(self._group)
            self._group = {}

    def recovered(self, name: bytes, pid: int, last_id: int) -> None:
        self._last[name, pid] = last_id
        self._dirty[name, pid] = last_id

    def forget(self, pids: set[int]) -> None:
        """Partitions were deleted."""
        for key in [key for key in self._last if key[1] in pids]:
            self._last.pop(key, None)
            self._dirty.pop(key, None)

    def take_dirty(self) -> dict[tuple[bytes, int], int]:
        """What changed since the last call; to be stored with a checkpoint."""
        dirty, self._dirty = self._dirty, {}
        return dirty

    def put_back(self, dirty: dict[tuple[bytes, int], int]) -> None:
        """What was taken could not be stored."""
        self._dirty = {**dirty, **self._dirty}

    def resent(self, sequence: Sequenced, pending: Pending) -> NDArray[np.bool_] | None:
        """Which rows are new, when some are not and the caller wants those dropped; else None."""
        if not sequence.drop_resent:
            return None
        ids, slots = sequence.ids, pending.slots
        if slots is None:
            last = self._current(sequence.name, int(pending.pids[0]))
            kept = _rising(ids, last)
            return None if kept.all() else kept
        order = np.argsort(slots, kind="stable")
        by_run = ids[order]
        stops = np.cumsum(pending.counts, dtype=np.int64)
        starts = stops - pending.counts
        lasts = [self._current(sequence.name, pid) for pid in pending.pids.tolist()]
        if _all_rise(by_run, starts, lasts):
            return None
        kept = np.ones(len(ids), np.bool_)
        for start, stop, last in zip(starts.tolist(), stops.tolist(), lasts, strict=True):
            kept[order[start:stop]] = _rising(by_run[start:stop], last)
        return kept

    def stage(self, sequence: Sequenced, pending: Pending) -> Ids:
        """Note the last id of each run of `pending`, and return them."""
        if pending.slots is None:
            last_ids = sequence.ids[-1:]
        else:
            last_ids = np.zeros(len(pending.pids), np.uint64)
            last_ids[pending.slots] = sequence.ids  # the last of equal slots wins
        for pid, last_id in zip(pending.pids.tolist(), last_ids.tolist(), strict=True):
            self._group[sequence.name, pid] = last_id
        return last_ids

    def _current(self, name: bytes, pid: int) -> int | None:
        key = (name, pid)
        found = self._group.get(key)
        return self._last.get(key) if found is None else found


def _rising(ids: Ids, last: int | None) -> NDArray[np.bool_]:
    """Which ids are above all before them and above `last`."""
    new = np.ones(len(ids), np.bool_)
    if len(ids) > 1:
        new[1:] = ids[1:] > np.maximum.accumulate(ids)[:-1]
    if last is not None:
        new &= ids > np.uint64(last)
    return new


def _all_rise(ids: Ids, starts: NDArray[np.int64], lasts: list[int | None]) -> bool:
    """Whether all ids of each run, which begin at `starts`, are above those before them."""
    up = ids[1:] > ids[:-1]
    up[starts[1:] - 1] = True
    if not up.all():
        return False
    firsts = ids[starts].tolist()
    return all(last is None or first > last for first, last in zip(firsts, lasts, strict=True))
