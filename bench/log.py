"""Figures of the durable log."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from bench.harness import (
    Benchmark,
    Run,
    cpu_seconds,
    median,
    percentile,
    raw_append,
    scratch,
    settle,
)
from penstock.log import (
    Batch,
    BinaryColumn,
    EmbeddedLog,
    LogSettings,
    StreamSettings,
    open_log,
)

RECORD = 100
ROUNDS = 5


def batch_of(count: int, size: int = RECORD) -> Batch:
    """Random bytes: they do not compress, which is the worst case for a sealed segment."""
    offsets = np.arange(0, size * count + 1, size, dtype=np.int32)
    return Batch(BinaryColumn(offsets, os.urandom(size * count)))


def append_for(log: EmbeddedLog, target: int, batch: Batch, seconds: float) -> float:
    """Records a second, one append at a time, each confirmed before the next."""
    began = time.perf_counter()
    appended = 0
    while (took := time.perf_counter() - began) < seconds:
        log.submit(target, batch, wait_for_room=True).result()
        appended += batch.count
    return appended / took


def append(run: Run) -> None:
    """Durable appends of columns, against raw write + fdatasync of the same bytes."""
    with scratch() as directory, open_log(directory / "data") as log:
        log.create_stream("s")
        target = log.locate("s", 0)
        for count, goal in ((1_000, 0.5), (10_000, 0.6)):
            batch = batch_of(count)
            append_for(log, target, batch, 1.0)
            rates, raws = [], []
            for _ in range(ROUNDS):
                log.checkpoint()
                settle()
                raws.append(raw_append(directory, count * RECORD, 1.0) / RECORD)
                settle()
                rates.append(append_for(log, target, batch, 1.5))
            run.add(
                f"log.append_{count // 1000}k",
                median(rates),
                "records/s",
                reference=median(raws),
                at_least=goal,
                note=f"{median(rates) * RECORD / 1e6:.0f} MB/s durable",
            )


def commit_partitions(run: Run) -> None:
    """One commit of 1,000 records over 64 partitions, against the same over one."""
    with scratch() as directory, open_log(directory / "data") as log:
        log.create_stream("s", 64)
        pids = np.array([log.locate("s", number) for number in range(64)], np.uint32)
        batch = batch_of(1_000)
        spread = pids[np.random.default_rng(1).integers(0, 64, batch.count)]
        times: dict[str, list[float]] = {"one": [], "many": []}
        for _ in range(1_500):
            for kind, target in (("one", int(pids[0])), ("many", spread)):
                began = time.perf_counter()
                log.submit(target, batch).result()
                times[kind].append(time.perf_counter() - began)
        run.add(
            "log.commit_64_partitions",
            median(times["many"]) * 1e6,
            "us",
            reference=median(times["one"]) * 1e6,
            at_most=3.0,
        )


def fill(log: EmbeddedLog, stream: str, total_bytes: int, count: int = 10_000) -> int:
    """Append `total_bytes` of records, several batches in flight; returns how many records."""
    target = log.locate(stream, 0)
    batches = [batch_of(count) for _ in range(4)]
    receipts = []
    appended = 0
    for batch in itertools.cycle(batches):
        if appended * RECORD >= total_bytes:
            break
        receipts.append(log.submit(target, batch, wait_for_room=True))
        appended += batch.count
    for receipt in receipts:
        receipt.result()
    return appended


def read_all(log: EmbeddedLog, stream: str, records: int, max_bytes: int = 4 << 20) -> float:
    """Seconds to read everything, in order."""
    began = time.perf_counter()
    at = 0
    while at < records:
        for batch in log.read(stream, 0, at, 1_000_000, max_bytes):
            at += batch.num_rows
    return time.perf_counter() - began


def plain_read(paths: list[Path], window: int = 4 << 20) -> tuple[int, float]:
    """Bytes and seconds of reading files and computing their crc32c, and nothing else."""
    buffer = memoryview(bytearray(window))
    total = 0
    began = time.perf_counter()
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        while got := os.preadv(fd, [buffer], os.lseek(fd, 0, os.SEEK_CUR)):
            crc32c(buffer[:got])
            os.lseek(fd, got, os.SEEK_CUR)
            total += got
        os.close(fd)
    return total, time.perf_counter() - began


def wait_until_sealed(log: EmbeddedLog, stream: str, seconds: float = 60.0) -> None:
    """Wait until only the growing segment is unsealed."""
    directory = log.data / "streams" / stream / "0"
    deadline = time.monotonic() + seconds
    while len(list(directory.glob("*.arrows"))) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)


def read(run: Run) -> None:
    """Sequential and random reads, with every checksum checked."""
    with scratch() as directory, open_log(directory / "data") as log:
        for stream, settings in (
            ("growing", StreamSettings(segment_bytes=1 << 30)),
            ("sealed", StreamSettings(segment_bytes=32 << 20)),
        ):
            log.create_stream(stream, settings=settings)
            records = fill(log, stream, 400_000_000)
            log.checkpoint()
            wait_until_sealed(log, stream)
            files = sorted((log.data / "streams" / stream / "0").glob("*.arrow*"))
            read_all(log, stream, records)
            plain_read(files)
            ratios: list[float] = []
            rates: list[float] = []
            size = 0
            for _ in range(ROUNDS):
                size, plain = plain_read(files)
                took = read_all(log, stream, records)
                ratios.append(plain / took)
                rates.append(size / took / 1e6)
            name = "log.read_arrow" if stream == "growing" else "log.read_arrow_sealed"
            run.add(
                name,
                median(rates),
                "MB/s",
                reference=median(rates) / median(ratios),
                at_least=0.5,
                note=f"{records / (size / median(rates) / 1e6) / 1e6:.1f} M records/s",
            )
            random_read(run, log, stream, records)


def random_read(run: Run, log: EmbeddedLog, stream: str, records: int) -> None:
    chooser = random.Random(1)
    times = []
    for _ in range(5_000):
        start = chooser.randrange(records - 100)
        began = time.perf_counter()
        batches = log.read(stream, 0, start, 100)
        times.append(time.perf_counter() - began)
        assert sum(batch.num_rows for batch in batches) == 100
    run.add(
        "log.random_read" if stream == "growing" else "log.random_read_sealed",
        median(times) * 1e6,
        "us",
        reference=100.0,
        at_most=1.0,
        note=f"p50 of 100 records from an index; p99 {percentile(times, 99) * 1e6:.0f} us",
    )


def growth(run: Run) -> None:
    """Appending and reading with 1,000 segments, against 10; nothing is open or known yet."""
    size = 256 * 1024
    figures: dict[int, float] = {}
    batch = batch_of(1_000)
    with scratch() as directory:
        for segments in (10, 1_000):
            data = directory / str(segments)
            with open_log(data) as log:
                log.create_stream("s", settings=StreamSettings(segment_bytes=size))
                target = log.locate("s", 0)
                for _ in range(int(segments * size / (RECORD + 29)) // batch.count):
                    log.submit(target, batch, wait_for_room=True)
                log.append("s", batch)
                log.checkpoint()
                wait_until_sealed(log, "s")
            reads = []
            for _ in range(ROUNDS):
                with open_log(data) as log:
                    records = log.bounds("s", 0)[1]
                    reads.append(read_all(log, "s", records) / records)
            figures[segments] = median(reads)
        settle()
        appends: dict[int, list[float]] = {10: [], 1_000: []}
        with open_log(directory / "10") as few, open_log(directory / "1000") as many:
            for _ in range(1_500):
                for segments, log in ((10, few), (1_000, many)):
                    began = time.perf_counter()
                    log.submit(log.locate("s", 0), batch).result()
                    appends[segments].append(time.perf_counter() - began)
    small, large = median(appends[10]), median(appends[1_000])
    run.add("log.growth_append", large * 1e6, "us", reference=small * 1e6, at_most=1.2)
    small, large = figures[10], figures[1_000]
    run.add("log.growth_read", large * 1e6, "us", reference=small * 1e6, at_most=1.2)


_GROW = """
import sys, os
from bench.log import fill
from penstock.log import open_log
log = open_log(sys.argv[1])
log.create_stream("s")
fill(log, "s", int(sys.argv[2]))
print("filled", flush=True)
while True:
    fill(log, "s", 10_000_000)
"""


def reopen(run: Run) -> None:
    """Opening after kill -9 under load, with 4 GB stored against 400 MB."""
    seconds = {}
    with scratch() as directory:
        for total in (400_000_000, 4_000_000_000):
            times = []
            data = directory / str(total)
            child = subprocess.Popen(
                [sys.executable, "-c", _GROW, str(data), str(total)], stdout=subprocess.PIPE
            )
            assert child.stdout is not None
            child.stdout.readline()
            for _ in range(3):
                time.sleep(0.5)
                child.send_signal(signal.SIGKILL)
                child.wait()
                began = time.perf_counter()
                log = open_log(data)
                times.append(time.perf_counter() - began)
                records = log.bounds("s", 0)[1]
                assert records * RECORD >= total
                log.read("s", 0, records - 1)
                child = _child_after(log, data)
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
            seconds[total] = median(times)
    small, large = seconds[400_000_000], seconds[4_000_000_000]
    run.add("log.reopen_growth", large, "s", reference=small, at_most=2.0)


_GO_ON = """
import sys
from bench.log import fill
from penstock.log import open_log
log = open_log(sys.argv[1])
print("open", flush=True)
while True:
    fill(log, "s", 10_000_000)
"""


def _child_after(log: EmbeddedLog, data: Path) -> subprocess.Popen[bytes]:
    """Close the log here and let a child go on with it."""
    log.close()
    child = subprocess.Popen([sys.executable, "-c", _GO_ON, str(data)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def low_rate(run: Run) -> None:
    """1,000 streams with one record a second each: processor time and confirmation times."""
    with scratch() as directory, open_log(directory / "data") as log:
        names = [f"s{number}" for number in range(1_000)]
        for name in names:
            log.create_stream(name)
        acks: list[float] = []
        batch = Batch.of([os.urandom(RECORD)])

        async def trickle(name: str, until: float, chooser: random.Random, real: bool) -> None:
            await asyncio.sleep(chooser.random())
            while time.perf_counter() < until:
                began = time.perf_counter()
                if real:
                    await log.append_async(name, batch, 0)
                    acks.append(time.perf_counter() - began)
                await asyncio.sleep(max(0.0, 1.0 - (time.perf_counter() - began)))

        async def drive(seconds: float, real: bool) -> None:
            chooser = random.Random(1)
            until = time.perf_counter() + seconds
            await asyncio.gather(*(trickle(name, until, chooser, real) for name in names))

        def cores(seconds: float, real: bool) -> float:
            pids = [os.getpid()] + ([] if log.writer_pid is None else [log.writer_pid])
            used = sum(map(cpu_seconds, pids))
            began = time.perf_counter()
            asyncio.run(drive(seconds, real))
            return (sum(map(cpu_seconds, pids)) - used) / (time.perf_counter() - began)

        driver = cores(6.0, real=False)
        total = cores(12.0, real=True)
        run.add(
            "log.low_rate",
            (total - driver) * 100,
            "% of a core",
            reference=12.0,
            at_most=1.0,
            note=f"and {driver * 100:.1f} % for the thousand timers that drive it",
        )
        run.add("log.low_rate_ack_p50", percentile(acks, 50) * 1e3, "ms")
        run.add("log.low_rate_ack_p99", percentile(acks, 99) * 1e3, "ms")


def many_streams(run: Run) -> None:
    """1,000 and 10,000 streams interleaved at random in one feed, until the ring has turned."""
    for streams, goal in ((1_000, 0.12), (10_000, 0.06)):
        with scratch() as directory, open_log(directory / "data") as log:
            for number in range(streams):
                log.create_stream(f"s{number}")
            pids = np.array([log.locate(f"s{n}", 0) for n in range(streams)], np.uint32)
            chooser = np.random.default_rng(1)
            batch = batch_of(10_000)
            feeds = [pids[chooser.integers(0, streams, batch.count)] for _ in range(8)]
            settle()
            raw = median([raw_append(directory, batch.count * RECORD, 0.7) for _ in range(ROUNDS)])
            settle()
            total = 12_000_000 if streams == 1_000 else 8_000_000
            began = time.perf_counter()
            receipts = [
                log.submit(feeds[turn % 8], batch, wait_for_room=True)
                for turn in range(total // batch.count)
            ]
            for receipt in receipts:
                receipt.result()
            took = time.perf_counter() - began
            run.add(
                "log.many_streams" if streams == 1_000 else "log.many_streams_10k",
                total / took,
                "records/s",
                reference=raw / RECORD,
                at_least=goal,
                note=f"{total * RECORD / 1e6:.0f} MB, ring {log.settings.journal_bytes >> 20} MiB",
            )


def frames(run: Run) -> None:
    """A mixed frame for each batch, against a frame for each partition in it, to the segments."""
    for partitions in (10, 100, 1_000):
        rates: dict[str, list[float]] = {"mixed": [], "split": []}
        for _ in range(2):
            for kind, figures in rates.items():
                with scratch() as directory, open_log(directory / "data") as log:
                    log.create_stream("s", partitions)
                    pids = np.array([log.locate("s", n) for n in range(partitions)], np.uint32)
                    settle()
                    figures.append(_feed(log, pids, split=kind == "split"))
        run.add(
            f"log.frames_mixed_{partitions}",
            median(rates["mixed"]),
            "records/s",
            reference=median(rates["split"]),
            note="reference: a frame for each partition",
        )


def _feed(log: EmbeddedLog, pids: NDArray[np.uint32], *, split: bool) -> float:
    """Records a second of a feed interleaved at random, until all is in segments."""
    chooser = np.random.default_rng(1)
    batch = batch_of(10_000)
    rows = np.frombuffer(batch.values.data, np.uint8).reshape(-1, RECORD)
    total = 0
    receipts = []
    began = time.perf_counter()
    while total < 1_500_000:
        target = pids[chooser.integers(0, len(pids), batch.count)]
        if split:
            order = np.argsort(target, kind="stable")
            data = rows[order].reshape(-1).data
            at = 0
            for pid, count in zip(*np.unique(target, return_counts=True), strict=True):
                column = BinaryColumn(
                    batch.values.offsets[: count + 1], data[at : at + int(count) * RECORD]
                )
                at += int(count) * RECORD
                receipts.append(log.submit(int(pid), Batch(column), wait_for_room=True))
        else:
            receipts.append(log.submit(target, batch, wait_for_room=True))
        total += batch.count
    for receipt in receipts:
        receipt.result()
    log.checkpoint()
    return total / (time.perf_counter() - began)


_SCAN = """
import sys, time
from penstock.log.direct import DirectReader
reader = DirectReader(sys.argv[1], "s", 0)
at = 0
print("ready", flush=True)
while True:
    batches = reader.read(at)
    if not batches:
        time.sleep(0.01)
    for batch in batches:
        assert batch.column(0)[0].as_py() == at
        at += batch.num_rows
"""


def readers(run: Run) -> None:
    """The append rate while another process scans everything as it comes, against alone."""
    rates: dict[str, list[float]] = {"alone": [], "scanned": []}
    for _ in range(3):
        for kind in rates:
            with scratch() as directory, open_log(directory / "data") as log:
                log.create_stream("s")
                batch = batch_of(10_000)
                target = log.locate("s", 0)
                child = None
                if kind == "scanned":
                    child = subprocess.Popen(
                        [sys.executable, "-c", _SCAN, str(log.data)], stdout=subprocess.PIPE
                    )
                    assert child.stdout is not None
                    child.stdout.readline()
                append_for(log, target, batch, 0.5)
                rates[kind].append(append_for(log, target, batch, 3.0))
                if child is not None:
                    assert child.poll() is None, "the reader failed"
                    child.kill()
                    child.wait()
                    assert child.stdout is not None
                    child.stdout.close()
            settle()
    run.add(
        "log.readers",
        median(rates["scanned"]),
        "records/s",
        reference=median(rates["alone"]),
        at_least=0.85,
    )


_STALL = """
import os, sys, threading, time
from pathlib import Path
from bench.harness import rss_bytes
from bench.log import batch_of
from penstock.errors import LogBusy
from penstock.log import LogSettings, open_log
from penstock.log.disk import RealDisk, RealFile

stalled = threading.Event()

class StallingFile(RealFile):
    def sync(self):
        while stalled.is_set():
            time.sleep(0.05)
        super().sync()

class StallingDisk(RealDisk):
    def open(self, path, *, create=False, writable=True):
        file = super().open(path, create=create, writable=writable)
        if path.name == "journal":
            file.__class__ = StallingFile
        return file

log = open_log(sys.argv[1], disk=StallingDisk())
log.create_stream("s")
target = log.locate("s", 0)
for _ in range(20):
    log.submit(target, batch_of(10_000)).result()
before = rss_bytes(os.getpid())
stalled.set()

def push():
    while stalled.is_set():
        batch = batch_of(5_000)
        try:
            log.submit(target, batch)
        except LogBusy:
            time.sleep(0.0005)

threads = [threading.Thread(target=push) for _ in range(8)]
for thread in threads:
    thread.start()
peak = 0
until = time.monotonic() + 5
while time.monotonic() < until:
    peak = max(peak, rss_bytes(os.getpid()))
    time.sleep(0.01)
stalled.clear()
for thread in threads:
    thread.join()
log.close()
print(peak - before - LogSettings().buffer_bytes)
"""


def memory_stalled(run: Run) -> None:
    """Memory above the configured buffer while the disk stands still and producers push."""
    with scratch() as directory:
        out = subprocess.run(
            [sys.executable, "-c", _STALL, str(directory / "data")],
            check=True,
            capture_output=True,
            text=True,
        )
    run.add(
        "log.memory_stalled",
        max(0, int(out.stdout)) / 2**20,
        "MiB",
        reference=64.0,
        at_most=1.0,
        note=f"above the {LogSettings().buffer_bytes >> 20} MiB buffer",
    )


BENCHMARKS: dict[str, Benchmark] = {
    "append": append,
    "commit_partitions": commit_partitions,
    "read": read,
    "growth": growth,
    "reopen": reopen,
    "low_rate": low_rate,
    "many_streams": many_streams,
    "frames": frames,
    "readers": readers,
    "memory_stalled": memory_stalled,
}
