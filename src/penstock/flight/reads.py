"""Reading through Flight: batches as the log gives them, and bounds, with a wait for more."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from penstock import limits
from penstock.errors import IndexOutOfRange, LogClosed, PenstockError, UnknownStream
from penstock.flight.requests import Look, Read
from penstock.hub.users import User, require
from penstock.log import SCHEMA, EmbeddedLog

_LOOK_EVERY_S: Final = 0.005
_LOOK_SHARE: Final = 0.05
"""A look that waits spends at most this share of its time looking."""

_WAIT_STEP_S: Final = 0.25
_SAMPLE_RECORDS: Final = 64
_SAMPLE_AGE_S: Final = 1.0
_SAMPLES_MAX: Final = 10_000


class Reads:
    """What Flight calls read from the log; used by many threads."""

    def __init__(self, log: EmbeddedLog, stopping: threading.Event) -> None:
        self._log = log
        self._stopping = stopping
        self._sizes = _Sizes(log)
        self._waiting = threading.BoundedSemaphore(limits.FLIGHT_WAITING_MAX)

    def range_of(self, asked: Read) -> tuple[int, int]:
        """The records a ticket asks for; by default all that there are."""
        earliest, end = self._log.bounds(asked.stream, asked.partition)
        first = earliest if asked.start is None else asked.start
        last = end if asked.end is None else asked.end
        if not first <= last <= end:
            raise IndexOutOfRange(
                f"records {first} to {last} of {asked.stream}/{asked.partition} cannot be given: "
                f"there are {earliest} to {end}, the latter not included"
            )
        return first, last

    def batches(
        self, stream: str, partition: int, start: int, end: int, columns: list[str]
    ) -> Iterator[pa.RecordBatch]:
        """Exactly the records `start` to `end`, or an error."""
        narrow = columns != SCHEMA.names
        while start < end:
            if self._stopping.is_set():
                raise LogClosed("the hub is stopping: read on when it is back")
            batch = self._next_batch(stream, partition, start, end)
            start += batch.num_rows
            yield batch.select(columns) if narrow else batch

    def _next_batch(self, stream: str, partition: int, start: int, end: int) -> pa.RecordBatch:
        """As one: a message for each of many small batches would cost more than the copy."""
        found = self._log.read(stream, partition, start, end - start, limits.FLIGHT_MESSAGE_BYTES)
        assert found, "there are records up to the end"
        return found[0] if len(found) == 1 else pa.concat_batches(found)

    # -- bounds ----------------------------------------------------------------------------------

    def look(self, user: User, asked: Look) -> dict[str, Any]:
        """Bounds now, or as soon as there is something the client does not know."""
        for name in asked.streams:
            require(user, "read", name)
        wait = min(asked.wait, limits.FLIGHT_WAIT_S_MAX) if asked.known is not None else 0.0
        found, news = self._glance(user, asked)
        if wait > 0 and not news and self._waiting.acquire(blocking=False):
            try:
                found, news = self._await_news(user, asked, wait)
            finally:
                self._waiting.release()
        told: dict[str, Any] = {
            "streams": {
                name: [
                    (earliest, end, self._sizes.estimate(name, number, earliest, end))
                    for number, (earliest, end) in enumerate(bounds)
                ]
                for name, bounds in found.items()
            }
        }
        if asked.names is not None:
            names = self.names(user)
            told |= {"digest": _digest(names), "names": names}
            if told["digest"] == asked.names:
                del told["names"]
        return told

    def _await_news(
        self, user: User, asked: Look, wait: float
    ) -> tuple[dict[str, list[tuple[int, int]]], bool]:
        deadline = time.monotonic() + wait
        single = asked.names is None and [len(e) for e in (asked.known or {}).values()] == [1]
        single = single and list(asked.known or ()) == asked.streams
        while True:
            began = time.monotonic()
            found, news = self._glance(user, asked)
            left = deadline - time.monotonic()
            if news or left <= 0 or self._stopping.is_set():
                return found, news
            if single:
                name, known = next(iter((asked.known or {}).items()))
                self._log.wait(name, 0, known[0], min(left, _WAIT_STEP_S))
            else:
                cost = time.monotonic() - began
                self._stopping.wait(min(left, max(_LOOK_EVERY_S, cost / _LOOK_SHARE)))

    def _glance(self, user: User, asked: Look) -> tuple[dict[str, list[tuple[int, int]]], bool]:
        """The bounds, and whether they have something the client does not know."""
        known = asked.known or {}
        found = self._snapshot(asked)
        news = False
        for name, bounds in found.items():
            ends = known.get(name, ())
            news = news or len(bounds) > len(ends)
            news = news or any(pair[1] > end for pair, end in zip(bounds, ends, strict=False))
        if asked.names is not None and not news:
            news = _digest(self.names(user)) != asked.names
        return found, news

    def _snapshot(self, asked: Look) -> dict[str, list[tuple[int, int]]]:
        """The bounds of all streams at one moment: what was published at once is seen at once."""
        try:
            return self._log.snapshot(asked.streams)
        except UnknownStream:
            if asked.names is None:
                raise
        there = set(self._log.streams())  # the client learns from the names which are not
        return self._log.snapshot([name for name in asked.streams if name in there])

    def names(self, user: User) -> list[str]:
        """The streams the user may read."""
        return [name for name in self._log.streams() if user.may("read", name)]

    def size_of(self, stream: str, partition: int, start: int, end: int) -> int:
        """About how much memory records take as Arrow."""
        return self._sizes.estimate(stream, partition, start, end)


class _Sizes:
    """How large records are on average, from a few at the beginning, middle and end."""

    def __init__(self, log: EmbeddedLog) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[str, int], tuple[float, int, float]] = OrderedDict()

    def estimate(self, stream: str, partition: int, earliest: int, end: int) -> int:
        count = end - earliest
        if count <= 0:
            return 0
        with self._lock:
            average, sampled, at = self._found.get((stream, partition), (0.0, 0, 0.0))
        now = time.monotonic()
        grown = not sampled * 3 // 4 <= count <= sampled * 5 // 4
        if sampled == 0 or (grown and now - at > _SAMPLE_AGE_S):
            average = self._sample(stream, partition, earliest, end)
            with self._lock:
                self._found[stream, partition] = (average, count, now)
                self._found.move_to_end((stream, partition))
                if len(self._found) > _SAMPLES_MAX:
                    self._found.popitem(last=False)
        return int(average * count)

    def _sample(self, stream: str, partition: int, earliest: int, end: int) -> float:
        last = max(earliest, end - _SAMPLE_RECORDS)
        rows = nbytes = 0
        for start in {earliest, (earliest + last) // 2, last}:
            with contextlib.suppress(PenstockError):  # dropped or damaged: reading it says so
                for batch in self._log.read(stream, partition, start, _SAMPLE_RECORDS, limits.MIB):
                    rows += batch.num_rows
                    nbytes += batch.nbytes
        return nbytes / rows if rows else 0.0


def _digest(names: list[str]) -> str:
    return hashlib.blake2b("\n".join(names).encode(), digest_size=8).hexdigest()
