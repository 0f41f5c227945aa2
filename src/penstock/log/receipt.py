"""What an append gives back: a receipt that is fulfilled once the records are on disk.

Wait for it from a thread (`result`), from a coroutine (`await`), or be called (`on_done`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import LogBusy


class Appended:
    """Where records went. `indexes` has the index of each; one that was dropped has -1."""

    __slots__ = ("_bases", "_kept", "_pids", "_slots", "count", "dropped", "first_index")

    def __init__(
        self,
        bases: NDArray[np.int64],
        slots: NDArray[np.uint16] | None,
        count: int,
        kept: NDArray[np.bool_] | None = None,
        pids: NDArray[np.uint32] | None = None,
    ) -> None:
        self._bases = bases
        self._pids = pids
        self._slots = slots
        self._kept = kept
        self.count = count
        """Records that were stored."""
        self.dropped = 0 if kept is None else len(kept) - count
        """Records that were not, because the producer had sent them before."""
        self.first_index = int(bases[0]) if count else -1
        """The index of the first record stored; of the lowest partition, if there are several."""

    def runs(self) -> list[tuple[int, int, int]]:
        """Located partition, first index and number of records, for each partition touched."""
        if self._pids is None or not self.count:
            return []
        if self._slots is None:
            return [(int(self._pids[0]), self.first_index, self.count)]
        counts = np.bincount(self._slots, minlength=len(self._bases)).tolist()
        return list(zip(self._pids.tolist(), self._bases.tolist(), counts, strict=True))

    def indexes(self) -> NDArray[np.int64]:
        """The index of each record, in the order of the batch."""
        count = self.count
        if self._slots is None:
            stored = np.arange(self.first_index, self.first_index + count, dtype=np.int64)
        else:
            order = np.argsort(self._slots, kind="stable")
            counts = np.bincount(self._slots, minlength=len(self._bases))
            starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
            stored = np.empty(count, np.int64)
            ranks = np.arange(count) - np.repeat(starts, counts)
            stored[order] = np.repeat(self._bases, counts) + ranks
        if self._kept is None:
            return stored
        every = np.full(len(self._kept), -1, np.int64)
        every[self._kept] = stored
        return every

    def __repr__(self) -> str:
        return f"<Appended {self.count} from {self.first_index}, {self.dropped} dropped>"


class Receipt:
    """The promise of an append. It is fulfilled once: with an `Appended`, or an error."""

    __slots__ = ("_callbacks", "_error", "_futures", "_lock", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._value: Appended | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Receipt], None]] | None = None
        self._futures: list[asyncio.Future[None]] | None = None

    @property
    def done(self) -> bool:
        return self._value is not None or self._error is not None

    def result(self, timeout: float | None = None) -> Appended:
        """Wait until the records are on disk. Raises what went wrong, or `LogBusy` on timeout."""
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            raise LogBusy(
                f"not confirmed within {timeout} s; the records may still be stored: "
                "wait on, or send them again under the same producer ids"
            )
        self._lock.release()
        if self._error is not None:
            raise self._error
        assert self._value is not None
        return self._value

    def on_done(self, callback: Callable[[Receipt], None]) -> None:
        """Call `callback(receipt)` when done, in the log's commit thread; it must not block."""
        with _registering:
            if not self.done:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        callback(self)

    def __await__(self) -> Generator[Any, None, Appended]:
        if not self.done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            with _registering:
                waits = not self.done
                if waits:
                    if self._futures is None:
                        self._futures = []
                    self._futures.append(future)
            if waits:
                yield from future
        return self.result()


_registering = threading.Lock()
"""One for all receipts: it is held for an append to a list, and spares a lock in each receipt."""


def fulfil(outcomes: Sequence[tuple[Receipt, Appended | BaseException]]) -> None:
    """Settle many receipts; each event loop that waits is woken once."""
    callbacks: list[tuple[Callable[[Receipt], None], Receipt]] = []
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for receipt, outcome in outcomes:
        with _registering:
            if isinstance(outcome, BaseException):
                receipt._error = outcome
            else:
                receipt._value = outcome
        receipt._lock.release()
        if receipt._callbacks is not None:
            callbacks.extend((each, receipt) for each in receipt._callbacks)
            receipt._callbacks = None
        if receipt._futures is not None:
            for future in receipt._futures:
                by_loop.setdefault(future.get_loop(), []).append(future)
            receipt._futures = None
    for loop, futures in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(wake_futures, futures)
    for callback, receipt in callbacks:
        callback(receipt)


def wake_futures(futures: list[asyncio.Future[None]]) -> None:
    """Complete futures, in their own loop."""
    for future in futures:
        if not future.done():
            future.set_result(None)
