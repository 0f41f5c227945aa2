"""Readers that wait at the end of a partition, and how a commit wakes them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable

from penstock import limits
from penstock.errors import TooMany
from penstock.log.ends import Pids
from penstock.log.receipt import wake_futures


class Waiters:
    """Callbacks by partition; each is called once."""

    def __init__(self) -> None:
        self._by_pid: dict[int, set[Callable[[], None]]] = {}
        self._count = 0
        self._lock = threading.Lock()

    def add(self, pid: int, callback: Callable[[], None]) -> None:
        with self._lock:
            if self._count >= limits.WAITERS_MAX:
                raise TooMany(f"{self._count} readers wait already, at most {limits.WAITERS_MAX}")
            waiting = self._by_pid.setdefault(pid, set())
            if callback not in waiting:
                waiting.add(callback)
                self._count += 1

    def remove(self, pid: int, callback: Callable[[], None]) -> None:
        with self._lock:
            waiting = self._by_pid.get(pid)
            if waiting is not None and callback in waiting:
                waiting.remove(callback)
                self._count -= 1
                if not waiting:
                    del self._by_pid[pid]

    def wait(self, pid: int, reached: Callable[[], bool], seconds: float) -> None:
        """Wait until `reached`, which is looked at whenever the partition is woken."""
        came = threading.Event()
        deadline = time.monotonic() + min(seconds, limits.FOLLOW_S_MAX)
        while True:
            came.clear()
            self.add(pid, came.set)
            try:
                left = deadline - time.monotonic()
                if reached() or left <= 0:
                    return
                came.wait(left)
            finally:
                self.remove(pid, came.set)

    async def wait_async(self, pid: int, reached: Callable[[], bool], seconds: float) -> None:
        """Like `wait`, for a coroutine."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(seconds, limits.FOLLOW_S_MAX)
        while True:
            came: asyncio.Future[None] = loop.create_future()
            wake = future_waker(came)
            self.add(pid, wake)
            try:
                left = deadline - loop.time()
                if reached() or left <= 0:
                    return
                await asyncio.wait([came], timeout=left)
            finally:
                self.remove(pid, wake)

    def wake(self, touched: Iterable[Pids]) -> None:
        """Records came to these partitions."""
        if not self._by_pid:
            return
        called: list[Callable[[], None]] = []
        with self._lock:
            for pids in touched:
                few = (
                    pids.tolist()
                    if len(pids) <= len(self._by_pid)
                    else self._by_pid.keys() & set(pids.tolist())
                )
                for pid in few:
                    waiting = self._by_pid.pop(pid, None)
                    if waiting:
                        called.extend(waiting)
                        self._count -= len(waiting)
        for callback in called:
            callback()

    def wake_all(self) -> None:
        """The log closes."""
        with self._lock:
            called = [callback for waiting in self._by_pid.values() for callback in waiting]
            self._by_pid.clear()
            self._count = 0
        for callback in called:
            callback()


def future_waker(future: asyncio.Future[None]) -> Callable[[], None]:
    """A callback for any thread that completes `future` in its loop."""
    loop = future.get_loop()

    def wake() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(wake_futures, [future])

    return wake
