"""`spark.read.format("penstock")`: a real hub, a real Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from penstock import limits
from penstock.hub.users import Grant
from penstock.log import Batch, StreamSettings
from penstock.testing.hub import TestHub
from tests.records import numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NewStream = Callable[..., str]
NOON = 1_750_000_000_000_000
"""Microseconds; record number i of `timed` comes i seconds later."""


@pytest.fixture
def reading(spark: SparkSession, hub: TestHub) -> Callable[..., DataFrame]:
    def read(schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("penstock").option("penstock.url", hub.url).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    return read


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def timed(count: int) -> Batch:
    return Batch.of(
        [b"v%d" % i for i in range(count)],
        keys=[b"k%d" % i for i in range(count)],
        timestamps=[NOON + i * 1_000_000 for i in range(count)],
    )


def found(frame: DataFrame) -> list[tuple[int, int]]:
    rows = frame.select("partition", "offset").collect()
    return sorted((row.partition, row.offset) for row in rows)


def message(raised: pytest.ExceptionInfo[PySparkException]) -> str:
    """The last line that a traceback of Penstock's has in Spark's error."""
    lines = [line for line in str(raised.value).splitlines() if line.startswith("penstock.errors.")]
    assert lines, str(raised.value)
    return lines[-1]


# -- rows ------------------------------------------------------------------------------------------


def test_rows_are_those_of_kafkas_source(
    hub: TestHub, reading: Callable[..., DataFrame], new_stream: NewStream
) -> None:
    stream = new_stream(2)
    hub.log.append(stream, Batch.of([b"one"], keys=[b"k"], timestamps=[NOON]), 1)
    hub.log.append(stream, Batch.of([b"two"], timestamps=[NOON + 1]), 1)
    frame = reading(subscribe=stream)
    assert frame.dtypes == [
        ("key", "binary"), ("value", "binary"), ("topic", "string"), ("partition", "int"),
        ("offset", "bigint"), ("timestamp", "timestamp"), ("timestampType", "int"),
    ]  # fmt: skip
    one, two = (row.asDict() for row in frame.orderBy("offset").collect())
    assert one == {
        "key": b"k", "value": b"one", "topic": stream, "partition": 1, "offset": 0,
        "timestamp": one["timestamp"], "timestampType": 0,
    }  # fmt: skip
    assert one["timestamp"].astimezone(UTC) == datetime.fromtimestamp(NOON / 1e6, UTC)
    assert (two["key"], two["value"]) == (None, b"two")


def test_headers_come_if_asked_for(
    hub: TestHub, reading: Callable[..., DataFrame], new_stream: NewStream
) -> None:
    stream = new_stream()
    hub.log.append(stream, Batch.of([b"1", b"2"], headers=[[("h", b"x"), ("h", b"")], []]))
    rows = reading(subscribe=stream, includeHeaders="true").orderBy("offset").collect()
    assert [(each.key, each.value) for each in rows[0].headers] == [("h", b"x"), ("h", b"")]
    assert rows[1].headers is None


def test_a_smaller_schema_gives_only_its_columns(
    hub: TestHub, reading: Callable[..., DataFrame], new_stream: NewStream
) -> None:
    stream = new_stream()
    hub.log.append(stream, Batch.of([b"1", b"2"], headers=[[("h", b"x")], []]))
    frame = reading(
        "offset bigint, headers array<struct<key:string,value:binary>>", subscribe=stream
    )
    assert frame.columns == ["offset", "headers"]
    assert [row.offset for row in frame.orderBy("offset").collect()] == [0, 1]
    assert reading("topic string", subscribe=stream).collect()[0].topic == stream
    with pytest.raises(PySparkException) as raised:
        reading("offset bigint, body string", subscribe=stream).collect()
    assert "there is no column body; valid columns are key binary" in message(raised)
    with pytest.raises(PySparkException) as raised:
        reading("value string", subscribe=stream).collect()
    assert "value is binary and not string" in message(raised)


def test_many_records_come_from_segments_and_journal_in_order(
    hub: TestHub, reading: Callable[..., DataFrame], new_stream: NewStream
) -> None:
    stream = new_stream()
    count = 3 * limits.SPARK_DIRECT_RECORDS_MIN
    for start in range(0, count, 8_192):
        hub.log.append(stream, Batch.of([b"%d" % i for i in range(start, start + 8_192)]))
    for options in ({}, {"minPartitions": "5"}):
        frame = reading("offset bigint, value binary", subscribe=stream, **options)
        rows = frame.collect()
        if options:
            assert frame.rdd.getNumPartitions() == 5
            rows.sort()
        assert [row.offset for row in rows] == list(range(count))
        assert all(row.value == b"%d" % row.offset for row in rows)


# -- which and where -------------------------------------------------------------------------------


def test_streams_by_name_by_pattern_and_by_partition(
    hub: TestHub, reading: Callable[..., DataFrame], new_stream: NewStream
) -> None:
    one, two = new_stream(2, name="pick.one"), new_stream(1, name="pick.two")
    for stream, partition in ((one, 0), (one, 1), (two, 0)):
        hub.log.append(stream, Batch.of([b"x"]), partition)

    def topics(frame: DataFrame) -> list[tuple[str, int]]:
        return sorted((row.topic, row.partition) for row in frame.collect())

    assert topics(reading(subscribe=f"{one},{two}")) == [(one, 0), (one, 1), (two, 0)]
    assert topics(reading(subscribePattern=r"pick\..*")) == [(one, 0), (one, 1), (two, 0)]
    assert topics(reading(subscribePattern=r"ick.*")) == []
    assert topics(reading(assign=f'{{"{one}": [1]}}')) == [(one, 1)]
    with pytest.raises(PySparkException) as raised:
        reading(assign=f'{{"{one}": [1, 7]}}').collect()
    assert f"names partition 7 of {one}, which has 2" in message(raised)
    with pytest.raises(PySparkException) as raised:
        reading(subscribe=f"{one},nowhere").collect()
    assert "nowhere" in message(raised)


def test_offsets_in_every_form(
    hub: TestHub, reading: Callable[..., DataFrame], new_stream: NewStream
) -> None:
    stream = new_stream(2)
    for partition in (0, 1):
        hub.log.append(stream, timed(5), partition)

    def read(**options: str) -> list[tuple[int, int]]:
        return found(reading(subscribe=stream, **options))

    everything = [(partition, offset) for partition in (0, 1) for offset in range(5)]
    assert read() == everything
    assert read(startingOffsets="earliest", endingOffsets="latest") == everything
    assert read(
        startingOffsets=f'{{"{stream}": {{"0": 3, "1": -2}}}}',
        endingOffsets=f'{{"{stream}": {{"0": -1, "1": 2}}}}',
    ) == [(0, 3), (0, 4), (1, 0), (1, 1)]
    late = NOON // 1000 + 3_000
    assert read(startingTimestamp=str(late)) == [(0, 3), (0, 4), (1, 3), (1, 4)]
    assert read(startingTimestamp=str(late - 1_500), endingTimestamp=str(late)) == [(0, 2), (1, 2)]
    assert read(startingTimestamp=str(late), endingTimestamp=str(late - 1_000)) == []
    assert read(startingTimestamp=str(late + 60_000)) == []
    with pytest.raises(PySparkException) as raised:
        read(startingOffsets=f'{{"{stream}": {{"0": 3}}}}')
    assert f"missing: {stream}/1" in message(raised)
    with pytest.raises(PySparkException) as raised:
        read(
            startingOffsets=f'{{"{stream}": {{"0": 3, "1": 0}}}}',
            endingOffsets=f'{{"{stream}": {{"0": 2, "1": 0}}}}',
        )
    assert f"startingOffsets is 3 for {stream}/0, after endingOffsets, 2" in message(raised)


def test_an_empty_stream_has_no_rows(
    reading: Callable[..., DataFrame], new_stream: NewStream
) -> None:
    assert reading(subscribe=new_stream(3)).collect() == []


# -- SQL -------------------------------------------------------------------------------------------


def test_a_temporary_view_in_sql(spark: SparkSession, hub: TestHub, new_stream: NewStream) -> None:
    stream = new_stream()
    hub.log.append(stream, Batch.of([b"a", b"b"]))
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW batch_view USING penstock "
        f"OPTIONS (subscribe '{stream}', `penstock.url` '{hub.url}')"
    )
    rows = spark.sql("SELECT CAST(value AS STRING) AS v FROM batch_view ORDER BY offset").collect()
    assert [row.v for row in rows] == ["a", "b"]
    with pytest.raises(PySparkException) as raised:
        spark.sql(f"CREATE TABLE batch_table USING penstock OPTIONS (subscribe '{stream}')")
    assert "CREATE TEMPORARY VIEW" in message(raised)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "a", "startingOfset": "latest"}, "did you mean startingOffsets?"),
        ({"subscribe": "a", "topic": "b"}, "unknown option topic"),
        ({}, "exactly one of the options subscribe, subscribePattern, assign"),
        ({"subscribe": "a", "minPartitions": "x"}, "minPartitions is 'x'"),
        ({"subscribe": "a", "startingOffsets": "latest"}, "a batch cannot start at latest"),
    ],
)
def test_bad_options_are_refused_with_one_clear_line(
    reading: Callable[..., DataFrame], options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        reading(**options).collect()
    assert said in message(raised)


def test_a_wrong_token_fails_at_once(spark: SparkSession) -> None:
    with TestHub() as hub:
        token = hub.hub.users.add("reader", [Grant.parse("read:mine*")])
        for stream in ("mine", "yours"):
            hub.log.create_stream(stream)
            hub.log.append(stream, Batch.of([b"x"]))

        def read(**options: str) -> int:
            url = {"penstock.url": hub.url}
            return spark.read.format("penstock").options(**url, **options).load().count()

        began = datetime.now(UTC)
        with pytest.raises(PySparkException) as raised:
            read(**{"penstock.token": "wrong", "subscribe": "mine"})
        assert message(raised).startswith("penstock.errors.Unauthorized:")
        with pytest.raises(PySparkException) as raised:
            read(**{"penstock.token": token, "subscribe": "yours"})
        assert message(raised).startswith("penstock.errors.Forbidden:")
        assert (datetime.now(UTC) - began).total_seconds() < 20
        assert read(**{"penstock.token": token, "subscribe": "mine"}) == 1
        assert read(**{"penstock.token": token, "subscribePattern": ".*"}) == 1


def test_without_a_hub_it_waits_and_says_so(spark: SparkSession) -> None:
    frame = spark.read.format("penstock").options(
        **{"penstock.url": "http://127.0.0.1:9", "penstock.timeout": "1", "subscribe": "a"}
    )
    with pytest.raises(PySparkException) as raised:
        frame.load().collect()
    assert "no hub answers at http://127.0.0.1:9" in message(raised)
    assert "waited 1 s, as the option penstock.timeout says" in message(raised)


# -- losses ----------------------------------------------------------------------------------------


def test_records_dropped_by_retention_are_an_error_or_a_gap(
    hub: TestHub, reading: Callable[..., DataFrame]
) -> None:
    stream = "batch.trimmed"
    hub.log.create_stream(stream, settings=StreamSettings(segment_bytes=limits.SEGMENT_BYTES_MIN))
    for start in range(0, 100, 10):
        hub.log.append(stream, numbered(10, start))
        hub.log.checkpoint()
    earliest = hub.log.trim(stream, 0, 60)
    assert earliest > 10
    assert [o for _, o in found(reading(subscribe=stream))] == list(range(earliest, 100))
    below = {"subscribe": stream, "startingOffsets": f'{{"{stream}": {{"0": 5}}}}'}
    with pytest.raises(PySparkException) as raised:
        reading(**below).collect()
    assert f"data was lost: {stream}/0 records 5 to {earliest - 1}" in message(raised)
    assert "set the option failOnDataLoss to false" in message(raised)
    rows = found(reading(**below, failOnDataLoss="false"))
    assert [o for _, o in rows] == list(range(earliest, 100))


# -- filters ---------------------------------------------------------------------------------------

FILTERS = [
    "offset >= 3",
    "offset > 3 AND offset < 8",
    "offset = 4",
    "offset <=> 4",
    "offset != 4",
    "offset IN (1, 4, 400)",
    "offset NOT IN (1, 4)",
    "offset IN (1, NULL)",
    "offset NOT IN (1, NULL)",
    "offset IS NULL",
    "offset IS NOT NULL AND partition = 1",
    "NOT (offset < 7)",
    "partition = 0",
    "partition != 0 AND offset <= 2",
    "partition > 5",
    "topic LIKE 'filter%' AND offset = 0",
    "topic = 'other'",
    "topic != 'other' AND offset BETWEEN 2 AND 3",
    "timestamp >= timestamp_micros({noon} + 4000000)",
    "timestamp > timestamp_micros({noon} + 4000000) AND partition = 0",
    "timestamp < timestamp_micros({noon} + 1500000)",
    "timestamp = timestamp_micros({noon} + 2000000)",
    "timestamp != timestamp_micros({noon} + 2000000) AND offset < 4",
    "offset = 1 OR offset = 8",
    "offset % 2 = 0 AND offset > 5",
    "CAST(value AS STRING) = 'v3'",
    "key = CAST('k3' AS BINARY) AND offset > 1",
]


@pytest.mark.usefixtures("pushing")
def test_pushed_filters_give_the_rows_they_should(
    hub: TestHub, reading: Callable[..., DataFrame], new_stream: NewStream
) -> None:
    stream = new_stream(2, name="filter")
    for partition in (0, 1):
        hub.log.append(stream, timed(10), partition)
    conditions = [text.format(noon=NOON) for text in FILTERS]
    kept = reading(subscribe=stream).selectExpr("partition", "offset", *conditions).collect()
    for number, condition in enumerate(conditions):
        # A new frame each time, with columns in another order: what is accepted goes by name.
        frame = reading(
            "value binary, partition int, offset bigint, timestamp timestamp, topic string, "
            "key binary",
            subscribe=stream,
            pushFilters="true",
        )
        expected = sorted((row[0], row[1]) for row in kept if row[2 + number])
        assert found(frame.where(condition)) == expected, condition
    plan = reading(subscribe=stream, pushFilters="true").where("offset = 4")
    explained = plan._jdf.queryExecution().executedPlan().toString()
    assert ") Filter" not in explained, explained
    assert plan.rdd.getNumPartitions() == 1


def test_pushing_filters_does_nothing_where_the_session_does_not(
    spark: SparkSession, hub: TestHub, reading: Callable[..., DataFrame], new_stream: NewStream
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        stream = new_stream()
        hub.log.append(stream, timed(10))
        frame = reading(subscribe=stream, pushFilters="true").where("offset >= 8")
        assert found(frame) == [(0, 8), (0, 9)]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.usefixtures("pushing")
def test_one_dataframe_in_many_queries_keeps_all_its_rows(
    hub: TestHub, reading: Callable[..., DataFrame], new_stream: NewStream
) -> None:
    """Which is why filters are only taken from who asks for it: Spark would mix queries up."""
    stream = new_stream()
    hub.log.append(stream, timed(10))
    frame = reading(subscribe=stream)
    few, many = frame.where("offset < 2"), frame.where("offset >= 2")
    assert (few.count(), frame.count(), many.count()) == (2, 10, 8)
    assert few.union(many).count() == 10
