"""See Penstock's log at work: write, kill it in the middle, and find everything confirmed again.

make demo            or    python examples/demo.py [--keep DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from pyarrow import ipc
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import penstock
from penstock.log import Batch, EmbeddedLog, open_log
from penstock.log.verify import verify

STREAM = "plant.readings"
PARTITIONS = 4
RECORDS = 400_000
BATCH = 2_000

console = Console()


def readings(first: int, count: int) -> Batch:
    """Sensor readings, keyed by sensor."""
    numbers = range(first, first + count)
    return Batch.of(
        [
            json.dumps({"seq": n, "sensor": n % 97, "celsius": 20 + n % 40 / 4}).encode()
            for n in numbers
        ],
        keys=[b"sensor-%d" % (n % 97) for n in numbers],
    )


def write(log: EmbeddedLog) -> float:
    """Append with a progress bar; each batch is on disk before the next is made."""
    began = time.perf_counter()
    with Progress(
        TextColumn("  writing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console,
    ) as progress:  # fmt: skip
        task = progress.add_task("", total=RECORDS)
        for first in range(0, RECORDS, BATCH):
            log.append(STREAM, readings(first, BATCH))
            progress.advance(task, BATCH)
    return time.perf_counter() - began


def child(data: str) -> None:
    """Runs in a process of its own: append, and print each batch that was confirmed."""
    log = open_log(data)
    first = RECORDS
    while True:
        log.append(
            STREAM,
            readings(first, BATCH),
            0,
            producer="demo",
            ids=list(range(first, first + BATCH)),
        )
        first += BATCH
        print(first, flush=True)


def kill_in_the_middle(data: Path) -> tuple[int, EmbeddedLog, float]:
    """Kill -9 a process that appends; returns what it had been told, and the log opened again."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--child", str(data)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    confirmed = RECORDS
    until = time.monotonic() + 2.0
    while time.monotonic() < until and (line := process.stdout.readline()):
        confirmed = int(line)
    process.send_signal(signal.SIGKILL)
    for line in process.stdout:  # told before it died
        confirmed = int(line)
    process.wait()
    process.stdout.close()
    began = time.perf_counter()
    log = open_log(data)
    return confirmed, log, time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keep", metavar="DIR", help="keep the data in DIR to look around")
    parser.add_argument("--child", metavar="DIR", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child)
    data = Path(args.keep or tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        return demo(data, keep=bool(args.keep))
    except KeyboardInterrupt:
        console.print("\nstopped")
        return 130
    finally:
        if not args.keep:
            shutil.rmtree(data, ignore_errors=True)


def demo(data: Path, *, keep: bool) -> int:
    console.print(f"[bold]Penstock {penstock.__version__}[/]: streams to Spark\n")

    console.print("[bold]1[/] A durable log, four partitions, each append confirmed on disk")
    log = open_log(data)
    if STREAM in log.streams():
        log.delete_stream(STREAM)
    log.create_stream(STREAM, PARTITIONS)
    took = write(log)
    console.print(f"  {RECORDS:,} records, {RECORDS / took:,.0f} a second, JSON made in Python\n")

    console.print("[bold]2[/] A group reads half of it; its lag is in records and in seconds")
    half = {number: log.bounds(STREAM, number)[1] // 2 for number in range(PARTITIONS)}
    log.save_positions("dashboard", STREAM, half)
    table = Table(box=None, padding=(0, 2))
    for column in ("partition", "position", "end", "lag", "seconds"):
        table.add_column(column, justify="right")
    for lag in log.lags("dashboard"):
        table.add_row(
            *map(str, (lag.partition, lag.position, lag.end, lag.records)), f"{lag.seconds:.1f}"
        )
    console.print(table)
    log.close()

    console.print("\n[bold]3[/] kill -9 while it writes at full speed, then open it again")
    confirmed, log, opened = kill_in_the_middle(data)
    last = log.last_id("demo", STREAM, 0)
    assert last is not None
    assert last + 1 >= confirmed, "a confirmed record is missing"
    stored = stored_ids(log)
    missing = confirmed - RECORDS - sum(1 for n in stored if RECORDS <= n < confirmed)
    console.print(
        f"  confirmed before the kill {confirmed - RECORDS:,}   missing {missing}   "
        f"doubled {len(stored) - len(set(stored))}   open again in {opened * 1000:.0f} ms\n"
    )
    log.checkpoint()
    log.close()

    console.print("[bold]4[/] The records are plain Arrow files; this is pyarrow alone")
    path = min((data / "streams" / STREAM / "0").glob("*.arrow*"))
    reader = ipc.open_stream if path.suffix == ".arrows" else ipc.open_file
    with contextlib.closing(pa.OSFile(str(path))) as source:
        rows = reader(source).read_all().slice(0, 3).to_pylist()
    for row in rows:
        console.print(
            f"  {row['index']}  {row['key'].decode()}  {row['value'].decode()}", highlight=False
        )

    report = verify(data)
    console.print(
        f"\n[bold]5[/] verify: {report.records:,} records in {report.segments} segments, "
        + ("[green]all whole[/]" if report.ok else f"[red]{report.problems}[/]")
    )
    if keep:
        console.print(f"\nThe data is in {data}.")
    return 0 if report.ok and missing == 0 else 1


def stored_ids(log: EmbeddedLog) -> list[int]:
    """What the killed process stored in partition 0, by its own numbers."""
    found: list[int] = []
    at, end = log.bounds(STREAM, 0)
    while at < end:
        for batch in log.read(STREAM, 0, at):
            at += batch.num_rows
            found.extend(json.loads(value)["seq"] for value in batch.column("value").to_pylist())
    return [number for number in found if number >= RECORDS]


if __name__ == "__main__":
    sys.exit(main())
