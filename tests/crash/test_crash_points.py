"""Power cuts and kills at every operation of a small workload, on a fake disk.

At each operation the disk is frozen as it is, and what a crash there could leave is opened again
in every way a disk may lose what was not synced. `PENSTOCK_CRASH_ROUNDS` raises the number of
random mixtures and torn bytes tried at each point.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import pytest

from penstock.errors import PenstockError
from penstock.testing import Crashed, FakeDisk, Ledger, Loss, check_log
from tests.crash.workload import (
    RING,
    Client,
    _quiet_crashes,
    _small_limits,
    go_on,
    opened,
    run,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]

__all__ = ["_quiet_crashes", "_small_limits"]

SEEDS = max(1, int(os.environ.get("PENSTOCK_CRASH_ROUNDS", "20")) // 20)
"""Mixtures tried at each crash point."""


FRAME_AROUND = 104
"""Bytes of a frame beside the value, with one record in one partition: head and offsets."""

SURVIVED: set[tuple[str, str, bool]] = set()


class Point(NamedTuple):
    """The disk in the middle of an operation, and what had been tried and confirmed by then."""

    number: int
    what: tuple[str, str]
    disk: FakeDisk
    ledger: Ledger


@pytest.fixture(name="points", scope="module")
def _points() -> list[Point]:
    with pytest.MonkeyPatch.context() as patch:
        _small_limits.__wrapped__(patch)  # type: ignore[attr-defined]
        disk, ledger = FakeDisk(), Ledger()
        return freeze_everywhere(disk, ledger, lambda: run(disk, ledger))


def freeze_everywhere(disk: FakeDisk, ledger: Ledger, work: Callable[[], None]) -> list[Point]:
    """Run `work` and keep the disk as it was in each operation."""
    points: list[Point] = []

    def keep(number: int) -> None:
        frozen = disk.after_crash(Loss.killed())
        points.append(Point(number, disk.history[-1], frozen, copy.deepcopy(ledger)))

    disk.on_operation = keep
    work()
    disk.on_operation = None
    return points


def survive(point: Point, loss: Loss, *, on: bool = True) -> None:
    """Crash at `point`, open, check; then append on, open and check again."""
    disk, ledger = point.disk.after_crash(loss), copy.deepcopy(point.ledger)
    if loss.power:  # many crashes leave the same disk: once is enough
        same = disk.fingerprint(), ledger.fingerprint(), on
        if same in SURVIVED:
            return
        SURVIVED.add(same)
    try:
        with opened(disk) as log:
            check_log(log, ledger)
            if not loss.power:
                # What was read after a kill must not be taken back by a power cut after that.
                lost = disk.after_crash(Loss.unsynced())
                with opened(lost) as again:
                    check_log(again, copy.deepcopy(ledger))
        if on:
            go_on(disk, ledger, "two")
            with opened(disk.after_crash(Loss.unsynced())) as log:
                check_log(log, ledger)
    except BaseException as error:
        error.add_note(f"crash in operation {point.number} {point.what}, {loss}")
        raise


def test_nothing_confirmed_is_lost_when_the_process_is_killed(points: list[Point]) -> None:
    for point in points:
        survive(point, Loss.killed())


def test_nothing_confirmed_is_lost_when_all_unsynced_writes_are(points: list[Point]) -> None:
    for point in points:
        survive(point, Loss.unsynced(names="lost"))
        survive(point, Loss.unsynced(names="kept"), on=False)
        survive(point, Loss("kept", "lost"), on=False)


def test_nothing_confirmed_is_lost_when_the_disk_reorders_writes(points: list[Point]) -> None:
    for point in points:
        for seed in range(SEEDS):
            survive(point, Loss.mixed(1_000 * point.number + seed))


def test_nothing_confirmed_is_lost_when_the_last_write_is_torn(points: list[Point]) -> None:
    for point in points:
        if point.what[0] == "write":
            for at in torn_places(point):
                survive(point, Loss.torn(at), on=at % 8 == 1)


def torn_places(point: Point) -> list[int]:
    """Every byte of a small write now and then, and some bytes of all others."""
    length = point.disk.torn_bytes
    pick = random.Random(point.number)
    if length <= 16 or (length <= 1024 and pick.random() < 0.02 * SEEDS):
        return [*range(length)]
    places = {0, 1, 63, 64, 65, length - 1, *(pick.randrange(length) for _ in range(SEEDS))}
    return sorted(at for at in places if at < length)


def test_a_crash_ends_every_append_and_never_hangs(points: list[Point]) -> None:
    for number in range(1, len(points) + 1, 5):
        disk, ledger = FakeDisk(), Ledger()
        disk.crash_at(number)
        with suppress(Crashed, PenstockError):
            run(disk, ledger)
        assert disk.crashed
        with opened(disk.after_crash(Loss.unsynced())) as log:
            check_log(log, ledger)


def test_a_crash_during_recovery_is_survived_as_well(points: list[Point]) -> None:
    for point in points[3::29]:
        for first in (Loss.killed(), Loss.mixed(point.number)):
            disk, ledger = point.disk.after_crash(first), copy.deepcopy(point.ledger)
            again = freeze_everywhere(disk, ledger, lambda: recover_and_go_on(disk, ledger))  # noqa: B023
            for second in again[:: max(1, 4 // SEEDS)]:
                survive(second, Loss.mixed(second.number), on=False)
                survive(second, Loss.unsynced(), on=False)


def recover_and_go_on(disk: FakeDisk, ledger: Ledger) -> None:
    with opened(disk) as log:
        check_log(log, ledger)
    go_on(disk, ledger, "two")


def test_a_group_may_reach_the_very_end_of_the_ring_and_go_on_at_its_beginning() -> None:
    disk, ledger = FakeDisk(), Ledger()
    client = Client(ledger, "odd")
    with opened(disk) as log:
        client.create(log, "a", 1)
        while (room := RING - log.committed_lsn % RING) > 1_500:
            client.append(log, "a", 0, count=1, size=900)
        with log._committer._changed:
            waits = [
                client.hand_over(log, "a", 0, count=1, size=room - FRAME_AROUND, plain=True),
                client.hand_over(log, "a", 0, count=1, size=100),
            ]
        for wait in waits:
            wait()
        assert log.committed_lsn % RING < 1_000
        check_log(log, ledger)
    for loss in (Loss.killed(), Loss.unsynced()):
        with opened(disk.after_crash(loss)) as log:
            check_log(log, copy.deepcopy(ledger))
