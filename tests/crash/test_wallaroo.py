"""The hub killed with -9 while connectors send: each message is stored once, in order.

Three connectors with several streams each, in both dialects, read from sources that can go back.
They connect again by themselves. Nothing but the protocol tells them where to go on.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.clients import Backoff, Chunk, Connector
from penstock.testing.served import ServedHub

pytestmark = [pytest.mark.crash]

ROUNDS = max(3, int(os.environ.get("PENSTOCK_CRASH_ROUNDS", "20")) // 4)
SEED = int(os.environ.get("PENSTOCK_CRASH_SEED", str(time.time_ns() % 1_000_000)))
CONNECTORS = (("one", "spec"), ("two", "shipped"), ("three", "spec"))
STREAMS = 4
SMALL = {
    "log.journal_bytes": "8388608",
    "log.checkpoint_bytes": "262144",
    "log.record_bytes_max": "65536",
}


class Counting:
    """Numbered messages without end, until it is told."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name = name
        self.end: int | None = None
        self.acks = 0
        self.resets: list[int | None] = []
        self.last = 0
        self._chance = chance
        self._at = 0

    async def reset(self, position: int | None) -> None:
        assert (position or 0) >= self.acks, "what was acked is wanted again"
        self.resets.append(position)
        self._at = position or 0

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        while self.end is None or self._at < self.end:
            count = self._chance.choice((1, 10, 100, 1000))
            if self.end is not None:
                count = min(count, self.end - self._at)
            ids = range(self._at + 1, self._at + count + 1)
            self._at += count
            self.last = max(self.last, self._at)
            yield Chunk.of([b"%s %d" % (self.name.encode(), each) for each in ids], ids)
            await asyncio.sleep(self._chance.random() * 0.01)

    def acked(self, position: int) -> None:
        assert position >= self.acks, "acks go forward"
        self.acks = position


class Sender(threading.Thread):
    """A connector in a thread of its own."""

    def __init__(self, port: int, instance: str, dialect: str) -> None:
        super().__init__(daemon=True)
        chance = random.Random(f"{SEED} {instance}")
        self.instance = instance
        self.sources = [Counting(f"s{number}", chance) for number in range(STREAMS)]
        self.wrong: BaseException | None = None
        self.connections = 0
        self._port = port
        self._dialect = dialect

    @property
    def acked(self) -> int:
        return sum(source.acks for source in self.sources)

    def run(self) -> None:
        try:
            asyncio.run(self._send())
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.wrong = error

    async def _send(self) -> None:
        async with Connector(
            f"127.0.0.1:{self._port}",
            program="crash",
            instance=self.instance,
            dialect=self._dialect,
            backoff=Backoff(0.01, 0.1),
            give_up_seconds=60,
        ) as connector:
            self.connections = (await connector.run(self.sources)).connections


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[ServedHub, int]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    hub = ServedHub(tmp_path / "data", SMALL | {"wallaroo.listen": f"127.0.0.1:{port}"})
    hub.start()
    yield hub, port
    hub.end(signal.SIGKILL)


def stored(hub: ServedHub, stream: str) -> list[bytes]:
    found: list[bytes] = []
    while True:
        path = f"/api/v1/streams/{stream}/partitions/0/records?from={len(found)}&limit=10000"
        status, body = hub.request("GET", path)
        assert status == 200, body
        lines = body.splitlines()
        if not lines:
            return found
        found += [msgspec.json.decode(line)["value"].encode() for line in lines]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_each_message_is_stored_once_and_in_order_however_the_hub_ends(
    hub: tuple[ServedHub, int], end: signal.Signals
) -> None:
    served, port = hub
    chance = random.Random(SEED)
    senders = [Sender(port, instance, dialect) for instance, dialect in CONNECTORS]
    for sender in senders:
        sender.start()
    for _ in range(ROUNDS):
        before = [sender.acked for sender in senders]
        deadline = time.monotonic() + 60
        while any(sender.acked < old + 500 for sender, old in zip(senders, before, strict=True)):
            for sender in senders:
                if sender.wrong is not None:
                    raise sender.wrong
            assert time.monotonic() < deadline, f"it stands still, seed {SEED}"
            time.sleep(0.005)
        time.sleep(chance.random() * 0.1)
        served.end(end)
        served.start()
    for sender in senders:
        for source in sender.sources:
            source.end = source.last + 100
    for sender in senders:
        sender.join(120)
        assert not sender.is_alive(), f"it does not end, seed {SEED}"
        if sender.wrong is not None:
            raise sender.wrong
        assert sender.connections > ROUNDS
        for source in sender.sources:
            name, count = source.name.encode(), source.acks
            assert count == source.end
            expected = [b"%s %d" % (name, number) for number in range(1, count + 1)]
            found = stored(served, f"crash.{sender.instance}.{source.name}")
            assert found == expected, f"seed {SEED}"
