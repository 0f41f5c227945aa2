"""`spark.readStream.format("penstock")`: a real hub, a real Spark."""

from __future__ import annotations

import itertools
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from penstock import limits
from penstock.flight.client import FlightClient
from penstock.log import Batch, StreamSettings
from penstock.spark.offsets import FIRST, LOST
from penstock.testing.hub import TestHub
from penstock.testing.served import ServedHub
from tests.records import numbered
from tests.spark.queries import finish, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NewStream = Callable[..., str]
_names = itertools.count()


class Job:
    """A streaming query that can be run again on its checkpoint, and the rows it got."""

    def __init__(self, spark: SparkSession, url: str, checkpoint: Path, **options: str) -> None:
        self._spark = spark
        self._options = {"penstock.url": url, "startingOffsets": "earliest", **options}
        self._checkpoint = checkpoint
        self.batches: list[list[dict[str, Any]]] = []
        self.fail_in_batch: int | None = None

    def frame(self, **more: str) -> DataFrame:
        options = {name: value for name, value in (self._options | more).items() if value}
        return self._spark.readStream.format("penstock").options(**options).load()

    def start(self, *, now: bool = False, **more: str) -> StreamingQuery:
        writer = self.frame(**more).writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        return (writer.trigger(availableNow=True) if now else writer).start()

    def run(self, **more: str) -> StreamingQuery:
        """Until everything there is has been read."""
        query = self.start(now=True, **more)
        finish(query)
        return query

    def _take(self, frame: DataFrame, batch: int) -> None:
        rows = frame.toArrow().to_pylist()
        if self.fail_in_batch == batch:
            raise RuntimeError("as it was told to")
        self.batches.append(rows)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches for row in batch]

    @property
    def values(self) -> list[bytes]:
        return sorted(row["value"] for row in self.rows)

    def offsets(self, partition: int = 0) -> list[int]:
        return [row["offset"] for row in self.rows if row["partition"] == partition]


@pytest.fixture
def job(spark: SparkSession, hub: TestHub, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    def make(**options: str) -> Job:
        return Job(spark, hub.url, tmp_path / f"checkpoint-{next(_names)}", **options)

    yield make
    for query in spark.streams.active:
        query.stop()


def message(error: BaseException | None) -> str:
    """The last line of Penstock's in an error of Spark's."""
    lines = [line for line in str(error).splitlines() if line.startswith("penstock.errors.")]
    assert lines, str(error)
    return lines[-1]


def progress(query: StreamingQuery, what: str) -> list[dict[str, Any]]:
    """What each batch of a query said of its source."""
    return [json.loads(each["sources"][0][what]) for each in query.recentProgress]


def values(count: int, start: int = 0) -> list[bytes]:
    return [b"%05d" % number for number in range(start, start + count)]


# -- reading on ------------------------------------------------------------------------------------


def test_a_query_reads_on_where_it_stopped_and_its_group_follows(
    hub: TestHub, job: Callable[..., Job], new_stream: NewStream
) -> None:
    stream = new_stream(2)
    query = job(subscribe=stream, group="reads-on")
    for partition in (0, 1):
        hub.log.append(stream, Batch.of(values(3, 10 * partition)), partition)
    query.run()
    with FlightClient(hub.url) as client:
        assert client.positions("reads-on", stream) == {0: 3, 1: 3}  # the last batch included
    assert [lag.records for lag in hub.log.lags("reads-on")] == [0, 0]
    hub.log.append(stream, Batch.of(values(2, 20)), 1)
    assert [lag.records for lag in hub.log.lags("reads-on")] == [0, 2]
    done = query.run()
    assert query.values == [*values(3), *values(3, 10), *values(2, 20)]
    assert query.offsets(1) == [0, 1, 2, 3, 4]
    assert [lag.records for lag in hub.log.lags("reads-on")] == [0, 0]
    assert progress(done, "latestOffset")[-1] == {stream: {"0": 3, "1": 5}}
    assert progress(done, "endOffset")[-1] == {stream: {"0": 3, "1": 5}}


def test_a_position_is_never_ahead_of_what_was_committed(
    hub: TestHub, job: Callable[..., Job], new_stream: NewStream
) -> None:
    stream = new_stream()
    hub.log.append(stream, Batch.of(values(10)))
    query = job(subscribe=stream, group="behind", maxOffsetsPerTrigger="4")
    query.fail_in_batch = 1
    with pytest.raises(PySparkException, match="as it was told to"):
        query.run()
    assert hub.log.position("behind", stream, 0) == 4
    query.fail_in_batch = None
    query.run()
    assert query.offsets() == list(range(10))
    assert hub.log.position("behind", stream, 0) == 10


def test_a_running_query_gets_new_records_partitions_and_streams(
    hub: TestHub, job: Callable[..., Job], new_stream: NewStream
) -> None:
    first = new_stream(name="join.a")
    hub.log.append(first, Batch.of(values(2)))
    query = job(subscribePattern=r"join\..*", group="joins")
    running = query.start()
    until(lambda: len(query.rows) == 2, query=running)
    hub.log.append(first, Batch.of(values(1, 2)))
    until(lambda: len(query.rows) == 3, query=running)
    hub.log.add_partitions(first, 2)
    hub.log.append(first, Batch.of(values(1, 3)), 1)
    second = new_stream(name="join.b")
    hub.log.append(second, Batch.of(values(2, 4)))
    until(lambda: len(query.rows) == 6, query=running)
    assert query.values == values(6)
    # A continuous query's last batch shows in the group's position without another one.
    until(lambda: hub.log.position("joins", second, 0) == 2, query=running)
    assert all(lag.records == 0 for lag in hub.log.lags("joins"))
    running.stop()


def test_latest_begins_at_the_end_and_a_repeated_first_batch_is_the_same(
    hub: TestHub, job: Callable[..., Job], new_stream: NewStream
) -> None:
    stream = new_stream()
    hub.log.append(stream, Batch.of(values(5)))
    query = job(subscribe=stream, startingOffsets="latest", group="latest")
    query.fail_in_batch = 0
    running = query.start()
    until(lambda: hub.log.position("latest", stream, 0) == 5, query=running)
    hub.log.append(stream, Batch.of(values(3, 5)))
    with pytest.raises(PySparkException, match="as it was told to"):
        until(lambda: False, query=running)
    assert hub.log.position("latest", stream, 0) == 5
    hub.log.append(stream, Batch.of(values(4, 8)))
    query.fail_in_batch = None
    done = query.run()
    assert query.values == values(7, 5)
    assert len(query.batches[0]) == 3
    ends = progress(done, "endOffset")
    assert ends[0] == {stream: {"0": 8}, FIRST: {stream: {"0": 5}}}
    assert ends[-1] == {stream: {"0": 12}}


def test_a_time_to_start_from(hub: TestHub, job: Callable[..., Job], new_stream: NewStream) -> None:
    stream = new_stream()
    times = [1_750_000_000_000_000 + i * 1_000_000 for i in range(5)]
    hub.log.append(stream, Batch.of(values(5), timestamps=times))
    query = job(subscribe=stream, startingOffsets="", startingTimestamp=str(times[2] // 1000))
    query.run()
    assert query.offsets() == [2, 3, 4]


# -- how much --------------------------------------------------------------------------------------


def test_limits_cut_what_there_is_into_batches(
    hub: TestHub, job: Callable[..., Job], new_stream: NewStream
) -> None:
    stream = new_stream(2)
    hub.log.append(stream, Batch.of(values(30)), 0)
    hub.log.append(stream, Batch.of(values(10, 30)), 1)
    query = job(subscribe=stream, maxOffsetsPerTrigger="16")
    query.run()
    assert [len(batch) for batch in query.batches] == [16, 16, 8]
    assert sum(row["partition"] for row in query.batches[0]) == 4  # in proportion
    assert query.values == values(40)
    assert query.offsets(0) == list(range(30))


def test_a_limit_of_bytes(hub: TestHub, job: Callable[..., Job], new_stream: NewStream) -> None:
    stream = new_stream()
    hub.log.append(stream, Batch.of([b"x" * 10_000] * 20))
    query = job(subscribe=stream, maxBytesPerTrigger="60000")
    query.run()
    assert 3 <= len(query.batches) <= 5
    assert query.offsets() == list(range(20))


def test_available_now_ends_although_more_comes(
    hub: TestHub, job: Callable[..., Job], new_stream: NewStream
) -> None:
    stream = new_stream()
    hub.log.append(stream, Batch.of(values(20)))
    over = threading.Event()

    def append() -> None:
        while not over.is_set():
            hub.log.append(stream, Batch.of([b"more"]))
            time.sleep(0.01)

    writing = threading.Thread(target=append)
    query = job(subscribe=stream, maxOffsetsPerTrigger="100")
    writing.start()
    try:
        query.run()
    finally:
        over.set()
        writing.join()
    end = hub.log.bounds(stream, 0)[1]
    assert 20 <= len(query.rows) < end
    query.run()
    assert query.offsets() == list(range(end))


def test_ranges_are_cut_for_more_tasks(
    hub: TestHub, spark: SparkSession, job: Callable[..., Job], new_stream: NewStream
) -> None:
    stream = new_stream()
    hub.log.append(stream, Batch.of(values(100)))
    tasks: list[int] = []
    frame = job(subscribe=stream, minPartitions="3").frame()
    query = frame.writeStream.foreachBatch(
        lambda batch, _: tasks.append(batch.rdd.getNumPartitions())
    )
    finish(query.trigger(availableNow=True).start())
    assert tasks == [3]


# -- little delay ----------------------------------------------------------------------------------


def test_low_latency_reads_beside_the_driver(
    hub: TestHub, job: Callable[..., Job], new_stream: NewStream
) -> None:
    stream = new_stream(2)
    hub.log.append(stream, Batch.of(values(10)), 0)
    query = job(subscribe=stream, latency="low", group="low", maxOffsetsPerTrigger="8")
    query.run()
    assert [len(batch) for batch in query.batches] == [8, 2]
    running = query.start()
    hub.log.append(stream, Batch.of(values(5, 10)), 1)
    until(lambda: len(query.rows) == 15, query=running)
    until(lambda: hub.log.position("low", stream, 1) == 5, query=running)
    assert query.values == values(15)
    running.stop()


def test_low_latency_repeats_a_batch_that_failed(
    hub: TestHub, job: Callable[..., Job], new_stream: NewStream
) -> None:
    stream = new_stream()
    hub.log.append(stream, Batch.of(values(10)))
    query = job(subscribe=stream, latency="low", group="low-again", maxOffsetsPerTrigger="4")
    query.fail_in_batch = 1
    with pytest.raises(PySparkException, match="as it was told to"):
        query.run()
    assert hub.log.position("low-again", stream, 0) == 4
    query.fail_in_batch = None
    query.run()
    assert query.offsets() == list(range(10))


# -- losses ----------------------------------------------------------------------------------------


def fill(hub: TestHub, stream: str, count: int, start: int = 0) -> None:
    """Records in segments of about ten."""
    for first in range(start, start + count, 10):
        hub.log.append(stream, numbered(10, first))
        hub.log.checkpoint()


def test_what_retention_dropped_fails_the_query_or_is_counted(
    hub: TestHub, job: Callable[..., Job]
) -> None:
    stream = "stream.trimmed"
    hub.log.create_stream(stream, settings=StreamSettings(segment_bytes=limits.SEGMENT_BYTES_MIN))
    fill(hub, stream, 20)
    query = job(subscribe=stream, group="trimmed")
    query.run()
    fill(hub, stream, 80, 20)
    earliest = hub.log.trim(stream, 0, 60)
    assert earliest > 25
    with pytest.raises(PySparkException) as raised:
        query.run()
    said = message(raised.value)
    assert f"data was lost: {stream}/0 records 20 to {earliest - 1} (dropped by retention)" in said
    assert "set the option failOnDataLoss to false" in said
    done = query.run(failOnDataLoss="false")
    assert query.offsets() == [*range(20), *range(earliest, 100)]
    assert progress(done, "latestOffset")[-1] == {
        stream: {"0": 100},
        LOST: {stream: {"0": earliest - 20}},
    }
    assert hub.log.position("trimmed", stream, 0) == 100


def test_a_stream_that_is_deleted_or_made_anew(
    hub: TestHub, job: Callable[..., Job], new_stream: NewStream
) -> None:
    stays, goes = new_stream(name="stays"), new_stream(name="goes")
    for stream in (stays, goes):
        hub.log.append(stream, Batch.of(values(5)))
    query = job(subscribe=f"{stays},{goes}", group="anew")
    query.run()
    hub.log.delete_stream(goes)
    with pytest.raises(PySparkException) as raised:
        query.run()
    assert f"data was lost: {goes}/0 from 5 (the stream was deleted)" in message(raised.value)
    hub.log.create_stream(goes)
    hub.log.append(goes, Batch.of(values(2, 10)))
    with pytest.raises(PySparkException) as raised:
        query.run()
    assert "it now ends at 2: it was made anew" in message(raised.value)
    query.run(failOnDataLoss="false")
    assert query.values[-2:] == values(2, 10)
    assert len(query.rows) == 12
    hub.log.delete_stream(goes)
    hub.log.append(stays, Batch.of(values(1, 20)))
    query.run(failOnDataLoss="false")
    assert query.values[-1:] == values(1, 20)
    assert len(query.rows) == 13
    assert hub.log.position("anew", stays, 0) == 6


# -- what is refused, and a hub that is away -------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "a", "endingOffsets": "latest"}, "endingOffsets is for batches"),
        ({"subscribe": "no-such-stream"}, "no-such-stream"),
        ({"subscribe": "no-such-stream", "latency": "low"}, "no-such-stream"),
        ({"subscribe": "a", "penstock.url": "http://127.0.0.1:9", "penstock.timeout": "1"},
         "waited 1 s, as the option penstock.timeout says"),
    ],
)  # fmt: skip
def test_a_query_that_cannot_be_fails_with_one_clear_line(
    job: Callable[..., Job], options: dict[str, str], said: str
) -> None:
    running = job(**options).start(now=True)
    with pytest.raises(PySparkException):
        finish(running)
    assert said in message(running.exception())


def test_a_wrong_schema_fails_with_one_clear_line(spark: SparkSession, hub: TestHub) -> None:
    reader = spark.readStream.format("penstock").schema("value string, body binary")
    frame = reader.options(**{"penstock.url": hub.url, "subscribe": "a"}).load()
    running = frame.writeStream.format("noop").start()
    with pytest.raises(PySparkException):
        finish(running)
    assert "there is no column body; valid columns are" in message(running.exception())


@pytest.mark.crash
def test_a_query_waits_for_a_hub_that_was_killed(spark: SparkSession, tmp_path: Path) -> None:
    hub = ServedHub(tmp_path / "data")
    hub.start()
    try:
        with FlightClient(hub.url) as client:
            client.create_stream("orders")

        def append(start: int) -> None:
            hub.request(
                "POST", "/api/v1/streams/orders/records", b"\n".join(values(5, start)) + b"\n",
                "text/plain",
            )  # fmt: skip

        append(0)
        for latency in ("bulk", "low"):
            query = Job(
                spark, hub.url, tmp_path / latency, subscribe="orders", latency=latency, group="g"
            )
            running = query.start()
            before = len(values(5)) if latency == "bulk" else 10
            until(lambda q=query, n=before: len(q.rows) == n, query=running)  # type: ignore[misc]
            hub.end(signal.SIGKILL)
            time.sleep(0.5)
            hub.start()
            append(before)
            until(lambda q=query, n=before: len(q.rows) == n + 5, query=running)  # type: ignore[misc]
            assert query.values == values(before + 5)
            running.stop()
    finally:
        hub.end()


def test_a_streaming_view_in_sql(
    spark: SparkSession, hub: TestHub, job: Callable[..., Job], new_stream: NewStream
) -> None:
    stream = new_stream()
    hub.log.append(stream, Batch.of(values(4)))
    job(subscribe=stream).frame().createOrReplaceTempView("streaming_view")
    frame = spark.sql("SELECT CAST(value AS STRING) AS v FROM streaming_view WHERE offset > 1")
    name = f"streaming_{next(_names)}"
    finish(frame.writeStream.format("memory").queryName(name).trigger(availableNow=True).start())
    assert sorted(row.v for row in spark.table(name).collect()) == ["00002", "00003"]
