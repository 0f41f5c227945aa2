"""Producers: the last id is stored with the records, and what is sent again can be dropped."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import limits
from penstock.errors import BadBatch, BadName
from penstock.log import Batch, Log
from tests.contract.log.base import Base, OpenLog
from tests.records import read_all

TOP = 2**64 - 1


def sent(ids: list[int]) -> Batch:
    return Batch.of([b"%d" % number for number in ids])


class SendersWithIds(Base):
    def test_the_last_id_is_known_by_producer_and_partition(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=2)
        assert log.last_id("p", name, 0) is None
        log.append(name, sent([1, 2, 3]), 0, producer="p", ids=[1, 2, 3])
        log.append(name, sent([9]), 1, producer="p", ids=[9])
        log.append(name, sent([4]), 0, producer="q", ids=[4])
        assert log.last_id("p", name, 0) == 3
        assert log.last_id("p", name, 1) == 9
        assert log.last_id("q", name, 0) == 4
        assert log.last_id("q", name, 1) is None

    def test_ids_sent_again_are_dropped(self, log: Log, stream: str) -> None:
        log.append(stream, sent([1, 2, 3]), producer="p", ids=[1, 2, 3], drop_resent=True)
        again = log.append(
            stream, sent([2, 3, 4, 5]), producer="p", ids=[2, 3, 4, 5], drop_resent=True
        )
        assert (again.count, again.dropped) == (2, 2)
        assert again.indexes().tolist() == [-1, -1, 3, 4]
        assert read_all(log, stream) == [b"1", b"2", b"3", b"4", b"5"]
        assert log.last_id("p", stream, 0) == 5

    def test_ids_sent_again_without_key_or_partition_are_dropped_too(
        self, log: Log, name: str
    ) -> None:
        log.create_stream(name, partitions=5)
        for _ in range(4):
            log.append(name, sent([1, 2]), producer="p", ids=[1, 2], drop_resent=True)
        assert sum(log.bounds(name, number)[1] for number in range(5)) == 2

    def test_a_batch_of_nothing_new_stores_nothing(self, log: Log, stream: str) -> None:
        log.append(stream, sent([5]), producer="p", ids=[5])
        nothing = log.append(stream, sent([4, 5]), producer="p", ids=[4, 5], drop_resent=True)
        assert (nothing.count, nothing.dropped) == (0, 2)
        assert nothing.indexes().tolist() == [-1, -1]
        assert log.bounds(stream, 0) == (0, 1)
        assert log.last_id("p", stream, 0) == 5

    def test_ids_that_repeat_within_a_batch_are_dropped(self, log: Log, stream: str) -> None:
        ids = [1, 1, 2, 1, 3, 3]
        appended = log.append(stream, sent(ids), producer="p", ids=ids, drop_resent=True)
        assert appended.indexes().tolist() == [0, -1, 1, -1, 2, -1]
        assert read_all(log, stream) == [b"1", b"2", b"3"]

    def test_ids_sent_again_within_one_commit_are_dropped(self, log: Log, stream: str) -> None:
        target = log.locate(stream, 0)
        receipts = [
            log.submit(target, sent([1, 2]), producer="p", ids=[1, 2], drop_resent=True)
            for _ in range(10)
        ]
        assert sum(receipt.result().count for receipt in receipts) == 2
        assert read_all(log, stream) == [b"1", b"2"]

    def test_unless_asked_nothing_is_dropped(self, log: Log, stream: str) -> None:
        for _ in range(2):
            log.append(stream, sent([1, 2]), producer="p", ids=[1, 2])
        assert read_all(log, stream) == [b"1", b"2", b"1", b"2"]

    def test_each_partition_of_a_mixed_batch_is_judged_by_its_own_last_id(
        self, log: Log, name: str
    ) -> None:
        log.create_stream(name, partitions=2)
        log.append(name, sent([10]), 0, producer="p", ids=[10])
        target = np.array([log.locate(name, row % 2) for row in range(6)], np.uint32)
        ids = [9, 1, 10, 2, 11, 2]
        appended = log.submit(target, sent(ids), producer="p", ids=ids, drop_resent=True).result()
        assert appended.indexes().tolist() == [-1, 0, -1, 1, 1, -1]
        assert read_all(log, name, 0) == [b"10", b"11"]
        assert read_all(log, name, 1) == [b"1", b"2"]
        assert log.last_id("p", name, 0) == 11
        assert log.last_id("p", name, 1) == 2

    def test_when_one_partition_of_a_mixed_batch_is_left_it_is_stored(
        self, log: Log, name: str
    ) -> None:
        log.create_stream(name, partitions=2)
        log.append(name, sent([10]), 0, producer="p", ids=[10])
        target = np.array([log.locate(name, 0), log.locate(name, 1)], np.uint32)
        appended = log.submit(
            target, sent([10, 1]), producer="p", ids=[10, 1], drop_resent=True
        ).result()
        assert appended.indexes().tolist() == [-1, 0]
        assert read_all(log, name, 1) == [b"1"]

    def test_dropping_keeps_the_other_columns_in_step(self, log: Log, stream: str) -> None:
        def batch(ids: list[int]) -> Batch:
            return Batch.of(
                [b"v%d" % number for number in ids],
                keys=[b"k%d" % number if number % 2 else None for number in ids],
                timestamps=[number * 1_000 for number in ids],
                headers=[[("n", b"%d" % number)] * (number % 3) for number in ids],
            )

        log.append(stream, batch([1, 2]), producer="p", ids=[1, 2])
        log.append(stream, batch([1, 2, 3, 4]), producer="p", ids=[1, 2, 3, 4], drop_resent=True)
        found = [row for each in log.read(stream, 0, 0) for row in each.to_pylist()]
        for number, row in enumerate(found, 1):
            assert row["value"] == b"v%d" % number
            assert row["key"] == (b"k%d" % number if number % 2 else None)
            assert row["timestamp"].microsecond == number * 1_000
            assert row["headers"] == [{"name": "n", "value": b"%d" % number}] * (number % 3)
        assert len(found) == 4

    @pytest.mark.parametrize("ids", [[0, TOP], [TOP - 1, TOP], np.array([1, TOP], np.uint64)])
    def test_ids_go_up_to_64_bits(self, log: Log, stream: str, ids: list[int]) -> None:
        log.append(stream, Batch.of([b"a", b"b"]), producer="p", ids=ids, drop_resent=True)
        assert log.last_id("p", stream, 0) == TOP
        again = log.append(stream, Batch.of([b"a", b"b"]), producer="p", ids=ids, drop_resent=True)
        assert again.dropped == 2

    def test_last_ids_survive_reopening(self, open_log: OpenLog, name: str) -> None:
        with open_log(name) as log:
            log.create_stream(name, partitions=2)
            log.append(name, sent([TOP]), 0, producer="p", ids=[TOP])
            log.checkpoint()
            log.append(name, sent([3]), 1, producer="p", ids=[3])
        with open_log(name) as log:
            assert log.last_id("p", name, 0) == TOP
            assert log.last_id("p", name, 1) == 3
            assert log.append(
                name, sent([3, 4]), 1, producer="p", ids=[3, 4], drop_resent=True
            ).indexes().tolist() == [-1, 1]

    @pytest.mark.parametrize("ids", [[1], [1, 2, 3], [[1, 2]]], ids=str)
    def test_ids_must_be_as_many_as_records(self, log: Log, stream: str, ids: list[int]) -> None:
        with pytest.raises(BadBatch, match="for 2 records"):
            log.append(stream, Batch.of([b"a", b"b"]), producer="p", ids=ids)

    @pytest.mark.parametrize("ids", [[-1], [2**64], [1.5], ["1"], [None], [True]], ids=str)
    def test_ids_must_be_whole_numbers(self, log: Log, stream: str, ids: list[int]) -> None:
        with pytest.raises(BadBatch, match=r"2\*\*64"):
            log.append(stream, Batch.of([b"a"]), producer="p", ids=ids)

    def test_a_producer_and_its_ids_come_together(self, log: Log, stream: str) -> None:
        with pytest.raises(BadBatch, match="one is needed for each record"):
            log.append(stream, Batch.of([b"a"]), producer="p")
        with pytest.raises(BadBatch, match="without the name"):
            log.append(stream, Batch.of([b"a"]), ids=[1])

    @pytest.mark.parametrize(
        "bad", ["", "a\x00b", "\ud800", "x" * (limits.PRODUCER_NAME_BYTES_MAX + 1)], ids=repr
    )
    def test_a_producer_has_a_proper_name(self, log: Log, stream: str, bad: str) -> None:
        with pytest.raises(BadName, match="producer"):
            log.append(stream, Batch.of([b"a"]), producer=bad, ids=[1])

    def test_a_producers_name_may_be_any_text(self, log: Log, stream: str) -> None:
        name = "ü" * (limits.PRODUCER_NAME_BYTES_MAX // 2)
        log.append(stream, Batch.of([b"a"]), producer=name, ids=[1])
        assert log.last_id(name, stream, 0) == 1
