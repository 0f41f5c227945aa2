"""Segments: where a partition's records live, as plain Arrow IPC that any tool opens.

    <base index, 20 digits>.arrows   IPC stream, while the segment grows
    <base index, 20 digits>.arrow    IPC file, compressed, once it is sealed
    <base index, 20 digits>.index    where the batches of a sealed segment are; derived, rebuilt

IPC has no checksum, so each batch message carries one in its custom metadata, under `penstock`:

    crc32c=xxxxxxxx base=<20 digits> rows=<10> body=<12> size=<12> min=<20, signed> max=<20, signed>

`base` is the index of the first record, `body` the bytes after the message's metadata, `size` the
same without compression, `min` and `max` the timestamps in microseconds. The crc32c is of the
whole message, from its continuation marker to its last byte, with the eight digits of the crc
itself read as zeros.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray
from pyarrow import ipc

from penstock import limits
from penstock.errors import SegmentDamaged, SegmentMissing
from penstock.log.disk import Disk, File
from penstock.log.schema import SCHEMA

GROWING: Final = ".arrows"
SEALED: Final = ".arrow"
INDEX: Final = ".index"
FORMAT: Final = "1"

_PREFIX: Final = SCHEMA.serialize().to_pybytes()
_CONTINUATION: Final = b"\xff\xff\xff\xff"
_ZERO_DIGITS: Final = b"00000000"
_END_OF_STREAM: Final = _CONTINUATION + bytes(4)
FILE_MAGIC: Final = b"ARROW1\0\0"
_PLAIN: Final = ipc.IpcWriteOptions(use_threads=False)
_ONE_THREAD: Final = ipc.IpcReadOptions(use_threads=False)
_NOTE: Final = re.compile(
    rb"crc32c=([0-9a-f]{8}) base=(\d{20}) rows=(\d{10}) body=(\d{12}) size=(\d{12}) "
    rb"min=([+-]\d{19}) max=([+-]\d{19})"
)
_HEAD_GUESS: Final = 1024
"""Bytes read to see a message's metadata: ours are 700 to 800."""

_EXTENT: Final = 4 * limits.MIB
_AROUND: Final = 4096
"""More than schema, metadata and padding take around the columns of a batch."""

_INDEX_ROW: Final = 72
INDEX_MAGIC: Final = b"PENSTOCK INDEX 1"


class BatchEntry(NamedTuple):
    """One batch message of a segment."""

    offset: int
    length: int
    base: int
    rows: int
    size: int
    min_time: int
    max_time: int
    crc: int
    crc_at: int
    """Where in the message the digits of the crc stand."""


def segment_name(base: int, suffix: str) -> str:
    """The file name of the segment that begins with index `base`."""
    return f"{base:020d}{suffix}"


def parse_name(name: str) -> tuple[int, str] | None:
    """Base index and suffix of a segment's file name; None for any other file."""
    stem, dot, suffix = name.partition(".")
    if len(stem) == 20 and stem.isdigit() and dot + suffix in (GROWING, SEALED):
        return int(stem), dot + suffix
    return None


# -- writing -------------------------------------------------------------------------------------


def stream_head(stream: str, partition: int) -> bytes:
    """The first bytes of a growing segment: the schema, and what the file is of."""
    head: bytes = described(stream, partition).serialize().to_pybytes()
    return head


def described(stream: str, partition: int) -> pa.Schema:
    """The schema, and what the file is of."""
    return SCHEMA.with_metadata(
        {
            "penstock.format": FORMAT,
            "penstock.stream": stream,
            "penstock.partition": str(partition),
        }
    )


class Encoder:
    """Makes batches into IPC messages with their checksums.

    Arrow's stream writer costs as much to start as a small batch costs to write, so one is used
    for many: messages follow each other in a buffer, and when it is full a new one begins.
    """

    def __init__(self, buffer_bytes: int = _EXTENT) -> None:
        self._buffer_bytes = buffer_bytes
        self._view = memoryview(b"")
        self._sink: Any = None
        self._writer: Any = None

    def encode(self, batch: pa.RecordBatch) -> tuple[list[Any], int]:
        """The parts to write, and their length."""
        note = batch_note(batch, 0)
        if self._writer is not None:
            try:
                return self._encode(batch, note)
            except OSError:
                pass  # no room left for it in the buffer
        self._begin(max(self._buffer_bytes, batch.nbytes + _AROUND))
        return self._encode(batch, note)

    def _begin(self, size: int) -> None:
        buffer = pa.allocate_buffer(size)
        self._view = memoryview(buffer).cast("B")
        self._sink = pa.FixedSizeBufferWriter(buffer)
        self._writer = ipc.new_stream(self._sink, SCHEMA, options=_PLAIN)

    def _encode(self, batch: pa.RecordBatch, note: dict[str, str]) -> tuple[list[Any], int]:
        begin = self._sink.tell() or len(_PREFIX)  # the schema is written with the first batch
        self._writer.write_batch(batch, custom_metadata=note)
        message = self._view[begin : self._sink.tell()]
        return signed(message), len(message)


def encode_batch(batch: pa.RecordBatch) -> tuple[list[Any], int]:
    """One batch as an IPC message with its checksum: the parts to write, and their length."""
    return Encoder(0).encode(batch)


def batch_note(batch: pa.RecordBatch, size: int) -> dict[str, str]:
    """What a batch message says of itself; `size` 0: as large as its body."""
    index, time = batch.column(0), batch.column(1)
    base = np.frombuffer(index.buffers()[1], np.int64, 1, 8 * index.offset)[0]
    times = np.frombuffer(time.buffers()[1], np.int64, len(time), 8 * time.offset)
    text = (
        f"crc32c=00000000 base={base:020d} rows={batch.num_rows:010d} body={0:012d} "
        f"size={size:012d} min={times.min():+020d} max={times.max():+020d}"
    )
    return {"penstock": text}


def signed(message: Any) -> list[Any]:
    """`message` with its body length and checksum filled in."""
    head_length = 8 + int.from_bytes(message[4:8], "little")
    head = bytearray(message[:head_length])
    body = message[head_length:]
    note = _NOTE.search(head)
    assert note is not None
    head[note.start(4) : note.end(4)] = b"%012d" % len(body)
    if int(note[5]) == 0:
        head[note.start(5) : note.end(5)] = b"%012d" % len(body)
    crc = crc32c(body, crc32c(head))
    head[note.start(1) : note.end(1)] = b"%08x" % crc
    return [head, body]


def cut_points(batch: pa.RecordBatch, bytes_max: int) -> list[int]:
    """Row numbers at which to cut `batch` into pieces of about `bytes_max`, from 0 to its end."""
    rows = batch.num_rows
    if _is_below(batch, bytes_max) or batch.nbytes <= bytes_max * 1.25:
        return [0, rows]
    weight = _row_weights(batch)
    cuts = np.searchsorted(weight, np.arange(bytes_max, weight[-1], bytes_max), side="right") - 1
    return [0, *np.unique(cuts[(cuts > 0) & (cuts < rows)]).tolist(), rows]


def _is_below(batch: pa.RecordBatch, bytes_max: int) -> bool:
    """A quick look that finds most small batches: asking Arrow for the size costs 10 us."""
    rows = batch.num_rows
    keys, values, headers = batch.column(2), batch.column(3), batch.column(4)
    if keys.null_count < rows or len(headers.values):
        return False
    offsets = np.frombuffer(values.buffers()[1], np.int32, rows + 1, 4 * values.offset)
    return bool(int(offsets[-1]) - int(offsets[0]) + 32 * rows <= bytes_max)


def _row_weights(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Bytes of the first n rows, for n from 0 to all; headers are spread evenly."""
    rows = batch.num_rows
    weight = _offsets(batch.column(3)) + _offsets(batch.column(2))
    rest = max(batch.nbytes - int(weight[-1]), 16 * rows)
    weight += np.arange(rows + 1) * (rest // rows)
    return weight


def _offsets(array: pa.Array) -> NDArray[np.int64]:
    _, offsets, _ = array.buffers()
    if offsets is None or len(array) == 0:
        return np.zeros(len(array) + 1, np.int64)
    found = np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset)
    relative: NDArray[np.int64] = np.subtract(found, found[0], dtype=np.int64)
    return relative


def take_within(batch: pa.RecordBatch, records_max: int, bytes_max: int) -> pa.RecordBatch:
    """The first rows of `batch` that fit both limits; at least one."""
    rows = min(batch.num_rows, records_max)
    if batch.num_rows and batch.nbytes > bytes_max:
        fit = int(np.searchsorted(_row_weights(batch), bytes_max, side="right")) - 1
        rows = min(rows, max(1, fit))
    return batch if rows == batch.num_rows else batch.slice(0, rows)


# -- reading -------------------------------------------------------------------------------------


class SegmentFile:
    """Reads one segment file. Every batch is checked before it is given."""

    def __init__(self, disk: Disk, path: Path, size: int | None = None) -> None:
        """A growing segment is read up to `size` only; None: as far as there are whole batches."""
        self.path = path
        self.sealed = path.suffix == SEALED
        self._disk = disk
        self._file: File = disk.open(path, writable=False)
        self._limit = size
        self._entries: list[BatchEntry] = []
        self._bases: NDArray[np.int64] = np.zeros(0, np.int64)
        self._walked = 0
        self._checked = 0
        """Batches whose notes are known to be right."""
        try:
            if not (self.sealed and self._load_index()):
                self._begin()
                self.extend(size)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    @property
    def entries(self) -> list[BatchEntry]:
        return self._entries

    @property
    def next_index(self) -> int | None:
        """The index after the last record; None if there is none yet."""
        if not self._entries:
            return None
        last = self._entries[-1]
        return last.base + last.rows

    @property
    def walked(self) -> int:
        """Bytes of the file that are known whole messages."""
        return self._walked

    def max_time(self) -> int:
        """The latest timestamp."""
        self._check_notes()
        return max(entry.max_time for entry in self._entries)

    def extend(self, size: int | None) -> None:
        """Look for batches that came since, up to `size` bytes of the file."""
        self._limit = size
        added = list(self._walk(self._walked, size))
        if added:
            self._walked = added[-1].offset + added[-1].length
            self._entries.extend(added)
            self._bases = np.array([entry.base for entry in self._entries], np.int64)

    def read(
        self, start: int, records_max: int, bytes_max: int
    ) -> tuple[list[pa.RecordBatch], int]:
        """Batches from index `start` on, and their size; at least one record if there is one."""
        first = int(np.searchsorted(self._bases, start, side="right")) - 1
        if first < 0:
            raise self._missing(start)
        found: list[pa.RecordBatch] = []
        total = 0
        at = first
        extent = _EXTENT
        while at < len(self._entries) and records_max > 0 and bytes_max > 0:
            last = at
            length = 0
            rows = 0
            while last < len(self._entries):
                entry = self._entries[last]
                full = length >= bytes_max or rows >= records_max or length + entry.length > extent
                if length and full:
                    break
                length += entry.length
                rows += entry.rows
                last += 1
            try:
                batches = self._read_extent(at, last)
            except SegmentDamaged:
                if last - at == 1 and not found:
                    raise
                if last - at == 1:
                    break  # give what is before the damage; the next read meets it first
                extent = 1
                continue
            for batch in batches:
                entry = self._entries[at]
                at += 1
                size = entry.size
                if entry.base != start:
                    if not entry.base < start < entry.base + entry.rows:
                        raise self._missing(start)
                    batch = batch.slice(start - entry.base)
                    size = size * batch.num_rows // entry.rows
                fit = batch
                if size > bytes_max:
                    fit = take_within(batch, records_max, bytes_max)
                elif batch.num_rows > records_max:
                    fit = batch.slice(0, records_max)
                found.append(fit)
                start += fit.num_rows
                records_max -= fit.num_rows
                bytes_max -= size
                total += size
                if records_max <= 0 or bytes_max <= 0 or fit is not batch:
                    return found, total
        return found, total

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Every batch, checked."""
        at = 0
        while at < len(self._entries):
            last, length = at, 0
            while last < len(self._entries) and (not length or length < _EXTENT):
                length += self._entries[last].length
                last += 1
            yield from self._read_extent(at, last)
            at = last

    def first_at_or_after(self, time: int, start: int) -> int | None:
        """The first index from `start` on with a timestamp at or after `time`, if it is here."""
        self._check_notes()
        for number, entry in enumerate(self._entries):
            if entry.max_time < time or entry.base + entry.rows <= start:
                continue
            for batch in self._read_extent(number, number + 1):
                times = batch.column(1).view(pa.int64()).to_numpy()
                late = np.flatnonzero(times >= time) + entry.base
                late = late[late >= start]
                if len(late):
                    return int(late[0])
        return None

    def _check_notes(self) -> None:
        """Check batches whose notes were only read so far: times decide what is dropped."""
        while self._checked < len(self._entries):
            self._read_extent(self._checked, self._checked + 1)
            self._checked += 1

    def _read_extent(self, first: int, last: int) -> list[pa.RecordBatch]:
        """Read, check and decode the batches `first` to `last`, which lie next to each other."""
        begin = self._entries[first].offset
        end = self._entries[last - 1].offset + self._entries[last - 1].length
        data = pa.allocate_buffer(len(_PREFIX) + end - begin)
        whole = memoryview(data).cast("B")
        whole[: len(_PREFIX)] = _PREFIX
        view = whole[len(_PREFIX) :]
        if self._file.read_into(view, begin) < len(view):
            raise self._damaged(begin, "the file is shorter than it was")
        for entry in self._entries[first:last]:
            at = entry.offset - begin
            if not is_whole(view[at : at + entry.length], entry):
                raise self._damaged(entry.offset, "its checksum is wrong")
        try:
            reader = ipc.open_stream(data, options=_ONE_THREAD)
            batches = [reader.read_next_batch() for _ in range(first, last)]
        except (pa.ArrowException, StopIteration) as error:
            raise self._damaged(begin, str(error)) from None
        return batches

    def _begin(self) -> None:
        """Find the first batch: behind the schema message."""
        at = len(FILE_MAGIC) if self.sealed else 0
        if self._limit is not None and self._limit <= at:
            return
        head = self._file.read(8, at)
        if len(head) < 8 or head[:4] != _CONTINUATION:
            if self._limit is None and not self.sealed:
                return  # its first bytes are being written
            raise self._damaged(at, "it does not begin with an Arrow schema")
        size = int.from_bytes(head[4:], "little")
        head = self._file.read(min(size, self._file.size()), at + 8)
        if len(head) < size and self._limit is None and not self.sealed:
            return  # likewise
        if len(head) < size or b"penstock.format" not in head:
            raise self._damaged(at, "its schema is not one of Penstock's")
        self._walked = at + 8 + size

    def _walk(self, at: int, size: int | None) -> Iterator[BatchEntry]:
        """The batch messages from `at` on. Damage is an error below `size`, else the end."""
        if at == 0:
            self._begin()
            at = self._walked
            if at == 0:
                return
        end = self._file.size() if size is None else size
        while at < end:
            head = self._file.read(_HEAD_GUESS, at)
            if head[:8] == _END_OF_STREAM:
                return
            entry = _parse_entry(head, at)
            if entry is None:
                if size is None and not self.sealed:
                    return
                raise self._damaged(at, "no batch begins there")
            if entry.offset + entry.length > end:
                if size is None and not self.sealed:
                    return
                raise self._damaged(at, "the batch there reaches past the end")
            yield entry
            at += entry.length

    # -- the derived index of a sealed segment ---------------------------------------------------

    def _load_index(self) -> bool:
        path = self.path.with_suffix(INDEX)
        try:
            file = self._disk.open(path, writable=False)
        except FileNotFoundError:
            return False
        try:
            data = file.read(file.size(), 0)
        finally:
            file.close()
        body = data[len(INDEX_MAGIC) : -4]
        if (
            not data.startswith(INDEX_MAGIC)
            or len(body) % _INDEX_ROW
            or crc32c(data[:-4]) != int.from_bytes(data[-4:], "little")
        ):
            return False
        rows = np.frombuffer(body, np.int64).reshape(-1, _INDEX_ROW // 8).tolist()
        if not rows or rows[-1][0] + rows[-1][1] > self._file.size():
            return False
        entries = [BatchEntry(*row) for row in rows]
        for entry in (entries[0], entries[-1]):
            if _parse_entry(self._file.read(_HEAD_GUESS, entry.offset), entry.offset) != entry:
                return False  # of another file, or older than this one
        self._entries = entries
        self._bases = np.array([entry.base for entry in self._entries], np.int64)
        self._walked = self._entries[-1].offset + self._entries[-1].length
        self._checked = len(self._entries)
        return True

    def _damaged(self, offset: int, why: str) -> SegmentDamaged:
        return SegmentDamaged(
            f"{self.path} is damaged at byte {offset}: {why}. Nothing was skipped or changed; "
            "restore the file from a backup, or read from an index behind it"
        )

    def _missing(self, index: int) -> SegmentMissing:
        return SegmentMissing(
            f"record {index} should be in {self.path} but is not: a segment file is missing; "
            "put it back from a backup, or read from an index behind the gap"
        )


def is_whole(message: memoryview, entry: BatchEntry) -> bool:
    """Whether a batch message has the checksum that was found when the file was walked.

    It covers the note too, so a message that passes is the one the entry describes.
    """
    crc = crc32c(_ZERO_DIGITS, crc32c(message[: entry.crc_at]))
    return bool(crc32c(message[entry.crc_at + len(_ZERO_DIGITS) :], crc) == entry.crc)


def _parse_entry(head: bytes, offset: int) -> BatchEntry | None:
    if len(head) < 8 or head[:4] != _CONTINUATION:
        return None
    metadata = int.from_bytes(head[4:8], "little")
    note = _NOTE.search(head, 8, min(len(head), 8 + metadata))
    if note is None or metadata % 8:
        return None
    base, rows, body, size, low, high = map(int, note.groups()[1:])
    if base >= 2**63:
        return None
    return BatchEntry(
        offset, 8 + metadata + body, base, rows, size, low, high, int(note[1], 16), note.start(1)
    )
