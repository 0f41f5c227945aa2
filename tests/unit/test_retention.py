from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log import StreamSettings
from penstock.log.retention import Decision, SegmentFacts, decide

NOW = 1_000_000_000


def segments(*bases: int, end: int, size: int = 100) -> list[SegmentFacts]:
    """Segments of `size` bytes; the last one grows."""
    ends = [*bases[1:], end]
    return [
        SegmentFacts(base, stop, size, base == bases[-1])
        for base, stop in zip(bases, ends, strict=True)
    ]


THREE = segments(0, 10, 20, end=30)


def decided(holder: tuple[int, str] | None = None, end: int = 30, **settings: Any) -> Decision:
    """The newest record of a segment is as many seconds old as records are behind it."""
    newest = {each.base: NOW - (30 - each.end) * 1_000_000 for each in THREE}
    return decide(StreamSettings(**settings), THREE, end, NOW, lambda base: newest[base], holder)


@pytest.mark.parametrize(
    ("settings", "drop", "roll"),
    [
        ({}, [], False),
        ({"retention_records": 30}, [], False),
        ({"retention_records": 21}, [], False),
        ({"retention_records": 20}, [0], False),
        ({"retention_records": 10}, [0, 10], False),
        ({"retention_records": 0}, [0, 10], True),
        ({"retention_bytes": 201}, [], False),
        ({"retention_bytes": 200}, [0], False),
        ({"retention_bytes": 0}, [0, 10], True),
        ({"retention_seconds": 20.0}, [], False),
        ({"retention_seconds": 19.0}, [0], False),
        ({"retention_seconds": 5.0}, [0, 10], False),
        ({"retention_seconds": 0.0}, [0, 10], False),
        ({"retention_read": True}, [], False),
        ({"retention_records": 20, "retention_bytes": 100}, [0, 10], False),
    ],
    ids=str,
)
def test_each_rule_drops_the_oldest_segments(
    settings: dict[str, Any], drop: list[int], roll: bool
) -> None:
    assert decided(**settings) == Decision(drop, None, roll)


def test_what_is_read_by_all_can_go() -> None:
    assert decided((10, "g"), retention_read=True).drop == [0]
    assert decided((19, "g"), retention_read=True).drop == [0]
    assert decided((30, "g"), retention_read=True) == Decision([0, 10], None, True)


def test_a_holder_forbids_what_others_allow() -> None:
    assert decided((15, "g"), retention_records=0) == Decision([0], "g", False)
    assert decided((0, "g"), retention_bytes=0) == Decision([], "g", False)
    assert decided((0, "g")) == Decision([], None, False)


def test_a_growing_segment_is_not_closed_while_more_waits_in_the_journal() -> None:
    assert decided(end=35, retention_records=0) == Decision([0, 10], None, False)


@given(
    records=st.none() | st.integers(0, 40),
    size=st.none() | st.integers(0, 400),
    held=st.none() | st.integers(0, 30),
)
def test_nothing_held_is_dropped_and_only_from_the_front(
    records: int | None, size: int | None, held: int | None
) -> None:
    holder = None if held is None else (held, "g")
    decision = decided(holder, retention_records=records, retention_bytes=size)
    assert decision.drop == [0, 10][: len(decision.drop)]
    ends = {each.base: each.end for each in THREE}
    assert all(held is None or ends[base] <= held for base in decision.drop)
    if records is not None and size is None:
        assert all(30 - ends[base] >= records for base in decision.drop)
