from __future__ import annotations

import asyncio

import numpy as np
import pytest

from penstock import limits
from penstock.errors import TooMany
from penstock.log.waiters import Waiters, future_waker


def pids(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array(numbers, np.uint32)


def test_only_those_who_wait_there_are_called_and_once() -> None:
    waiters = Waiters()
    called: list[str] = []
    waiters.add(1, lambda: called.append("one"))
    waiters.add(2, lambda: called.append("two"))
    waiters.wake([pids(3)])
    assert called == []
    waiters.wake([pids(1), pids(1, 7)])
    waiters.wake([pids(1)])
    assert called == ["one"]
    waiters.wake([pids(*range(50))])
    assert called == ["one", "two"]


def test_one_who_left_is_not_called() -> None:
    waiters = Waiters()
    called: list[int] = []

    def callback() -> None:
        called.append(1)

    waiters.add(1, callback)
    waiters.remove(1, callback)
    waiters.remove(1, callback)
    waiters.remove(9, callback)
    waiters.wake([pids(1)])
    assert called == []


def test_closing_wakes_everyone() -> None:
    waiters = Waiters()
    called: list[int] = []
    for number in range(5):
        waiters.add(number % 2, lambda number=number: called.append(number))  # type: ignore[misc]
    waiters.wake_all()
    waiters.wake_all()
    assert sorted(called) == list(range(5))


def test_so_many_can_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAITERS_MAX", 3)
    waiters = Waiters()

    def callback() -> None: ...

    for number in range(3):
        waiters.add(number, callback)
    with pytest.raises(TooMany, match="at most 3"):
        waiters.add(3, callback)
    waiters.remove(0, callback)
    waiters.add(3, callback)
    waiters.wake_all()
    for number in range(3):
        waiters.add(number, callback)


def test_the_same_callback_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAITERS_MAX", 2)
    waiters = Waiters()

    def callback() -> None: ...

    for _ in range(10):
        waiters.add(1, callback)
        waiters.add(1, callback)
        waiters.remove(1, callback)


def test_a_future_is_woken_from_another_thread_and_may_be_done_already() -> None:
    async def run() -> bool:
        future = asyncio.get_running_loop().create_future()
        wake = future_waker(future)
        await asyncio.to_thread(wake)
        await future
        await asyncio.to_thread(wake)
        await asyncio.sleep(0)
        return future.done()

    assert asyncio.run(run())


def test_a_loop_that_has_ended_is_left_alone() -> None:
    async def run() -> object:
        return future_waker(asyncio.get_running_loop().create_future())

    wake = asyncio.run(run())
    assert callable(wake)
    wake()
