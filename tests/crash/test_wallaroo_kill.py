"""A hub killed while connectors send: each stable message is there once, in order."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.log import open_log
from penstock.protocols.wallaroo.wire import U64_MAX, Dialect, Messages
from penstock.testing.served import ServedHub
from tests.contract.doors.contract import SMALL, free_port
from tests.wallaroo_peer import Peer

pytestmark = [pytest.mark.crash, pytest.mark.slow]
STREAMS = 4
ROUNDS = 6


class Sender(threading.Thread):
    """A connector with several streams; it goes on where the hub says, until told to stop."""

    def __init__(self, port: int, instance: str, dialect: Dialect) -> None:
        super().__init__()
        self._port = port
        self._instance = instance
        self._dialect = dialect
        self._random = random.Random(instance)
        self.acked = [0] * STREAMS
        self.stop = threading.Event()
        self.errors: list[str] = []

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                with Peer(self._port, self._dialect) as peer:
                    self._send(peer)
            except (OSError, AssertionError):
                time.sleep(0.02)

    def _send(self, peer: Peer) -> None:
        points = dict(peer.hello(instance=self._instance).points)
        last = []
        for stream in range(STREAMS):
            ref = peer.open(stream, f"s{stream}", points.get(stream, 0))
            known = points.get(stream, 0) if ref is None else ref
            last.append(0 if known == U64_MAX else known)
            if last[stream] < self.acked[stream]:
                self.errors.append(f"{stream}: acked {self.acked[stream]}, resumes {last[stream]}")
        while not self.stop.is_set():
            while peer.credits < 60:
                peer.listen()
                self._note(peer)
            streams, ids = [], []
            for _ in range(50):
                stream = self._random.randrange(STREAMS)
                last[stream] += 1
                streams.append(stream)
                ids.append(last[stream])
            peer.send(Messages.of(streams, ids, [b"%d" % number for number in ids]))
        deadline = time.monotonic() + 20
        while any(peer.acked.get(at, last[at]) != last[at] for at in range(STREAMS)):
            assert time.monotonic() < deadline
            peer.listen()
        self._note(peer)

    def _note(self, peer: Peer) -> None:
        for stream, number in peer.acked.items():
            self.acked[stream] = max(self.acked[stream], number)


@pytest.mark.parametrize("dialect", [Dialect.SPEC, Dialect.SHIPPED], ids=lambda each: each.value)
def test_after_kills_every_stable_message_is_there_once_and_in_order(
    tmp_path: Path, dialect: Dialect
) -> None:
    port = free_port()
    hub = ServedHub(tmp_path, {**SMALL, "wallaroo.listen": f"127.0.0.1:{port}"})
    hub.start()
    senders = [Sender(port, f"i{number}", dialect) for number in range(3)]
    for sender in senders:
        sender.start()
    try:
        for _ in range(ROUNDS):
            time.sleep(random.Random(_).uniform(0.2, 0.6))
            hub.end(signal.SIGKILL)
            hub.start()
        time.sleep(0.5)
    finally:
        for sender in senders:
            sender.stop.set()
        for sender in senders:
            sender.join(60)
        hub.end(signal.SIGTERM)
    with open_log(tmp_path, writer="inline") as log:
        for sender in senders:
            assert sender.errors == []
            assert sum(sender.acked) > 0
            for stream in range(STREAMS):
                name = f"prog.{sender._instance}.s{stream}"
                start, found = 0, []
                end = log.bounds(name, 0)[1]
                while start < end:
                    table = pa.Table.from_batches(log.read(name, 0, start))
                    found += [int(each) for each in table.column("value").to_pylist()]
                    start = len(found)
                assert found == list(range(1, len(found) + 1))
                assert len(found) >= sender.acked[stream]
