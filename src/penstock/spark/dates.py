"""Whether a batch has records of one date only: then it is written without sorting out dates.

Spark copies every row to take the date out of it, which costs a tenth of the whole archive. Most
batches do not need that. So the first and the last record of each partition are looked at before:
if all are of one date, the batch is written as it comes, and the files' own statistics tell
afterwards whether that was right. If it was not, the batch is written again the long way.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock import limits
from penstock.errors import PenstockError
from penstock.flight.client import FlightClient

_DAY_US: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1).toordinal()


def seems_one_date(hub: FlightClient, checkpoint: Path, stream: str, batch: int) -> bool:
    """Whether the ends of what a batch reads are of one date; false if that is hard to say."""
    try:
        ranges = list(_ranges(hub, checkpoint, stream, batch))
        if not ranges or len(ranges) > limits.ARCHIVE_PROBES_MAX:
            return False
        return len({day for each in ranges for day in _days(hub, stream, *each)}) == 1
    except (PenstockError, OSError, ValueError):
        return False  # what is wrong, if anything, shows when the batch is read


def _ranges(
    hub: FlightClient, checkpoint: Path, stream: str, batch: int
) -> Iterator[tuple[int, int, int]]:
    """Partition, first and last index, as Spark has noted them."""
    end = _offsets(checkpoint, stream, batch)
    start = _offsets(checkpoint, stream, batch - 1) if batch else {}
    missing = set(end) - set(start)
    earliest = [each.earliest for each in hub.look([stream])[stream]] if missing else []
    for partition, stop in end.items():
        first = start[partition] if partition in start else earliest[int(partition)]
        if first < stop:
            yield int(partition), first, stop - 1


def _offsets(checkpoint: Path, stream: str, batch: int) -> dict[str, int]:
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    found: dict[str, int] = json.loads(lines[-1]).get(stream, {})
    return found


def _days(hub: FlightClient, stream: str, partition: int, first: int, last: int) -> Iterator[int]:
    for index in (first, last):
        for each in hub.read(stream, partition, index, index + 1, ["timestamp"]):
            for value in each.column("timestamp").cast(pa.int64()):
                yield value.as_py() // _DAY_US


def put_under_date(staged: Path) -> bool:
    """Move the files in `staged` to the directory of their date; false if they have several.

    Files without rows, which Spark writes too, stay where they are.
    """
    files = [file for file in staged.glob("*.parquet") if pq.read_metadata(file).num_rows]
    days: set[int] = set()
    for file in files:
        found = _days_of(file)
        if found is None:
            return False
        days |= found
    if len(days) > 1:
        return False
    for day in days:
        try:
            name = date.fromordinal(_EPOCH + day).isoformat()
        except (ValueError, OverflowError):
            return False
        directory = staged / f"date={name}"
        directory.mkdir()
        for file in files:
            os.rename(file, directory / file.name)
    return True


def _days_of(file: Path) -> set[int] | None:
    """The first and the last day of a file's records; none if it does not tell."""
    metadata = pq.read_metadata(file)
    columns = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    place = columns.index("timestamp")
    days: set[int] = set()
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        told = group.column(place).statistics
        if told is None or not told.has_min_max or told.physical_type != "INT64":
            return None
        days |= {told.min_raw // _DAY_US, told.max_raw // _DAY_US}
    return days
