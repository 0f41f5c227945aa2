"""Staged records: on disk, and in no stream until they are published.

    <data>/staging/<writer, hashed>/<epoch>-<rows>-<crc32c>-<time>-<random>.arrows

A part is an Arrow IPC stream, named after what it holds once it is whole and synced; while it is
being written its name ends in `.tmp`, and opening the log removes such.
"""

from __future__ import annotations

import errno
import hashlib
import io
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from pyarrow import ipc

from penstock import limits
from penstock.errors import (
    BadBatch,
    DiskFull,
    LimitExceeded,
    PenstockError,
    StagedMissing,
    StorageError,
)
from penstock.log.api import Stage
from penstock.log.batch import Batch
from penstock.log.disk import Disk, File
from penstock.log.names import check_label
from penstock.log.schema import HEADERS, TIMESTAMP

STAGED: Final = pa.schema(
    [
        pa.field("topic", pa.utf8(), False),
        pa.field("partition", pa.int32(), True),
        pa.field("key", pa.binary(), True),
        pa.field("value", pa.binary(), False),
        pa.field("timestamp", TIMESTAMP, False),
        pa.field("headers", HEADERS, True),
    ]
)
_REQUIRED: Final = ("topic", "value")
_PART: Final = re.compile(r"(\d{1,19})-(\d{1,19})-([0-9a-f]{8})-(\d{1,19})-([0-9a-f]{16})\.arrows")
_UNFINISHED: Final = ".tmp"
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
_CHUNK: Final = 4 * limits.MIB


class Part(NamedTuple):
    """What the name of a part says."""

    epoch: int
    rows: int
    crc: int
    at: int
    """When it was begun, in microseconds."""
    token: str

    @classmethod
    def parse(cls, name: str) -> Part | None:
        """None for any other file."""
        found = _PART.fullmatch(name)
        if found is None:
            return None
        epoch, rows, crc, at, token = found.groups()
        return cls(int(epoch), int(rows), int(crc, 16), int(at), token)

    @property
    def name(self) -> str:
        return f"{self.epoch}-{self.rows}-{self.crc:08x}-{self.at}-{self.token}.arrows"


def record_columns(batch: pa.RecordBatch) -> Batch:
    """The records of a staged batch, without where they go."""
    return Batch.from_arrow(
        batch.column("value"),
        keys=batch.column("key"),
        timestamps=batch.column("timestamp"),
        headers=batch.column("headers"),
    )


class Staging:
    """The staged parts of all writers. Threads may share it."""

    def __init__(self, disk: Disk, directory: Path, bytes_max: int, clock: Callable[[], int]):
        self._disk = disk
        self._directory = directory
        self._bytes_max = bytes_max
        self._clock = clock
        self._lock = threading.Lock()
        self.bytes = 0
        """Of all that is staged."""
        for owner in disk.list(directory):
            for name in disk.list(directory / owner):
                path = directory / owner / name
                if Part.parse(name) is None:
                    disk.remove(path)
                else:
                    self.bytes += disk.file_size(path)
            if not disk.list(directory / owner):
                disk.remove_tree(directory / owner)

    def begin(
        self, writer: str, epoch: int, batch_bytes: int, check: Callable[[pa.RecordBatch], None]
    ) -> PartWriter:
        """Begin a part. `check` is shown every batch, which has at most about `batch_bytes`."""
        directory = self._home(writer)
        self._disk.make_directory(directory)
        return PartWriter(self, self._disk, directory, epoch, self._clock, batch_bytes, check)

    def parts(self, writer: str) -> list[Part]:
        """All finished parts of a writer."""
        found = map(Part.parse, self._disk.list(self._home(writer)))
        return [part for part in found if part is not None]

    def read(self, writer: str, part: Part) -> Iterator[pa.RecordBatch]:
        """Every batch of a part, whose checksum is checked first."""
        path = self._home(writer) / part.name
        try:
            file = self._disk.open(path, writable=False)
        except FileNotFoundError:
            raise StagedMissing(
                f"{part.name} is not staged: write the epoch again, then publish that"
            ) from None
        try:
            if _checksum(file) != part.crc:
                raise pa.ArrowInvalid("its checksum does not fit")
            with ipc.open_stream(pa.PythonFile(_Source(file), mode="r")) as reader:
                yield from reader
        except (pa.ArrowException, OSError) as error:
            raise StorageError(
                f"{path} is damaged ({error}): check the disk; write the epoch again"
            ) from error
        finally:
            file.close()

    def remove(self, writer: str, chosen: Callable[[Part], bool]) -> None:
        """Remove parts of a writer."""
        for part in self.parts(writer):
            if chosen(part):
                self._remove(self._home(writer) / part.name)

    def remove_old(self, before: int, keep: set[str]) -> int:
        """Remove what was begun before that time, but not of the writers in `keep`."""
        removed = 0
        kept = {self._home(writer).name for writer in keep}
        for owner in self._disk.list(self._directory):
            for name in self._disk.list(self._directory / owner):
                part = Part.parse(name)
                if part is not None and part.at < before and owner not in kept:
                    self._remove(self._directory / owner / name)
                    removed += 1
        return removed

    def grow(self, nbytes: int) -> None:
        """Count bytes that are about to be written, if they may be."""
        with self._lock:
            if self.bytes + nbytes > self._bytes_max:
                raise LimitExceeded(
                    f"{self.bytes} bytes are staged and not published, at most {self._bytes_max} "
                    "(staging_bytes): write smaller epochs, publish or discard, or raise the limit"
                )
            self.bytes += nbytes

    def shrink(self, nbytes: int) -> None:
        with self._lock:
            self.bytes -= nbytes

    def _remove(self, path: Path) -> None:
        try:
            size = self._disk.file_size(path)
        except FileNotFoundError:
            return
        self._disk.remove(path)
        self.shrink(size)

    def _home(self, writer: str) -> Path:
        check_label(writer, "writer", limits.WRITER_NAME_BYTES_MAX)
        return self._directory / hashlib.sha256(writer.encode()).hexdigest()[:32]


class PartWriter(Stage):
    """Writes one part. Made by `Staging.begin`."""

    def __init__(
        self,
        staging: Staging,
        disk: Disk,
        directory: Path,
        epoch: int,
        clock: Callable[[], int],
        batch_bytes: int,
        check: Callable[[pa.RecordBatch], None],
    ) -> None:
        self._staging = staging
        self._disk = disk
        self._directory = directory
        self._clock = clock
        self._batch_bytes = batch_bytes
        self._check = check
        self._part = Part(epoch, 0, 0, clock(), secrets.token_hex(8))
        self._path = directory / (self._part.token + _UNFINISHED)
        self._file: File | None = disk.open(self._path, create=True)
        self._size = 0
        self._put(STAGED.serialize())

    def write(self, batch: pa.RecordBatch) -> None:
        for piece in self._pieces(self._conformed(batch)):
            self._check(piece)
            self._put(piece.serialize())
            self._part = self._part._replace(rows=self._part.rows + piece.num_rows)

    def finish(self) -> str:
        file = self._open_file()
        self._put(_END)
        try:
            file.sync()
            self._disk.rename(self._path, self._directory / self._part.name)
            self._disk.sync_directory(self._directory)
        except OSError as error:
            raise self._failure(error) from error
        file.close()
        self._file = None
        return self._part.name

    def cancel(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._disk.remove(self._path)
            self._staging.shrink(self._size)

    def _open_file(self) -> File:
        if self._file is None:
            raise BadBatch("this part is finished: begin another")
        return self._file

    def _put(self, data: Any) -> None:
        view = memoryview(data)
        self._staging.grow(len(view))
        self._size += len(view)
        try:
            self._open_file().write([view], self._size - len(view))
        except OSError as error:
            raise self._failure(error) from error
        self._part = self._part._replace(crc=crc32c(view, self._part.crc))

    def _failure(self, error: OSError) -> PenstockError:
        if error.errno == errno.ENOSPC:
            return DiskFull(f"no space is left to stage records ({error}): free some, try again")
        return StorageError(f"{self._path} cannot be written ({error}): check the disk")

    def _conformed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with exactly the columns of `STAGED`."""
        names = set(batch.schema.names)
        if not names.issuperset(_REQUIRED) or not names.issubset(STAGED.names):
            raise BadBatch(
                f"the columns are {sorted(names)}: needed are {', '.join(_REQUIRED)}, allowed are "
                f"{', '.join(STAGED.names)}"
            )
        columns = []
        for field in STAGED:
            if field.name in names:
                column = batch.column(field.name)
            else:
                column = pa.nulls(batch.num_rows, field.type)
            try:
                column = column if column.type == field.type else column.cast(field.type)
            except pa.ArrowException:
                raise BadBatch(
                    f"the {field.name} column is {column.type}: it must be {field.type}"
                ) from None
            if field.name == "timestamp" and column.null_count:
                column = pc.fill_null(column, pa.scalar(self._clock(), TIMESTAMP))
            if column.null_count and not field.nullable:
                raise BadBatch(f"the {field.name} column has nulls: it cannot")
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=STAGED)

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Of the batch, each small enough for one commit."""
        if not batch.num_rows:
            return
        count = max(-(-batch.nbytes // self._batch_bytes), 1)
        rows = min(-(-batch.num_rows // count), limits.STAGED_RECORDS)
        for start in range(0, batch.num_rows, rows):
            piece = batch.slice(start, rows)
            if piece.nbytes > 2 * self._batch_bytes and piece.num_rows > 1:
                half = piece.num_rows // 2  # rows of very different sizes
                yield from self._pieces(piece.slice(0, half))
                yield from self._pieces(piece.slice(half))
            else:
                yield piece


class _Source(io.RawIOBase):
    """A part as Arrow reads it."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size if size >= 0 else _CHUNK, self._at)
        self._at += len(data)
        return data


def _checksum(file: File) -> int:
    crc = at = 0
    while data := file.read(_CHUNK, at):
        crc = crc32c(data, crc)
        at += len(data)
    return crc


def topics_of(batch: pa.RecordBatch) -> tuple[list[str], np.ndarray[Any, np.dtype[np.int32]]]:
    """The distinct topics of a staged batch, and for each row which of them it has."""
    encoded = batch.column("topic").dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
