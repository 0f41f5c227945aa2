"""How a streaming query follows its streams: what runs once per batch, beside the driver.

Spark asks for the latest offset only after the batch that ended at `start` was committed, so that
is when the group's position is saved: the last batch is included, and the position is never ahead
of what Spark committed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from penstock import limits
from penstock.errors import IndexOutOfRange, UnknownPartition, UnknownStream
from penstock.flight.client import Bounds, FlightClient
from penstock.spark.fetch import data_lost, logger, patiently, warn_lost
from penstock.spark.offsets import (
    FIRST,
    LOST,
    Loss,
    Offsets,
    Range,
    admit,
    from_spark,
    is_moving,
    ranges,
    resolve,
    survey,
    to_spark,
)
from penstock.spark.options import HubOptions, SourceOptions, Streams

Looked = dict[str, dict[int, Bounds]]
_NEVER = 2**62
"""An end that no partition reaches: records of a partition that is not read wake nobody."""


def look(
    hub: HubOptions, streams: Streams, known: Offsets | None = None, wait_s: float = 0.0
) -> Looked:
    """The partitions to read, and what they hold; with `known`, waits for something beyond."""
    ends = None if known is None else _ends(streams, known)
    found = patiently(
        hub,
        lambda hub: hub.look(
            streams.names if streams.pattern is None else None,
            streams.pattern,
            known=ends,
            wait_seconds=wait_s,
        ),
    )
    _check_assigned(streams, found)
    return {
        stream: {
            number: bounds
            for number, bounds in enumerate(partitions)
            if streams.has(stream, number)
        }
        for stream, partitions in found.items()
    }


def _check_assigned(streams: Streams, found: Mapping[str, list[Bounds]]) -> None:
    for stream, numbers in (streams.partitions or {}).items():
        missing = sorted(number for number in numbers if number >= len(found.get(stream, ())))
        if missing and stream in found:
            raise UnknownPartition(
                f"option assign names partition {missing[0]} of {stream}, which has "
                f"{len(found[stream])}, numbered from 0"
            )


def _ends(streams: Streams, known: Offsets) -> dict[str, list[int]]:
    return {
        stream: [
            each.get(number, 0) if streams.has(stream, number) else _NEVER
            for number in range(max(each, default=-1) + 1)
        ]
        for stream, each in known.items()
    }


def only(names: list[str]) -> Streams:
    """Those of the named streams that exist."""
    return Streams(pattern="|".join(map(re.escape, sorted(names))))


def at_time(hub: HubOptions, extents: Looked, microseconds: int) -> Offsets:
    """The first indexes at or after a time."""
    found: Offsets = {}
    for stream, partitions in extents.items():
        indexes = patiently(hub, partial(_index_at, stream, microseconds))
        found[stream] = {number: indexes[number] for number in partitions}
    return found


def _index_at(stream: str, microseconds: int, hub: FlightClient) -> list[int]:
    return hub.index_at(stream, microseconds)


class Gap(NamedTuple):
    """Records lost of a partition: before the last gap, and in it from `start` on."""

    before: int
    start: int
    records: int


class Follower:
    """Follows the streams of one query. May be pickled; connections are not part of it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._hub = options.hub
        self._streams = options.streams
        self._initial: dict[str, Any] | None = None
        self._extents: Looked | None = None
        self._target: Offsets | None = None
        self._saved: Offsets | None = None
        self._gaps: dict[tuple[str, int], Gap] = {}

    def initial(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins; Spark asks twice and has to hear the same."""
        if self._initial is None:
            self._extents = look(self._hub, self._streams)
            if self._options.starting_us is not None:
                found = at_time(self._hub, self._extents, self._options.starting_us)
            else:
                found = resolve(self._options.starting, self._extents, "startingOffsets")
            self._initial = to_spark(found)
        return self._initial

    def pin(self) -> None:
        """From now on, read nothing that comes later (Trigger.AvailableNow)."""
        extents = self._look_again(None, 0.0)
        self._target = {
            stream: {number: bounds.end for number, bounds in partitions.items()}
            for stream, partitions in extents.items()
        }

    def latest(
        self, start: dict[str, Any], max_records: int | None, max_bytes: int | None
    ) -> dict[str, Any]:
        """How far the next batch goes. If there is nothing new, it waits a little for it."""
        stored = from_spark(start)
        self._save(stored)
        begin = self._of_interest(stored)
        wait_s = limits.SPARK_WAIT_S if self._target is None else 0.0
        extents = self._look_again(begin, wait_s)
        self._handle(survey(begin, extents)[1])
        end = admit(begin, extents, self._target, max_records, max_bytes)
        if end == stored:
            return start
        offset = to_spark(end)
        if start == self._initial and self._starts_at_a_moving_point():
            offset[FIRST] = start
        return offset

    def ranges(self, start: dict[str, Any], end: dict[str, Any]) -> tuple[list[Range], Looked]:
        """What a batch reads."""
        begin, stop = from_spark(end.get(FIRST, start)), from_spark(end)
        extents = self._extents
        if extents is None or not _covers(extents, stop):
            extents = look(self._hub, only(list(stop))) if stop else {}
        found, losses = ranges(begin, stop, extents)
        self._handle(losses)
        return found, extents

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has committed a batch that ended here."""
        self._save(from_spark(end))

    def report(self) -> dict[str, Any] | None:
        """The ends that were seen last, for the query's progress, and how much was lost."""
        if self._extents is None:
            return None
        told = to_spark(
            {
                stream: {number: bounds.end for number, bounds in partitions.items()}
                for stream, partitions in self._extents.items()
            }
        )
        if self._gaps:
            told[LOST] = to_spark(self._lost())
        return told

    # -- inside ----------------------------------------------------------------------------------

    def _look_again(self, begin: Offsets | None, wait_s: float) -> Looked:
        """Look; a stream that the query has begun to read and that is gone is left out."""
        known = begin if wait_s else None
        try:
            self._extents = look(self._hub, self._streams, known, wait_s)
        except UnknownStream:
            found = look(self._hub, only(list(self._streams.names)))
            unheard = set(self._streams.names) - set(found) - set(begin or ())
            if begin is not None and unheard and self._options.fail_on_data_loss:
                raise
            self._extents = found
        return self._extents

    def _of_interest(self, offsets: Offsets) -> Offsets:
        """Without what an earlier run of the query read and this one was not asked to."""
        streams = self._streams
        names = set(streams.names)
        if streams.pattern is not None:
            names = {name for name in offsets if re.fullmatch(streams.pattern, name)}
        kept = {
            stream: {number: at for number, at in each.items() if streams.has(stream, number)}
            for stream, each in offsets.items()
            if stream in names
        }
        return {stream: each for stream, each in kept.items() if each}

    def _starts_at_a_moving_point(self) -> bool:
        return self._options.starting_us is not None or is_moving(self._options.starting)

    def _handle(self, losses: list[Loss]) -> None:
        """Fail, or go on and count.

        A batch meets a gap when its end is chosen and again when it is planned: it counts once.
        """
        if losses and self._options.fail_on_data_loss:
            raise data_lost(losses)
        for loss in losses:
            gap = self._gaps.get((loss.stream, loss.partition), Gap(0, -1, 0))
            if gap.start != loss.start:
                warn_lost(loss)
                gap = Gap(gap.before + gap.records, loss.start, 0)
            gap = gap._replace(records=max(gap.records, loss.records))
            self._gaps[loss.stream, loss.partition] = gap

    def _lost(self) -> Offsets:
        found: Offsets = {}
        for (stream, number), gap in self._gaps.items():
            found.setdefault(stream, {})[number] = gap.before + gap.records
        return found

    def _save(self, position: Offsets) -> None:
        group = self._options.group
        if group is None or position == self._saved or not position:
            return
        try:
            patiently(self._hub, lambda hub: hub.save_positions(group, position))
        except (UnknownStream, UnknownPartition, IndexOutOfRange) as error:
            # Deleted, or made anew; whether that matters, the look that follows decides.
            logger.info("group %s: not all positions can be saved: %s", group, error)
            left = _possible(position, look(self._hub, only(list(position))))
            if left:
                patiently(self._hub, lambda hub: hub.save_positions(group, left))
        self._saved = position


def _possible(position: Offsets, extents: Looked) -> Offsets:
    left = {
        stream: {
            number: index
            for number, index in each.items()
            if number in extents.get(stream, {}) and index <= extents[stream][number].end
        }
        for stream, each in position.items()
    }
    return {stream: each for stream, each in left.items() if each}


def _covers(extents: Looked, stop: Offsets) -> bool:
    return all(
        number in extents.get(stream, {}) and extents[stream][number].end >= index
        for stream, each in stop.items()
        for number, index in each.items()
    )
