"""The journal's frame: one appended batch, as columns, with its checksums.

    head   fixed 64 bytes, then the runs: which partitions the frame touches, and how
    body   the columns

A *run* is the rows of one partition in a frame. A frame with one run is of one partition; a
*mixed* frame has several, and a column of 16-bit slots that gives each row its run. Integers are
little-endian, every column starts at a multiple of 8, the frame is a multiple of 64 bytes long.

    0  magic      u32   b"PJF1"
    4  head crc   u32   crc32c of the head from byte 8 to its end (so it covers the body crc too)
    8  lsn        u64   where the frame stands: makes a stale frame recognisable
   16  group lsn  u64   where its group commit began
   24  epoch      u32   how often the log had been opened
   28  length     u32   of the whole frame
   32  body crc   u32   crc32c of the body
   36  rows       u32
   40  runs       u16
   42  flags      u8    PAD, MIXED, TIMES, KEYS, HEADERS, PRODUCER
   43  producer   u8    bytes of the producer's name
   44  value bytes, key bytes, header count, header name bytes, header value bytes   5 x u32
   64  appended at i64; base index, previous lsn, [last id] each 8 bytes a run; partition id, rows
       each u32 a run; producer's name; zeros to a multiple of 8

    body: [slots u16] [timestamps i64] value offsets i32, values
          [key validity bits, key offsets, keys]
          [header offsets, name offsets, names, value offsets, values]

A PAD frame has no rows and fills the ring to its end. "Previous lsn" is the frame before this one
that touched the same partition (or -1): a reader of one partition hops along it.

This module is compiled by mypyc where a C compiler is at hand: it is the per-frame work.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from penstock.log.batch import Batch
from penstock.log.schema import HEADERS, TIMESTAMP, no_headers

MAGIC: Final = 0x31464A50
ALIGN: Final = 64
FIXED: Final = 64

PAD: Final = 1
MIXED: Final = 2
TIMES: Final = 4
KEYS: Final = 8
HEADS: Final = 16
PRODUCER: Final = 32

NO_LSN: Final = -1

_HEAD: Final = struct.Struct("<IIQQIIIIHBBIIIII")
_JOIN_BELOW: Final = 32 * 1024
"""A body this small is copied together: one buffer costs less than a dozen."""

_ZEROS: Final = bytes(ALIGN)


def head_length(runs: int, producer_length: int) -> int:
    """Bytes of a head with so many runs; no producer: length 0."""
    each = 24 if producer_length == 0 else 32
    return (FIXED + 8 + runs * each + producer_length + 7) & ~7


class Body:
    """The columns of one batch, laid out and checksummed: all of a frame that needs no place."""

    __slots__ = ("batch_rows", "crc", "flags", "length", "parts", "sizes")

    def __init__(self, batch: Batch, slots: Any) -> None:
        """`slots` is the u16 column of a mixed frame, or None."""
        parts: list[Any] = []
        flags = 0
        length = 0
        if slots is not None:
            flags |= MIXED
            length = _add(parts, length, slots.view(np.uint8).data)
        if batch.timestamps is not None:
            flags |= TIMES
            length = _add(parts, length, _bytes_of(batch.timestamps))
        value_offsets, value_data, _ = batch.values
        length = _add(parts, length, _bytes_of(value_offsets))
        length = _add(parts, length, value_data)
        key_bytes = 0
        if batch.keys is not None:
            flags |= KEYS
            key_offsets, key_data, validity = batch.keys
            if validity is None:
                validity = b"\xff" * ((batch.count + 7) // 8)
            length = _add(parts, length, validity)
            length = _add(parts, length, _bytes_of(key_offsets))
            length = _add(parts, length, key_data)
            key_bytes = len(key_data)
        header_count = 0
        name_bytes = 0
        header_bytes = 0
        if batch.headers is not None:
            flags |= HEADS
            header_offsets, names, values = batch.headers
            header_count = len(names.offsets) - 1
            name_bytes = len(names.data)
            header_bytes = len(values.data)
            length = _add(parts, length, _bytes_of(header_offsets))
            length = _add(parts, length, _bytes_of(names.offsets))
            length = _add(parts, length, names.data)
            length = _add(parts, length, _bytes_of(values.offsets))
            length = _add(parts, length, values.data)
        if length < _JOIN_BELOW:
            parts = [b"".join(parts)]
        crc = 0
        for part in parts:
            crc = crc32c(part, crc)
        self.batch_rows = batch.count
        self.parts = parts
        self.length = length
        self.crc = crc
        self.flags = flags
        self.sizes = (len(value_data), key_bytes, header_count, name_bytes, header_bytes)


def _bytes_of(column: Any) -> Any:
    return np.ascontiguousarray(column).view(np.uint8).data


def _add(parts: list[Any], length: int, data: Any) -> int:
    size = len(data)
    if size:
        parts.append(data)
        if size & 7:
            parts.append(_ZEROS[: 8 - (size & 7)])
    return length + ((size + 7) & ~7)


def frame_length(body: Body, runs: int, producer_length: int) -> int:
    """Bytes the frame takes in the journal."""
    return (head_length(runs, producer_length) + body.length + ALIGN - 1) & ~(ALIGN - 1)


def frame_parts(
    body: Body,
    lsn: int,
    group_lsn: int,
    epoch: int,
    appended_at: int,
    pids: Any,
    counts: Any,
    bases: Any,
    previous: Any,
    last_ids: Any,
    producer: bytes,
) -> list[Any]:
    """The frame as buffers to write. `pids` rise; all run columns are NumPy arrays."""
    runs = len(pids)
    flags = body.flags
    if producer:
        flags |= PRODUCER
    length = frame_length(body, runs, len(producer))
    size = head_length(runs, len(producer))
    pieces = [
        appended_at.to_bytes(8, "little", signed=True),
        bases.tobytes(),
        previous.tobytes(),
        pids.tobytes(),
        counts.tobytes(),
        producer,
    ]
    if producer:
        pieces.insert(3, last_ids.tobytes())
    tail = b"".join(pieces)
    head = bytearray(size)
    _HEAD.pack_into(
        head, 0, MAGIC, 0, lsn, group_lsn, epoch, length, body.crc, body.batch_rows,
        runs, flags, len(producer), *body.sizes,
    )  # fmt: skip
    head[FIXED : FIXED + len(tail)] = tail
    head[4:8] = crc32c(memoryview(head)[8:]).to_bytes(4, "little")
    parts = [head, *body.parts]
    fill = length - size - body.length
    if fill:
        parts.append(_ZEROS[:fill])
    return parts


def pad_frame(lsn: int, group_lsn: int, epoch: int, length: int) -> bytes:
    """The head of a frame that only fills `length` bytes to the end of the ring."""
    head = bytearray(FIXED)
    _HEAD.pack_into(
        head, 0, MAGIC, 0, lsn, group_lsn, epoch, length, 0, 0, 0, PAD, 0, 0, 0, 0, 0, 0
    )
    head[4:8] = crc32c(memoryview(head)[8:]).to_bytes(4, "little")
    return bytes(head)


class Frame:
    """A parsed head. `valid` is False when the bytes are no whole head written for `lsn`."""

    __slots__ = (
        "appended_at",
        "bases",
        "body_crc",
        "body_length",
        "counts",
        "epoch",
        "flags",
        "group_lsn",
        "head_length",
        "last_ids",
        "length",
        "lsn",
        "pids",
        "previous",
        "producer",
        "rows",
        "sizes",
    )

    def __init__(self, data: Any, lsn: int, fixed: Any) -> None:
        (
            _magic, _crc, _lsn, group_lsn, epoch, length, body_crc, rows, runs, flags, named,
            value_bytes, key_bytes, header_count, name_bytes, header_bytes,
        ) = fixed  # fmt: skip
        self.lsn: int = lsn
        self.group_lsn: int = group_lsn
        self.epoch: int = epoch
        self.length: int = length
        self.body_crc: int = body_crc
        self.rows: int = rows
        self.flags: int = flags
        self.sizes: tuple[int, int, int, int, int] = (
            value_bytes, key_bytes, header_count, name_bytes, header_bytes,
        )  # fmt: skip
        self.head_length: int = FIXED if flags & PAD else head_length(runs, named)
        self.body_length: int = 0 if flags & PAD else _body_length(rows, flags, self.sizes)
        self.appended_at: int = 0
        self.producer: bytes = b""
        self.pids: Any = None
        self.counts: Any = None
        self.bases: Any = None
        self.previous: Any = None
        self.last_ids: Any = None
        if flags & PAD:
            return
        at = FIXED
        self.appended_at = int.from_bytes(data[at : at + 8], "little", signed=True)
        at += 8
        self.bases = np.frombuffer(data, np.int64, runs, at)
        at += 8 * runs
        self.previous = np.frombuffer(data, np.int64, runs, at)
        at += 8 * runs
        if named:
            self.last_ids = np.frombuffer(data, np.uint64, runs, at)
            at += 8 * runs
        self.pids = np.frombuffer(data, np.uint32, runs, at)
        at += 4 * runs
        self.counts = np.frombuffer(data, np.uint32, runs, at)
        at += 4 * runs
        self.producer = bytes(data[at : at + named])

    def find(self, pid: int) -> int:
        """The run of partition `pid`, or -1."""
        pids = self.pids
        if len(pids) == 1:
            return 0 if pids[0] == pid else -1
        run = int(pids.searchsorted(pid))
        if run < len(pids) and pids[run] == pid:
            return run
        return -1


def _body_length(rows: int, flags: int, sizes: tuple[int, int, int, int, int]) -> int:
    value_bytes, key_bytes, header_count, name_bytes, header_bytes = sizes
    offsets = _up(4 * (rows + 1))
    length = offsets + _up(value_bytes)
    if flags & MIXED:
        length += _up(2 * rows)
    if flags & TIMES:
        length += 8 * rows
    if flags & KEYS:
        length += _up((rows + 7) // 8) + offsets + _up(key_bytes)
    if flags & HEADS:
        length += offsets + 2 * _up(4 * (header_count + 1)) + _up(name_bytes) + _up(header_bytes)
    return length


def _up(size: int) -> int:
    return (size + 7) & ~7


def needed_for_head(data: Any) -> int:
    """How many bytes the head at the start of `data` (at least `FIXED`) has; 0 if it is none."""
    fixed = _HEAD.unpack_from(data, 0)
    if fixed[0] != MAGIC:
        return 0
    if fixed[9] & PAD:
        return FIXED
    return head_length(fixed[8], fixed[10])


def parse_head(data: Any, lsn: int) -> Frame | None:
    """The frame head at the start of `data`, if it is whole and stands at `lsn`; else None."""
    size = len(data)
    if size < FIXED:
        return None
    fixed = _HEAD.unpack_from(data, 0)
    if fixed[0] != MAGIC or fixed[2] != lsn:
        return None
    length: int = fixed[5]
    flags: int = fixed[9]
    runs: int = fixed[8]
    named: int = fixed[10]
    need = FIXED if flags & PAD else head_length(runs, named)
    if need > size or need > length or length % ALIGN:
        return None
    if crc32c(memoryview(data)[8:need]) != fixed[1]:
        return None
    frame = Frame(data, lsn, fixed)
    if not flags & PAD and (need + frame.body_length > length or (runs == 0)):
        return None
    return frame


def body_is_whole(frame: Frame, body: Any) -> bool:
    """Whether `body` (from the head's end on) has the frame's checksum."""
    if len(body) < frame.body_length:
        return False
    crc: int = crc32c(memoryview(body)[: frame.body_length])
    return crc == frame.body_crc


def body_slots(frame: Frame, body: Any) -> Any:
    """The u16 slots of a mixed frame, or None."""
    if not frame.flags & MIXED:
        return None
    return np.frombuffer(body, np.uint16, frame.rows)


def body_columns(frame: Frame, body: Any) -> list[Any]:
    """timestamp, key, value and headers as Arrow arrays over `body`, without a copy."""
    rows = frame.rows
    value_bytes, key_bytes, header_count, name_bytes, header_bytes = frame.sizes
    whole = pa.py_buffer(body)
    at = _up(2 * rows) if frame.flags & MIXED else 0
    if frame.flags & TIMES:
        times = pa.Array.from_buffers(TIMESTAMP, rows, [None, whole.slice(at, 8 * rows)])
        at += 8 * rows
    else:
        times = pa.array(np.full(rows, frame.appended_at, np.int64)).view(TIMESTAMP)
    offsets = 4 * (rows + 1)
    values = pa.Array.from_buffers(
        pa.binary(),
        rows,
        [None, whole.slice(at, offsets), whole.slice(at + _up(offsets), value_bytes)],
    )
    at += _up(offsets) + _up(value_bytes)
    if frame.flags & KEYS:
        bits = (rows + 7) // 8
        validity = whole.slice(at, bits)
        at += _up(bits)
        keys = pa.Array.from_buffers(
            pa.binary(),
            rows,
            [validity, whole.slice(at, offsets), whole.slice(at + _up(offsets), key_bytes)],
        )
        at += _up(offsets) + _up(key_bytes)
    else:
        keys = pa.nulls(rows, pa.binary())
    if not frame.flags & HEADS:
        return [times, keys, values, no_headers(rows)]
    rows_at = at
    at += _up(offsets)
    entry_offsets = 4 * (header_count + 1)
    names = pa.Array.from_buffers(
        pa.utf8(),
        header_count,
        [None, whole.slice(at, entry_offsets), whole.slice(at + _up(entry_offsets), name_bytes)],
    )
    at += _up(entry_offsets) + _up(name_bytes)
    entries = pa.Array.from_buffers(
        pa.binary(),
        header_count,
        [None, whole.slice(at, entry_offsets), whole.slice(at + _up(entry_offsets), header_bytes)],
    )
    struct_array = pa.StructArray.from_arrays([names, entries], fields=list(HEADERS.value_type))
    headers = pa.Array.from_buffers(
        HEADERS, rows, [None, whole.slice(rows_at, offsets)], children=[struct_array]
    )
    return [times, keys, values, headers]
