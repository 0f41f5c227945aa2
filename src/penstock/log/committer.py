"""The group commit: one thread that takes all that was handed over, and makes it durable.

    submit  ->  pending  ->  stage: indexes, producer ids, lsns
                         ->  one write, one sync of the journal
                         ->  publish: readers may see it
                         ->  fulfil the receipts

Nothing is published or fulfilled before its sync returned (unless durability is relaxed, and then
a sync follows within a fraction of a second). A failed write or sync stops the log:
what the disk holds is then unknown, and only opening it again finds out.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock import limits
from penstock.errors import (
    DiskFull,
    LogBusy,
    LogClosed,
    PenstockError,
    StorageFailed,
    TooMany,
    UnknownStream,
)
from penstock.log import frame as fr
from penstock.log.batch import Batch
from penstock.log.ends import Ends, Longs, Pids
from penstock.log.journal import Journal, Mark
from penstock.log.producers import Producers, Sequenced
from penstock.log.receipt import Appended, Receipt, fulfil
from penstock.log.settings import LogSettings
from penstock.log.stats import LogStats

_LINGER_SKIPS = 64
"""Commits without linger after one that waited and met nobody."""


class Pending:
    """A batch that was handed over: all about its frame that does not depend on its place."""

    __slots__ = (
        "batch", "body", "counts", "nbytes", "pids", "receipt", "sequenced", "slots", "where",
    )  # fmt: skip

    def __init__(self, batch: Batch, pids: int | Pids, sequenced: Sequenced | None) -> None:
        self.batch = batch
        self.sequenced = sequenced
        self.receipt = Receipt()
        self.slots: NDArray[np.uint16] | None = None
        if isinstance(pids, int):
            self.pids: Pids = np.array([pids], np.uint32)
            self.counts: Pids = np.array([batch.count], np.uint32)
            self.where: slice | Pids = slice(pids, pids + 1)  # cheaper than an array of one
        else:
            self.pids, self.counts, self.slots = split_runs(pids)
            self.where = self.pids
        self.body = fr.Body(batch, self.slots)
        self.nbytes = batch.nbytes

    def row_pids(self) -> Pids:
        if self.slots is None:
            return np.repeat(self.pids, self.batch.count)
        return self.pids[self.slots]


def split_runs(pids: Pids) -> tuple[Pids, Pids, NDArray[np.uint16] | None]:
    """The distinct partitions, how many rows each has, and the run of each row."""
    top = int(pids.max())
    if top > 16 * len(pids):
        distinct, inverse, counts = np.unique(pids, return_inverse=True, return_counts=True)
        runs, slots = distinct.astype(np.int64), inverse.astype(np.uint16)
    else:
        every = np.bincount(pids, minlength=top + 1)
        runs = np.flatnonzero(every)
        counts = every[runs]
        place = np.zeros(top + 1, np.uint16)
        place[runs] = np.arange(len(runs), dtype=np.uint16)
        slots = place[pids]
    if len(runs) > limits.BATCH_PARTITIONS_MAX:
        raise TooMany(
            f"a batch for {len(runs)} partitions: at most {limits.BATCH_PARTITIONS_MAX} fit into "
            "one frame; append it in parts"
        )
    return runs.astype(np.uint32), counts.astype(np.uint32), slots if len(runs) > 1 else None


class Staged(NamedTuple):
    """A batch with its place in the journal and in its partitions."""

    pending: Pending
    kept: NDArray[np.bool_] | None
    lsn: int
    bases: Longs
    previous: Longs
    last_ids: NDArray[np.uint64] | None


class Committer:
    """Owns the journal's head. `on_commit` is called after each commit with the new lsn."""

    def __init__(
        self,
        journal: Journal,
        mark: Mark,
        ends: Ends,
        producers: Producers,
        *,
        lsn: int,
        epoch: int,
        freed: int,
        settings: LogSettings,
        clock: Callable[[], int],
        on_commit: Callable[[int], None],
        on_ring_full: Callable[[int], None],
        new_epoch: Callable[[int], int],
        publish: Callable[[list[Staged]], None],
    ) -> None:
        self.journal = journal
        self.stats = LogStats()
        self.committed = lsn
        self.freed = freed
        self.failed: PenstockError | None = None
        self.disk_full: str | None = None
        """What the segment writer said when the disk was full; None while it is not."""
        self._mark = mark
        self._ends = ends
        self._producers = producers
        self._epoch = epoch
        self._epoch_used = False
        self._buffer_bytes = settings.buffer_bytes
        self._linger_s = settings.linger_seconds
        self._relaxed = settings.durability == "relaxed"
        self._sync_every_s = settings.relaxed_sync_seconds
        self._clock = clock
        self._on_commit = on_commit
        self._on_ring_full = on_ring_full
        self._new_epoch = new_epoch
        self._publish = publish
        self._queue: deque[Pending] = deque()
        self._buffered = 0
        self._closing = False
        self._changed = threading.Condition()
        self._room_waiters: list[Callable[[], None]] = []
        self._last_commit = 0.0
        self._skip_linger = 0
        self._synced = lsn
        self._synced_at = 0.0
        self._syncing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="penstock-commit", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # -- handing over ----------------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        """Bytes handed over and not yet on disk."""
        return self._buffered

    def has_room(self, nbytes: int) -> bool:
        """A batch larger than the whole buffer is taken when the buffer is empty."""
        return self._buffered == 0 or self._buffered + nbytes <= self._buffer_bytes

    def submit(self, pending: Pending) -> Receipt:
        """Queue `pending`; raises `LogBusy` when the buffer is full."""
        with self._changed:
            self._check_open()
            if not self.has_room(pending.nbytes):
                raise LogBusy(
                    f"{self._buffered} bytes wait to be written, the buffer holds "
                    f"{self._buffer_bytes}: wait until some are on disk"
                )
            self._take(pending)
        return pending.receipt

    def submit_waiting(self, pending: Pending) -> Receipt:
        """Queue `pending`, after waiting for room."""
        with self._changed:
            while True:
                self._check_open()
                if self.has_room(pending.nbytes):
                    break
                self._changed.wait()
            self._take(pending)
        return pending.receipt

    def when_room(self, nbytes: int, callback: Callable[[], None]) -> bool:
        """True if there is room now; else `callback` is called (in another thread) when to try."""
        with self._changed:
            if self.failed is not None or self._closing or self.has_room(nbytes):
                return True
            self._room_waiters.append(callback)
            return False

    def _take(self, pending: Pending) -> None:
        self._buffered += pending.nbytes
        self._queue.append(pending)
        if len(self._queue) == 1 or self._buffered >= limits.LINGER_BELOW_BYTES:
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self.failed is not None:
            raise self.failed
        if self._closing:
            raise LogClosed("the log is closed")

    # -- what others tell ------------------------------------------------------------------------

    def free(self, lsn: int) -> None:
        """A checkpoint put everything below `lsn` into segments."""
        with self._changed:
            self.freed = max(self.freed, lsn)
            self._changed.notify_all()

    def set_disk_full(self, message: str | None) -> None:
        with self._changed:
            self.disk_full = message
            self._changed.notify_all()

    def stop(self, error: PenstockError) -> None:
        """Refuse everything from now on, with `error`."""
        with self._changed:
            if self.failed is None:
                self.failed = error
            left = list(self._queue)
            self._queue.clear()
            self._buffered -= sum(pending.nbytes for pending in left)
            self._changed.notify_all()
            waiters, self._room_waiters = self._room_waiters, []
        fulfil([(pending.receipt, self.failed) for pending in left])
        for waiter in waiters:
            waiter()

    def drain(self) -> None:
        """Take nothing more, commit what was handed over, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        if self.failed is None:
            self._renew_epoch()
            self.sync_relaxed()

    def close(self) -> None:
        """Like `drain`, and fail whoever still waits."""
        self.drain()
        self.stop(LogClosed("the log is closed"))

    def sync_relaxed(self) -> None:
        """With relaxed durability: sync what was confirmed and not yet synced."""
        if not self._relaxed:
            return
        with self._syncing:
            lsn = self.committed
            if lsn > self._synced:
                try:
                    self.journal.sync()
                except OSError as error:
                    failed = self._storage_failed(error)
                    self.stop(failed)
                    raise failed from error
                self._mark.set(lsn)
                self._synced = lsn
                self._synced_at = time.monotonic()

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:  # a bug here must not leave appenders waiting for ever
            self.stop(StorageFailed(f"the log stopped: {error!r}. Open it again"))
            raise

    def _step(self) -> bool:
        """Commit one group. False when there will be none: closed or failed."""
        group = self._next_group()
        if group is None:
            self.sync_relaxed()
            return self.failed is None
        if not group:
            return False
        began = time.perf_counter()
        try:
            outcomes = self._commit(group)
        except OSError as error:
            self._fail(group, error)
            return self.failed is None
        except BaseException as error:
            stopped = StorageFailed(f"the log stopped: {error!r}. Open it again")
            self._settle(group, [(pending.receipt, stopped) for pending in group])
            raise
        self.stats.commit.add(time.perf_counter() - began)
        self._settle(group, outcomes)
        return True

    def _next_group(self) -> list[Pending] | None:
        """What to commit next; nothing when closed or failed; None when it is time to sync."""
        with self._changed:
            while not self._queue:
                if self._closing or self.failed is not None:
                    return []
                if not self._relaxed or self.committed == self._synced:
                    self._changed.wait()
                elif not self._changed.wait(self._sync_every_s):
                    return None
            self._linger()
            return self._take_group()

    def _linger(self) -> None:
        """Wait a moment for company, if small appends come often and waiting has paid before.

        A lone producer that waits for each receipt gains nothing: it is met once in 64 commits.
        """
        if self._skip_linger:
            self._skip_linger -= 1
            return
        busy = time.monotonic() - self._last_commit < 2 * self._linger_s
        if not busy or self._closing or self._buffered >= limits.LINGER_BELOW_BYTES:
            return
        deadline = time.monotonic() + self._linger_s
        while (left := deadline - time.monotonic()) > 0:
            if self._closing or self._buffered >= limits.LINGER_BELOW_BYTES:
                break
            self._changed.wait(left)
        if len(self._queue) == 1:
            self._skip_linger = _LINGER_SKIPS

    def _take_group(self) -> list[Pending]:
        group: list[Pending] = []
        size = 0
        while self._queue:
            pending = self._queue[0]
            size += _frame_bound(pending)
            if group and size > self.journal.group_bytes_max:
                break
            group.append(self._queue.popleft())
        return group

    # -- one group -------------------------------------------------------------------------------

    def _commit(self, group: list[Pending]) -> list[tuple[Receipt, Appended | BaseException]]:
        need = sum(map(_frame_bound, group))
        need += min(need, self.journal.room_at(self.committed))
        refused = self._wait_for_ring(need) or self._renew_epoch()
        if refused is not None:
            return [(pending.receipt, refused) for pending in group]
        outcomes: list[tuple[Receipt, Appended | BaseException]] = []
        staged: list[Staged] = []
        extents: list[_Extent] = [_Extent(self.committed, [], 0)]
        with self._ends.lock:
            self._producers.begin()
            for pending in group:
                self._stage(pending, staged, extents, outcomes)
        if staged:
            try:
                for extent in extents:
                    if extent.length:
                        self.journal.write(extent.lsn, extent.parts, extent.length)
            except OSError:
                self._unstage(staged)
                raise
            synced = self._make_durable()
            self._confirm(extents[-1].lsn + extents[-1].length, staged, synced=synced)
        return outcomes

    def _renew_epoch(self) -> PenstockError | None:
        """After a group that was refused half written: count up, or say why that cannot be."""
        if self._epoch_used:
            try:
                self._epoch = self._new_epoch(self.committed)
            except PenstockError as error:
                return error
            self._epoch_used = False
        return None

    def _make_durable(self) -> bool:
        """Sync what was written; False if durability is relaxed and that can wait."""
        if self._relaxed and time.monotonic() - self._synced_at < self._sync_every_s:
            return False
        began = time.perf_counter()
        with self._syncing:
            try:
                self.journal.sync()
            except OSError as error:  # whatever it is, also ENOSPC: never tried again
                raise OSError(errno.EIO, f"the sync failed: {error}") from error
            self._synced_at = time.monotonic()
        self.stats.sync.add(time.perf_counter() - began)
        return True

    def _wait_for_ring(self, need: int) -> PenstockError | None:
        """Wait until `need` bytes of the ring are free; an error if that cannot be waited for."""
        if self.committed + need <= self.freed + self.journal.size:
            return None
        began = time.monotonic()
        while True:
            self._on_ring_full(self.committed)  # also while the disk is full: there may be room now
            with self._changed:
                if self.committed + need <= self.freed + self.journal.size:
                    break
                if self.failed is not None:
                    return self.failed
                if self.disk_full is not None:
                    return DiskFull(
                        f"no space is left to store records ({self.disk_full}): free some; "
                        "reading goes on, and appending resumes by itself"
                    )
                self._changed.wait(0.05)
        self.stats.ring_full_seconds += time.monotonic() - began
        return None

    def _stage(
        self,
        pending: Pending,
        staged: list[Staged],
        extents: list[_Extent],
        outcomes: list[tuple[Receipt, Appended | BaseException]],
    ) -> None:
        """Give `pending` its indexes and its place, as if the group were stored already."""
        ends = self._ends
        if not ends.alive[pending.where].all():
            outcomes.append((pending.receipt, UnknownStream("the stream was deleted meanwhile")))
            return
        kept, last_ids, producer = None, None, b""
        if pending.sequenced is not None:
            kept = self._producers.resent(pending.sequenced, pending)
            if kept is not None:
                pending = _without_resent(pending, kept)
                if pending.batch.count == 0:
                    nothing = Appended(np.zeros(0, np.int64), None, 0, kept)
                    outcomes.append((pending.receipt, nothing))
                    return
            assert pending.sequenced is not None
            last_ids = self._producers.stage(pending.sequenced, pending)
            producer = pending.sequenced.name
        length = fr.frame_length(pending.body, len(pending.pids), len(producer))
        extent = extents[-1]
        group_lsn = min(extents[0].lsn, self._synced)
        lsn = extent.lsn + extent.length
        room = self.journal.room_at(lsn)
        if length > room:
            extent.parts.append(fr.pad_frame(lsn, group_lsn, self._epoch, room))
            extent.length += fr.FIXED
            lsn += room
        if lsn > extent.lsn and lsn % self.journal.size == 0:  # on at the ring's beginning
            extent = _Extent(lsn, [], 0)
            extents.append(extent)
        bases = ends.assigned[pending.where].copy()
        previous = ends.staged_lsn[pending.where].copy()
        ends.assigned[pending.where] = bases + pending.counts
        ends.staged_lsn[pending.where] = lsn
        extent.parts.extend(
            fr.frame_parts(
                pending.body, lsn, group_lsn, self._epoch, self._clock(), pending.pids,
                pending.counts, bases, previous, last_ids, producer,
            )
        )  # fmt: skip
        extent.length += length
        staged.append(Staged(pending, kept, lsn, bases, previous, last_ids))
        outcomes.append(
            (
                pending.receipt,
                Appended(bases, pending.slots, pending.batch.count, kept, pending.pids),
            )
        )

    def _unstage(self, staged: list[Staged]) -> None:
        with self._ends.lock:
            for each in reversed(staged):
                self._ends.assigned[each.pending.where] = each.bases
                self._ends.staged_lsn[each.pending.where] = each.previous
            self._producers.roll_back()

    def _confirm(self, lsn: int, staged: list[Staged], *, synced: bool) -> None:
        """The group is on disk: let readers see it."""
        ends = self._ends
        with ends.lock:
            for each in staged:
                ends.end[each.pending.where] = each.bases + each.pending.counts
                ends.tail_lsn[each.pending.where] = each.lsn
            self._producers.confirm()
        self.committed = lsn
        if synced:
            self._synced = lsn
            self._mark.set(lsn)
        self._last_commit = time.monotonic()
        stats = self.stats
        stats.commits += 1
        stats.records += sum([each.pending.batch.count for each in staged])
        stats.bytes += sum([each.pending.batch.nbytes for each in staged])
        self._publish(staged)
        self._on_commit(lsn)

    def _settle(
        self, group: list[Pending], outcomes: list[tuple[Receipt, Appended | BaseException]]
    ) -> None:
        with self._changed:
            self._buffered -= sum([pending.nbytes for pending in group])
            waiters, self._room_waiters = self._room_waiters, []
            self._changed.notify_all()
        fulfil(outcomes)
        for waiter in waiters:
            waiter()

    def _fail(self, group: list[Pending], error: OSError) -> None:
        if error.errno == errno.ENOSPC:
            # Nothing was synced and nothing published. What was written of the group stays
            # behind as bytes of an old epoch, so that it can never be taken for a later frame.
            self._epoch_used = True
            self._renew_epoch()
            full = DiskFull(
                f"no space is left to store records ({error}): free some; reading goes on, "
                "and appending resumes by itself"
            )
            self._settle(group, [(pending.receipt, full) for pending in group])
            return
        failed = self._storage_failed(error)
        failed.__cause__ = error
        with self._changed:
            self.failed = failed
        self._settle(group, [(pending.receipt, failed) for pending in group])
        self.stop(failed)

    def _storage_failed(self, error: OSError) -> StorageFailed:
        return StorageFailed(
            f"writing {self.journal.path} failed ({error}): the log has stopped, because what the "
            "disk holds is no longer known. Check the disk, then start again: opening keeps all "
            "that was confirmed"
        )


class _Extent:
    """Parts of a group that lie next to each other in the ring."""

    __slots__ = ("length", "lsn", "parts")

    def __init__(self, lsn: int, parts: list[Any], length: int) -> None:
        self.lsn = lsn
        self.parts = parts
        self.length = length


def _frame_bound(pending: Pending) -> int:
    named = 0 if pending.sequenced is None else len(pending.sequenced.name)
    return fr.frame_length(pending.body, len(pending.pids), named)


def _without_resent(pending: Pending, kept: NDArray[np.bool_]) -> Pending:
    """The same hand-over with only the rows that are new."""
    assert pending.sequenced is not None
    batch = pending.batch.filter(kept)
    if batch.count == 0:
        pending.batch = batch
        return pending
    rest = Pending(batch, pending.row_pids()[kept], pending.sequenced.only(kept))
    rest.receipt = pending.receipt
    rest.nbytes = pending.nbytes
    return rest
