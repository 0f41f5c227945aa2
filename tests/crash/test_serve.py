"""`penstock serve` killed or stopped under load, with clients that send again until they are told.

Each client numbers its records; what was confirmed must be readable, once and in order.
"""

from __future__ import annotations

import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

pytestmark = [pytest.mark.crash]

ROUNDS = max(3, int(os.environ.get("PENSTOCK_CRASH_ROUNDS", "20")) // 4)
SEED = int(os.environ.get("PENSTOCK_CRASH_SEED", str(time.time_ns() % 1_000_000)))
CLIENTS = 3
BATCH = 20
SMALL = {
    "log.journal_bytes": "8388608",
    "log.checkpoint_bytes": "262144",
    "log.record_bytes_max": "65536",
}


class Served:
    """A hub process on a fixed port that can be killed and started again."""

    def __init__(self, data: Path) -> None:
        self._data = data
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        settings = [word for each in SMALL.items() for word in ("--set", "=".join(each))]
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from penstock.cli import main; main()", "serve",
             "--data", str(self._data), "--listen", f"127.0.0.1:{self.port}", *settings],
        )  # fmt: skip
        while self.request("GET", "/readyz")[0] != 200:
            assert self.process.poll() is None, "the hub ended by itself"
            time.sleep(0.01)

    def end(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body; status 0 if nobody answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, {"Content-Type": "application/x-ndjson"})
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()


class Sender(threading.Thread):
    """Sends numbered records, each batch until it is confirmed."""

    def __init__(self, hub: Served, name: str) -> None:
        super().__init__(daemon=True)
        self.sender = name
        self.confirmed = 0
        self.wrong: str | None = None
        self.stopping = threading.Event()
        self._hub = hub

    def run(self) -> None:
        while not self.stopping.is_set():
            first = self.confirmed
            body = b"".join(
                b'{"value":"%s %d"}\n' % (self.sender.encode(), n)
                for n in range(first, first + BATCH)
            )
            path = f"/api/v1/streams/s/records?partition=0&producer={self.sender}&first_id={first}"
            status, answer = self._hub.request("POST", path, body)
            if status == 200:
                self.confirmed += BATCH
            elif status not in (0, 503):
                self.wrong = f"{status}: {answer!r}"
                return
            else:
                time.sleep(0.01)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Served]:
    hub = Served(tmp_path / "data")
    hub.start()
    body = msgspec.json.encode({"name": "s", "settings": {"segment_bytes": 65536}})
    assert hub.request("POST", "/api/v1/streams", body)[0] == 201
    yield hub
    if hub.process is not None and hub.process.poll() is None:
        hub.end(signal.SIGKILL)


def stored(hub: Served) -> dict[str, list[int]]:
    """The numbers of each sender, in the order they are stored."""
    found: dict[str, list[int]] = {}
    at = 0
    while True:
        path = f"/api/v1/streams/s/partitions/0/records?from={at}&limit=10000"
        status, body = hub.request("GET", path)
        assert status == 200, body
        lines = body.splitlines()
        if not lines:
            return found
        for line in lines:
            record = msgspec.json.decode(line)
            assert record["index"] == at
            sender, number = record["value"].split()
            found.setdefault(sender, []).append(int(number))
            at += 1


def play(hub: Served, end: signal.Signals) -> list[Sender]:
    """Load from several clients while the hub is ended and started again, several times."""
    chooser = random.Random(SEED)
    senders = [Sender(hub, f"client{number}") for number in range(CLIENTS)]
    for sender in senders:
        sender.start()
    for _ in range(ROUNDS):
        before = sum(sender.confirmed for sender in senders)
        while sum(sender.confirmed for sender in senders) < before + 200:
            assert all(sender.wrong is None for sender in senders), senders
            time.sleep(0.01)
        time.sleep(chooser.random() * 0.1)
        hub.end(end)
        hub.start()
    for sender in senders:
        sender.stopping.set()
    for sender in senders:
        sender.join()
        assert sender.wrong is None, sender.wrong
    return senders


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_confirmed_is_readable_however_the_hub_ends(hub: Served, end: signal.Signals) -> None:
    senders = play(hub, end)
    found = stored(hub)
    for sender in senders:
        numbers = found[sender.sender]
        assert numbers == list(range(len(numbers))), f"seed {SEED}"
        assert len(numbers) >= sender.confirmed, f"seed {SEED}"


def test_a_stop_by_signal_is_clean_and_says_so_with_its_exit_code(hub: Served) -> None:
    sender = Sender(hub, "client")
    sender.start()
    while sender.confirmed < 200:
        time.sleep(0.01)
    assert hub.end(signal.SIGINT) == 0
    confirmed = sender.confirmed
    sender.stopping.set()
    sender.join()
    hub.start()
    numbers = stored(hub)["client"]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= confirmed
