"""Streams: made, listed, described, changed, grown, deleted; and what may name one."""

from __future__ import annotations

import pytest

from penstock import limits
from penstock.errors import (
    BadName,
    BadSetting,
    StreamExists,
    TooMany,
    UnknownPartition,
    UnknownStream,
)
from penstock.log import Batch, Log, StreamSettings
from tests.contract.log.base import Base
from tests.records import read_all, values


class StreamsAndPartitions(Base):
    def test_a_new_stream_is_listed_and_described(self, log: Log, name: str) -> None:
        made = log.create_stream(name, partitions=3)
        assert name in log.streams()
        assert log.describe(name) == made
        assert made.name == name
        assert [each.number for each in made.partitions] == [0, 1, 2]
        assert all(each.earliest == each.end == 0 for each in made.partitions)

    def test_streams_are_listed_in_order(self, log: Log, name: str) -> None:
        for suffix in "cab":
            log.create_stream(name + suffix)
        assert log.streams() == sorted(log.streams())

    def test_describing_tells_how_far_each_partition_goes(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=2)
        log.append(name, Batch.of([b"a", b"b", b"c"]), 1)
        assert [each.end for each in log.describe(name).partitions] == [0, 3]

    def test_settings_are_kept_and_can_be_changed(self, log: Log, name: str) -> None:
        first = StreamSettings(retention_seconds=60.0, compression="zstd")
        assert log.create_stream(name, settings=first).settings == first
        second = StreamSettings(retention_records=10, segment_bytes=limits.SEGMENT_BYTES_MIN)
        assert log.change_settings(name, second).settings == second
        assert log.describe(name).settings == second

    def test_bad_settings_change_nothing(self, log: Log, name: str) -> None:
        with pytest.raises(BadSetting):
            log.create_stream(name, settings=StreamSettings(retention_records=-1))
        assert name not in log.streams()
        log.create_stream(name)
        with pytest.raises(BadSetting):
            log.change_settings(name, StreamSettings(segment_bytes=1))
        assert log.describe(name).settings == StreamSettings()

    def test_partitions_can_be_added_and_keep_what_was_there(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=1)
        log.append(name, Batch.of([b"before"]), 0)
        grown = log.add_partitions(name, 3)
        assert [each.end for each in grown.partitions] == [1, 0, 0]
        log.append(name, Batch.of([b"after"]), 2)
        assert read_all(log, name, 0) == [b"before"]
        assert read_all(log, name, 2) == [b"after"]

    def test_adding_no_partitions_is_no_error(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=2)
        assert len(log.add_partitions(name, 2).partitions) == 2

    def test_partitions_cannot_be_taken_away(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=2)
        with pytest.raises(TooMany, match="cannot have fewer"):
            log.add_partitions(name, 1)
        assert len(log.describe(name).partitions) == 2

    def test_a_deleted_stream_is_gone(self, log: Log, stream: str) -> None:
        log.append(stream, Batch.of([b"a"]))
        target = log.locate(stream, 0)
        log.delete_stream(stream)
        assert stream not in log.streams()
        with pytest.raises(UnknownStream):
            log.read(stream, 0, 0)
        with pytest.raises(UnknownStream):
            log.append(stream, Batch.of([b"b"]))
        with pytest.raises(UnknownStream):
            log.submit(target, Batch.of([b"c"])).result()

    @pytest.mark.parametrize("checkpoint", [False, True], ids=["in the journal", "in segments"])
    def test_a_stream_made_again_begins_empty(
        self, log: Log, stream: str, checkpoint: bool
    ) -> None:
        log.append(stream, Batch.of([b"old"]), producer="p", ids=[7])
        log.save_positions("g", stream, {0: 1})
        if checkpoint:
            log.checkpoint()
        log.delete_stream(stream)
        log.create_stream(stream)
        assert log.bounds(stream, 0) == (0, 0)
        assert log.last_id("p", stream, 0) is None
        assert log.position("g", stream, 0) is None
        log.append(stream, Batch.of([b"new"]))
        assert read_all(log, stream) == [b"new"]
        log.checkpoint()
        assert read_all(log, stream) == [b"new"]

    def test_deleting_under_load_harms_no_other_stream(self, log: Log, name: str) -> None:
        keep = log.create_stream(f"{name}-keep").name
        for number in range(5):
            log.create_stream(name)
            both = [log.locate(keep, 0), log.locate(name, 0)]
            receipts = [
                log.submit(target, Batch.of([b"%d" % number] * 500), wait_for_room=True)
                for target in both * 5
            ]
            log.delete_stream(name)
            for receipt in receipts[::2]:
                receipt.result()
        log.checkpoint()
        assert len(read_all(log, keep)) == 5 * 5 * 500

    @pytest.mark.parametrize(
        "bad", ["", ".", "..", "a/b", "a b", "ä", "a\n", "a\x00", "x" * 250, "a:b", "*"]
    )
    def test_names_outside_kafkas_rule_are_refused(self, log: Log, bad: str) -> None:
        with pytest.raises(BadName):
            log.create_stream(bad)
        assert bad not in log.streams()

    @pytest.mark.parametrize("good", ["a", "A.b_c-9", "-", "_", "...", "x" * 249])
    def test_names_within_kafkas_rule_are_taken(self, log: Log, good: str) -> None:
        log.create_stream(good)
        log.append(good, Batch.of([b"v"]))
        log.checkpoint()
        assert values(log.read(good, 0, 0)) == [b"v"]
        log.delete_stream(good)

    def test_a_name_can_be_taken_once(self, log: Log, stream: str) -> None:
        with pytest.raises(StreamExists):
            log.create_stream(stream)

    def test_names_that_differ_only_in_dot_and_underscore_clash(self, log: Log, name: str) -> None:
        log.create_stream(f"{name}.a_b")
        with pytest.raises(StreamExists, match="Kafka"):
            log.create_stream(f"{name}_a.b")
        log.delete_stream(f"{name}.a_b")
        log.create_stream(f"{name}_a.b")

    @pytest.mark.parametrize("count", [0, -1, limits.PARTITIONS_PER_STREAM_MAX + 1])
    def test_a_stream_has_one_to_many_partitions(self, log: Log, name: str, count: int) -> None:
        with pytest.raises(TooMany, match=str(limits.PARTITIONS_PER_STREAM_MAX)):
            log.create_stream(name, partitions=count)
        assert name not in log.streams()

    def test_an_unknown_stream_is_named_in_the_error(self, log: Log, stream: str) -> None:
        for ask in (
            lambda: log.describe("nowhere"),
            lambda: log.change_settings("nowhere", StreamSettings()),
            lambda: log.add_partitions("nowhere", 2),
            lambda: log.delete_stream("nowhere"),
            lambda: log.locate("nowhere", 0),
            lambda: log.append("nowhere", Batch.of([b"v"])),
            lambda: log.bounds("nowhere", 0),
            lambda: log.read("nowhere", 0, 0),
            lambda: log.wait("nowhere", 0, 0, 1.0),
            lambda: log.index_at("nowhere", 0, 0),
            lambda: log.last_id("p", "nowhere", 0),
            lambda: log.register_group("g", "nowhere"),
            lambda: log.position("g", "nowhere", 0),
            lambda: log.save_positions("g", "nowhere", {0: 0}),
            lambda: log.trim("nowhere", 0, 0),
        ):
            with pytest.raises(UnknownStream, match="nowhere"):
                ask()

    @pytest.mark.parametrize("number", [-1, 1])
    def test_an_unknown_partition_is_refused(self, log: Log, stream: str, number: int) -> None:
        for ask in (
            lambda: log.locate(stream, number),
            lambda: log.append(stream, Batch.of([b"v"]), number),
            lambda: log.read(stream, number, 0),
            lambda: log.bounds(stream, number),
            lambda: log.last_id("p", stream, number),
            lambda: log.save_positions("g", stream, {number: 0}),
        ):
            with pytest.raises(UnknownPartition, match="0 to 0"):
                ask()
