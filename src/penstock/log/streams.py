"""The streams of a log and their partitions, in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from penstock import limits
from penstock.errors import StreamExists, TooMany, UnknownPartition, UnknownStream
from penstock.log.catalog import Catalog, PartitionRow, StreamRow
from penstock.log.ends import Ends
from penstock.log.names import clash_key
from penstock.log.segments import SegmentCache, Segments
from penstock.log.writer import AddPartition, partition_directory


class Partition:
    """A partition, its segments and its earliest index. Its end is in `Ends`, by pid."""

    __slots__ = ("earliest", "number", "pid", "segments", "stream")

    def __init__(
        self, pid: int, stream: Stream, number: int, earliest: int, segments: Segments
    ) -> None:
        self.pid = pid
        self.stream = stream
        self.number = number
        self.earliest = earliest
        self.segments = segments

    def added(self, *, fresh: bool = False) -> AddPartition:
        """What the segment writer must know of it; `fresh` if it was made just now."""
        settings = self.stream.settings
        return AddPartition(
            self.pid, self.stream.name, self.number, self.segments.segment, self.segments.size,
            self.segments.end, settings.segment_bytes, settings.compression, fresh,
        )  # fmt: skip


class Stream:
    """A stream. Only its settings change, and partitions are added."""

    __slots__ = ("created_at", "id", "name", "next_keyless", "partitions", "settings")

    def __init__(self, row: StreamRow) -> None:
        self.id = row.id
        self.name = row.name
        self.settings = row.settings
        self.created_at = row.created_at
        self.partitions: list[Partition] = []
        self.next_keyless = itertools.count()

    @property
    def pids(self) -> list[int]:
        return [partition.pid for partition in self.partitions]


class Streams:
    """All streams, by name; all partitions, by pid. Changed by one thread at a time."""

    def __init__(self, data: Path, cache: SegmentCache, ends: Ends, catalog: Catalog) -> None:
        self._data = data
        self._cache = cache
        self._ends = ends
        self._by_name: dict[str, Stream] = {}
        self._by_pid: dict[int, Partition] = {}
        self._taken: dict[str, str] = {}
        by_id = {row.id: Stream(row) for row in catalog.streams()}
        for row in catalog.partitions():
            self._add_partition(by_id[row.stream], row)
        for stream in by_id.values():
            self._add(stream)

    # -- finding ---------------------------------------------------------------------------------

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def all(self) -> list[Stream]:
        return sorted(self._by_name.values(), key=lambda stream: stream.name)

    def get(self, name: str) -> Stream:
        """The stream of that name, or `UnknownStream`."""
        stream = self._by_name.get(name)
        if stream is None:
            names = sorted(self._by_name)
            shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            raise UnknownStream(
                f"there is no stream {name!r:.300}; streams are: {shown or 'none yet'}"
            )
        return stream

    def partition(self, stream: str, number: int) -> Partition:
        """The partition of that number, or `UnknownStream` or `UnknownPartition`."""
        found = self.get(stream)
        if not 0 <= number < len(found.partitions):
            raise UnknownPartition(
                f"stream {stream!r} has no partition {number}: it has 0 to "
                f"{len(found.partitions) - 1}"
            )
        return found.partitions[number]

    def by_pid(self, pid: int) -> Partition | None:
        return self._by_pid.get(pid)

    def partitions(self) -> list[Partition]:
        return list(self._by_pid.values())

    def directory(self, stream: str) -> Path:
        return self._data / "streams" / stream

    # -- changing --------------------------------------------------------------------------------

    def check_new(self, name: str, partitions: int) -> None:
        """Raise if a stream of that name and size cannot be made."""
        other = self._taken.get(clash_key(name))
        if other == name:
            raise StreamExists(f"stream {name!r} exists already")
        if other is not None:
            raise StreamExists(
                f"stream {name!r} cannot be made beside {other!r}: as in Kafka, two names that "
                "differ only in '.' and '_' cannot both exist"
            )
        if len(self._by_name) >= limits.STREAMS_MAX:
            raise TooMany(
                f"there are {len(self._by_name)} streams, at most {limits.STREAMS_MAX}: "
                "delete some that are no longer used"
            )
        self.check_partitions(partitions, partitions)

    def check_partitions(self, per_stream: int, added: int) -> None:
        """Raise if a stream cannot have that many partitions, `added` of them new."""
        if not 1 <= per_stream <= limits.PARTITIONS_PER_STREAM_MAX:
            raise TooMany(
                f"{per_stream} partitions: a stream has 1 to {limits.PARTITIONS_PER_STREAM_MAX}"
            )
        if len(self._by_pid) + added > limits.PARTITIONS_MAX:
            raise TooMany(
                f"there are {len(self._by_pid)} partitions, at most {limits.PARTITIONS_MAX}: "
                "delete streams that are no longer used"
            )

    def add(self, row: StreamRow, pids: Iterable[int]) -> list[Partition]:
        """A stream was made; returns its partitions."""
        stream = Stream(row)
        partitions = self.add_partitions(stream, pids)
        self._add(stream)
        return partitions

    def add_partitions(self, stream: Stream, pids: Iterable[int]) -> list[Partition]:
        first = len(stream.partitions)
        return [
            self._add_partition(stream, PartitionRow(pid, stream.id, number, 0, 0, 0, 0))
            for number, pid in enumerate(pids, first)
        ]

    def remove(self, stream: Stream) -> None:
        del self._by_name[stream.name]
        del self._taken[clash_key(stream.name)]
        for partition in stream.partitions:
            del self._by_pid[partition.pid]
            self._cache.forget(partition.segments.directory)

    def _add(self, stream: Stream) -> None:
        self._taken[clash_key(stream.name)] = stream.name
        self._by_name[stream.name] = stream

    def _add_partition(self, stream: Stream, row: PartitionRow) -> Partition:
        segments = Segments(
            self._cache,
            partition_directory(self._data, stream.name, row.number),
            earliest=row.earliest,
            segment=row.segment,
            size=row.segment_size,
            end=row.segments_end,
        )
        partition = Partition(row.pid, stream, row.number, row.earliest, segments)
        self._ends.add(row.pid, row.segments_end)
        self._by_pid[row.pid] = partition
        stream.partitions.append(partition)
        return partition
