"""The hot modules give the same compiled and as plain Python."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import build_info
from penstock.log import frame, partitioner
from tests.unit.columns import arrow_rows, batch_of, record_lists

pytestmark = pytest.mark.skipif(
    "penstock.log.frame" not in build_info().compiled, reason="nothing is compiled here"
)


def pure(module: ModuleType) -> Any:
    """The same source, as plain Python, beside the compiled one."""
    name = module.__name__.rpartition(".")[2]
    source = Path(importlib.import_module("penstock.log").__file__ or "").parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"pure_{name}", source)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def pure_frame() -> Any:
    return pure(frame)


@pytest.fixture(scope="module")
def pure_partitioner() -> Any:
    return pure(partitioner)


def test_the_compiled_modules_are_those_in_use() -> None:
    assert not (frame.__file__ or "").endswith(".py")
    assert not (partitioner.__file__ or "").endswith(".py")


@given(st.binary(max_size=70))
def test_hashes_are_the_same(pure_partitioner: Any, key: bytes) -> None:
    assert partitioner.murmur2(key) == pure_partitioner.murmur2(key)


@given(lists=record_lists(), mixed=st.booleans(), producer=st.sampled_from([b"", b"p"]))
def test_frames_are_the_same(
    pure_frame: Any, lists: dict[str, Any], mixed: bool, producer: bytes
) -> None:
    batch = batch_of(lists)
    slots = np.arange(batch.count, dtype=np.uint16) % 2 if mixed and batch.count > 1 else None
    runs = 1 if slots is None else 2
    written = []
    for module in (frame, pure_frame):
        body = module.Body(batch, slots)
        parts = module.frame_parts(
            body, 640, 64, 3, -5, np.arange(runs, dtype=np.uint32),
            np.ones(runs, np.uint32), np.zeros(runs, np.int64), np.full(runs, -1, np.int64),
            np.full(runs, 2**64 - 1, np.uint64) if producer else None, producer,
        )  # fmt: skip
        written.append(b"".join(bytes(part) for part in parts))
    assert written[0] == written[1]
    whole = written[0]
    one, two = frame.parse_head(whole, 640), pure_frame.parse_head(whole, 640)
    assert one is not None
    for name in ("group_lsn", "epoch", "length", "rows", "flags", "sizes", "producer"):
        assert getattr(one, name) == getattr(two, name)
    body = whole[one.head_length :]
    assert frame.body_is_whole(one, body)
    assert pure_frame.body_is_whole(two, body)
    assert arrow_rows(frame.body_columns(one, body)) == arrow_rows(
        pure_frame.body_columns(two, body)
    )


@given(st.binary(max_size=200))
def test_noise_is_judged_the_same(pure_frame: Any, noise: bytes) -> None:
    for data in (noise, b"PJF1" + noise):
        assert frame.parse_head(data, 0) is pure_frame.parse_head(data, 0) is None
