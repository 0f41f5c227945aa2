"""Reads of what is committed and not yet in segments: straight from the journal.

Frames that touch the same partition are chained backwards. For a partition that is read, the
chain is walked once and remembered; each later read walks only what came since.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from penstock import limits
from penstock.log import frame as fr
from penstock.log.ends import Ends
from penstock.log.journal import Journal
from penstock.log.schema import record_batch
from penstock.log.segment import take_within


class _Chain:
    """The frames that hold a partition's records, oldest first."""

    __slots__ = ("bases", "lsns")

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.lsns: list[int] = []


class Tail:
    """Reads partitions from the journal. `freed` gives the lsn below which segments have it all."""

    def __init__(self, journal: Journal, ends: Ends, freed: Callable[[], int]) -> None:
        self._journal = journal
        self._ends = ends
        self._freed = freed
        self._chains: OrderedDict[int, _Chain] = OrderedDict()
        self._lock = threading.Lock()

    def read(
        self, pid: int, start: int, end: int, records_max: int, bytes_max: int
    ) -> tuple[list[pa.RecordBatch], int] | None:
        """Records `start` to `end`, within limits, and their size; None: segments have them now."""
        lsns = self._lsns_from(pid, start)
        found: list[pa.RecordBatch] = []
        total = 0
        for lsn in lsns:
            if start >= end or records_max <= 0 or bytes_max <= 0:
                break
            batch = self._read_frame(pid, lsn)
            if batch is None:
                break
            base = batch.column(0)[0].as_py()
            if not base <= start < base + batch.num_rows:
                break
            batch = batch.slice(start - base, end - start)
            fit = take_within(batch, records_max, bytes_max)
            found.append(fit)
            start += fit.num_rows
            records_max -= fit.num_rows
            size = fit.nbytes
            bytes_max -= size
            total += size
            if fit is not batch:
                break
        return (found, total) if found else None

    def first_at_or_after(self, pid: int, start: int, time: int) -> int | None:
        """The first index from `start` on whose timestamp is at or after `time`."""
        for lsn in self._lsns_from(pid, start):
            batch = self._read_frame(pid, lsn)
            if batch is None:
                return None
            times = batch.column(1).view(pa.int64()).to_numpy()
            late = np.flatnonzero(times >= time)
            base = batch.column(0)[0].as_py()
            late = late[late >= start - base]
            if len(late):
                return int(base + late[0])
        return None

    def _read_frame(self, pid: int, lsn: int) -> pa.RecordBatch | None:
        """This partition's rows of one frame; None if it was written over."""
        frame = self._journal.read_head(lsn)
        body = None if frame is None else self._journal.read_body(frame)
        if not self._journal.is_intact(lsn):
            return None
        if frame is None or body is None:
            raise self._journal.damaged(lsn, "it was committed, and is not whole any more")
        run = frame.find(pid)
        assert run >= 0
        columns = fr.body_columns(frame, body)
        slots = fr.body_slots(frame, body)
        if slots is not None:
            rows = pa.array(np.flatnonzero(slots == run))
            columns = [column.take(rows) for column in columns]
        return record_batch(int(frame.bases[run]), columns)

    def _lsns_from(self, pid: int, start: int) -> list[int]:
        """The frames with records of `pid` from index `start` on."""
        with self._lock:
            chain = self._chains.get(pid)
            if chain is None:
                chain = self._chains[pid] = _Chain()
                if len(self._chains) > limits.TAIL_CHAINS_MAX:
                    self._chains.popitem(last=False)
            else:
                self._chains.move_to_end(pid)
            self._extend(pid, chain)
            at = bisect_right(chain.bases, start) - 1
            return chain.lsns[max(at, 0) : max(at, 0) + limits.TAIL_FRAMES_PER_READ_MAX]

    def _extend(self, pid: int, chain: _Chain) -> None:
        freed = self._freed()
        gone = bisect_left(chain.lsns, freed)
        if gone:
            del chain.lsns[:gone], chain.bases[:gone]
        known = chain.lsns[-1] if chain.lsns else fr.NO_LSN
        lsn = int(self._ends.tail_lsn[pid])
        lsns: list[int] = []
        bases: list[int] = []
        while lsn > known and lsn >= freed:
            frame = self._journal.read_head(lsn)
            if not self._journal.is_intact(lsn):
                break
            if frame is None:
                raise self._journal.damaged(lsn, "it was committed, and is not whole any more")
            run = frame.find(pid)
            lsns.append(lsn)
            bases.append(int(frame.bases[run]))
            lsn = int(frame.previous[run])
        if lsn > known and chain.lsns and lsn >= freed:  # cut short: it does not join
            chain.lsns.clear()
            chain.bases.clear()
        chain.lsns.extend(reversed(lsns))
        chain.bases.extend(reversed(bases))
