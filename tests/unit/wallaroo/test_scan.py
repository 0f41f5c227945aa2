"""The compiled scan gives what the same source gives as plain Python."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import build_info
from penstock.protocols import wallaroo
from penstock.protocols.wallaroo.scan import message_starts


@pytest.fixture(scope="module")
def pure() -> Any:
    source = Path(wallaroo.__file__ or "").parent / "scan.py"
    spec = importlib.util.spec_from_file_location("pure_scan", source)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded.message_starts


@given(
    lengths=st.lists(st.sampled_from([0, 4, 5, 6, 300, 2**31, 2**32 - 1]), max_size=9),
    tags=st.lists(st.sampled_from([77, 77, 77, 78]), min_size=9, max_size=9),
    noise=st.binary(max_size=12),
    big=st.booleans(),
    at=st.integers(0, 3),
    cut=st.integers(0, 400),
)
def test_runs_end_where_plain_python_ends_them(
    pure: Any,
    lengths: list[int],
    tags: list[int],
    noise: bytes,
    big: bool,
    at: int,
    cut: int,
) -> None:
    order = ">" if big else "<"
    data = bytes(at)
    for length, tag in zip(lengths, tags, strict=False):
        data += struct.pack(f"{order}IB", length, tag) + bytes(min(length, 300))[1:]
    data += noise
    end = max(at, len(data) - cut)
    found = message_starts(data, at, end, big, 77, 5, 1_000)
    assert found == pure(data, at, end, big, 77, 5, 1_000)
    assert found[0] == at
    assert found[-1] <= end


@pytest.mark.skipif(
    "penstock.log.frame" not in build_info().compiled, reason="nothing is compiled here"
)
def test_the_compiled_scan_is_the_one_in_use() -> None:
    assert "penstock.protocols.wallaroo.scan" in build_info().compiled
