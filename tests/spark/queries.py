"""Waiting for streaming queries, with an end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def finish(query: StreamingQuery, seconds: float = 120.0) -> None:
    """Wait for a query that ends by itself (AvailableNow); raises what it failed with."""
    if not query.awaitTermination(int(seconds)):
        query.stop()
        raise TimeoutError(f"the query did not end in {seconds:g} s: {query.lastProgress}")


def until(
    condition: Callable[[], bool],
    seconds: float = 60.0,
    query: StreamingQuery | None = None,
) -> None:
    """Wait until something holds; a query that fails meanwhile raises what it failed with."""
    deadline = time.monotonic() + seconds
    while not condition():
        if query is not None and (error := query.exception()) is not None:
            raise error
        if time.monotonic() > deadline:
            progress = "" if query is None else f": {query.lastProgress}"
            raise TimeoutError(f"it did not come to be in {seconds:g} s{progress}")
        time.sleep(0.05)
