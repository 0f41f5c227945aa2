"""Sealing: a segment that will get no more records becomes a compressed Arrow file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from pyarrow import ipc

from penstock import limits
from penstock.log.disk import Disk, File
from penstock.log.segment import (
    FILE_MAGIC,
    INDEX,
    INDEX_MAGIC,
    SEALED,
    SegmentFile,
    batch_note,
    cut_points,
    described,
    signed,
)


def seal(disk: Disk, source: Path, stream: str, partition: int, compression: str) -> int:
    """Rewrite a growing segment as a compressed IPC file beside it; returns the file's size.

    The new file is on disk, under its final name, when this returns. The old one is left.
    """
    reader = SegmentFile(disk, source, disk.file_size(source))  # all of it: damage is no end
    target = source.with_suffix(SEALED)
    temporary = source.with_suffix(".tmp")
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        size = _write_sealed(reader, file, described(stream, partition), compression)
        file.sync()
    finally:
        file.close()
        reader.close()
    disk.rename(temporary, target)
    disk.sync_directory(target.parent)
    _write_index(disk, target)
    return size


def _write_sealed(reader: SegmentFile, file: File, schema: pa.Schema, compression: str) -> int:
    sink = _Sink()
    options = ipc.IpcWriteOptions(compression=_codec(reader, compression), use_threads=False)
    size = 0
    with ipc.new_file(pa.PythonFile(sink, "w"), schema, options=options) as writer:
        for batch in _regrouped(reader.batches()):
            writer.write_batch(batch, custom_metadata=batch_note(batch, batch.nbytes))
            data = sink.take()
            before = len(data) - _last_message(data, size == 0)
            parts = [data[:before], *signed(memoryview(data)[before:])]
            file.write(parts, size)
            size += len(data)
            if size % limits.WRITEBACK_BYTES_MIN < len(data):
                file.start_writeback(0, size)
    rest = sink.take()
    file.write([rest], size)
    return size + len(rest)


def _codec(reader: SegmentFile, compression: str) -> str | None:
    """The codec to use: none if the middle batch would not shrink by a tenth."""
    if compression == "none":
        return None
    middle = len(reader.entries) // 2
    (batch, *_), _ = reader.read(reader.entries[middle].base, 10_000, limits.SEGMENT_BATCH_BYTES)
    values = batch.column(3).buffers()[2]
    if values is None or values.size == 0:
        return compression
    packed = pa.compress(values, codec=compression, asbytes=True)
    return compression if len(packed) < 0.9 * values.size else None


def _last_message(data: bytes, first: bool) -> int:
    """Length of the batch message that ends `data`; magic and schema come before the first."""
    at = 0
    if first:
        at = len(FILE_MAGIC)
        at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
    return len(data) - at


def _regrouped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of about the right size from batches of any."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= limits.SEGMENT_BATCH_BYTES:
            yield from _pieces(held)
            held, size = [], 0
    if held:
        yield from _pieces(held)


def _pieces(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    cuts = cut_points(whole, limits.SEGMENT_BATCH_BYTES)
    for begin, end in itertools.pairwise(cuts):
        yield whole.slice(begin, end - begin)


class _Sink:
    """A file object that gathers what Arrow writes."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        self._size += len(data)
        return len(data)

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


def _write_index(disk: Disk, path: Path) -> None:
    """Write what `SegmentFile` would find by walking `path`; it is checked before it is used."""
    index = path.with_suffix(INDEX)
    disk.remove(index)
    reader = SegmentFile(disk, path)
    rows = np.array(reader.entries, np.int64).tobytes()
    reader.close()
    data = INDEX_MAGIC + rows
    file = disk.open(index, create=True)
    file.truncate(0)
    file.write([data + crc32c(data).to_bytes(4, "little")], 0)
    file.close()
