"""Compaction: the many small files of a Parquet table become few large ones, date by date.

The files of a date are joined into new ones beside the table. A directory is prepared that holds
the new files and links to those that stay, and in one step it changes names with the date's own
(`renameat2`). So whoever lists the table sees each row once, at any time; only a reader that listed
it before and opens a file after has to list again. A kill leaves either the old directory or the
new one, and rubbish beside the table that the next compaction drops. The archive may run meanwhile.

Rows are copied row group by row group, with the memory of one group, and ordered by partition and
offset within a file.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from penstock import limits
from penstock.errors import BadSetting, PipelineError, TableForeign
from penstock.spark.files import Lock, exchange, make_directory, sync
from penstock.spark.table import Table, no_step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FULL: Final = 0.75
"""A file this near to the target is left alone: joining it again and again would cost more."""

_ROWS_ALONE: Final = 16 * 1024
"""From so many rows on, those of a partition have row groups of their own."""

_READ_ROWS: Final = 16 * 1024
_LISTED_S: Final = 1.0
"""How long replaced files stay where a listing that had begun may still find them."""


class Compacted(NamedTuple):
    """What compaction did to one table."""

    stream: str
    dates: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    rows: int | None
    """How many were rewritten; Delta does not tell."""


def compact(
    root: str | Path,
    stream: str,
    target_bytes: int = limits.COMPACT_BYTES_DEFAULT,
    *,
    told: Callable[[str], None] = no_step,
    step: Callable[[str], None] = no_step,
) -> Compacted:
    """Join the small files of a stream's table in the archive at `root`.

    `told` hears the name of each date that was compacted.
    """
    if target_bytes < limits.MIB:
        raise BadSetting(f"a target of {target_bytes} bytes is too small: at least 1 MiB")
    table = Table(Path(root), stream)
    if not table.internal.exists():
        raise TableForeign(f"there is no archive of {stream} in {table.root}")
    with Lock(table.internal / "compact.lock", f"another process compacts {table.path}"):
        return _Compaction(table, target_bytes, step).run(told)


def compact_delta(
    spark: SparkSession, path: str, stream: str, target_bytes: int = limits.COMPACT_BYTES_DEFAULT
) -> Compacted:
    """Join the small files of a Delta table, which Delta does by itself (OPTIMIZE)."""
    if target_bytes < limits.MIB:
        raise BadSetting(f"a target of {target_bytes} bytes is too small: at least 1 MiB")
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(target_bytes))
    spark.conf.set("spark.databricks.delta.optimize.minFileSize", str(int(target_bytes * _FULL)))
    table = "delta.`{}`".format(path.replace("`", "``"))
    row = spark.sql(f"OPTIMIZE {table}").select("metrics").head()
    assert row is not None
    told = row["metrics"]
    detail = spark.sql(f"DESCRIBE DETAIL {table}").select("numFiles", "sizeInBytes").head()
    assert detail is not None
    added, removed = told["filesAdded"], told["filesRemoved"]
    gone, made = int(told["numFilesRemoved"]), int(told["numFilesAdded"])
    return Compacted(
        stream,
        int(told["partitionsOptimized"]),
        int(detail["numFiles"]) + gone - made,
        int(detail["numFiles"]),
        int(detail["sizeInBytes"]) + _total(removed) - _total(added),
        int(detail["sizeInBytes"]),
        None,
    )


def _total(files: Any) -> int:
    return int(files["totalSize"] or 0)


class _Compaction:
    def __init__(self, table: Table, target_bytes: int, step: Callable[[str], None]) -> None:
        self._table = table
        self._target = target_bytes
        self._step = step
        self._old: list[tuple[float, Path]] = []

    def run(self, told: Callable[[str], None]) -> Compacted:
        table = self._table
        self._clean()
        counts = Compacted(table.stream, 0, 0, 0, 0, 0, 0)
        total = 0
        for directory in sorted(table.path.glob("date=*")):
            before = _sizes(directory)
            rows = self._compact(directory, before)
            after = _sizes(directory) if rows else before
            counts = Compacted(
                table.stream,
                counts.dates + bool(rows),
                counts.files_before + len(before),
                counts.files_after + len(after),
                counts.bytes_before + sum(before.values()),
                counts.bytes_after + sum(after.values()),
                total := total + rows,
            )
            if rows:
                told(directory.name)
            self._drop(wait=False)
        self._drop(wait=True)
        return counts

    def _clean(self) -> None:
        """Drop what a killed compaction left, once the table is whole without it."""
        if self._table.compaction.exists():
            with self._table.moving():
                pass  # puts back what was taken away
            shutil.rmtree(self._table.compaction)
            self._step("cleaned")

    def _compact(self, directory: Path, files: dict[Path, int]) -> int:
        """Returns how many rows were rewritten."""
        runs = [run for run in self._runs(files) if len(run) > 1]
        if not runs:
            return 0
        made = self._table.compaction / directory.name
        make_directory(made)
        rows = 0
        joined: set[str] = set()
        for run in runs:
            # Named after the first: the files' names stay in the order of their rows.
            name = f"{run[0].stem.split('+')[0]}+{uuid.uuid4().hex[:8]}.parquet"
            rows += _join(run, made / name)
            self._step("joined")
            joined.update(each.name for each in run)
        with self._table.moving():
            old = self._put(directory, made, joined)
        self._old.append((time.monotonic(), old))
        return rows

    def _runs(self, files: dict[Path, int]) -> Iterator[list[Path]]:
        """Neighbours that become one file each; full files stand between."""
        run: list[Path] = []
        total = 0
        for file, size in files.items():
            if run and total + size > self._target:
                yield run
                run, total = [], 0
            if size >= self._target * _FULL:
                yield run
                run, total = [], 0
                continue
            run.append(file)
            total += size
        yield run

    def _drop(self, wait: bool) -> None:
        """Drop replaced directories, once whoever was listing one has surely ended."""
        while self._old:
            replaced, directory = self._old[0]
            left = replaced + _LISTED_S - time.monotonic()
            if left > 0 and not wait:
                return
            time.sleep(max(left, 0))
            shutil.rmtree(directory)
            self._old.pop(0)
            self._step("dropped")
        if wait and self._table.compaction.exists():
            self._table.compaction.rmdir()

    def _put(self, directory: Path, made: Path, joined: set[str]) -> Path:
        """Put the new files in the place of the joined ones; returns where those are now."""
        for file in directory.glob("*.parquet"):
            if file.name not in joined:
                _link(file, made / file.name)
        sync(made)
        self._step("prepared")
        old = made
        if not exchange(made, directory):
            old = made.with_name(f"{directory.name}.old")
            os.rename(directory, old)
            sync(self._table.compaction)
            self._step("taken away")
            os.rename(made, directory)
        self._step("exchanged")
        sync(self._table.path)
        sync(self._table.compaction)
        return old


def _sizes(directory: Path) -> dict[Path, int]:
    """The files of a directory by name, and their bytes."""
    return {each: each.stat().st_size for each in sorted(directory.glob("*.parquet"))}


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        raise PipelineError(
            f"{file} cannot have a second name ({error.strerror}): compaction needs a file system "
            "with hard links; use --format delta on this one"
        ) from None


def _join(files: Sequence[Path], target: Path) -> int:
    """Write the rows of all `files` to `target`, on disk; returns how many there are."""
    schema = pq.read_schema(files[0])
    codec = _codec(files[0])
    rows = 0
    with pq.ParquetWriter(target, schema, compression=codec) as writer:
        for table in _groups(files, schema):
            writer.write_table(table, row_group_size=table.num_rows)
            rows += table.num_rows
    wanted = sum(pq.read_metadata(file).num_rows for file in files)
    if rows != wanted or pq.read_metadata(target).num_rows != wanted:
        raise PipelineError(
            f"{target} has {rows:,} rows instead of {wanted:,}: nothing was changed"
        )
    sync(target)
    return rows


def _groups(files: Sequence[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows, by partition and offset, in row groups of a good size."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    last = 0
    for group in sorted(group for file in files for group in _read_groups(file, schema)):
        if group.partition != last and rows >= _ROWS_ALONE:
            yield pa.Table.from_batches(held, schema)
            held, rows, size = [], 0, 0
        last = group.partition
        for batch in group.batches():
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= limits.COMPACT_ROW_GROUP_ROWS or size >= limits.COMPACT_ROW_GROUP_BYTES:
                yield pa.Table.from_batches(held, schema)
                held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held, schema)


class _Group(NamedTuple):
    """One row group of a file, in the order of what it begins with."""

    partition: int
    offset: int
    file: Path
    number: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(self.file, pre_buffer=False) as source:
            yield from source.iter_batches(batch_size=_READ_ROWS, row_groups=[self.number])


def _read_groups(file: Path, schema: pa.Schema) -> Iterator[_Group]:
    with pq.ParquetFile(file) as source:
        if not source.schema_arrow.equals(schema):
            raise PipelineError(
                f"{file} has other columns than its neighbours and cannot be joined with them: "
                f"{source.schema_arrow.names} instead of {schema.names}"
            )
        metadata = source.metadata
    columns = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    places = [columns.index(name) for name in ("partition", "offset")]
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        smallest = [group.column(place).statistics for place in places]
        if any(each is None or not each.has_min_max for each in smallest):
            raise PipelineError(f"{file} says nothing about its offsets: no archive wrote it")
        yield _Group(smallest[0].min, smallest[1].min, file, number)


def _codec(file: Path) -> str:
    """How the table is compressed: compaction keeps it."""
    metadata = pq.read_metadata(file)
    if not metadata.num_row_groups:
        return "snappy"
    codec = str(metadata.row_group(0).column(0).compression).lower()
    return "none" if codec == "uncompressed" else codec
