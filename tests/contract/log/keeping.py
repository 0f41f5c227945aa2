"""Keeping house: trimming and retention by whole segments, never past a registered group."""

from __future__ import annotations

import pytest

from penstock import limits
from penstock.log import Batch, Log, StreamSettings
from tests.contract.log.base import SMALL, Base, Clock
from tests.records import eventually, numbered, padded, read_all


def fill(log: Log, stream: str, records: int = 100, partition: int = 0) -> None:
    """Records of 2,000 bytes, in segments of about 10 (and perhaps some behind)."""
    for start in range(0, records, 10):
        log.append(stream, numbered(10, start), partition)
        log.checkpoint()


def retained(log: Log, rounds: int = 3) -> None:
    """Apply retention until nothing more can go: a growing segment is closed first."""
    for _ in range(rounds):
        log.apply_retention()
        log.checkpoint()


def small(**changes: object) -> StreamSettings:
    settings = {"segment_bytes": limits.SEGMENT_BYTES_MIN, **changes}
    return StreamSettings(**settings)  # type: ignore[arg-type]


class KeepingHouse(Base):
    def test_by_default_everything_is_kept(self, log: Log, name: str) -> None:
        log.create_stream(name, settings=SMALL)
        fill(log, name)
        log.apply_retention()
        assert log.bounds(name, 0) == (0, 100)
        assert read_all(log, name) == [padded(number) for number in range(100)]

    # -- trimming --------------------------------------------------------------------------------

    def test_trimming_drops_whole_segments_below_an_index(self, log: Log, name: str) -> None:
        log.create_stream(name, settings=SMALL)
        fill(log, name)
        before = log.describe(name).partitions[0]
        earliest = log.trim(name, 0, 55)
        assert 30 <= earliest <= 55
        after = log.describe(name).partitions[0]
        assert after.earliest == earliest
        assert after.segments < before.segments
        assert after.bytes < before.bytes
        assert read_all(log, name) == [padded(number) for number in range(earliest, 100)]

    def test_trimming_past_the_end_keeps_indexes_going(self, log: Log, name: str) -> None:
        log.create_stream(name, settings=SMALL)
        fill(log, name)
        assert log.trim(name, 0, 10_000) <= 100
        assert log.append(name, Batch.of([b"next"])).first_index == 100
        assert read_all(log, name)[-1] == b"next"

    def test_trimming_nothing_is_no_error(self, log: Log, stream: str) -> None:
        assert log.trim(stream, 0, 10) == 0
        log.append(stream, numbered(3))
        assert log.trim(stream, 0, 3) == 0

    def test_trimming_never_goes_back(self, log: Log, name: str) -> None:
        log.create_stream(name, settings=SMALL)
        fill(log, name)
        earliest = log.trim(name, 0, 60)
        assert log.trim(name, 0, 10) == earliest

    def test_a_registered_group_holds_trimming_back(self, log: Log, name: str) -> None:
        log.create_stream(name, settings=SMALL)
        log.register_group("g", name)
        fill(log, name)
        assert log.trim(name, 0, 90) == 0
        log.save_positions("g", name, {0: 40})
        assert 20 <= log.trim(name, 0, 90) <= 40

    # -- retention -------------------------------------------------------------------------------

    def test_retention_by_records_keeps_at_least_so_many(self, log: Log, name: str) -> None:
        log.create_stream(name, settings=small(retention_records=30))
        fill(log, name)
        retained(log)
        earliest, end = log.bounds(name, 0)
        assert end == 100
        assert 40 <= earliest <= 70
        assert read_all(log, name) == [padded(number) for number in range(earliest, 100)]

    def test_retention_by_bytes_keeps_about_so_much(self, log: Log, name: str) -> None:
        log.create_stream(name, settings=small(retention_bytes=50_000, compression="none"))
        fill(log, name)
        retained(log)
        kept = log.describe(name).partitions[0]
        assert kept.earliest > 0
        assert 40_000 <= kept.bytes <= 100_000

    def test_retention_by_age_keeps_what_is_young(
        self, clocked: Log, clock: Clock, name: str
    ) -> None:
        clocked.create_stream(name, settings=small(retention_seconds=60.0))
        fill(clocked, name, 50)
        clock.pass_seconds(61)
        for start in range(50, 100, 10):
            clocked.append(name, numbered(10, start))
            clocked.checkpoint()
        retained(clocked)
        earliest, _ = clocked.bounds(name, 0)
        assert 30 <= earliest <= 50
        assert read_all(clocked, name) == [padded(number) for number in range(earliest, 100)]

    def test_everything_old_goes_even_if_nothing_new_comes(
        self, clocked: Log, clock: Clock, name: str
    ) -> None:
        clocked.create_stream(name, settings=small(retention_seconds=60.0))
        fill(clocked, name, 20)
        clock.pass_seconds(61)

        def all_gone() -> bool:
            clocked.apply_retention()
            return clocked.bounds(name, 0) == (20, 20)

        eventually(all_gone)
        assert clocked.append(name, Batch.of([b"next"])).first_index == 20
        assert read_all(clocked, name) == [b"next"]

    def test_what_all_registered_groups_have_read_can_go(self, log: Log, name: str) -> None:
        log.create_stream(name, settings=small(retention_read=True))
        fill(log, name)
        retained(log)
        assert log.bounds(name, 0)[0] == 0, "nobody is registered, so nobody has read it"
        log.register_group("slow", name)
        log.register_group("fast", name)
        log.save_positions("fast", name, {0: 100})
        log.save_positions("slow", name, {0: 40})
        retained(log)
        assert 20 <= log.bounds(name, 0)[0] <= 40
        log.save_positions("slow", name, {0: 100})
        retained(log)
        assert log.bounds(name, 0)[0] >= 80

    @pytest.mark.parametrize(
        "settings",
        [
            small(retention_records=0),
            small(retention_bytes=0),
            small(retention_seconds=0.0),
        ],
        ids=["records", "bytes", "age"],
    )
    def test_a_registered_group_holds_retention_back(
        self, clocked: Log, clock: Clock, name: str, settings: StreamSettings
    ) -> None:
        clocked.create_stream(name, settings=settings)
        clocked.register_group("g", name)
        fill(clocked, name)
        clocked.save_positions("g", name, {0: 35})
        clock.pass_seconds(3600)
        outcome = {each.stream: each for each in clocked.apply_retention()}
        assert outcome[name].held_by == "g"
        assert outcome[name].earliest == outcome[name].records
        retained(clocked)
        assert 10 <= clocked.bounds(name, 0)[0] <= 35
        clocked.drop_group("g", name)
        retained(clocked)
        assert clocked.bounds(name, 0)[0] >= 80

    def test_retention_tells_what_it_dropped(self, log: Log, name: str) -> None:
        log.create_stream(name, settings=small(retention_records=30))
        fill(log, name)
        (dropped,) = [each for each in log.apply_retention() if each.stream == name]
        assert (dropped.partition, dropped.held_by) == (0, None)
        assert dropped.records == dropped.earliest == log.bounds(name, 0)[0]

    def test_each_partition_is_kept_by_itself(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=2, settings=small(retention_records=30))
        log.register_group("g", name)
        log.save_positions("g", name, {1: 0})
        for partition in range(2):
            fill(log, name, 100, partition)
        log.save_positions("g", name, {0: 100})
        retained(log)
        assert log.bounds(name, 0)[0] >= 40
        assert log.bounds(name, 1)[0] == 0
        assert len(read_all(log, name, 1)) == 100
