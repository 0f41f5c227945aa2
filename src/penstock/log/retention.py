"""Which segments may go. Pure: it is told everything and decides.

Whole segments go, oldest first. Age, bytes and records each allow dropping; a registered group's
position forbids it, whatever they say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.log.settings import StreamSettings


class SegmentFacts(NamedTuple):
    """What retention must know of a segment."""

    base: int
    end: int
    bytes: int
    growing: bool


class Decision(NamedTuple):
    """What to do with one partition."""

    drop: list[int]
    """Bases of the segments to drop."""
    held_by: str | None
    """The registered group that keeps more from being dropped."""
    roll: bool
    """The growing segment could go too, if it were closed."""


def decide(
    settings: StreamSettings,
    segments: Sequence[SegmentFacts],
    end: int,
    now: int,
    max_time: Callable[[int], int],
    holder: tuple[int, str] | None,
) -> Decision:
    """What to drop of one partition whose last index is before `end`; times in microseconds."""
    drop: list[int] = []
    bytes_left = sum(segment.bytes for segment in segments)
    for segment in segments:
        wanted = _is_wanted(settings, segment, bytes_left, end, now, max_time, holder)
        if not wanted:
            return Decision(drop, None, False)
        if holder is not None and segment.end > holder[0]:
            return Decision(drop, holder[1], False)
        if segment.growing:
            # Closing it only pays if nothing newer than it waits in the journal.
            return Decision(drop, None, segment.end == end)
        drop.append(segment.base)
        bytes_left -= segment.bytes
    return Decision(drop, None, False)


def _is_wanted(
    settings: StreamSettings,
    segment: SegmentFacts,
    bytes_left: int,
    end: int,
    now: int,
    max_time: Callable[[int], int],
    holder: tuple[int, str] | None,
) -> bool:
    """Whether the settings allow this segment to go."""
    if (
        settings.retention_bytes is not None
        and bytes_left - segment.bytes >= settings.retention_bytes
    ):
        return True
    if settings.retention_records is not None and end - segment.end >= settings.retention_records:
        return True
    if settings.retention_read and holder is not None and segment.end <= holder[0]:
        return True
    if settings.retention_seconds is not None:
        return max_time(segment.base) < now - int(settings.retention_seconds * 1_000_000)
    return False
