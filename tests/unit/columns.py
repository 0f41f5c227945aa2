"""Batches of every shape, for hypothesis."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from penstock.log import Batch

small_bytes = st.binary(max_size=40)
header_lists = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=9)), max_size=3)
times = st.integers(-(2**55), 2**55)  # years 828 to 3111: Python can show them


@st.composite
def record_lists(draw: st.DrawFn, max_size: int = 12) -> dict[str, Any]:
    """The arguments of `Batch.of`, each column there or not."""
    count = draw(st.integers(1, max_size))

    def column(of: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(of, min_size=count, max_size=count))

    return {
        "values": column(small_bytes),
        "keys": column(st.none() | small_bytes) if draw(st.booleans()) else None,
        "timestamps": column(times) if draw(st.booleans()) else None,
        "headers": column(header_lists) if draw(st.booleans()) else None,
    }


def batch_of(lists: dict[str, Any]) -> Batch:
    return Batch.of(
        lists["values"],
        keys=lists["keys"],
        timestamps=lists["timestamps"],
        headers=lists["headers"],
    )


def expected_rows(lists: dict[str, Any], arrived: int) -> list[tuple[Any, ...]]:
    """(time, key, value, headers) of each record."""
    count = len(lists["values"])
    return list(
        zip(
            lists["timestamps"] or [arrived] * count,
            lists["keys"] or [None] * count,
            lists["values"],
            [
                [{"name": name, "value": value} for name, value in each]
                for each in (lists["headers"] or [[]] * count)
            ],
            strict=True,
        )
    )


def arrow_rows(columns: list[Any]) -> list[tuple[Any, ...]]:
    """The same of Arrow columns timestamp, key, value, headers."""
    stamps = columns[0].view(pa.int64())
    for column in columns:
        column.validate(full=True)
    return list(
        zip(stamps.to_pylist(), *[column.to_pylist() for column in columns[1:]], strict=True)
    )
