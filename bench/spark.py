"""Figures of Spark's source, sink and archive, against Spark's own Parquet file stream.

Rows are those of the issue: a 16-byte key and a 100-byte value, random, so that nothing
compresses. Everything runs in one session on two cores, with the hub beside it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from bench.harness import Benchmark, Run, cpu_seconds, median, percentile, scratch, settle
from penstock.flight.client import FlightClient
from penstock.hub.users import Grant, Users
from penstock.log import Batch, BinaryColumn, open_log
from penstock.testing.served import ServedHub

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = int(os.environ.get("PENSTOCK_BENCH_ROWS", "10_000_000"))
PARTITIONS = 4
BATCHES = 5
ROUNDS = 3
KEY, VALUE = 16, 100
STREAM = "rows"
LATENCY_RATE = 200
LATENCY_S, LATENCY_WARM_S = 30.0, 15.0


class Place(NamedTuple):
    """A hub with the rows, a session, and the same rows as Parquet."""

    spark: SparkSession
    hub: ServedHub
    admin: str
    reader: str
    """The token of a user that may not see the data directory, and so reads through Flight."""
    parquet: str
    scratch: Path


# -- setting up ------------------------------------------------------------------------------------


def rows_batch(count: int) -> Batch:
    def column(size: int) -> BinaryColumn:
        offsets = np.arange(0, size * count + 1, size, dtype=np.int32)
        return BinaryColumn(offsets, os.urandom(size * count))

    return Batch(column(VALUE), column(KEY))


def fill(data: Path) -> tuple[str, str]:
    """Append the rows; returns the tokens of the admin and of the reader."""
    with open_log(data) as log:
        log.create_stream(STREAM, PARTITIONS)
        each = 50_000
        for number in range(ROWS // each):
            log.append(STREAM, rows_batch(each), number % PARTITIONS)
    users = Users(data)
    return users.add("admin", [Grant("admin")]), users.add("reader", [Grant("read", STREAM)])


@contextlib.contextmanager
def place(*, filled: bool = True) -> Iterator[Place]:
    from penstock.spark.session import spark_session

    with scratch() as directory:
        data = directory / "data"
        admin, reader = fill(data) if filled else (Users(data).add("admin", [Grant("admin")]), "")
        hub = ServedHub(data)
        hub.start()
        spark = spark_session("bench", master="local[2]", conf={"spark.driver.memory": "4g"})
        try:
            found = Place(spark, hub, admin, reader, str(directory / "parquet"), directory)
            if filled:
                table = batch(found).load().repartition(2 * BATCHES)
                table.write.parquet(found.parquet)
                settle()
            yield found
        finally:
            spark.stop()
            hub.end()


def batch(at: Place) -> Any:
    reader = at.spark.read.format("penstock").option("subscribe", STREAM)
    return reader.option("penstock.url", at.hub.url).option("penstock.token", at.admin)


def stream(at: Place, token: str) -> DataFrame:
    return (
        at.spark.readStream.format("penstock")
        .option("penstock.url", at.hub.url)
        .option("penstock.token", token)
        .option("subscribe", STREAM)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS // BATCHES)
        .load()
    )


def parquet_stream(at: Place) -> DataFrame:
    schema = at.spark.read.parquet(at.parquet).schema
    return at.spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(at.parquet)


def drain(at: Place, frame: DataFrame, name: str) -> float:
    """Rows a second to nowhere, from the start of the query to its end."""
    checkpoint = at.scratch / "checkpoints" / f"{name}-{time.monotonic_ns()}"
    began = time.perf_counter()
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    took = time.perf_counter() - began
    read = sum(each["sources"][0]["numInputRows"] for each in query.recentProgress)
    assert read == ROWS, read
    return ROWS / took


# -- figures ---------------------------------------------------------------------------------------


def read(run: Run) -> None:
    """A streaming read of all rows to nowhere, from segments and through Flight."""
    with place() as at:
        cases: dict[str, Callable[[], DataFrame]] = {
            "parquet": lambda: parquet_stream(at),
            "segments": lambda: stream(at, at.admin),
            "flight": lambda: stream(at, at.reader),
        }
        rates: dict[str, list[float]] = {name: [] for name in cases}
        for number in range(ROUNDS + 1):  # the first warms up
            for name, frame in cases.items():
                rate = drain(at, frame(), name)
                if number:
                    rates[name].append(rate)
        parquet = median(rates["parquet"])
        for name, goal in (("segments", 0.8), ("flight", 0.65)):
            run.add(
                f"spark.read_{name}", median(rates[name]), "rows/s", reference=parquet,
                at_least=goal,
                note=f"rounds {', '.join(f'{each / 1e6:.2f}' for each in rates[name])} M",
            )  # fmt: skip


def archive_cpu(run: Run) -> None:
    """Processor seconds of an archive to Parquet, against Parquet to Parquet."""
    from penstock.spark.archive import archive

    with place() as at:

        def penstock(number: int) -> None:
            archive(
                at.spark, streams=STREAM, to=str(at.scratch / f"archive-{number}"),
                url=at.hub.url, token=at.admin, batch_records=ROWS // BATCHES,
            ).wait()  # fmt: skip

        def parquet(number: int) -> None:
            to = at.scratch / f"copy-{number}"
            query = (
                parquet_stream(at)
                .writeStream.format("parquet")
                .option("checkpointLocation", f"{to}-checkpoint")
                .trigger(availableNow=True)
                .start(str(to))
            )
            query.awaitTermination()

        used: dict[str, list[float]] = {"archive": [], "parquet": []}
        for number in range(ROUNDS):
            for name, work in (("parquet", parquet), ("archive", penstock)):
                before = tree_seconds(at.hub)
                work(number)
                if number:  # the first warms up
                    used[name].append(tree_seconds(at.hub) - before)
        per_10m = 10_000_000 / ROWS
        run.add(
            "spark.archive_cpu", median(used["archive"]) * per_10m, "cpu s / 10 M rows",
            reference=median(used["parquet"]) * per_10m, at_most=1.4,
        )  # fmt: skip


def tree_seconds(hub: ServedHub) -> float:
    """Processor time of this process, of all below it and of those that have ended."""
    total = 0.0
    tick = os.sysconf("SC_CLK_TCK")
    assert hub.process is not None
    for pid in {os.getpid(), hub.process.pid, *below(os.getpid())}:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += cpu_seconds(pid) + (int(fields[13]) + int(fields[14])) / tick
    return total


def below(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        more = children.get(waiting.pop(), [])
        found += more
        waiting += more
    return found


def latency(run: Run) -> None:
    """From handing an event to the hub to seeing it in foreachBatch, at 200 events a second."""
    with place(filled=False) as at:
        for name, latency, goal in (("bulk", "bulk", None), ("low", "low", None)):
            found = measure_latency(at, name, latency)
            run.add(
                f"spark.latency_{name}", percentile(found, 50), "ms p50",
                reference=268.0, at_most=goal,
                note=f"p99 {percentile(found, 99):.0f} ms; reference: Spark's Kafka source",
            )  # fmt: skip
            run.add(
                f"spark.latency_{name}_p99", percentile(found, 99), "ms p99", reference=410.0,
                at_most=goal,
            )  # fmt: skip


def measure_latency(at: Place, name: str, latency: str) -> list[float]:
    """Milliseconds of each event."""
    stream = f"events-{name}"
    found: list[float] = []
    warm_until = time.time() + LATENCY_WARM_S
    client = FlightClient(at.hub.url, at.admin)
    client.create_stream(stream)
    frame = (
        at.spark.readStream.format("penstock")
        .option("penstock.url", at.hub.url)
        .option("penstock.token", at.admin)
        .option("subscribe", stream)
        .option("startingOffsets", "earliest")
        .option("latency", latency)
        .load()
    )

    def seen(frame: DataFrame, number: int) -> None:
        values = frame.select("value").toArrow().column("value").to_pylist()
        now = time.time()
        sent = [struct.unpack("<d", value)[0] for value in values]
        found.extend((now - each) * 1_000 for each in sent if each > warm_until)

    query = frame.writeStream.foreachBatch(seen).start()
    over = threading.Event()

    def send() -> None:
        due = time.perf_counter()
        with client.appender(stream) as appender:
            while not over.is_set():
                appender.write(pa.record_batch({"value": [struct.pack("<d", time.time())]}))
                due += 1 / LATENCY_RATE
                time.sleep(max(0.0, due - time.perf_counter()))

    sender = threading.Thread(target=send)
    sender.start()
    time.sleep(LATENCY_WARM_S + LATENCY_S)
    over.set()
    sender.join()
    query.stop()
    client.close()
    assert len(found) > LATENCY_RATE * LATENCY_S / 2, len(found)
    return found


def sink(run: Run) -> None:
    """Rows from Spark into a stream, on disk and visible."""
    with place(filled=False) as at:
        client = FlightClient(at.hub.url, at.admin)
        client.create_stream("written", PARTITIONS)
        rows = ROWS // 2
        rates = []
        for number in range(ROUNDS):
            frame = at.spark.range(0, rows, 1, 4).selectExpr(
                "unhex(lpad(hex(id), 32, '0')) as key",
                f"cast(lpad(cast(id as string), {VALUE}, 'x') as binary) as value",
            )
            began = time.perf_counter()
            (
                frame.write.format("penstock")
                .mode("append")
                .option("penstock.url", at.hub.url)
                .option("penstock.token", at.admin)
                .option("topic", "written")
                .save()
            )
            if number:  # the first warms up
                rates.append(rows / (time.perf_counter() - began))
        assert sum(each.end for each in client.look(["written"])["written"]) == ROUNDS * rows
        client.close()
        run.add("spark.sink", median(rates), "rows/s", reference=500_000.0, at_least=1.0)


BENCHMARKS: dict[str, Benchmark] = {
    "read": read,
    "archive_cpu": archive_cpu,
    "latency": latency,
    "sink": sink,
}
