"""Where a query stands, what it may read next, and what was lost meanwhile: arithmetic only.

An offset is what Spark stores in a checkpoint, `{"orders": {"0": 120, "1": 80}}`: for each
partition the next index to read. Two offsets are the same if their JSON is, so keys are sorted.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from penstock import limits
from penstock.errors import BadSetting

EARLIEST: Final = -2
LATEST: Final = -1
FIRST: Final = "first batch from"
"""Beside the streams in the end of a first batch that started at a moving point such as latest:
where it started, so that the batch is the same if it is repeated. No stream has that name."""

LOST: Final = "lost records"
"""Beside the streams in what a query reports as latest: records that were gone before it came to
them, per stream and partition. No stream has that name."""

Offsets = dict[str, dict[int, int]]


class Extent(Protocol):
    """A partition's records are `earliest` to `end`, which take about `bytes`."""

    @property
    def earliest(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def bytes(self) -> int: ...


Extents = Mapping[str, Mapping[int, Extent]]


class Range(NamedTuple):
    """The records `start` to `end`, not included, of one partition."""

    stream: str
    partition: int
    start: int
    end: int

    @property
    def records(self) -> int:
        return self.end - self.start


class Loss(NamedTuple):
    """Records that should have been read and are not there; `end` 0 if it is not known."""

    stream: str
    partition: int
    start: int
    end: int
    why: str

    @property
    def records(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        what = f"records {self.start} to {self.end - 1}" if self.records else f"from {self.start}"
        return f"{self.stream}/{self.partition} {what} ({self.why})"


# -- text ------------------------------------------------------------------------------------------


def parse_offsets(text: str, name: str) -> Offsets:
    """Offsets as a user writes them; -1 stands for latest and -2 for earliest."""
    example = f'option {name} has to be earliest, latest, or like {{"orders": {{"0": 5, "1": -2}}}}'
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadSetting(f"{example}; {text!r} is neither ({error})") from None
    if not (isinstance(found, dict) and found):
        raise BadSetting(f"{example}; given is {text!r}")
    for stream, partitions in found.items():
        if not (isinstance(partitions, dict) and partitions):
            raise BadSetting(f"{example}; for {stream} it is {partitions!r}")
        for partition, index in partitions.items():
            if not (partition.isdecimal() and partition.isascii() and len(partition) < 10):
                raise BadSetting(f"{example}; {partition!r} is no partition of {stream}")
            if isinstance(index, bool) or not isinstance(index, int) or index < EARLIEST:
                raise BadSetting(
                    f"{example}; {index!r} for {stream}/{partition} is no index, -1 or -2"
                )
    return from_spark(found)


def to_spark(offsets: Mapping[str, Mapping[int, int]]) -> dict[str, Any]:
    """Offsets as Spark stores them: keys are sorted, and partitions are text."""
    return {
        stream: {
            str(partition): offsets[stream][partition] for partition in sorted(offsets[stream])
        }
        for stream in sorted(offsets)
    }


def from_spark(stored: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Offsets that Spark stored."""
    return {
        stream: {int(partition): index for partition, index in partitions.items()}
        for stream, partitions in stored.items()
        if stream not in (FIRST, LOST)
    }


# -- where to begin --------------------------------------------------------------------------------


def resolve(where: int | Offsets, extents: Extents, name: str) -> Offsets:
    """The indexes that EARLIEST, LATEST or given offsets stand for in the partitions there are."""
    if isinstance(where, int):
        return {
            stream: {number: _point(where, extent) for number, extent in partitions.items()}
            for stream, partitions in extents.items()
        }
    there = {(stream, number) for stream in extents for number in extents[stream]}
    given = {(stream, number) for stream in where for number in where[stream]}
    if there != given:
        missing, extra = _listed(there - given), _listed(given - there)
        raise BadSetting(
            f"option {name} has to name each partition that is read, and no other"
            + (f"; missing: {missing}" if missing else "")
            + (f"; not read: {extra}" if extra else "")
        )
    resolved = {
        stream: {number: _point(index, extents[stream][number]) for number, index in each.items()}
        for stream, each in where.items()
    }
    for stream, each in resolved.items():
        for number, index in each.items():
            if index > extents[stream][number].end:
                raise BadSetting(
                    f"option {name} is {index} for {stream}/{number}, past its end: it ends at "
                    f"{extents[stream][number].end}"
                )
    return resolved


def is_moving(where: int | Offsets) -> bool:
    """Whether it stands for another place tomorrow."""
    if isinstance(where, int):
        return where == LATEST
    return any(LATEST in partitions.values() for partitions in where.values())


def _point(index: int, extent: Extent) -> int:
    if index == EARLIEST:
        return extent.earliest
    return extent.end if index == LATEST else index


def _listed(partitions: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{stream}/{number}" for stream, number in sorted(partitions))


# -- what a batch may read -------------------------------------------------------------------------


def survey(start: Offsets, extents: Extents) -> tuple[Offsets, list[Loss]]:
    """Where reading on can begin in each partition there is, and what is lost before that."""
    begins: Offsets = {}
    losses: list[Loss] = []
    for stream, partitions in extents.items():
        begins[stream] = {}
        for number, extent in partitions.items():
            at = start.get(stream, {}).get(number, 0)
            if at > extent.end:
                losses.append(
                    Loss(
                        stream, number, at, 0,
                        f"it now ends at {extent.end}: it was made anew, or restored",
                    )
                )  # fmt: skip
                at = extent.earliest
            elif at < extent.earliest:
                losses.append(Loss(stream, number, at, extent.earliest, "dropped by retention"))
                at = extent.earliest
            begins[stream][number] = at
    losses.extend(
        Loss(stream, number, start[stream][number], 0, "the stream was deleted")
        for stream in start
        for number in start[stream]
        if number not in extents.get(stream, {})
    )
    return begins, losses


def admit(
    start: Offsets,
    extents: Extents,
    target: Offsets | None = None,
    max_records: int | None = None,
    max_bytes: int | None = None,
) -> Offsets:
    """How far the next batch goes; never past `target`, if there is one.

    A limit is shared among the partitions in proportion to what they have. As long as there is
    anything to read, a batch has at least one record.
    """
    begins, _ = survey(start, extents)
    keys: list[tuple[str, int]] = []
    there: list[int] = []
    ends: Offsets = {stream: {} for stream in extents}
    for stream, partitions in extents.items():
        for number, extent in partitions.items():
            begin = begins[stream][number]
            before = start.get(stream, {}).get(number)
            stop = extent.end if target is None else target.get(stream, {}).get(number)
            if stop is None:  # not there when the target was taken
                if before is not None:
                    ends[stream][number] = before
                continue
            stop = min(stop, extent.end)
            if begin > stop:
                ends[stream][number] = max(stop, before or 0)
                continue
            ends[stream][number] = begin
            keys.append((stream, number))
            there.append(stop - begin)
    admitted = there
    if max_records is not None:
        admitted = share(admitted, max_records)
    if max_bytes is not None:
        sizes = [record_bytes(extents[stream][number]) for stream, number in keys]
        admitted = _share_bytes(admitted, sizes, max_bytes)
    for (stream, number), count in zip(keys, admitted, strict=True):
        ends[stream][number] += count
    return {stream: each for stream, each in ends.items() if each}


def share(amounts: Sequence[int], limit: int) -> list[int]:
    """Cut `amounts` in proportion so that together they are at most `limit`, and not less."""
    total = sum(amounts)
    if total <= limit:
        return list(amounts)
    parts = [amount * limit // total for amount in amounts]
    by_remainder = sorted(range(len(amounts)), key=lambda i: -(amounts[i] * limit % total))
    for i in by_remainder[: limit - sum(parts)]:
        parts[i] += 1
    return parts


def _share_bytes(amounts: Sequence[int], sizes: Sequence[int], limit: int) -> list[int]:
    total = sum(amount * size for amount, size in zip(amounts, sizes, strict=True))
    if total <= limit:
        return list(amounts)
    parts = [amount * limit // total for amount in amounts]
    if not any(parts):
        parts[max(range(len(amounts)), key=lambda i: amounts[i] * sizes[i])] = 1
    return parts


def record_bytes(extent: Extent) -> int:
    """The average size of a record."""
    return max(1, extent.bytes // max(1, extent.end - extent.earliest))


# -- what the tasks of a batch read ----------------------------------------------------------------


def ranges(start: Offsets, end: Offsets, extents: Extents) -> tuple[list[Range], list[Loss]]:
    """What there is of a batch from `start` to `end`, and what is lost of it."""
    found: list[Range] = []
    losses: list[Loss] = []
    for stream in sorted(end):
        for number in sorted(end[stream]):
            begin, stop = start.get(stream, {}).get(number, 0), end[stream][number]
            if begin > stop:
                begin = 0  # the stream was made anew: all of it
            extent = extents.get(stream, {}).get(number)
            if begin == stop:
                continue
            if extent is None:
                losses.append(Loss(stream, number, begin, stop, "the stream was deleted"))
                continue
            if begin < extent.earliest:
                kept = min(extent.earliest, stop)
                losses.append(Loss(stream, number, begin, kept, "dropped by retention"))
                begin = kept
            if stop > extent.end:
                losses.append(
                    Loss(
                        stream, number, max(begin, extent.end), stop,
                        f"it now ends at {extent.end}: it was made anew, or restored",
                    )
                )  # fmt: skip
                stop = extent.end
            if begin < stop:
                found.append(Range(stream, number, begin, stop))
    return found, losses


def tasks(
    found: Sequence[Range], extents: Extents, min_partitions: int | None = None
) -> list[list[Range]]:
    """Share ranges out to tasks.

    A partition is read by one task, and small ones share a task; with `min_partitions`, the
    longest ranges are cut until there are as many tasks.
    """
    if min_partitions is not None:
        return [[each] for each in split(found, min_partitions)]
    packed: list[list[Range]] = []
    records = size = 0
    for each in found:
        extent = extents.get(each.stream, {}).get(each.partition)
        nbytes = each.records * (1 if extent is None else record_bytes(extent))
        fits = (
            records + each.records <= limits.SPARK_BATCH_RECORDS
            and size + nbytes <= limits.SPARK_BATCH_BYTES
        )
        if packed and fits:
            packed[-1].append(each)
            records, size = records + each.records, size + nbytes
        else:
            packed.append([each])
            records, size = each.records, nbytes
    return packed


def split(found: Sequence[Range], at_least: int) -> list[Range]:
    """Cut the longest ranges so that there are at least so many, as long as records last."""
    pieces = [1] * len(found)
    longest = [(-each.records, i) for i, each in enumerate(found) if each.records > 1]
    heapq.heapify(longest)
    for _ in range(at_least - len(found)):
        if not longest:
            break
        _, i = heapq.heappop(longest)
        pieces[i] += 1
        if pieces[i] < found[i].records:
            heapq.heappush(longest, (-(found[i].records // pieces[i]), i))
    return [
        Range(
            each.stream,
            each.partition,
            each.start + each.records * piece // count,
            each.start + each.records * (piece + 1) // count,
        )
        for each, count in zip(found, pieces, strict=True)
        for piece in range(count)
    ]
