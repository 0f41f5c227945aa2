"""A small workload that touches everything a crash can catch half done, and its ledger."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from penstock import limits
from penstock.errors import PenstockError
from penstock.log import Batch, EmbeddedLog, LogSettings, Receipt, StreamSettings
from penstock.testing import Attempt, Crashed, FakeClock, FakeDisk, Ledger

DATA = Path("data")
KIB = 1024
RING = 16 * KIB
"""Small, so that the workload goes around it three times."""

SETTINGS = LogSettings(
    journal_bytes=RING,
    checkpoint_bytes=3 * KIB,
    buffer_bytes=64 * KIB,
    record_bytes_max=2 * KIB,
    linger_seconds=0.0,
    retention_check_seconds=0.0,
)
SMALL_SEGMENTS = StreamSettings(segment_bytes=4 * KIB)


@pytest.fixture(name="small_limits", autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small enough that a few records fill segments, batches and the ring."""
    monkeypatch.setattr(limits, "SEGMENT_BYTES_MIN", 1 * KIB)
    monkeypatch.setattr(limits, "SEGMENT_BATCH_BYTES", 1 * KIB)
    monkeypatch.setattr(limits, "STRETCH_BYTES_MIN", 1 * KIB)


@pytest.fixture(name="quiet_crashes", autouse=True)
def _quiet_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash also ends the commit thread; that is no error of the test."""
    report = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not Crashed:
            report(args)

    monkeypatch.setattr(threading, "excepthook", hook)


def open_small(disk: FakeDisk, settings: LogSettings = SETTINGS) -> EmbeddedLog:
    """A log with limits smaller than an operator could set."""
    return EmbeddedLog(DATA, settings, writer="inline", disk=disk, clock=FakeClock())


@contextmanager
def opened(disk: FakeDisk, settings: LogSettings = SETTINGS) -> Iterator[EmbeddedLog]:
    """An open log whose threads are gone afterwards, also when the disk crashed."""
    log = open_small(disk, settings)
    try:
        yield log
    finally:
        with suppress(Crashed, PenstockError):
            log.close()


class Client:
    """Appends records no two of which are alike, and keeps the ledger."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self.ledger = ledger
        self._name = name
        self._number = 0
        self._ids: dict[tuple[str, str], int] = {}

    def create(self, log: EmbeddedLog, stream: str, partitions: int) -> None:
        self.ledger.creating(stream)
        log.create_stream(stream, partitions, SMALL_SEGMENTS)
        self.ledger.created(stream)

    def delete(self, log: EmbeddedLog, stream: str) -> None:
        self.ledger.deleting(stream)
        log.delete_stream(stream)
        self.ledger.deleted(stream)

    def append(
        self, log: EmbeddedLog, stream: str, partitions: int | list[int], count: int = 3,
        size: int = 40, producer: str | None = None,
    ) -> None:  # fmt: skip
        """Append and wait until it is on disk."""
        self.hand_over(log, stream, partitions, count, size, producer)()

    def hand_over(
        self, log: EmbeddedLog, stream: str, partitions: int | list[int], count: int = 3,
        size: int = 40, producer: str | None = None, plain: bool = False,
    ) -> Callable[[], None]:  # fmt: skip
        """Hand a batch over; call the result to wait for it."""
        if isinstance(partitions, list):
            count = len(partitions)
        values = [self._value(size) for _ in range(count)]
        fancy = self._number % 2 == 0 and not plain
        keys = [None if row % 3 == 2 else b"key %d" % row for row in range(count)]
        times = [1_600_000_000_000_000 + 10 * self._number + row for row in range(count)]
        headers = [[("h", b"%d" % row)] * (row % 3) for row in range(count)]
        ids = self._next_ids(producer, stream, count)
        attempt = self.ledger.sending(
            stream, partitions, values, producer=producer, ids=ids, drop_resent=ids is not None,
            **({"keys": keys, "timestamps": times, "headers": headers} if fancy else {}),  # type: ignore[arg-type]
        )  # fmt: skip
        batch = (
            Batch.of(values, keys=keys, timestamps=times, headers=headers)
            if fancy
            else Batch.of(values)
        )
        target: int | np.ndarray[tuple[int], np.dtype[np.uint32]]
        if isinstance(partitions, int):
            target = log.locate(stream, partitions)
        else:
            target = np.array([log.locate(stream, each) for each in partitions], np.uint32)
        receipt = log.submit(
            target, batch, producer=producer, ids=ids, drop_resent=ids is not None,
            wait_for_room=True,
        )  # fmt: skip
        return lambda: self._wait(attempt, receipt)

    def _wait(self, attempt: Attempt, receipt: Receipt) -> None:
        self.ledger.confirmed(attempt, receipt.result().indexes())

    def _value(self, size: int) -> bytes:
        self._number += 1
        head = b"%s %d " % (self._name.encode(), self._number)
        return head + bytes([self._number % 251]) * (size - len(head))

    def _next_ids(self, producer: str | None, stream: str, count: int) -> list[int] | None:
        if producer is None:
            return None
        first = self._ids.get((producer, stream), 0) + 1
        self._ids[producer, stream] = first + count
        return [*range(first, first + count)]

    def save(self, log: EmbeddedLog, group: str, stream: str, partition: int) -> None:
        """Save the end of a partition as a group's position."""
        position = log.bounds(stream, partition)[1]
        self.ledger.saving(group, stream, partition, position)
        log.save_positions(group, stream, {partition: position})
        self.ledger.saved(group, stream, partition)

    def trim(self, log: EmbeddedLog, stream: str, partition: int) -> None:
        before = log.bounds(stream, partition)[1]
        self.ledger.trimming(stream, partition, before)
        self.ledger.trimmed(stream, partition, log.trim(stream, partition, before))


def run(disk: FakeDisk, ledger: Ledger) -> None:
    """The workload. Whatever it was told is in `ledger` when it ends, or the disk crashes."""
    client = Client(ledger, "one")
    with opened(disk) as log:
        client.create(log, "a", 2)
        client.append(log, "a", 0)
        client.append(log, "a", [0, 1, 0, 1], producer="p")
        client.create(log, "b", 1)
        hand_over_together(log, client)
        client.save(log, "g", "a", 1)
        client.append(log, "b", 0, count=2, size=900)
        log.checkpoint()
        client.append(log, "a", 0, count=4, size=400)
        client.append(log, "b", 0, producer="q")
    with opened(disk) as log:
        client.append(log, "a", [1, 0, 1], producer="p")
        for _ in range(3):
            client.append(log, "a", 0, count=3, size=700)
        log.checkpoint()
        client.trim(log, "a", 0)
        client.save(log, "g", "a", 0)
        client.append(log, "b", 0, count=1)
        client.delete(log, "b")
        client.append(log, "a", [0, 1], size=300)
        client.create(log, "b", 1)
        client.append(log, "b", 0, producer="q")
        for _ in range(8):
            client.append(log, "a", 1, count=2, size=1000, producer="p")
        hand_over_together(log, client)
        client.append(log, "a", 0)


def hand_over_together(log: EmbeddedLog, client: Client) -> None:
    """Four batches that share one group commit."""
    with log._committer._changed:
        waits = [
            client.hand_over(log, "a", 0),
            client.hand_over(log, "b", 0, count=5, size=120, producer="q"),
            client.hand_over(log, "a", [1, 1, 0], producer="p"),
            client.hand_over(log, "a", 1, count=1, size=700),
        ]
    for wait in waits:
        wait()


def go_on(disk: FakeDisk, ledger: Ledger, name: str) -> None:
    """Append a little more to whatever streams there are."""
    client = Client(ledger, name)
    with opened(disk) as log:
        for stream in log.streams() or ["a"]:
            if stream not in log.streams():
                client.create(log, stream, 2)
            client.append(log, stream, 0)
            client.append(log, stream, 0, count=2, size=500, producer=f"{name}-p")
