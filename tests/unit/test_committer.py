"""The group commit, with a disk whose syncs can be held."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.errors import LogBusy, TooMany, UnknownStream
from penstock.log import Batch, EmbeddedLog, open_log, small_log
from penstock.log.committer import split_runs
from penstock.log.disk import File, RealDisk
from tests.records import eventually, read_all

LONG = 60.0


class Gate:
    """Holds the journal's syncs while it is shut."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.waiting = threading.Event()
        self.syncs = 0

    def pass_through(self) -> None:
        self.syncs += 1
        if not self.open.is_set():
            self.waiting.set()
            assert self.open.wait(LONG)


class GatedDisk(RealDisk):
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        file = super().open(path, create=create, writable=writable)
        if path.name == "journal" and writable:
            sync, gate = file.sync, self._gate

            def gated() -> None:
                gate.pass_through()
                sync()

            file.sync = gated  # type: ignore[method-assign]
        return file


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def log(tmp_path: Path, gate: Gate) -> Iterator[EmbeddedLog]:
    settings = small_log(buffer_bytes=200_000, record_bytes_max=256 * limits.KIB)
    with open_log(tmp_path, settings, writer="inline", disk=GatedDisk(gate)) as log:
        log.create_stream("s")
        yield log
        gate.open.set()


def hold(log: EmbeddedLog, gate: Gate) -> Any:
    """Hand over a batch, and return its receipt once its sync is held."""
    gate.open.clear()
    gate.waiting.clear()
    receipt = log.submit(log.locate("s", 0), Batch.of([b"held"]))
    assert gate.waiting.wait(LONG)
    return receipt


def test_nothing_is_confirmed_or_seen_before_it_is_synced(log: EmbeddedLog, gate: Gate) -> None:
    receipt = hold(log, gate)
    assert not receipt.done
    assert log.bounds("s", 0) == (0, 0)
    assert log.read("s", 0, 0) == []
    gate.open.set()
    assert receipt.result(LONG).first_index == 0
    assert read_all(log, "s") == [b"held"]


def test_what_gathers_during_a_sync_shares_the_next_one(log: EmbeddedLog, gate: Gate) -> None:
    hold(log, gate)
    before = gate.syncs
    target = log.locate("s", 0)
    receipts = [log.submit(target, Batch.of([b"%d" % number])) for number in range(50)]
    gate.open.set()
    assert [receipt.result(LONG).first_index for receipt in receipts] == list(range(1, 51))
    assert gate.syncs == before + 1


def test_a_full_buffer_refuses_and_says_so(log: EmbeddedLog, gate: Gate) -> None:
    hold(log, gate)
    target = log.locate("s", 0)
    half = Batch.of([bytes(100_000)])
    log.submit(target, half)
    with pytest.raises(LogBusy, match="the buffer holds 200000: wait"):
        log.submit(target, half)
    assert log.buffered_bytes <= 200_000
    gate.open.set()
    log.append("s", half)
    assert log.bounds("s", 0) == (0, 3)
    eventually(lambda: log.buffered_bytes == 0)


def test_who_waits_for_room_is_called_when_there_is_some(log: EmbeddedLog, gate: Gate) -> None:
    assert log.when_room(150_000, lambda: None)
    hold(log, gate)
    log.submit(log.locate("s", 0), Batch.of([bytes(150_000)]))
    called = threading.Event()
    assert not log.when_room(100_000, called.set)
    assert not called.is_set()
    gate.open.set()
    assert called.wait(LONG)


def test_a_batch_larger_than_the_buffer_is_taken_when_it_is_empty(log: EmbeddedLog) -> None:
    assert log.append("s", Batch.of([bytes(250_000)])).count == 1


def test_appenders_wait_for_room_in_threads_and_coroutines(log: EmbeddedLog, gate: Gate) -> None:
    hold(log, gate)
    large = Batch.of([bytes(90_000)])
    threads = [threading.Thread(target=log.append, args=("s", large)) for _ in range(6)]
    for thread in threads:
        thread.start()

    async def everyone() -> None:
        tasks = [asyncio.ensure_future(log.append_async("s", large)) for _ in range(6)]
        await asyncio.sleep(0)
        assert log.buffered_bytes <= 200_000
        gate.open.set()
        await asyncio.gather(*tasks)

    asyncio.run(everyone())
    for thread in threads:
        thread.join()
    assert log.bounds("s", 0) == (0, 13)


def test_a_stream_deleted_before_its_records_are_written_fails_them_alone(
    log: EmbeddedLog, gate: Gate
) -> None:
    log.create_stream("t")
    hold(log, gate)
    gone = log.submit(log.locate("t", 0), Batch.of([b"v"]))
    kept = log.submit(log.locate("s", 0), Batch.of([b"v"]))
    log.delete_stream("t")
    gate.open.set()
    with pytest.raises(UnknownStream, match="deleted meanwhile"):
        gone.result(LONG)
    assert kept.result(LONG).first_index == 1


def test_closing_waits_for_what_was_handed_over(log: EmbeddedLog, gate: Gate) -> None:
    receipt = hold(log, gate)
    second = log.submit(log.locate("s", 0), Batch.of([b"second"]))
    closing = threading.Thread(target=log.close)
    closing.start()
    gate.open.set()
    closing.join()
    assert (receipt.result(0).first_index, second.result(0).first_index) == (0, 1)


@pytest.mark.parametrize("linger", [0.0, 0.002])
def test_small_appends_are_stored_with_and_without_linger(tmp_path: Path, linger: float) -> None:
    with open_log(tmp_path, small_log(linger_seconds=linger), writer="inline") as log:
        log.create_stream("s")
        target = log.locate("s", 0)
        for number in range(150):
            receipts = [log.submit(target, Batch.of([b"v"])) for _ in range(number % 3 + 1)]
            for receipt in receipts:
                receipt.result(LONG)
        assert log.bounds("s", 0) == (0, 300)


def test_relaxed_durability_confirms_before_the_sync(tmp_path: Path, gate: Gate) -> None:
    settings = small_log(durability="relaxed", relaxed_sync_seconds=3600.0)
    with open_log(tmp_path, settings, writer="inline", disk=GatedDisk(gate)) as log:
        log.create_stream("s")
        log.append("s", Batch.of([b"0"]))
        before = gate.syncs
        for number in range(1, 20):
            log.append("s", Batch.of([b"%d" % number]))
        assert gate.syncs == before
        assert len(read_all(log, "s")) == 20
        log.checkpoint()
        assert gate.syncs > before, "a checkpoint never says more than the journal holds"
    with open_log(tmp_path, settings, writer="inline") as log:
        assert read_all(log, "s") == [b"%d" % number for number in range(20)]


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=60))
def test_rows_are_split_into_runs(numbers: list[int]) -> None:
    pids, counts, slots = split_runs(np.array(numbers, np.uint32))
    assert pids.tolist() == sorted(set(numbers))
    assert counts.tolist() == [numbers.count(pid) for pid in pids.tolist()]
    if len(pids) == 1:
        assert slots is None
    else:
        assert slots is not None
        assert pids[slots].tolist() == numbers


def test_a_batch_touches_at_most_so_many_partitions() -> None:
    most = limits.BATCH_PARTITIONS_MAX
    pids, _, slots = split_runs(np.arange(most, dtype=np.uint32))
    assert slots is not None
    assert pids[slots].tolist() == list(range(most))
    for spread in (1, 40):
        with pytest.raises(TooMany, match=f"at most {most}"):
            split_runs(np.arange(most + 1, dtype=np.uint32) * spread)
