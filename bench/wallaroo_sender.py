"""Sends to a Wallaroo worker as fast as credits allow: `python -m bench.wallaroo_sender '{...}'`.

A process of its own, so that it shares nothing with what it measures but the machine. Frames are
written beforehand, and sent over and over: in the spec's dialect ids need not increase. An id is a
frame's place among them, by which an ack tells how far the worker got.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvloop

from penstock.clients import Chunk, Connector
from penstock.protocols.wallaroo.wire import (
    Ack,
    Column,
    Decoder,
    Dialect,
    Error,
    Hello,
    Messages,
    Notify,
    Ok,
    Role,
    encode,
    encode_messages,
)

PLACES = 65_536
"""More than a session ever has credits, so that an id tells one frame."""


@dataclass
class Task:
    """What to send."""

    port: int
    connections: int = 1
    streams: int = 1
    """Of each connection."""
    size: int = 100
    seconds: float = 2.0
    connector: bool = False
    """With our own connector, from a source in Python, instead of frames written before."""
    name: str = "bench"


@dataclass
class Outcome:
    messages: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    most_ms: float = 0.0


def frames_of(task: Task) -> memoryview:
    """All frames, of streams at random."""
    chance = np.random.default_rng(1)
    streams = chance.integers(1, task.streams + 1, PLACES).astype(np.uint64)
    payloads = Column(
        np.arange(0, task.size * PLACES + 1, task.size, dtype=np.int32),
        chance.bytes(task.size * PLACES),
    )
    ids = np.arange(1, PLACES + 1, dtype=np.uint64)
    messages = Messages(streams, ids, payloads, np.zeros(PLACES, np.uint16))
    return memoryview(bytes(encode_messages(messages, Dialect.SPEC)))


@dataclass
class Connection:
    """One session, over a socket that does not block."""

    task: Task
    number: int
    frames: memoryview
    socket: socket.socket = field(init=False)
    credits: int = 0
    sent: int = 0
    acked: int = 0
    last_ack: float = 0.0
    primed: int = 0

    def __post_init__(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self.task.port))
        self._step = len(self.frames) // PLACES
        self._left = memoryview(b"")
        self._decoder = Decoder(Role.CONNECTOR, Dialect.SPEC)
        self._times: deque[tuple[int, int, float]] = deque()
        self.waits: list[tuple[float, int]] = []
        """Seconds from sending to the ack, and of how many messages."""
        hello = Hello("0.0.1", b"", self.task.name, str(self.number))
        self.socket.sendall(encode(hello, Dialect.SPEC))
        while not self.credits:
            self.receive()
        for stream in range(1, self.task.streams + 1):
            while not self.credits:
                self.receive()
            self.socket.sendall(encode(Notify(stream, b"s%d" % stream), Dialect.SPEC))
            self.credits -= 1

    def prime(self) -> None:
        """Send one message and wait for its ack: then the worker has made all streams."""
        while not self.credits:
            self.receive()
        self.socket.sendall(self.frames[: self._step])
        self.sent, self.credits = 1, self.credits - 1
        while not self.acked:
            self.receive()
        self.primed = 1
        self.socket.setblocking(False)

    def send(self, more: bool) -> bool:
        """Send what may be sent; False if the socket takes no more now."""
        while True:
            if not len(self._left):
                place = self.sent % PLACES
                count = min(self.credits, PLACES - place, 8192) if more else 0
                if not count:
                    return True
                self._left = self.frames[place * self._step : (place + count) * self._step]
                self.credits -= count
                self.sent += count
                self._times.append((self.sent, count, time.perf_counter()))
            try:
                done = self.socket.send(self._left)
            except BlockingIOError:
                return False
            self._left = self._left[done:]

    def receive(self) -> None:
        data = self.socket.recv(65_536)
        if not data:
            raise SystemExit("the worker closed the connection")
        for item in self._decoder.receive(data):
            if isinstance(item, Error):
                raise SystemExit(f"the worker gave up: {item.reason}")
            if isinstance(item, (Ok, Ack)):
                self.credits += item.credits
            if isinstance(item, Ack) and item.points:
                self._acked(item)

    def _acked(self, ack: Ack) -> None:
        """The furthest place of all streams, counted on from the last one."""
        known = self.acked % PLACES
        self.acked += max((place - known) % PLACES for _, place in ack.points)
        self.last_ack = now = time.perf_counter()
        while self._times and self._times[0][0] <= self.acked:
            _, count, sent_at = self._times.popleft()
            self.waits.append((now - sent_at, count))


def send(task: Task) -> Outcome:
    """Send for some seconds, then wait for the last ack."""
    frames = frames_of(task)
    connections = [Connection(task, number, frames) for number in range(task.connections)]
    for each in connections:
        each.prime()
    print("ready", flush=True)
    sys.stdin.readline()
    selector = selectors.DefaultSelector()
    reading, both = selectors.EVENT_READ, selectors.EVENT_READ | selectors.EVENT_WRITE
    for each in connections:
        selector.register(each.socket, both, each)
    began, cpu = time.perf_counter(), time.process_time()
    end = began + task.seconds
    wanted = dict.fromkeys(range(len(connections)), both)
    while True:
        more = time.perf_counter() < end
        if not more and all(each.acked == each.sent for each in connections):
            break
        for key, events in selector.select(0.1):
            connection: Connection = key.data
            if events & selectors.EVENT_READ:
                connection.receive()
            interest = reading if connection.send(more) else both
            if wanted[connection.number] != interest:
                wanted[connection.number] = interest
                selector.modify(connection.socket, interest, connection)
    took = max(each.last_ack for each in connections) - began
    pairs = np.array([pair for each in connections for pair in each.waits])
    waits = np.repeat(pairs[:, 0] * 1000, pairs[:, 1].astype(np.int64))
    return Outcome(
        sum(each.acked - each.primed for each in connections),
        took,
        time.process_time() - cpu,
        float(np.percentile(waits, 50)),
        float(np.percentile(waits, 99)),
        float(waits.max()),
    )


class Lists:
    """A source as people write them: lists of bytes, a thousand at a time."""

    name = "s1"

    def __init__(self, size: int, seconds: float) -> None:
        self._payloads = [os.urandom(size) for _ in range(1_000)]
        self._seconds = seconds
        self._at = 0

    async def reset(self, position: int | None) -> None:
        self._at = position or 0

    async def __aiter__(self) -> AsyncIterator[Any]:
        end = time.perf_counter() + self._seconds
        while time.perf_counter() < end:
            ids = range(self._at + 1, self._at + 1_001)
            self._at += 1_000
            yield Chunk.of(self._payloads, ids)


async def connect(task: Task) -> Outcome:
    print("ready", flush=True)
    sys.stdin.readline()
    began, cpu = time.perf_counter(), time.process_time()
    async with Connector(
        f"127.0.0.1:{task.port}", program=task.name, instance="connector"
    ) as connector:
        done = await connector.run([Lists(task.size, task.seconds)])
    took = time.perf_counter() - began
    return Outcome(done.acked, took, time.process_time() - cpu)


def main() -> None:
    task = Task(**json.loads(sys.argv[1]))
    outcome = uvloop.run(connect(task)) if task.connector else send(task)
    print(json.dumps(outcome.__dict__))


if __name__ == "__main__":
    main()
