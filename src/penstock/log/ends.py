"""How far each partition goes: the numbers the commit thread keeps, as columns by partition id.

`assigned` and `staged_lsn` run ahead while a group is being written; `end` and `tail_lsn` follow
once it is synced. Readers see `visible`: the end, or where it was held while a publication fills
several partitions that have to show it all at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.log.frame import NO_LSN

Pids = NDArray[np.uint32]
Longs = NDArray[np.int64]


class Ends:
    """Columns by partition id; `lock` guards every write and the growth."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.assigned: Longs = np.zeros(0, np.int64)
        self.end: Longs = np.zeros(0, np.int64)
        self.staged_lsn: Longs = np.zeros(0, np.int64)
        self.tail_lsn: Longs = np.zeros(0, np.int64)
        self.alive: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._held: dict[int, int] = {}
        self._holds = 0
        """Counts the changes of `_held`: what was read under one number fits together."""

    def visible(self, pid: int) -> int:
        """How far readers may go."""
        return self.visible_all((pid,))[0]

    def visible_all(self, pids: Sequence[int]) -> list[int]:
        """How far readers may go in some partitions, at one moment."""
        while True:
            holds = self._holds
            held = self._held
            ends = self.end
            if held:
                found = [held.get(pid, int(ends[pid])) for pid in pids]
            else:
                found = [int(ends[pid]) for pid in pids]
            if holds == self._holds:
                return found

    def held(self, pid: int) -> int | None:
        """Where the end is held for readers; None if it is not."""
        return self._held.get(pid)

    def hold(self, pids: Iterable[int]) -> None:
        """Show readers nothing that comes to these partitions from now on."""
        with self.lock:
            more = {pid: int(self.end[pid]) for pid in pids}
            self._held = {**self._held, **more}
            self._holds += 1

    def release(self, pids: Iterable[int]) -> None:
        """Show readers everything again, in all these partitions at once."""
        gone = set(pids)
        with self.lock:
            self._held = {pid: end for pid, end in self._held.items() if pid not in gone}
            self._holds += 1

    def add(self, pid: int, end: int) -> None:
        """Begin to keep partition `pid`, whose next index is `end`."""
        with self.lock:
            if pid >= len(self.end):
                self._grow(max(64, 2 * pid))
            self.assigned[pid] = self.end[pid] = end
            self.staged_lsn[pid] = self.tail_lsn[pid] = NO_LSN
            self.alive[pid] = True

    def drop(self, pid: int) -> None:
        with self.lock:
            self.alive[pid] = False

    def _grow(self, size: int) -> None:
        self.assigned = _grown(self.assigned, size, 0)
        self.end = _grown(self.end, size, 0)
        self.staged_lsn = _grown(self.staged_lsn, size, NO_LSN)
        self.tail_lsn = _grown(self.tail_lsn, size, NO_LSN)
        alive = np.zeros(size, np.bool_)
        alive[: len(self.alive)] = self.alive
        self.alive = alive


def _grown(column: Longs, size: int, fill: int) -> Longs:
    grown = np.full(size, fill, np.int64)
    grown[: len(column)] = column
    return grown
