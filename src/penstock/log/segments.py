"""A partition's segments as readers see them: what the last recorded checkpoint covers."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from pathlib import Path

import pyarrow as pa

from penstock import limits
from penstock.errors import SegmentMissing
from penstock.log.disk import Disk
from penstock.log.segment import GROWING, SEALED, SegmentFile, parse_name, segment_name
from penstock.log.writer import remove_segment


class SegmentCache:
    """Open segment files, the least recently used forgotten first."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._files: OrderedDict[Path, SegmentFile] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: Path, size: int | None) -> SegmentFile:
        """The open file, known up to `size` (all of it if None)."""
        with self._lock:
            file = self._files.get(path)
            if file is not None:
                self._files.move_to_end(path)
                if size is not None and file.walked < size:
                    file.extend(size)
                return file
        file = SegmentFile(self.disk, path, size)
        with self._lock:
            self._files[path] = file
            if len(self._files) > limits.OPEN_SEGMENTS_MAX:
                self._files.popitem(last=False)
        return file

    def forget(self, directory: Path, base: int | None = None) -> None:
        """Drop what was removed or replaced; readers that have it open can finish."""
        with self._lock:
            if base is None:
                for path in [path for path in self._files if path.parent == directory]:
                    del self._files[path]
            else:
                for suffix in (GROWING, SEALED):
                    self._files.pop(directory / segment_name(base, suffix), None)


class Segments:
    """The segments of one partition. The directory is listed when first needed."""

    def __init__(
        self,
        cache: SegmentCache,
        directory: Path,
        *,
        earliest: int,
        segment: int,
        size: int,
        end: int,
    ) -> None:
        self.directory = directory
        self.end = end
        """Records below are in segments."""
        self.segment = segment
        self.size = size
        self._cache = cache
        self._earliest = earliest
        self._lock = threading.RLock()
        self._suffixes: dict[int, str] | None = None
        self._bases: list[int] = []

    # -- what there is ---------------------------------------------------------------------------

    def _load(self) -> None:
        if self._suffixes is None:
            suffixes: dict[int, str] = {}
            for parsed in map(parse_name, self._cache.disk.list(self.directory)):
                if parsed is None or parsed[0] > self.segment:
                    continue
                if parsed[0] == self.segment and not self.size:
                    continue
                if suffixes.get(parsed[0]) != SEALED:
                    suffixes[parsed[0]] = parsed[1]
            bases = sorted(suffixes)
            while len(bases) > 1 and bases[1] <= self._earliest:
                # Retention had decided so, and was interrupted.
                remove_segment(self._cache.disk, self.directory, bases[0])
                del suffixes[bases.pop(0)]
            self._suffixes = suffixes
            self._bases = bases

    def bases(self) -> list[int]:
        """The first index of each segment."""
        with self._lock:
            self._load()
            return list(self._bases)

    def checkpointed(self, segment: int, size: int, end: int, closed: list[int]) -> None:
        """A checkpoint was recorded; `closed` are the segments that got their last record."""
        with self._lock:
            if self._suffixes is not None:
                for base in [*closed, segment] if size else closed:
                    self._suffixes.setdefault(base, GROWING)
                self._bases = sorted(self._suffixes)
            # The rest first, `end` last: a reader without the lock looks at `end`.
            self.segment = segment
            self.size = size
            self.end = end

    def sealed(self, base: int) -> None:
        """A segment has got its final file: use it, and remove the one it grew in."""
        with self._lock:
            self._load()
            assert self._suffixes is not None
            growing = self.directory / segment_name(base, GROWING)
            if base < self._earliest and base not in self._suffixes:  # retention was faster
                remove_segment(self._cache.disk, self.directory, base)
                return
            assert base in self._suffixes
            self._suffixes[base] = SEALED
            self._cache.forget(self.directory, base)
            self._cache.disk.remove(growing)

    def below(self, index: int) -> list[int]:
        """The bases of segments that hold only records below `index`."""
        with self._lock:
            self._load()
            ends = [*self._bases[1:], self.end]
            if self._bases and self._bases[-1] == self.segment:
                ends = ends[:-1]  # the growing one stays
            return [base for base, end in zip(self._bases, ends, strict=False) if end <= index]

    def drop(self, bases: list[int], earliest: int) -> None:
        """Remove segments; records below `earliest` are gone."""
        with self._lock:
            self._load()
            assert self._suffixes is not None
            self._earliest = earliest
            for base in bases:
                self._suffixes.pop(base, None)
            self._bases = sorted(self._suffixes)
            for base in bases:
                self._cache.forget(self.directory, base)
                remove_segment(self._cache.disk, self.directory, base)

    def sizes(self) -> list[tuple[int, int]]:
        """(base, bytes on disk) of each segment."""
        with self._lock:
            self._load()
            return [(base, self._file_size(base)) for base in self._bases]

    def _file_size(self, base: int) -> int:
        assert self._suffixes is not None
        if base == self.segment:
            return self.size
        try:
            path = self.directory / segment_name(base, self._suffixes[base])
            return self._cache.disk.file_size(path)
        except FileNotFoundError:
            return 0

    def max_time(self, base: int) -> int:
        """The latest timestamp in a segment."""
        try:
            return self._open(base).max_time()
        except FileNotFoundError:
            raise self._missing(base) from None

    # -- reading ---------------------------------------------------------------------------------

    def read(
        self, start: int, records_max: int, bytes_max: int
    ) -> tuple[list[pa.RecordBatch], int]:
        """Records from `start` on, within one segment, and their size; at least one."""
        for attempt in (1, 2):
            with self._lock:
                base = self._base_of(start)
            try:
                found, size = self._open(base).read(start, records_max, bytes_max)
            except FileNotFoundError:
                if attempt == 1:
                    continue  # sealed in between: look again
                raise self._missing(start) from None
            if not found:
                raise self._missing(start)
            return found, size
        raise AssertionError

    def first_at_or_after(self, start: int, time: int) -> int | None:
        """The first index from `start` on with a timestamp at or after `time`."""
        for base in self.bases():
            try:
                file = self._open(base)
            except FileNotFoundError:
                if base not in self.bases():
                    continue  # retention was faster
                raise self._missing(base) from None
            if file.next_index is None or file.next_index <= start or file.max_time() < time:
                continue
            found = file.first_at_or_after(time, start)
            if found is not None:
                return found
        return None

    def _base_of(self, index: int) -> int:
        self._load()
        at = bisect_right(self._bases, index) - 1
        if at < 0:
            raise self._missing(index)
        return self._bases[at]

    def _open(self, base: int) -> SegmentFile:
        with self._lock:
            self._load()
            assert self._suffixes is not None
            suffix = self._suffixes.get(base)
            if suffix is None:
                raise FileNotFoundError
            path = self.directory / segment_name(base, suffix)
            if suffix == SEALED:
                size = None
            elif base == self.segment:
                size = self.size
            else:
                size = self._cache.disk.file_size(path)
            return self._cache.get(path, size)

    def _missing(self, index: int) -> SegmentMissing:
        return SegmentMissing(
            f"record {index} is in no segment of {self.directory}: a file is missing; put it "
            "back from a backup, or read from an index behind the gap"
        )
