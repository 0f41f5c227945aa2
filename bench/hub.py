"""Figures of the hub process: appends over HTTP, memory, start."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import ipc

from bench.harness import Benchmark, Run, median, rss_bytes, scratch, settle
from bench.log import RECORD, ROUNDS, append_for, batch_of
from penstock.log import open_log
from penstock.testing.served import ServedHub

RECORDS = 1_000


@contextlib.contextmanager
def served(data: Path) -> Iterator[tuple[http.client.HTTPConnection, int, float]]:
    """A hub in a process of its own: a connection, its process id, seconds until it was ready."""
    hub = ServedHub(data)
    try:
        seconds = hub.start()
        assert hub.process is not None
        connection = http.client.HTTPConnection("127.0.0.1", hub.port)
        yield connection, hub.process.pid, seconds
        connection.close()
    finally:
        hub.end()


def post(connection: http.client.HTTPConnection, path: str, body: bytes, kind: str) -> None:
    connection.request("POST", path, body, {"Content-Type": kind})
    response = connection.getresponse()
    text = response.read()
    assert response.status in (200, 201), text


def post_for(
    connection: http.client.HTTPConnection, body: bytes, kind: str, seconds: float
) -> float:
    """Records a second on one connection, each request confirmed before the next."""
    began = time.perf_counter()
    sent = 0
    while (took := time.perf_counter() - began) < seconds:
        post(connection, "/api/v1/streams/s/records?partition=0", body, kind)
        sent += RECORDS
    return sent / took


def arrow_body() -> bytes:
    batch = batch_of(RECORDS)
    values = pa.Array.from_buffers(
        pa.binary(),
        RECORDS,
        [None, pa.py_buffer(batch.values.offsets), pa.py_buffer(batch.values.data)],
    )
    table = pa.table({"value": values})
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def json_body() -> bytes:
    text = "x" * (RECORD - 10)
    return b"".join(b'{"value":"%s%010d"}\n' % (text.encode(), n) for n in range(RECORDS))


def http_append(run: Run) -> None:
    """Batches of 1,000 records over HTTP on one connection, durable, against the log itself."""
    with scratch() as directory:
        with open_log(directory / "log") as log:
            log.create_stream("s")
            batch = batch_of(RECORDS)
            own = [append_for(log, log.locate("s", 0), batch, 1.0) for _ in range(ROUNDS)]
        settle()
        with served(directory / "hub") as (connection, _, _):
            body = json.dumps({"name": "s"}).encode()
            post(connection, "/api/v1/streams", body, "application/json")
            for name, body, kind in (
                ("hub.http_append", arrow_body(), "application/vnd.apache.arrow.stream"),
                ("hub.http_append_json", json_body(), "application/x-ndjson"),
            ):
                post_for(connection, body, kind, 0.5)
                rates = [post_for(connection, body, kind, 1.0) for _ in range(ROUNDS)]
                if name == "hub.http_append":
                    run.add(
                        name, median(rates), "records/s", reference=median(own), at_least=0.3,
                        note="or 1 M records/s",
                    )  # fmt: skip
                else:
                    run.add(
                        name, median(rates), "records/s", reference=150_000.0, at_least=1.0,
                        note="JSON lines, against 150,000",
                    )  # fmt: skip


def idle_memory(run: Run) -> None:
    """Memory of the hub's process when nothing happens."""
    with scratch() as directory, served(directory / "hub") as (_, pid, _):
        time.sleep(2.0)
        run.add(
            "hub.idle_memory", rss_bytes(pid) / 2**20, "MiB", reference=150.0, at_most=1.0,
            note="its segment writer is a process of its own",
        )  # fmt: skip


def start(run: Run) -> None:
    """Seconds until the hub is ready: the first time, again, and with 1,000 streams."""
    with scratch() as directory:
        for name, streams in (("empty", 0), ("1k_streams", 1_000)):
            data = directory / name
            with open_log(data) as log:
                for number in range(streams):
                    log.create_stream(f"s{number}")
            times = []
            for _ in range(ROUNDS):
                with served(data) as (_, _, seconds):
                    times.append(seconds)
            figure = "hub.start" if name == "empty" else f"hub.start_{name}"
            run.add(figure, median(times), "s", note="process start included")
    with scratch() as directory, served(directory / "new") as (_, _, seconds):
        run.add("hub.start_first", seconds, "s", note="makes the 512 MiB ring")


BENCHMARKS: dict[str, Benchmark] = {
    "http_append": http_append,
    "idle_memory": idle_memory,
    "start": start,
}
