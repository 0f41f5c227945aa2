"""The sink `penstock`: batches and streams to streams, together and once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.log.partitioner import partition_of
from penstock.testing.hub import TestHub
from tests.records import read_all, rows
from tests.spark.queries import finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

NewStream = Callable[..., str]


def writer(frame: DataFrame, hub: TestHub, **options: object) -> DataFrameWriter:
    found = frame.write.format("penstock").mode("append").option("penstock.url", hub.url)
    for name, value in options.items():
        found = found.option(name, str(value))
    return found


def copying(
    spark: SparkSession, hub: TestHub, source: str, target: str, checkpoint: Path
) -> DataStreamWriter:
    frame = (
        spark.readStream.format("penstock")
        .option("penstock.url", hub.url)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "100")
        .load()
    )
    return (
        frame.select("key", "value", "partition")
        .writeStream.format("penstock")
        .option("penstock.url", hub.url)
        .option("topic", target)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )


def append(hub: TestHub, stream: str, numbers: range, partition: int = 0) -> None:
    from penstock.log import Batch

    hub.log.append(stream, Batch.of([b"%d" % number for number in numbers]), partition)


def numbers(hub: TestHub, stream: str, partition: int = 0) -> list[int]:
    return [int(value) for value in read_all(hub.log, stream, partition)]


# -- batches ---------------------------------------------------------------------------------------


def test_a_batch_is_written_with_all_columns(
    spark: SparkSession, hub: TestHub, new_stream: NewStream
) -> None:
    stream = new_stream(3)
    at = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    frame = spark.createDataFrame(
        [
            (stream, None, "k", b"one", at, [("a", b"1"), ("a", b"2")]),
            (stream, 2, None, b"two", None, None),
        ],
        "topic string, partition int, key string, value binary, timestamp timestamp, "
        "headers array<struct<key:string,value:binary>>",
    )
    writer(frame, hub).save()
    first = rows(hub.log.read(stream, partition_of(b"k", 3), 0))[0]
    assert (first["key"], first["value"], first["timestamp"]) == (b"k", b"one", at)
    assert first["headers"] == [{"name": "a", "value": b"1"}, {"name": "a", "value": b"2"}]
    second = rows(hub.log.read(stream, 2, 0))[-1]
    assert (second["key"], second["value"], second["headers"]) == (None, b"two", [])
    assert abs((second["timestamp"] - datetime.now(UTC)).total_seconds()) < 600


def test_rows_that_were_read_can_be_written_as_they_are(
    spark: SparkSession, hub: TestHub, new_stream: NewStream
) -> None:
    source, target = new_stream(), new_stream()
    append(hub, source, range(10))
    frame = (
        spark.read.format("penstock")
        .option("penstock.url", hub.url)
        .option("subscribe", source)
        .option("includeHeaders", "true")
        .load()
    )
    writer(frame, hub, topic=target).save()
    assert numbers(hub, target) == list(range(10))
    assert numbers(hub, source) == list(range(10)), "the option goes before the column"


def test_text_is_written_as_utf8(spark: SparkSession, hub: TestHub, new_stream: NewStream) -> None:
    stream = new_stream()
    writer(spark.createDataFrame([("ä",)], "value string"), hub, topic=stream).save()
    assert read_all(hub.log, stream) == ["ä".encode()]


def test_a_batch_with_a_transaction_is_written_once(
    spark: SparkSession, hub: TestHub, new_stream: NewStream
) -> None:
    stream = new_stream()
    frame = spark.createDataFrame([("1",)], "value string")
    for version in (0, 0, 1, 1, 0):
        writer(frame, hub, topic=stream, txnAppId=f"app-{stream}", txnVersion=version).save()
    assert numbers(hub, stream) == [1, 1]


def test_two_batches_are_written_twice(
    spark: SparkSession, hub: TestHub, new_stream: NewStream
) -> None:
    stream = new_stream()
    for _ in range(2):
        writer(spark.createDataFrame([("1",)], "value string"), hub, topic=stream).save()
    assert numbers(hub, stream) == [1, 1]


def test_a_batch_that_fails_in_the_middle_leaves_nothing(
    spark: SparkSession, hub: TestHub, new_stream: NewStream
) -> None:
    stream = new_stream()
    frame = spark.range(0, 10_000, 1, 4).selectExpr(
        "cast(if(id = 9999, raise_error('no'), id) as string) as value"
    )
    with pytest.raises(Exception, match="no"):
        writer(frame, hub, topic=stream).save()
    assert hub.log.bounds(stream, 0) == (0, 0)


@pytest.mark.parametrize(
    ("select", "options", "says"),
    [
        ("id as number, '' as value", {"topic": "t"}, "the columns are topic, partition, key"),
        ("id as value", {"topic": "t"}, "'value' is bigint: it has to be string or binary"),
        ("'' as key", {"topic": "t"}, "there is no column 'value'"),
        ("'' as value", {}, "which stream"),
        ("'' as value", {"topic": "no-such-stream"}, "there is no stream 'no-such-stream'"),
        ("cast(null as string) as value", {"topic": "t"}, "null in 1 of 1 rows"),
        ("'' as value", {"topic": "t", "topics": "t"}, "did you mean topic"),
        ("'' as value", {"topic": "t", "txnAppId": "a"}, "txnAppId.*together|Both txnVersion"),
        ("'' as value, 7 as partition", {"topic": "t"}, "has no partition 7"),
    ],
)
def test_mistakes_are_explained(
    spark: SparkSession, hub: TestHub, select: str, options: dict[str, str], says: str
) -> None:
    if "t" not in hub.log.streams():
        hub.log.create_stream("t")
    frame = spark.range(1).selectExpr(*select.split(", "))
    with pytest.raises(Exception, match=says):
        writer(frame, hub, **options).save()


def test_a_stream_cannot_be_overwritten(
    spark: SparkSession, hub: TestHub, new_stream: NewStream
) -> None:
    frame = spark.createDataFrame([("1",)], "value string")
    with pytest.raises(Exception, match="append"):
        writer(frame, hub, topic=new_stream()).mode("overwrite").save()


# -- streams ---------------------------------------------------------------------------------------


def test_a_stream_is_copied_in_order_and_goes_on_where_it_was(
    spark: SparkSession, hub: TestHub, new_stream: NewStream, tmp_path: Path
) -> None:
    source, target = new_stream(2), new_stream(2)
    append(hub, source, range(250), 0)
    append(hub, source, range(1_000, 1_250), 1)
    finish(copying(spark, hub, source, target, tmp_path).start())
    append(hub, source, range(250, 300), 0)
    finish(copying(spark, hub, source, target, tmp_path).start())
    assert numbers(hub, target, 0) == list(range(300))
    assert numbers(hub, target, 1) == list(range(1_000, 1_250))


def test_an_epoch_that_spark_repeats_is_written_once(
    spark: SparkSession, hub: TestHub, new_stream: NewStream, tmp_path: Path
) -> None:
    source, target = new_stream(), new_stream()
    append(hub, source, range(100))
    finish(copying(spark, hub, source, target, tmp_path).start())
    append(hub, source, range(100, 200))
    finish(copying(spark, hub, source, target, tmp_path).start())
    for commit in (tmp_path / "commits").glob("*1*"):  # as if killed before Spark noted batch 1
        commit.unlink()
    append(hub, source, range(200, 300))
    finish(copying(spark, hub, source, target, tmp_path).start())
    assert numbers(hub, target) == list(range(300))


def test_a_new_checkpoint_begins_again_at_epoch_0_and_is_written(
    spark: SparkSession, hub: TestHub, new_stream: NewStream, tmp_path: Path
) -> None:
    source, target = new_stream(), new_stream()
    append(hub, source, range(50))
    finish(copying(spark, hub, source, target, tmp_path / "one").start())
    finish(copying(spark, hub, source, target, tmp_path / "two").start())
    shutil.rmtree(tmp_path / "two")
    finish(copying(spark, hub, source, target, tmp_path / "two").start())
    assert numbers(hub, target) == [*range(50)] * 3


def test_a_million_records_make_the_round(
    spark: SparkSession, hub: TestHub, new_stream: NewStream, tmp_path: Path
) -> None:
    from penstock.log import Batch

    source, target = new_stream(4), new_stream(4)
    for at in range(0, 1_000_000, 10_000):
        values = [b"%d" % number for number in range(at, at + 10_000)]
        hub.log.append(source, Batch.of(values, keys=values), at // 10_000 % 4)
    frame = (
        spark.readStream.format("penstock")
        .option("penstock.url", hub.url)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "300000")
        .load()
    )
    finish(
        frame.select("key", "value", "partition", "timestamp")
        .writeStream.format("penstock")
        .option("penstock.url", hub.url)
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    for number in range(4):
        end = hub.log.bounds(source, number)[1]
        assert hub.log.bounds(target, number) == (0, end)
        at = 0
        while at < end:
            expected = hub.log.read(source, number, at, 50_000)
            found = hub.log.read(target, number, at, 50_000)
            count = min(sum(map(len, expected)), sum(map(len, found)))
            assert _columns(found, count) == _columns(expected, count)
            at += count


def _columns(batches, count):
    import pyarrow as pa

    table = pa.Table.from_batches(batches).slice(0, count).combine_chunks()
    return [table.column(name) for name in ("index", "timestamp", "key", "value")]
