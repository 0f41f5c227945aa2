"""Reading a partition's segments from another process, without asking the log.

Everything in a segment file was committed before it was written there, so what checks may be
read. What is only in the journal yet is not seen: that is the log's to serve. A bulk reader on the
same machine costs the log nothing this way.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

import pyarrow as pa

from penstock import limits
from penstock.errors import IndexTrimmed, SegmentDamaged, SegmentMissing
from penstock.log.disk import Disk, RealDisk
from penstock.log.segment import SEALED, SegmentFile, parse_name, segment_name
from penstock.log.writer import partition_directory


class DirectReader:
    """Reads one partition forward from the segments of a data directory on this machine."""

    def __init__(
        self, data: str | Path, stream: str, partition: int, *, disk: Disk | None = None
    ) -> None:
        self._disk = disk or RealDisk()
        self._directory = partition_directory(Path(data), stream, partition)
        self._suffixes: dict[int, str] = {}
        self._bases: list[int] = []
        self._open: tuple[Path, SegmentFile] | None = None

    def read(
        self, start: int, max_records: int = 65_536, max_bytes: int = 8 * limits.MIB
    ) -> list[pa.RecordBatch]:
        """Records from `start` on, of one segment; none if they are not in a segment yet."""
        for attempt in (1, 2):
            try:
                return self._read(start, max_records, max_bytes)
            except (FileNotFoundError, SegmentDamaged, SegmentMissing):
                # Sealed meanwhile, or cut and written again by a restarted writer: look anew.
                self._forget()
                if attempt == 2:
                    raise
        raise AssertionError

    def _read(self, start: int, max_records: int, max_bytes: int) -> list[pa.RecordBatch]:
        base = self._base_of(start)
        if base is None:
            return []
        file = self._file(base)
        if not file.sealed and (file.next_index or 0) <= start:
            file.extend(None)
        if (file.next_index or base) > start:
            return file.read(start, max_records, max_bytes)[0]
        self._list()
        if base == self._bases[-1]:
            return []  # the end, for now
        if start not in self._suffixes:
            raise SegmentMissing(
                f"record {start} is in no segment of {self._directory}: a file is missing; put "
                "it back from a backup, or read from an index behind the gap"
            )
        return self._read(start, max_records, max_bytes)

    def _base_of(self, index: int) -> int | None:
        at = bisect_right(self._bases, index) - 1
        if at < 0:
            self._list()
            at = bisect_right(self._bases, index) - 1
        if at >= 0:
            return self._bases[at]
        if self._bases:
            raise IndexTrimmed(
                f"record {index} of {self._directory} was dropped by retention: the earliest in "
                f"a segment is {self._bases[0]}",
                earliest=self._bases[0],
            )
        return None

    def _list(self) -> None:
        found: dict[int, str] = {}
        for parsed in map(parse_name, self._disk.list(self._directory)):
            if parsed is not None and found.get(parsed[0]) != SEALED:
                found[parsed[0]] = parsed[1]
        self._suffixes = found
        self._bases = sorted(found)

    def _file(self, base: int) -> SegmentFile:
        path = self._directory / segment_name(base, self._suffixes[base])
        if self._open is None or self._open[0] != path:
            self._open = (path, SegmentFile(self._disk, path))
        return self._open[1]

    def _forget(self) -> None:
        self._open = None
        self._list()
