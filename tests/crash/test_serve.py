"""`penstock serve` killed or stopped under load, with clients that send again until they are told.

Each client numbers its records; what was confirmed must be readable, once and in order.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.testing.served import ServedHub

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


class Sender(threading.Thread):
    """Sends numbered records, each batch until it is confirmed."""

    def __init__(self, hub: ServedHub, name: str) -> None:
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
def hub(tmp_path: Path) -> Iterator[ServedHub]:
    hub = ServedHub(tmp_path / "data", SMALL)
    hub.start()
    body = msgspec.json.encode({"name": "s", "settings": {"segment_bytes": 65536}})
    assert hub.request("POST", "/api/v1/streams", body)[0] == 201
    yield hub
    hub.end(signal.SIGKILL)


def stored(hub: ServedHub) -> dict[str, list[int]]:
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


def play(hub: ServedHub, end: signal.Signals) -> list[Sender]:
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
def test_confirmed_is_readable_however_the_hub_ends(hub: ServedHub, end: signal.Signals) -> None:
    senders = play(hub, end)
    found = stored(hub)
    for sender in senders:
        numbers = found[sender.sender]
        assert numbers == list(range(len(numbers))), f"seed {SEED}"
        assert len(numbers) >= sender.confirmed, f"seed {SEED}"


def test_a_stop_by_signal_is_clean_and_says_so_with_its_exit_code(hub: ServedHub) -> None:
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
