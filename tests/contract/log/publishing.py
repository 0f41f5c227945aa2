"""Publishing: what was staged becomes visible all at once, and once."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from penstock.errors import (
    BadBatch,
    BadName,
    PenstockError,
    RecordTooLarge,
    StagedMissing,
    UnknownPartition,
    UnknownStream,
)
from penstock.log import Batch, Log
from penstock.log.partitioner import partition_of
from tests.contract.log.base import Base, OpenLog
from tests.records import read_all, rows


def staged(topic: str, values: list[bytes], **columns: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([topic] * len(values)),
            "value": pa.array(values, pa.binary()),
            **columns,
        }
    )


def stage(log: Log, writer: str, epoch: int, *batches: pa.RecordBatch) -> str:
    part = log.stage(writer, epoch)
    for batch in batches:
        part.write(batch)
    return part.finish()


class Publications(Base):
    def test_staged_records_are_seen_once_published(self, log: Log, stream: str) -> None:
        part = stage(log, stream, 0, staged(stream, [b"1", b"2"]), staged(stream, [b"3"]))
        assert log.bounds(stream, 0) == (0, 0)
        done = log.publish(stream, 0, [part])
        assert (done.records, done.already) == (3, False)
        assert read_all(log, stream) == [b"1", b"2", b"3"]

    def test_an_epoch_is_published_once(self, log: Log, stream: str) -> None:
        for _ in range(3):
            part = stage(log, stream, 4, staged(stream, [b"1"]))
            log.publish(stream, 4, [part])
        assert log.publish(stream, 4, []).already
        assert log.publish(stream, 3, []).already
        assert read_all(log, stream) == [b"1"]
        log.publish(stream, 5, [stage(log, stream, 5, staged(stream, [b"2"]))])
        assert read_all(log, stream) == [b"1", b"2"]

    def test_writers_count_their_epochs_by_themselves(self, log: Log, stream: str) -> None:
        for writer in ("a:" + stream, "b:" + stream):
            log.publish(writer, 0, [stage(log, writer, 0, staged(stream, [writer.encode()]))])
        assert len(read_all(log, stream)) == 2

    def test_parts_are_appended_in_the_order_they_are_named(self, log: Log, stream: str) -> None:
        parts = [stage(log, stream, 0, staged(stream, [b"%d" % each])) for each in range(5)]
        log.publish(stream, 0, parts[::-1])
        assert read_all(log, stream) == [b"4", b"3", b"2", b"1", b"0"]

    def test_parts_that_are_not_named_are_left_out_and_gone(self, log: Log, stream: str) -> None:
        lost = stage(log, stream, 0, staged(stream, [b"lost"]))
        log.publish(stream, 0, [stage(log, stream, 0, staged(stream, [b"kept"]))])
        assert read_all(log, stream) == [b"kept"]
        with pytest.raises(StagedMissing):
            log.publish(stream, 1, [lost])

    def test_an_epoch_may_be_empty(self, log: Log, stream: str) -> None:
        assert log.publish(stream, 0, []).records == 0
        assert log.publish(stream, 1, [stage(log, stream, 1)]).records == 0
        assert log.bounds(stream, 0) == (0, 0)

    def test_discarded_parts_cannot_be_published(self, log: Log, stream: str) -> None:
        part = stage(log, stream, 0, staged(stream, [b"1"]))
        log.discard(stream, 0)
        with pytest.raises(StagedMissing, match="write the epoch again"):
            log.publish(stream, 0, [part])
        assert log.bounds(stream, 0) == (0, 0)

    def test_a_cancelled_part_leaves_nothing(self, log: Log, stream: str) -> None:
        part = log.stage(stream, 0)
        part.write(staged(stream, [b"1"]))
        part.cancel()
        with pytest.raises(BadBatch, match="finished"):
            part.write(staged(stream, [b"2"]))
        log.publish(stream, 0, [])
        assert log.bounds(stream, 0) == (0, 0)

    def test_all_columns_arrive(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=3)
        batch = staged(
            name,
            [b"1", b"2", b"3"],
            key=pa.array([b"k", None, b"k"], pa.binary()),
            partition=pa.array([None, 1, 2], pa.int32()),
            timestamp=pa.array([5, None, 7], pa.timestamp("us", tz="UTC")),
            headers=pa.array(
                [[{"name": "h", "value": b"v"}], None, []],
                pa.list_(pa.struct([("name", pa.utf8()), ("value", pa.binary())])),
            ),
        )
        log.publish(name, 0, [stage(log, name, 0, batch)])
        by_key = partition_of(b"k", 3)
        found = {
            number: rows(log.read(name, number, 0))
            for number in range(3)
            if log.bounds(name, number)[1]
        }
        first = found[by_key][0]
        assert (first["value"], first["key"]) == (b"1", b"k")
        assert first["headers"] == [{"name": "h", "value": b"v"}]
        assert int(first["timestamp"].timestamp() * 1_000_000) == 5
        assert b"2" in [row["value"] for row in found[1]]
        assert b"3" in [row["value"] for row in found[2]]

    def test_one_epoch_may_go_to_many_streams(self, log: Log, name: str) -> None:
        names = [f"{name}-{each}" for each in range(5)]
        for each in names:
            log.create_stream(each, partitions=2)
        topics = [names[number % 5] for number in range(100)]
        batch = pa.RecordBatch.from_pydict(
            {
                "topic": pa.array(topics),
                "key": pa.array([b"%d" % number for number in range(100)]),
                "value": pa.array([b"%d" % number for number in range(100)]),
            }
        )
        log.publish(name, 0, [stage(log, name, 0, batch)])
        for number, each in enumerate(names):
            found = read_all(log, each, 0) + read_all(log, each, 1)
            assert sorted(map(int, found)) == list(range(number, 100, 5))

    @pytest.mark.parametrize(
        ("batch", "error", "says"),
        [
            (staged("no-such-stream", [b""]), UnknownStream, "no stream"),
            (pa.RecordBatch.from_pydict({"value": [b""]}), BadBatch, "needed are topic, value"),
            (pa.RecordBatch.from_pydict({"topic": ["a"], "value": [1.5]}), BadBatch, "value"),
            (
                pa.RecordBatch.from_pydict({"topic": [None], "value": [b""]}),
                BadBatch,
                "topic column has nulls",
            ),
        ],
    )
    def test_what_cannot_be_appended_is_refused_when_it_is_staged(
        self, log: Log, stream: str, batch: pa.RecordBatch, error: type[PenstockError], says: str
    ) -> None:
        part = log.stage(stream, 0)
        with pytest.raises(error, match=says):
            part.write(batch)
        part.cancel()

    def test_a_partition_or_record_that_cannot_be_is_refused(self, log: Log, stream: str) -> None:
        part = log.stage(stream, 0)
        with pytest.raises(UnknownPartition, match="no partition 1"):
            part.write(staged(stream, [b""], partition=pa.array([1], pa.int32())))
        with pytest.raises(RecordTooLarge):
            part.write(staged(stream, [bytes(300_000)]))
        part.cancel()

    def test_names_and_epochs_are_checked(self, log: Log, stream: str) -> None:
        with pytest.raises(BadName):
            log.stage("", 0)
        with pytest.raises(BadBatch, match="epoch -1"):
            log.stage(stream, -1)
        for name in ("../x", "1-1-00000000-1-0000000000000000.arrows", ""):
            with pytest.raises(StagedMissing):
                log.publish(stream, 0, [name])

    def test_an_epoch_larger_than_a_commit_is_seen_at_once(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=2)
        log.append(name, Batch.of([b"before"]), 0)
        numbers = [b"%06d" % number * 20 for number in range(30_000)]
        parts = [
            stage(
                log,
                name,
                0,
                staged(
                    name,
                    numbers[at : at + 10_000],
                    partition=pa.array([each % 2 for each in range(10_000)], pa.int32()),
                ),
            )
            for at in range(0, 30_000, 10_000)
        ]
        seen: set[tuple[int, int]] = set()
        over = threading.Event()

        def watch() -> None:
            while not over.is_set():
                first = log.bounds(name, 0)[1]
                seen.add((0, first))
                assert all(len(batch) for batch in log.read(name, 0, 0, 10, 10_000))

        watcher = threading.Thread(target=watch)
        watcher.start()
        log.publish(name, 0, parts)
        over.set()
        watcher.join()
        assert {end for _, end in seen} <= {1, 15_001}
        assert read_all(log, name, 0) == [b"before", *numbers[::2]]
        assert read_all(log, name, 1) == numbers[1::2]

    def test_who_waits_at_the_end_is_woken(self, log: Log, stream: str) -> None:
        part = stage(log, stream, 0, staged(stream, [b"1"]))
        found: list[int] = []
        waiter = threading.Thread(target=lambda: found.append(log.wait(stream, 0, 0, 20)))
        waiter.start()
        log.publish(stream, 0, [part])
        waiter.join()
        assert found == [1]

    def test_many_writers_publish_side_by_side(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=2)

        def work(writer: str) -> None:
            for epoch in range(5):
                batch = staged(
                    name,
                    [f"{writer} {epoch} {each}".encode() for each in range(20)],
                    partition=pa.array([each % 2 for each in range(20)], pa.int32()),
                )
                log.publish(writer, epoch, [stage(log, writer, epoch, batch)])

        threads = [threading.Thread(target=work, args=(f"{name}-{each}",)) for each in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [read_all(log, name, each) for each in (0, 1)]
        assert [len(each) for each in found] == [300, 300]
        for epoch_rows in found:  # nothing of another publication in between
            runs = [value.rsplit(b" ", 1)[0] for value in epoch_rows]
            assert all(len(set(runs[at : at + 10])) == 1 for at in range(0, 300, 10))

    def test_what_was_published_is_known_after_opening_again(
        self, open_log: OpenLog, name: str
    ) -> None:
        with open_log(name) as log:
            log.create_stream("s")
            log.publish("w", 0, [stage(log, "w", 0, staged("s", [b"1"]))])
            later = stage(log, "w", 1, staged("s", [b"2"]))
        with open_log(name) as log:
            assert log.publish("w", 0, []).already
            assert not log.publish("w", 1, [later]).already
            assert read_all(log, "s") == [b"1", b"2"]
