"""Figures of the Wallaroo door and connector, over TCP, durable and acked."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from bench.harness import (
    Benchmark,
    Run,
    cpu_seconds,
    median,
    raw_append,
    rss_bytes,
    scratch,
    settle,
)
from bench.wallaroo_sender import Outcome, Task
from penstock.testing.served import ServedHub

ROUNDS = 5
SECONDS = 2.0
RAW_SECONDS = 1.0
GROUP_BYTES = 1_790_000
"""What the prototype's commits had on average: the group that raw appends write."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def served(directory: Path) -> Iterator[tuple[int, int]]:
    """A hub with an open door: its port, and the hub's process id."""
    port = free_port()
    hub = ServedHub(directory / "hub", {"wallaroo.listen": f"127.0.0.1:{port}"})
    hub.start()
    assert hub.process is not None
    try:
        yield port, hub.process.pid
    finally:
        hub.end()


def sending(task: Task, meanwhile: Callable[[], None] = lambda: None) -> Outcome:
    """Send from a process of its own; `meanwhile` is done while it does."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.wallaroo_sender", json.dumps(asdict(task))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n", "the sender failed"
        process.stdin.write("go\n")
        process.stdin.flush()
        meanwhile()
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, "the sender failed"
    return Outcome(**json.loads(out))


def measure(
    run: Run,
    name: str,
    task: Task,
    *,
    at_least: float,
    p99_ms_max: float | None = None,
) -> None:
    """A rate against raw append + fdatasync of the same payload bytes, in alternating rounds."""
    rates, raws, p99s, p50s, cpus = [], [], [], [], []
    with scratch() as directory, served(directory) as (port, pid):
        task.port = port
        sending(Task(**asdict(task) | {"seconds": SECONDS / 4, "name": "warm"}))
        for number in range(ROUNDS):
            settle()
            raws.append(raw_append(directory, GROUP_BYTES, RAW_SECONDS) / task.size)
            settle()
            task.seconds, task.name = SECONDS, f"bench{number}"
            before = 0.0

            def begin() -> None:
                nonlocal before
                before = cpu_seconds(pid)

            done = sending(task, begin)
            cpus.append((cpu_seconds(pid) - before) / done.messages * 1e9)
            rates.append(done.messages / done.seconds)
            p50s.append(done.p50_ms)
            p99s.append(done.p99_ms)
    run.add(
        name, median(rates), "messages/s", reference=median(raws), at_least=at_least,
        note=f"{median(rates) * task.size / 1e6:.0f} MB/s, hub {median(cpus):.0f} ns of CPU each",
    )  # fmt: skip
    run.add(f"{name}_ack_p50", median(p50s), "ms")
    run.add(f"{name}_ack_p99", median(p99s), "ms", at_most=p99_ms_max)


def ingest(run: Run) -> None:
    """One connection with one stream."""
    measure(run, "wallaroo.ingest", Task(0), at_least=0.45, p99_ms_max=25)
    measure(run, "wallaroo.ingest_1kib", Task(0, size=1024), at_least=0.5)


def ingest_100_streams(run: Run) -> None:
    """One connection with 100 streams, interleaved at random."""
    measure(run, "wallaroo.ingest_100_streams", Task(0, streams=100), at_least=0.35)
    measure(run, "wallaroo.ingest_100_streams_1kib", Task(0, streams=100, size=1024), at_least=0.35)


def ingest_1000_streams(run: Run) -> None:
    """100 connections with 10 streams each."""
    task = Task(0, connections=100, streams=10)
    measure(run, "wallaroo.ingest_1000_streams", task, at_least=0.3, p99_ms_max=100)


def connector(run: Run) -> None:
    """Our own connector, from a source in Python that yields lists."""
    rates, cpus = [], []
    with scratch() as directory, served(directory) as (port, _):
        for number in range(ROUNDS):
            settle()
            done = sending(Task(port, connector=True, seconds=SECONDS, name=f"bench{number}"))
            rates.append(done.messages / done.seconds)
            cpus.append(done.cpu_seconds / done.messages * 1e9)
    run.add(
        "wallaroo.connector", median(rates), "messages/s", reference=500_000.0, at_least=1.0,
        note=f"against 500,000; {median(cpus):.0f} ns of its CPU each",
    )  # fmt: skip


_STALLING: str = """
import os, sys, time
from penstock.log.disk import RealDisk, RealFile

flag = sys.argv.pop(1)

class StallingFile(RealFile):
    def sync(self):
        while os.path.exists(flag):
            time.sleep(0.02)
        super().sync()

plain = RealDisk.open

def stalling(self, path, **more):
    file = plain(self, path, **more)
    if path.name == "journal":
        file.__class__ = StallingFile
    return file

RealDisk.open = stalling
from penstock.cli import main
main()
"""


def memory_stalled(run: Run) -> None:
    """How much the hub grows while its disk stands still and 100 connections push."""
    with scratch() as directory:
        flag, port, http = directory / "stalled", free_port(), free_port()
        hub = subprocess.Popen(
            [sys.executable, "-c", _STALLING, str(flag), "serve", "--data", str(directory / "hub"),
             "--listen", f"127.0.0.1:{http}", "--set", f"wallaroo.listen=127.0.0.1:{port}",
             "--set", "flight.enabled=false"],
        )  # fmt: skip
        try:
            _wait_for(port)
            sending(Task(port, connections=100, streams=10, seconds=SECONDS, name="warm"))
            before = rss_bytes(hub.pid)
            peak = 0

            def stall() -> None:
                nonlocal peak
                time.sleep(SECONDS / 4)
                flag.touch()
                until = time.monotonic() + 2.5 * SECONDS
                while time.monotonic() < until:
                    peak = max(peak, rss_bytes(hub.pid))
                    time.sleep(0.01)
                flag.unlink()

            sending(Task(port, connections=100, streams=10, seconds=4 * SECONDS), stall)
        finally:
            hub.send_signal(signal.SIGTERM)
            hub.wait(60)
    run.add(
        "wallaroo.memory_stalled", max(0, peak - before) / 2**20, "MiB", reference=64.0,
        at_most=1.0, note="above what the hub takes at full rate",
    )  # fmt: skip


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)
    raise SystemExit("the hub does not start")


BENCHMARKS: dict[str, Benchmark] = {
    "ingest": ingest,
    "ingest_100_streams": ingest_100_streams,
    "ingest_1000_streams": ingest_1000_streams,
    "connector": connector,
    "memory_stalled": memory_stalled,
}
