"""See Penstock at work: a hub, records in, kill -9, everything there again, and Spark out and back.

make demo            or    python examples/demo.py [--keep DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import ipc
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import penstock
from penstock.flight.client import FlightClient
from penstock.log.verify import verify

STREAM = "plant.readings"
ANSWERS = "plant.averages"
PARTITIONS = 4
RECORDS = 200_000
BATCH = 2_000
KILL_AT = RECORDS // 2
LINES = "application/x-ndjson"

console = Console()


class Hub:
    """`penstock serve` in a process of its own."""

    def __init__(self, data: Path) -> None:
        self._data = data
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Seconds until it was ready."""
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from penstock.cli import main; main()", "serve",
             "--data", str(self._data), "--listen", f"127.0.0.1:{self.port}",
             "--set", "flight.listen=127.0.0.1:0"],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while self.ask("GET", "/readyz") is None:
            if self._process.poll() is not None:
                raise SystemExit("the hub did not start; try: penstock serve")
            time.sleep(0.01)
        return time.perf_counter() - began

    def end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait()

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = LINES) -> Any:
        """The answer's JSON; None if nobody answers, or says that it cannot now."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, {"Content-Type": kind})
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        if response.status == 503:
            return None
        if response.status >= 400:
            raise SystemExit(answer.decode())
        return json.loads(answer) if answer else {}


def lines(first: int, count: int) -> bytes:
    """Sensor readings as JSON lines, keyed by sensor."""
    return b"".join(
        b'{"key":"sensor-%d","value":{"seq":%d,"celsius":%.2f}}\n' % (n % 97, n, 20 + n % 40 / 4)
        for n in range(first, first + count)
    )


def watch(hub: Hub, seen: list[str]) -> None:
    """A live tail, as a browser or curl would have it; ends with the hub."""
    connection = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=60)
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        connection.request("GET", f"/api/v1/streams/{STREAM}/tail")
        events = (line for line in connection.getresponse() if line.startswith(b"data: "))
        seen.extend(event[6:].decode().strip() for event in events)


def write(hub: Hub) -> tuple[float, float]:
    """Send everything; half-way the hub is killed. A batch is sent again until it is confirmed.

    Returns the seconds it took, and those until the killed hub was back.
    """
    began = time.perf_counter()
    back = 0.0
    killer = threading.Timer(0.002, hub.end, [signal.SIGKILL])
    with Progress(
        TextColumn("  writing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console,
    ) as progress:  # fmt: skip
        task = progress.add_task("", total=RECORDS)
        sent = 0
        while sent < RECORDS:
            if sent >= KILL_AT and not back:
                killer.start()
            path = f"/api/v1/streams/{STREAM}/records?producer=demo&first_id={sent}"
            answer = hub.ask("POST", path, lines(sent, BATCH))
            if sent >= KILL_AT and not back:
                killer.join()
                progress.console.print("  [red]kill -9[/] half-way, in the middle of a request")
                back = hub.start()
            if answer is not None:
                sent += BATCH
                progress.update(task, completed=sent)
    return time.perf_counter() - began, back


def stored(hub: Hub) -> list[int]:
    """The numbers of all records in the hub."""
    numbers = []
    for partition in range(PARTITIONS):
        at = 0
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", hub.port)
            connection.request(
                "GET",
                f"/api/v1/streams/{STREAM}/partitions/{partition}/records?from={at}&limit=50000",
                headers={"Accept": "application/vnd.apache.arrow.stream"},
            )
            with ipc.open_stream(connection.getresponse().read()) as reader:
                table = reader.read_all()
            connection.close()
            if not table.num_rows:
                break
            numbers += [json.loads(value)["seq"] for value in table["value"].to_pylist()]
            at += table.num_rows
    return numbers


def demo(data: Path, *, keep: bool) -> int:
    console.print(f"[bold]Penstock {penstock.__version__}[/]: streams to Spark\n")
    hub = Hub(data)
    try:
        seconds = hub.start()
        console.print(f"[bold]1[/] A hub, ready in {seconds:.1f} s at {hub.url}", highlight=False)
        body = json.dumps({"name": STREAM, "partitions": PARTITIONS}).encode()
        if not any(each["name"] == STREAM for each in hub.ask("GET", "/api/v1/streams")["streams"]):
            hub.ask("POST", "/api/v1/streams", body, "application/json")
        before = len(stored(hub))

        console.print("\n[bold]2[/] JSON lines in over HTTP, each batch confirmed on disk")
        seen: list[str] = []
        threading.Thread(target=watch, args=(hub, seen), daemon=True).start()
        took, back = write(hub)
        console.print(f"  {RECORDS / took:,.0f} records a second, the kill included")
        console.print(f"  the hub was back in {back:.1f} s; the live tail had seen {len(seen):,}:")
        for record in seen[:2]:
            console.print(f"    {record}", highlight=False)

        console.print("\n[bold]3[/] Everything confirmed is there, once")
        numbers = stored(hub)
        new = numbers if before == 0 else sorted(numbers)[-RECORDS:]
        missing, doubled = RECORDS - len(set(new)), len(new) - len(set(new))
        colour = "green" if missing == doubled == 0 else "red"
        console.print(
            f"  sent {RECORDS:,}   [{colour}]missing {missing}   doubled {doubled}[/]   "
            "(the batch under way was sent again under the same ids)"
        )

        console.print("\n[bold]4[/] Spark archives the stream to a Parquet table, JSON as columns")
        tables = data.parent / f"{data.name}-tables"
        archived = archive_and_answer(hub, tables)
        show_lag(hub)
    finally:
        hub.end(signal.SIGTERM)

    console.print("\n[bold]6[/] The records are plain Arrow files; this is pyarrow alone")
    path = min((data / "streams" / STREAM / "0").glob("*.arrow*"))
    opened = ipc.open_stream if path.suffix == ".arrows" else ipc.open_file
    with contextlib.closing(pa.OSFile(str(path))) as source:
        for row in opened(source).read_all().slice(0, 2).to_pylist():
            text = f"  {row['index']}  {row['key'].decode()}  {row['value'].decode()}"
            console.print(text, highlight=False)
    report = verify(data)
    whole = "[green]all whole[/]" if report.ok else f"[red]{report.problems}[/]"
    console.print(f"  verify: {report.records:,} records in {report.segments} segments, {whole}")
    if not keep:
        shutil.rmtree(tables, ignore_errors=True)
    else:
        console.print(f"\nThe data is in {data}, the tables are in {tables}. Next:")
        for line in (
            f"serve --data {data}",
            "streams",
            f"read {STREAM} --last 3",
            f"tail {STREAM}",
            f"pipeline archive --streams '{STREAM}' --to {tables} --parse json",
            "shell",
        ):
            console.print(f"  .venv/bin/penstock {line}", highlight=False)
    return 0 if report.ok and archived and missing == doubled == 0 else 1


def archive_and_answer(hub: Hub, tables: Path) -> bool:
    """The stream to a table, and averages of it back to a stream; whether all of it arrived."""
    from penstock.spark.archive import archive
    from penstock.spark.progress import Shown
    from penstock.spark.session import spark_session

    with console.status("  starting Spark ..."):
        spark = spark_session("penstock-demo", conf={"spark.driver.memory": "1g"})
    running = archive(spark, streams=STREAM, to=tables, parse="json", group="archive", url=hub.url)
    with Shown(running.board, console=console):
        running.wait()
    table = ds.dataset(tables / STREAM, format="parquet", partitioning="hive")
    rows = table.count_rows()
    columns = ", ".join(f"{each.name}" for each in table.schema)
    console.print(
        f"  {rows:,} rows in Parquet, counted by pyarrow; columns: {columns}", highlight=False
    )

    console.print("\n[bold]5[/] Spark answers in a stream: the average of each sensor")
    hub.ask("POST", "/api/v1/streams", json.dumps({"name": ANSWERS}).encode(), "application/json")
    spark.read.parquet(str(tables / STREAM)).createOrReplaceTempView("readings")
    averages = spark.sql(
        "SELECT key, to_json(struct(round(avg(value.celsius), 2) AS celsius, count(*) AS readings))"
        " AS value FROM readings GROUP BY key ORDER BY key"
    )
    averages.write.format("penstock").mode("append").option("penstock.url", hub.url).option(
        "topic", ANSWERS
    ).save()
    spark.stop()
    with FlightClient(hub.url) as client:
        for batch in client.read(ANSWERS, 0, 0, 2, ["key", "value"]):
            for record in batch.to_pylist():
                text = f"    {record['key'].decode()}  {record['value'].decode()}"
                console.print(text, highlight=False)
    return bool(rows == RECORDS)


def show_lag(hub: Hub) -> None:
    """How far the archive's group is: at the end."""
    answer = hub.ask("GET", "/api/v1/groups?group=archive")
    table = Table(box=None, padding=(0, 2))
    columns = ("group", "partition", "position", "end", "records")
    for column in columns:
        table.add_column({"records": "lag"}.get(column, column), justify="right")
    for lag in answer["groups"]:
        shown = [lag[column] for column in columns]
        table.add_row(*(each if isinstance(each, str) else f"{each:,}" for each in shown))
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keep", metavar="DIR", help="keep the data in DIR to look around")
    args = parser.parse_args()
    data = Path(args.keep or tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        return demo(data, keep=bool(args.keep))
    except KeyboardInterrupt:
        console.print("\nstopped")
        return 130
    finally:
        if not args.keep:
            shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
