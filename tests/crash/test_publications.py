"""Publications under crashes at every operation: an epoch is there whole and once, or not."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pyarrow as pa
import pytest

from penstock.log import EmbeddedLog
from penstock.testing import FakeDisk, Loss
from tests.crash.workload import KIB, _quiet_crashes, _small_limits, opened
from tests.records import read_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
__all__ = ["_quiet_crashes", "_small_limits"]

EPOCHS = 2
ROWS = 30


def rows(epoch: int, part: int) -> pa.RecordBatch:
    """Rows of 300 bytes: an epoch is larger than a commit of the small log."""
    numbers = range(part * ROWS, (part + 1) * ROWS)
    return pa.RecordBatch.from_pydict(
        {
            "topic": ["b" if number % 3 else "a" for number in numbers],
            "key": [b"%d" % number for number in numbers],
            "value": [(b"%d/%d " % (epoch, number)).ljust(300, b".") for number in numbers],
        }
    )


def write_epoch(log: EmbeddedLog, epoch: int) -> None:
    parts = []
    for number in range(2):
        part = log.stage("w", epoch)
        part.write(rows(epoch, number))
        parts.append(part.finish())
    log.publish("w", epoch, parts)


def found_epochs(log: EmbeddedLog) -> set[int]:
    """Checks that each epoch that is there is there whole and once, in order within partitions."""
    found: dict[int, list[int]] = {}
    for stream, number in (("a", 0), ("b", 0), ("b", 1)):
        last = (-1, -1)
        for value in read_all(log, stream, number):
            epoch, row = map(int, value.split(b" ")[0].split(b"/"))
            assert (epoch, row) > last
            last = (epoch, row)
            found.setdefault(epoch, []).append(row)
    for epoch, numbers in found.items():
        assert sorted(numbers) == list(range(2 * ROWS)), f"epoch {epoch} is there in part"
    assert sorted(found) == list(range(len(found)))
    return set(found)


def work(disk: FakeDisk, done: list[int]) -> None:
    with opened(disk) as log:
        log.create_stream("a", 1)
        log.create_stream("b", 2)
        for epoch in range(EPOCHS):
            write_epoch(log, epoch)
            done.append(epoch)


def test_an_epoch_is_there_whole_and_once_whenever_the_log_crashes() -> None:
    disk, done = FakeDisk(), list[int]()
    points: list[tuple[tuple[str, str], FakeDisk, list[int]]] = []
    disk.on_operation = lambda _: points.append(
        (disk.history[-1], disk.after_crash(Loss.killed()), copy.copy(done))
    )
    work(disk, done)
    assert len(points) > 100
    finished = 0
    for number, (what, frozen, confirmed) in enumerate(points):
        losses = [Loss.killed(), Loss.unsynced(names="lost")]
        if number % 3 == 0:
            losses += [Loss.unsynced(names="kept"), Loss.mixed(number)]
        for loss in losses:
            crashed = frozen.after_crash(loss)
            with opened(crashed) as log:
                if "b" not in log.streams():
                    assert not confirmed
                    continue
                there = found_epochs(log)
                assert there >= set(confirmed), (number, what, loss)
                finished += len(there) > len(confirmed)
                for epoch in range(EPOCHS):  # Spark repeats the epoch it does not know the end of
                    write_epoch(log, epoch)
                assert found_epochs(log) == set(range(EPOCHS)), (number, what, loss)
                assert log._publisher._staging.bytes == 0
    assert finished, "no crash fell between the note and its end"


def test_a_full_disk_in_the_middle_shows_nothing_and_is_finished_later() -> None:
    disk, done = FakeDisk(), list[int]()
    with opened(disk) as log:
        log.create_stream("a", 1)
        log.create_stream("b", 2)
        write_epoch(log, 0)
        before = [log.bounds(stream, number) for stream, number in (("a", 0), ("b", 0), ("b", 1))]
        log._publisher._synced = _fail_once(log._publisher._synced)
        with pytest.raises(OSError, match="full"):
            write_epoch(log, 1)
        after = [log.bounds(stream, number) for stream, number in (("a", 0), ("b", 0), ("b", 1))]
        assert after == before
        write_epoch(log, 1)
        assert found_epochs(log) == {0, 1}
        done.append(1)
    with opened(disk) as log:
        assert found_epochs(log) == {0, 1}


def test_another_writer_finishes_what_holds_its_partitions() -> None:
    with opened(FakeDisk()) as log:
        log.create_stream("a", 1)
        log.create_stream("b", 2)
        log._publisher._synced = _fail_once(log._publisher._synced)
        with pytest.raises(OSError, match="full"):
            write_epoch(log, 0)
        part = log.stage("other", 0)
        part.write(pa.RecordBatch.from_pydict({"topic": ["a"], "value": [b"last"]}))
        log.publish("other", 0, [part.finish()])
        values = read_all(log, "a")
        assert values[-1] == b"last"
        assert len(values) == 21


def _fail_once(call: Callable[[], None]) -> Callable[[], None]:
    failed: list[bool] = []

    def once() -> None:
        if not failed:
            failed.append(True)
            raise OSError("the disk is full")
        call()

    return once


def test_the_smallest_log_takes_an_epoch_larger_than_its_ring() -> None:
    with opened(FakeDisk()) as log:
        log.create_stream("a", 1)
        part = log.stage("w", 0)
        values = [b"%d" % number for number in range(500)]
        part.write(
            pa.RecordBatch.from_pydict(
                {"topic": ["a"] * 500, "value": [value.ljust(200) for value in values]}
            )
        )
        log.publish("w", 0, [part.finish()])
        assert [value.strip() for value in read_all(log, "a")] == values
        assert log._journal.size < 500 * 200 < 200 * KIB
