"""Relaxed durability: what a power cut may take, and what it never breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import StorageFailed
from penstock.log import Batch, EmbeddedLog, LogSettings, open_log, small_log
from penstock.testing import FakeDisk, Loss

DATA = Path("/data")
NEVER = small_log(durability="relaxed", relaxed_sync_seconds=3600.0)
SOON = small_log(durability="relaxed", relaxed_sync_seconds=0.01)


def opened(disk: FakeDisk, settings: LogSettings = NEVER) -> EmbeddedLog:
    return open_log(DATA, settings, disk=disk, writer="inline")


def values(log: EmbeddedLog) -> list[bytes]:
    return [value for batch in log.read("s", 0, 0) for value in batch.column("value").to_pylist()]


@pytest.fixture
def disk() -> FakeDisk:
    """A log with one synced record and ten that were confirmed before any sync."""
    disk = FakeDisk()
    log = opened(disk)
    log.create_stream("s")
    log.append("s", Batch.of([b"synced"]), 0, producer="p", ids=[0])
    log.checkpoint()
    for number in range(1, 11):
        log.append("s", Batch.of([b"%d" % number]), 0, producer="p", ids=[number])
    return disk


def test_a_killed_process_loses_nothing(disk: FakeDisk) -> None:
    with opened(disk.after_crash(Loss.killed())) as log:
        assert values(log) == [b"synced", *(b"%d" % n for n in range(1, 11))]


@pytest.mark.parametrize("seed", range(30))
def test_a_power_cut_leaves_a_beginning_and_never_a_gap(disk: FakeDisk, seed: int) -> None:
    """Any mixture of writes may be on disk, later ones without earlier ones."""
    after = disk.after_crash(Loss(writes="mixed", seed=seed))
    with opened(after) as log:
        found = values(log)
        assert found == [b"synced", *(b"%d" % n for n in range(1, 11))][: len(found)]
        assert log.last_id("p", "s", 0) == len(found) - 1
        log.append("s", Batch.of([b"on"]), 0)
    with opened(after) as log:
        assert values(log) == [*found, b"on"]


def test_a_clean_close_syncs_everything(disk: FakeDisk) -> None:
    again = disk.after_crash(Loss.killed())
    opened(again).close()
    with opened(again.after_crash(Loss.unsynced())) as log:
        assert len(values(log)) == 11


def test_a_sync_that_fails_later_stops_the_log() -> None:
    disk = FakeDisk()
    log = opened(disk, SOON)
    log.create_stream("s")
    disk.fail("sync", "journal")
    with pytest.raises(StorageFailed):  # noqa: PT012 - some appends are confirmed before
        for _ in range(10_000):
            log.append("s", Batch.of([b"v"]), 0)
    assert isinstance(log.failed, StorageFailed)
    log.close()
