"""Appending: indexes without gaps, keys to partitions, and every column as it was given."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from penstock.errors import BadBatch
from penstock.log import Batch, Log
from tests.contract.log.base import Base, Clock, Where
from tests.records import indexes, read_all, rows, times, values

# (key, murmur2 as a signed number), from the tests of Kafka's Java client
KAFKA_HASHES = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


class Appending(Base):
    def test_indexes_begin_at_zero_and_have_no_gaps(self, log: Log, stream: str) -> None:
        given = [
            log.append(stream, Batch.of([b"v"] * count)).indexes().tolist() for count in (1, 3, 2)
        ]
        assert given == [[0], [1, 2, 3], [4, 5]]
        assert log.bounds(stream, 0) == (0, 6)

    def test_partitions_count_on_their_own(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=2)
        assert log.append(name, Batch.of([b"a", b"b"]), 0).first_index == 0
        assert log.append(name, Batch.of([b"c"]), 1).first_index == 0
        assert log.append(name, Batch.of([b"d"]), 0).first_index == 2

    def test_a_confirmed_record_can_be_read_at_once(
        self, log: Log, name: str, where: Where
    ) -> None:
        log.create_stream(name, settings=where.settings)
        for number in range(20):
            where.fill(log, name, [Batch.of([b"%d" % number])])
            assert values(log.read(name, 0, number)) == [b"%d" % number]

    def test_one_batch_may_span_partitions_and_streams(
        self, log: Log, name: str, where: Where
    ) -> None:
        log.create_stream(f"{name}-a", partitions=2, settings=where.settings)
        log.create_stream(f"{name}-b", settings=where.settings)
        places = [(f"{name}-a", 1), (f"{name}-b", 0), (f"{name}-a", 0)]
        target = np.array([log.locate(*places[row % 3]) for row in range(9)], np.uint32)
        for turn in range(2):
            batch = Batch.of([b"%d-%d" % (turn, row) for row in range(9)])
            appended = log.submit(target, batch).result()
            assert appended.count == 9
            assert appended.indexes().tolist() == [row // 3 + 3 * turn for row in range(9)]
            if where.checkpoint_after(turn + 1, 2):
                log.checkpoint()
        for number, (stream, partition) in enumerate(places):
            assert read_all(log, stream, partition) == [
                b"%d-%d" % (turn, row) for turn in range(2) for row in range(number, 9, 3)
            ]

    def test_a_target_for_each_record_may_name_one_partition_only(
        self, log: Log, stream: str
    ) -> None:
        target = np.full(3, log.locate(stream, 0), np.uint32)
        assert log.submit(target, Batch.of([b"a", b"b", b"c"])).result().indexes().tolist() == [
            0,
            1,
            2,
        ]
        assert read_all(log, stream) == [b"a", b"b", b"c"]

    def test_keys_choose_partitions_as_kafkas_java_client_does(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=7)
        for key, hashed in KAFKA_HASHES:
            log.append(name, Batch.of([key], keys=[key]))
            expected = (hashed & 0x7FFFFFFF) % 7
            assert key in read_all(log, name, expected)

    def test_one_batch_of_many_keys_is_spread_in_order(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=4)
        keys: list[bytes | None] = [b"k%d" % (number % 10) for number in range(200)]
        batch = Batch.of([b"%d" % number for number in range(200)], keys=keys)
        assert log.append(name, batch).count == 200
        seen: dict[bytes, list[int]] = {}
        for partition in range(4):
            for row in rows(log.read(name, partition, 0)):
                seen.setdefault(row["key"], []).append(int(row["value"]))
        assert seen == {b"k%d" % key: list(range(key, 200, 10)) for key in range(10)}

    def test_records_without_a_key_go_together(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=4)
        for _ in range(4):
            log.append(name, Batch.of([b"v"] * 10))
        ends = [log.bounds(name, partition)[1] for partition in range(4)]
        assert sum(ends) == 40
        assert all(end % 10 == 0 for end in ends)

    def test_keys_may_be_missing_or_empty(self, log: Log, name: str, where: Where) -> None:
        log.create_stream(name, settings=where.settings)
        keys = [b"k", None, b"", b"\x00\xff"]
        where.fill(log, name, [Batch.of([b"v"] * 4, keys=keys), Batch.of([b"w"])])
        assert [row["key"] for row in rows(log.read(name, 0, 0))] == [*keys, None]

    def test_values_may_be_empty(self, log: Log, name: str, where: Where) -> None:
        log.create_stream(name, settings=where.settings)
        where.fill(log, name, [Batch.of([b"", b"x", b""]), Batch.of([b""])])
        assert values(log.read(name, 0, 0)) == [b"", b"x", b"", b""]

    def test_headers_come_back_as_given(self, log: Log, name: str, where: Where) -> None:
        log.create_stream(name, settings=where.settings)
        headers = [
            [("trace", b"1"), ("trace", b"2")],
            [],
            None,
            {"näme": b"\x00\xff", "": b""},
        ]
        where.fill(log, name, [Batch.of([b"v"] * 4, headers=headers), Batch.of([b"w"])])
        assert [row["headers"] for row in rows(log.read(name, 0, 0))] == [
            [{"name": "trace", "value": b"1"}, {"name": "trace", "value": b"2"}],
            [],
            [],
            [{"name": "näme", "value": b"\x00\xff"}, {"name": "", "value": b""}],
            [],
        ]

    def test_timestamps_are_kept_as_given(self, log: Log, name: str, where: Where) -> None:
        log.create_stream(name, settings=where.settings)
        given = [1_700_000_000_000_001, 0, -5, 2**60]
        where.fill(log, name, [Batch.of([b"v"] * 4, timestamps=given)])
        assert times(log.read(name, 0, 0)) == given

    def test_timestamps_left_out_are_set_on_arrival(
        self, clocked: Log, clock: Clock, name: str, where: Where
    ) -> None:
        clocked.create_stream(name, settings=where.settings)
        clocked.append(name, Batch.of([b"v"]))
        first = clock.now
        clock.pass_seconds(5)
        where.fill(clocked, name, [Batch.of([b"w"] * 2), Batch.of([b"x"])])
        assert times(clocked.read(name, 0, 0)) == [first] + [clock.now] * 3

    def test_a_batch_without_records_is_refused(self, log: Log, stream: str) -> None:
        with pytest.raises(BadBatch):
            log.append(stream, Batch.of([]))

    def test_targets_must_be_as_many_as_records(self, log: Log, stream: str) -> None:
        target = np.full(2, log.locate(stream, 0), np.uint32)
        with pytest.raises(BadBatch, match="2 partitions for 3 records"):
            log.submit(target, Batch.of([b"v"] * 3))

    def test_a_receipt_calls_back_when_the_records_are_stored(self, log: Log, stream: str) -> None:
        called = threading.Event()
        receipt = log.submit(log.locate(stream, 0), Batch.of([b"v"]))
        receipt.on_done(lambda _: called.set())
        assert called.wait(30)
        assert receipt.done
        assert receipt.result().first_index == 0

    def test_many_coroutines_append_at_once(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=3)

        async def one(number: int) -> int:
            appended = await log.append_async(name, Batch.of([b"%d" % number]), number % 3)
            return appended.first_index

        async def everyone() -> list[int]:
            return await asyncio.gather(*[one(number) for number in range(300)])

        given = asyncio.run(everyone())
        for partition in range(3):
            stored = read_all(log, name, partition)
            assert sorted(given[partition::3]) == list(range(100))
            for number in range(partition, 300, 3):
                assert stored[given[number]] == b"%d" % number

    def test_many_threads_append_at_once(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=2)

        def sender(sender: int) -> list[list[int]]:
            return [
                log.append(name, Batch.of([b"%d/%d" % (sender, turn)] * 3), turn % 2)
                .indexes()
                .tolist()
                for turn in range(30)
            ]

        with ThreadPoolExecutor(6) as pool:
            given = list(pool.map(sender, range(6)))
        for partition in range(2):
            batches = log.read(name, partition, 0)
            assert indexes(batches) == list(range(6 * 15 * 3))
            stored = values(batches)
            for number, own in enumerate(given):
                for turn in range(partition, 30, 2):
                    assert [stored[index] for index in own[turn]] == [b"%d/%d" % (number, turn)] * 3
