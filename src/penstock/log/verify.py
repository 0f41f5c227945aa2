"""Checking a data directory: every frame, every batch, and that they fit together.

`verify` changes nothing. `repair` only ever cuts what stands behind the last checkpoint in a
growing segment: bytes that were never relied on, and that the journal still holds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa

from penstock.errors import PenstockError, StorageError
from penstock.log.catalog import Catalog, PartitionRow
from penstock.log.disk import Disk, RealDisk
from penstock.log.ends import Ends
from penstock.log.journal import Journal, Mark
from penstock.log.producers import Producers
from penstock.log.recovery import recover
from penstock.log.segment import GROWING, SEALED, SegmentFile, parse_name, segment_name
from penstock.log.writer import partition_directory

Kind = Literal["damage", "missing", "torn-tail", "leftover"]
Progress = Callable[[str, int, int], None]
"""Called with what is being checked, how many partitions are done, and of how many."""


class Problem(msgspec.Struct, frozen=True):
    """Something that is not as it should be. `damage` and `missing` are data lost."""

    kind: Kind
    where: str
    message: str


class VerifyReport(msgspec.Struct):
    """What a data directory holds, and what is wrong with it."""

    data: str
    streams: int = 0
    partitions: int = 0
    segments: int = 0
    records: int = 0
    bytes: int = 0
    journal_records: int = 0
    problems: list[Problem] = []

    @property
    def ok(self) -> bool:
        """No data is damaged or missing; a torn tail or a leftover does no harm."""
        return not any(problem.kind in ("damage", "missing") for problem in self.problems)


def verify(
    data: str | Path, *, disk: Disk | None = None, progress: Progress | None = None
) -> VerifyReport:
    """Check everything in a data directory that no process uses."""
    return _Verifier(Path(data), disk or RealDisk(), progress).run()


def repair(data: str | Path, *, disk: Disk | None = None) -> list[Path]:
    """Cut what a crash left behind the last checkpoint; returns the files that were cut."""
    disk = disk or RealDisk()
    root = Path(data)
    lock = disk.lock(root / "LOCK")
    cut = []
    try:
        catalog = Catalog(disk, root / "catalog.sqlite")
        names = {row.id: row.name for row in catalog.streams()}
        for row in catalog.partitions():
            directory = partition_directory(root, names[row.stream], row.number)
            path = directory / segment_name(row.segment, GROWING)
            if not disk.exists(path) or disk.file_size(path) <= row.segment_size:
                continue
            file = disk.open(path)
            file.truncate(row.segment_size)
            file.sync()
            file.close()
            cut.append(path)
        catalog.close()
    finally:
        lock.release()
    return cut


class _Verifier:
    def __init__(self, data: Path, disk: Disk, progress: Progress | None) -> None:
        self._data = data
        self._disk = disk
        self._progress = progress
        self._report = VerifyReport(str(data), problems=[])

    def run(self) -> VerifyReport:
        if not self._disk.exists(self._data / "catalog.sqlite"):
            raise StorageError(
                f"{self._data} is not a Penstock data directory: it has no catalog.sqlite"
            )
        lock = self._disk.lock(self._data / "LOCK")
        try:
            self._verify()
        finally:
            lock.release()
        return self._report

    def _verify(self) -> None:
        catalog = Catalog(self._disk, self._data / "catalog.sqlite")
        for message in catalog.problems():
            self._add("damage", self._data / "catalog.sqlite", message)
        names = {row.id: row.name for row in catalog.streams()}
        rows = catalog.partitions()
        self._report.streams = len(names)
        self._report.partitions = len(rows)
        ends = self._check_journal(catalog, rows)
        for done, row in enumerate(rows):
            if self._progress is not None:
                self._progress(f"{names[row.stream]}/{row.number}", done, len(rows))
            self._check_partition(row, names[row.stream])
        self._check_positions(catalog, ends)
        self._check_leftovers(set(names.values()))
        catalog.close()

    def _check_journal(self, catalog: Catalog, rows: list[PartitionRow]) -> Ends:
        ends = Ends()
        for row in rows:
            ends.add(row.pid, row.segments_end)
        path = self._data / "journal"
        try:
            journal = Journal(self._disk, path, writable=False)
            mark = Mark(self._disk, self._data / "mark")
            found = recover(
                journal,
                mark,
                ends,
                Producers({}),
                catalog.get_int("checkpoint"),
                catalog.get_int("checkpoint_epoch"),
                catalog.epoch_since(),
            )
            mark.close()
            journal.close()
        except PenstockError as error:
            self._add("damage", path, str(error))
            return ends
        self._report.journal_records = found.records
        if found.torn:
            self._add("torn-tail", path, "a frame was being written; it was not confirmed")
        return ends

    def _check_partition(self, row: PartitionRow, stream: str) -> None:
        directory = partition_directory(self._data, stream, row.number)
        suffixes: dict[int, str] = {}
        for parsed in map(parse_name, self._disk.list(directory)):
            if parsed is None:
                continue
            base, suffix = parsed
            if base > row.segment or (base == row.segment and not row.segment_size):
                path = directory / segment_name(base, suffix)
                self._add(
                    "torn-tail", path, "written after the last checkpoint; the journal has it"
                )
            elif suffixes.get(base) != SEALED:
                suffixes[base] = suffix
        at = row.earliest
        for base in sorted(suffixes):
            at = self._check_segment(row, directory / segment_name(base, suffixes[base]), base, at)
        if at < row.segments_end:
            self._add(
                "missing", directory, f"records {at} to {row.segments_end - 1} are in no file"
            )

    def _check_segment(self, row: PartitionRow, path: Path, base: int, at: int) -> int:
        """Check one file that should hold record `at`; returns the index after its last."""
        if base > at:
            self._add("missing", path.parent, f"records {at} to {base - 1} are in no file")
        growing = base == row.segment
        size = row.segment_size if growing else None
        have = self._disk.file_size(path)
        self._report.segments += 1
        self._report.bytes += have
        if growing and have > row.segment_size:
            behind = have - row.segment_size
            self._add("torn-tail", path, f"{behind} bytes behind the last checkpoint")
        if path.suffix == GROWING and not growing:
            size = have
        expected = base
        try:
            file = SegmentFile(self._disk, path, size)
            for batch in file.batches():
                index = batch.column(0)
                if index[0].as_py() != expected or not _is_dense(index):
                    self._add("missing", path, f"record {expected} is not where it should be")
                expected = index[-1].as_py() + 1
                self._report.records += batch.num_rows
            file.close()
        except (PenstockError, OSError) as error:
            self._add("damage", path, str(error))
        return max(at, expected)

    def _check_positions(self, catalog: Catalog, ends: Ends) -> None:
        for row in catalog.positions():
            if row.pid < len(ends.end) and row.position > ends.end[row.pid]:
                self._add(
                    "missing",
                    self._data / "catalog.sqlite",
                    f"group {row.group!r} is at {row.position}, but the end is "
                    f"{ends.end[row.pid]}: records it has read are gone",
                )

    def _check_leftovers(self, streams: set[str]) -> None:
        for name in self._disk.list(self._data / "streams"):
            if name not in streams:
                self._add(
                    "leftover",
                    self._data / "streams" / name,
                    "belongs to no stream; it can be deleted",
                )

    def _add(self, kind: Kind, where: Path, message: str) -> None:
        self._report.problems.append(Problem(kind, str(where), message))


def _is_dense(index: pa.Array) -> bool:
    return bool(index[-1].as_py() - index[0].as_py() + 1 == len(index))
