"""Programs that run Spark, and finding what to kill in them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, Queue
from typing import Self


class Program:
    """A process whose lines can be waited for; on leaving, it and its children are gone."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._log.write(line)
            self._log.flush()
            self._lines.put(line.decode(errors="replace").rstrip())

    def wait_for(self, told: Callable[[str], bool], seconds: float = 120.0) -> bool:
        """Whether such a line came; False if the program ended first."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if told(self._lines.get(timeout=0.1)):
                    return True
            except Empty:
                if self.process.poll() is not None:
                    return False
        raise TimeoutError("the line did not come")

    def end(self, seconds: float = 180.0) -> int:
        """Wait for its own end; returns the exit code."""
        return self.process.wait(seconds)

    def kill(self) -> None:
        """kill -9 of the driver: Python and Java together, as when a machine goes."""
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            kill(pid)
        self.process.wait(60)

    def kill_worker(self) -> bool:
        """kill -9 of a Python worker of Spark; False if there is none now."""
        workers = [
            pid
            for pid in descendants(self.process.pid)
            if "pyspark.daemon" in command(pid) and "pyspark.daemon" in command(parent(pid))
        ]
        return bool(workers) and kill(workers[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def descendants(pid: int) -> list[int]:
    """All processes below one, children first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(parent(int(entry.name)), []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def parent(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(status.rpartition(")")[2].split()[1])


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
