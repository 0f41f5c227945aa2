from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log import frame as fr
from tests.unit.columns import arrow_rows, batch_of, expected_rows, record_lists

ARRIVED = 1_700_000_000_000_000


def frame_of(
    lists: dict[str, Any], *, slots: list[int] | None = None, producer: bytes = b"", lsn: int = 640
) -> bytes:
    """A whole frame; `slots` gives the run of each record, and makes it a mixed one."""
    batch = batch_of(lists)
    column = None if slots is None else np.array(slots, np.uint16)
    runs = 1 if slots is None else max(slots) + 1
    counts = (
        np.array([batch.count], np.uint32)
        if slots is None
        else np.bincount(slots, minlength=runs).astype(np.uint32)
    )
    body = fr.Body(batch, column)
    parts = fr.frame_parts(
        body,
        lsn,
        lsn - 64,
        7,
        ARRIVED,
        np.arange(10, 10 + runs, dtype=np.uint32),
        counts,
        np.arange(runs, dtype=np.int64) * 1_000,
        np.full(runs, fr.NO_LSN, np.int64),
        np.arange(runs, dtype=np.uint64) + np.uint64(2**64 - 1 - runs) if producer else None,
        producer,
    )
    whole = b"".join(bytes(part) for part in parts)
    assert len(whole) == fr.frame_length(body, runs, len(producer))
    return whole


def body_of(whole: bytes, frame: fr.Frame) -> bytes:
    return whole[frame.head_length : frame.head_length + frame.body_length]


@given(lists=record_lists(), producer=st.sampled_from([b"", b"p", b"x" * 255]))
def test_a_frame_gives_back_its_records(lists: dict[str, Any], producer: bytes) -> None:
    whole = frame_of(lists, producer=producer)
    assert len(whole) % fr.ALIGN == 0
    frame = fr.parse_head(whole, 640)
    assert frame is not None
    assert (frame.lsn, frame.group_lsn, frame.epoch, frame.length) == (640, 576, 7, len(whole))
    assert frame.rows == len(lists["values"])
    assert frame.producer == producer
    assert frame.pids.tolist() == [10]
    assert frame.find(10) == 0
    assert frame.find(11) == -1
    body = body_of(whole, frame)
    assert fr.body_is_whole(frame, body)
    assert fr.body_slots(frame, body) is None
    assert arrow_rows(fr.body_columns(frame, body)) == expected_rows(lists, ARRIVED)


@given(lists=record_lists(), data=st.data(), producer=st.sampled_from([b"", b"p"]))
def test_a_mixed_frame_gives_back_its_records_and_whose_they_are(
    lists: dict[str, Any], data: st.DataObject, producer: bytes
) -> None:
    count = len(lists["values"])
    slots = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    whole = frame_of(lists, slots=slots, producer=producer)
    frame = fr.parse_head(whole, 640)
    assert frame is not None
    runs = max(slots) + 1
    assert frame.pids.tolist() == list(range(10, 10 + runs))
    assert frame.counts.tolist() == [slots.count(run) for run in range(runs)]
    assert frame.bases.tolist() == [run * 1_000 for run in range(runs)]
    assert [frame.find(pid) for pid in (9, 10, 9 + runs, 10 + runs)] == [-1, 0, runs - 1, -1]
    if producer:
        assert frame.last_ids.tolist() == [2**64 - 1 - runs + run for run in range(runs)]
    body = body_of(whole, frame)
    assert fr.body_is_whole(frame, body)
    assert fr.body_slots(frame, body).tolist() == slots
    assert arrow_rows(fr.body_columns(frame, body)) == expected_rows(lists, ARRIVED)


def is_whole(data: bytes, lsn: int = 640) -> bool:
    frame = fr.parse_head(data, lsn)
    return frame is not None and fr.body_is_whole(frame, data[frame.head_length :])


EVERYTHING: dict[str, Any] = {
    "values": [b"one", b"", b"three"],
    "keys": [b"k", None, b""],
    "timestamps": [1, 2, 3],
    "headers": [[("n", b"v")], [], [("", b"")]],
}


@pytest.mark.parametrize("slots", [None, [0, 1, 0]], ids=["of one partition", "mixed"])
@pytest.mark.parametrize("producer", [b"", b"producer"], ids=["nobody", "producer"])
def test_any_bit_flip_is_detected(slots: list[int] | None, producer: bytes) -> None:
    whole = frame_of(EVERYTHING, slots=slots, producer=producer)
    frame = fr.parse_head(whole, 640)
    assert frame is not None
    used = frame.head_length + frame.body_length
    for bit in range(used * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        assert not is_whole(bytes(damaged)), f"bit {bit} of {used * 8}"


def test_a_pad_frame_fills_the_rest_of_the_ring() -> None:
    pad = fr.pad_frame(128, 64, 3, 4096)
    frame = fr.parse_head(pad, 128)
    assert frame is not None
    assert frame.flags & fr.PAD
    assert (frame.length, frame.epoch, frame.rows, frame.body_length) == (4096, 3, 0, 0)
    for bit in range(len(pad) * 8):
        damaged = bytearray(pad)
        damaged[bit // 8] ^= 1 << bit % 8
        assert fr.parse_head(bytes(damaged), 128) is None


def test_a_frame_that_stands_elsewhere_is_stale() -> None:
    whole = frame_of(EVERYTHING)
    assert fr.parse_head(whole, 640) is not None
    assert fr.parse_head(whole, 640 + 64) is None
    assert fr.parse_head(whole, 640 + 2**20) is None


@pytest.mark.parametrize("producer", [b"", b"producer"], ids=["nobody", "producer"])
def test_a_frame_cut_anywhere_is_not_whole(producer: bytes) -> None:
    whole = frame_of(EVERYTHING, slots=[0, 1, 2], producer=producer)
    frame = fr.parse_head(whole, 640)
    assert frame is not None
    for size in range(frame.head_length + frame.body_length):
        assert not is_whole(whole[:size])


@given(st.binary(min_size=64, max_size=300))
def test_noise_is_no_frame(noise: bytes) -> None:
    assert fr.parse_head(noise, 0) is None
    assert fr.parse_head(b"PJF1" + noise, 0) is None
    assert fr.needed_for_head(noise) >= 0


def test_the_head_says_how_long_it_is() -> None:
    whole = frame_of(EVERYTHING, slots=[0, 1, 2], producer=b"producer")
    frame = fr.parse_head(whole, 640)
    assert frame is not None
    assert fr.needed_for_head(whole[: fr.FIXED]) == frame.head_length
    assert fr.needed_for_head(fr.pad_frame(0, 0, 0, 128)) == fr.FIXED
    assert fr.needed_for_head(bytes(fr.FIXED)) == 0
