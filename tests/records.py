"""Records for tests, and what came back of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from penstock.log import SCHEMA, Batch, Log


def eventually(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Ask until it is so: for what another process does and tells nobody."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)


def rows(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Every record as a dict, after checking that the batches have the log's schema."""
    found = []
    for batch in batches:
        assert batch.schema.equals(SCHEMA)
        batch.validate(full=True)
        found.extend(batch.to_pylist())
    return found


def values(batches: Iterable[pa.RecordBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def indexes(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [index for batch in batches for index in batch.column("index").to_pylist()]


def times(batches: Iterable[pa.RecordBatch]) -> list[int]:
    """The timestamps in microseconds."""
    return [
        time for batch in batches for time in batch.column("timestamp").view(pa.int64()).to_pylist()
    ]


def padded(number: int, size: int = 2_000) -> bytes:
    """A value that names its number, long enough that few of them fill a small segment."""
    return (b"record %d " % number).ljust(size, b".")


def numbered(count: int, start: int = 0, size: int = 2_000) -> Batch:
    return Batch.of([padded(number, size) for number in range(start, start + count)])


def read_all(log: Log, stream: str, partition: int = 0, *, step: int = 1_000) -> list[bytes]:
    """All values there are, asked for in steps; checks that indexes are dense."""
    earliest, end = log.bounds(stream, partition)
    found: list[bytes] = []
    at = earliest
    while at < end:
        batches = log.read(stream, partition, at, max_records=step)
        assert batches, f"nothing at {at}, though the end is {end}"
        got = indexes(batches)
        assert got == list(range(at, at + len(got)))
        at += len(got)
        found.extend(values(batches))
    return found
