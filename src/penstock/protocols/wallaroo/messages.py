"""Runs of messages as columns, read from frames and written to them without an object for each.

A message of 100 bytes costs about 30 ns to read when all frames of a run are of one size (numpy
steps through them), and 80 otherwise: `scan.py` finds where frames begin, numpy gathers their
heads, Arrow their payloads. To write it takes 20 or 35 ns.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.errors import BadBatch, BatchTooLarge
from penstock.protocols.wallaroo.frames import (
    BOUNDARY,
    EVENT_TIME,
    FLAGS,
    TIME_TOO_LARGE,
    UNABLE_TO_DECODE,
    Dialect,
    Message,
    WireError,
)
from penstock.protocols.wallaroo.scan import message_starts

U64s: TypeAlias = NDArray[np.uint64]
U16s: TypeAlias = NDArray[np.uint16]
I64s: TypeAlias = NDArray[np.int64]
I32s: TypeAlias = NDArray[np.int32]
Bools: TypeAlias = NDArray[np.bool_]

COLUMN_BYTES_MAX: Final = 2**31 - 1
"""Offsets have 32 bits, as Arrow's binary type and the log have them."""

EQUAL_FRAMES_MIN: Final = 256
"""So many frames of one size are taken as a run of their own, though others follow at once: a run
costs some microseconds, whatever its length."""


EQUAL_FRAMES_LOOK: Final = 32
"""How many frames are compared first."""


FEW_FRAMES: Final = 40
"""So many are read one by one: a call of numpy costs as much for one number as for a hundred."""


class Column(NamedTuple):
    """Row i is `offsets[i]` to `offsets[i + 1]` of `data`; `validity`, if any, has a bit a row.

    The same three as the log's `BinaryColumn`, which a protocol's rules may not know.
    """

    offsets: I32s
    data: Any
    validity: Any = None

    @classmethod
    def of(cls, rows: Sequence[bytes | None]) -> Column:
        """A column of a list."""
        there = [row or b"" for row in rows]
        offsets = [0, *itertools.accumulate(map(len, there))]
        if offsets[-1] > COLUMN_BYTES_MAX:
            raise BatchTooLarge(f"{offsets[-1]} bytes in one column: at most {COLUMN_BYTES_MAX}")
        validity = None
        if None in rows:
            validity = _bits(np.array([row is not None for row in rows], np.bool_))
        return cls(np.array(offsets, np.int32), b"".join(there), validity)

    @property
    def rows(self) -> int:
        """How many rows."""
        return len(self.offsets) - 1

    def filled(self) -> Column:
        """The column with empty rows where it had none."""
        return Column(self.offsets, self.data)

    def array(self) -> pa.Array:
        """The column as Arrow, without a copy."""
        validity = None if self.validity is None else pa.py_buffer(self.validity)
        return pa.Array.from_buffers(
            pa.binary(),
            self.rows,
            [validity, pa.py_buffer(self.offsets), pa.py_buffer(self.data)],
        )

    def valid(self) -> Bools:
        """Which rows are there."""
        if self.validity is None:
            return np.ones(self.rows, np.bool_)
        bits = np.frombuffer(self.validity, np.uint8)
        return np.unpackbits(bits, count=self.rows, bitorder="little").view(np.bool_)

    def filter(self, keep: Bools) -> Column:
        """The column with only the rows where `keep` is true."""
        validity = None if self.validity is None else _bits(self.valid()[keep])
        offsets, data, _ = _column(self.filled().array().filter(pa.array(keep)))
        return Column(offsets, data, validity)


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Consecutive MESSAGE frames as columns, which own their memory.

    `times` and `has_time` are None when no message has a time, `keys` is when none has a key. A
    time that is not there is 0 in `times`. `streams` are 0 in the literal dialect: see `on`.
    """

    streams: U64s
    ids: U64s
    payloads: Column
    flags: U16s
    times: I64s | None = None
    has_time: Bools | None = None
    keys: Column | None = None

    def __len__(self) -> int:
        """How many messages."""
        return len(self.ids)

    @classmethod
    def of(
        cls,
        streams: int | Sequence[int] | U64s,
        ids: Sequence[int] | U64s,
        payloads: Sequence[bytes] | Column,
        *,
        flags: int | Sequence[int] | U16s = 0,
        times: Sequence[int | None] | None = None,
        keys: Sequence[bytes | None] | None = None,
    ) -> Messages:
        """Columns of Python lists; one stream id or one set of flags may stand for all."""
        count = len(ids)
        column = payloads if isinstance(payloads, Column) else Column.of(payloads)
        try:
            found = cls(
                _numbers(streams, count, np.uint64),
                np.array(ids, np.uint64),
                column,
                _numbers(flags, count, np.uint16),
            )
            if times is not None and any(time is not None for time in times):
                found = replace(
                    found,
                    times=np.array([time or 0 for time in times], np.int64),
                    has_time=np.array([time is not None for time in times], np.bool_),
                )
        except (OverflowError, TypeError, ValueError) as error:
            raise BadBatch(
                f"stream and message ids are from 0 to 2^64 - 1, one for each message: {error}"
            ) from None
        if keys is not None and any(key is not None for key in keys):
            found = replace(found, keys=Column.of(keys))
        found.check()
        return found

    def check(self) -> None:
        """See that the columns fit together."""
        counts = {
            "streams": len(self.streams),
            "flags": len(self.flags),
            "payloads": self.payloads.rows,
            "times": len(self) if self.times is None else len(self.times),
            "has_time": len(self) if self.has_time is None else len(self.has_time),
            "keys": len(self) if self.keys is None else self.keys.rows,
        }
        for name, count in counts.items():
            if count != len(self):
                raise BadBatch(f"{count} {name} for {len(self)} ids")
        if (self.times is None) != (self.has_time is None):
            raise BadBatch("times and has_time go together: give both or neither")
        for column in (self.payloads, self.keys):
            if column is not None and column.offsets[-1] != len(column.data):
                raise BadBatch(
                    f"offsets that end at {column.offsets[-1]} for {len(column.data)} bytes"
                )

    def on(self, stream: int) -> Messages:
        """The same, all of one stream: a worker gives literal messages theirs."""
        return replace(self, streams=np.full(len(self), stream, np.uint64))

    def filter(self, keep: Bools) -> Messages:
        """Only the messages where `keep` is true."""
        return Messages(
            self.streams[keep],
            self.ids[keep],
            self.payloads.filter(keep),
            self.flags[keep],
            None if self.times is None else self.times[keep],
            None if self.has_time is None else self.has_time[keep],
            None if self.keys is None else self.keys.filter(keep),
        )

    def rows(self) -> list[Message]:
        """An object for each: for tests and tools, far too slow for a door."""
        count = len(self)
        times: list[int | None] = [None] * count
        if self.times is not None and self.has_time is not None:
            pairs = zip(self.times.tolist(), self.has_time.tolist(), strict=True)
            times = [time if there else None for time, there in pairs]
        keys = [None] * count if self.keys is None else self.keys.array().to_pylist()
        columns = (
            self.streams.tolist(),
            self.ids.tolist(),
            self.payloads.array().to_pylist(),
            self.flags.tolist(),
            times,
            keys,
        )
        return [Message(*row) for row in zip(*columns, strict=True)]


def _numbers(given: Any, count: int, kind: Any) -> Any:
    """A column of numbers, or of one for all. (`np.full` alone would go by way of floats.)"""
    return np.full(count, given, kind) if isinstance(given, int) else np.array(given, kind)


# -- layouts -----------------------------------------------------------------------------------


class Layout(NamedTuple):
    """How MESSAGE frames begin in a dialect, length and tag included."""

    tag: int
    big: bool
    head: np.dtype[np.void]
    least: int
    """The smallest length a frame can give: its head without the length itself."""


def _layout(dialect: Dialect) -> Layout:
    order = dialect.order
    fields = [("length", f"{order}u4"), ("tag", "u1")]
    if dialect is not Dialect.LITERAL:
        fields.append(("stream", f"{order}u8"))
    if dialect is Dialect.SHIPPED:
        fields += [("id", ">u8"), ("time", ">i8"), ("key", ">u2")]
    else:
        fields += [("flags", "<u2"), ("id", "<u8")]
    head = np.dtype(fields)
    tag = 5 if dialect is Dialect.SHIPPED else ord("M")
    return Layout(tag, dialect is Dialect.SHIPPED, head, head.itemsize - 4)


LAYOUTS: Final = {dialect: _layout(dialect) for dialect in Dialect}


_SPEC_HEAD: Final = struct.Struct("<5xQHQ")
_LITERAL_HEAD: Final = struct.Struct("<5xHQ")
_SHIPPED_HEAD: Final = struct.Struct(">5xQQqH")


# -- reading -----------------------------------------------------------------------------------


class Region:
    """Received bytes, and a copy of them for `scan.py`, which is made when it is needed."""

    __slots__ = ("_flat", "buffer", "end")

    def __init__(self, buffer: Any, end: int) -> None:
        self.buffer = buffer
        self.end = end
        self._flat: bytes | None = None

    def flat(self) -> bytes:
        """All of it as bytes: copied once, however many runs there are."""
        if self._flat is None:
            self._flat = bytes(memoryview(self.buffer)[: self.end])
        return self._flat


def read_run(
    region: Region, at: int, length: int, dialect: Dialect, most: int
) -> tuple[int, Messages | None, WireError | None]:
    """Read the run of MESSAGE frames that begins at `at` with a whole one of `length`.

    The answer is where the run ends, its messages, and what is wrong with the one after them.
    """
    layout = LAYOUTS[dialect]
    step = 4 + length
    count = _equal_frames(region, at, length, layout)
    if count:
        starts = np.arange(at, at + step * count + 1, step, dtype=np.int32)
    else:
        step = 0
        found = message_starts(
            region.flat(), at, region.end, layout.big, layout.tag, layout.least, most
        )
        if len(found) <= FEW_FRAMES + 1:
            messages = _read_few(region.flat(), found, dialect)
            if messages is not None:
                return found[-1], messages, None
        # Half the time of `np.array(found)`.
        starts = np.frombuffer(struct.pack(f"={len(found)}i", *found), np.int32)
    messages, error = _read_columns(region.buffer, starts, step, dialect)
    return int(starts[-1]), messages, error


def _read_few(data: bytes, starts: list[int], dialect: Dialect) -> Messages | None:
    """A few messages one by one; None if a boundary or a bad one is among them.

    A single message costs a fifth of what it does a column at a time.
    """
    rows = []
    read = _read_shipped if dialect is Dialect.SHIPPED else _read_spec
    head = LAYOUTS[dialect].head.itemsize
    for start, end in itertools.pairwise(starts):
        row = read(data, start, start + head, end, dialect)
        if row is None:
            return None
        rows.append(row)
    streams, ids, payloads, flags, times, keys = zip(*rows, strict=True)
    timed = any(time is not None for time in times)
    return Messages(
        np.array(streams, np.uint64),
        np.array(ids, np.uint64),
        Column.of(payloads),
        np.array(flags, np.uint16),
        np.array([time or 0 for time in times], np.int64) if timed else None,
        np.array([time is not None for time in times], np.bool_) if timed else None,
        Column.of(keys) if any(keys) else None,
    )


_Row: TypeAlias = tuple[int, int, bytes, int, int | None, bytes | None]
"""What a `Message` has, in its order."""


def _read_spec(data: bytes, start: int, begin: int, end: int, dialect: Dialect) -> _Row | None:
    stream = 0
    if dialect is Dialect.LITERAL:
        flags, number = _LITERAL_HEAD.unpack_from(data, start)
    else:
        stream, flags, number = _SPEC_HEAD.unpack_from(data, start)
    if not flags & EVENT_TIME:
        good = flags <= FLAGS and not flags & BOUNDARY
        return (stream, number, data[begin:end], flags, None, None) if good else None
    time = int.from_bytes(data[begin : begin + 8], "little")
    if flags > FLAGS or flags & BOUNDARY or begin + 8 > end or time >= 2**63:
        return None
    return stream, number, data[begin + 8 : end], flags, time, None


def _read_shipped(data: bytes, start: int, begin: int, end: int, dialect: Dialect) -> _Row | None:
    stream, number, time, size = _SHIPPED_HEAD.unpack_from(data, start)
    if begin + size > end:
        return None
    key = data[begin : begin + size] if size else None
    return stream, number, data[begin + size : end], 0, time or None, key


def _equal_frames(region: Region, at: int, length: int, layout: Layout) -> int:
    """How many MESSAGE frames of this length follow each other; 0 if it is not worth it.

    It looks at ever more of them, so that a look costs no more than what it finds is worth.
    (Here and below `np.count_nonzero` stands for `any`, which takes five times as long for a few.)
    """
    step = 4 + length
    most = (region.end - at) // step
    if most < EQUAL_FRAMES_LOOK:
        return 0
    order = ">" if layout.big else "<"
    lengths = np.ndarray((most,), f"{order}u4", region.buffer, at, (step,))
    tags = np.ndarray((most,), np.uint8, region.buffer, at + 4, (step,))
    seen, look = 0, EQUAL_FRAMES_LOOK
    while seen < most:
        until = min(most, seen + look)
        other = (lengths[seen:until] != length) | (tags[seen:until] != layout.tag)
        if np.count_nonzero(other):
            seen += int(other.argmax())
            return seen if seen >= EQUAL_FRAMES_MIN else 0
        seen, look = until, 16 * look
    return seen


def _read_columns(
    buffer: Any, starts: I32s, step: int, dialect: Dialect
) -> tuple[Messages | None, WireError | None]:
    """The columns of frames that follow each other; `step` is their size if all have one.

    If one of them is no message, the answer is those before it, and what is wrong.
    """
    layout = LAYOUTS[dialect]
    heads = _heads(buffer, starts, step, layout)
    begins = starts[:-1] + np.int32(layout.head.itemsize)
    if dialect is Dialect.SHIPPED:
        bad, error = _judge_keys(heads, starts[1:] - begins)
    else:
        bad, error = _judge_flags(buffer, heads, begins, starts[1:])
    if error is not None:
        good = starts[: bad + 1]
        return _read_columns(buffer, good, step, dialect)[0] if bad else None, error
    ids = heads["id"].astype(np.uint64)
    if dialect is Dialect.LITERAL:
        streams = np.zeros(len(ids), np.uint64)
    else:
        streams = heads["stream"].astype(np.uint64)
    if dialect is Dialect.SHIPPED:
        return _shipped(buffer, heads, streams, ids, starts, begins, step), None
    return _spec(buffer, heads, streams, ids, starts, begins, step), None


def _heads(buffer: Any, starts: I32s, step: int, layout: Layout) -> Any:
    """The heads of all frames: a view if the frames are of one size, else gathered."""
    if step:
        return np.ndarray((len(starts) - 1,), layout.head, buffer, int(starts[0]), (step,))
    size = layout.head.itemsize
    # As opaque bytes: numpy gathers them seven times faster than the same with named fields.
    windows = np.ndarray((int(starts[-1]) - size + 1,), f"V{size}", buffer, 0, (1,))
    return windows[starts[:-1]].view(layout.head)


def _spec(
    buffer: Any, heads: Any, streams: U64s, ids: U64s, starts: I32s, begins: I32s, step: int
) -> Messages:
    flags = heads["flags"].astype(np.uint16)
    times: I64s | None = None
    timed = _timed(flags) if np.count_nonzero(flags) else None
    if timed is not None and np.count_nonzero(timed):
        times = np.zeros(len(ids), np.int64)
        times[timed] = _times(buffer, begins[timed]).astype(np.int64)
        begins = begins + timed * np.int32(8)
    else:
        timed = None
    payloads = _without_heads(buffer, starts, begins, step)
    return Messages(streams, ids, payloads, flags, times, timed)


def _shipped(
    buffer: Any, heads: Any, streams: U64s, ids: U64s, starts: I32s, begins: I32s, step: int
) -> Messages:
    given = heads["time"].astype(np.int64)
    times: I64s | None = given if np.count_nonzero(given) else None
    timed: Bools | None = None if times is None else given != 0
    sizes = heads["key"].astype(np.int32)
    keys: Column | None = None
    if np.count_nonzero(sizes):
        keys = _pieces(buffer, begins, begins + sizes, step)
        if not sizes.all():
            keys = keys._replace(validity=_bits(sizes > 0))
        begins = begins + sizes
    payloads = _without_heads(buffer, starts, begins, step)
    return Messages(streams, ids, payloads, np.zeros(len(ids), np.uint16), times, timed, keys)


def _timed(flags: U16s) -> Bools:
    """Which messages have an event time: a boundary has none, whatever its flags are."""
    timed: Bools = (flags & (EVENT_TIME | BOUNDARY)) == EVENT_TIME
    return timed


def _times(buffer: Any, begins: I32s) -> U64s:
    """The event times that stand at `begins`, as the unsigned numbers they are."""
    windows = np.ndarray((int(begins[-1]) + 1,), "<u8", buffer, 0, (1,))
    times: U64s = windows[begins]
    return times


def _judge_flags(buffer: Any, heads: Any, begins: I32s, ends: I32s) -> tuple[int, WireError | None]:
    """Find the first frame whose body is not what its flags say."""
    flags = heads["flags"]
    if not np.count_nonzero(flags):
        return 0, None
    sizes = ends - begins
    timed = _timed(flags)
    bad = (flags > FLAGS) | (((flags & BOUNDARY) != 0) & (sizes != 0)) | (timed & (sizes < 8))
    there = timed & ~bad
    if np.count_nonzero(there):
        bad[there] = _times(buffer, begins[there]) > np.uint64(2**63 - 1)
    if not np.count_nonzero(bad):
        return 0, None
    at = int(bad.argmax())
    found, size = int(flags[at]), int(sizes[at])
    if found > FLAGS:
        detail = f"a MESSAGE with the reserved flags {found & ~FLAGS:#06x}: they must be 0"
    elif found & BOUNDARY:
        detail = f"a BOUNDARY with {size} bytes after its id: it has none"
    elif size < 8:
        detail = f"a MESSAGE with an event time of {size} bytes: it takes 8"
    else:
        time = int(_times(buffer, begins[at : at + 1])[0])
        return at, WireError(TIME_TOO_LARGE, f"{time}: at most {2**63 - 1}")
    return at, WireError(UNABLE_TO_DECODE, detail)


def _judge_keys(heads: Any, room: I32s) -> tuple[int, WireError | None]:
    """Find the first frame that is shorter than its key."""
    sizes = heads["key"]
    bad = sizes > room
    if not np.count_nonzero(bad):
        return 0, None
    at = int(bad.argmax())
    return at, WireError(
        UNABLE_TO_DECODE,
        f"a MESSAGE with a key of {sizes[at]} bytes, and its frame has {room[at]} left",
    )


def _pieces(buffer: Any, begins: I32s, ends: I32s, step: int) -> Column:
    """Pieces of the buffer, in order and apart from each other, as a column of their own."""
    count = len(begins)
    if step:
        size = int(ends[0] - begins[0])
        if size == 0 and not (ends - begins).any():
            return Column(np.zeros(count + 1, np.int32), b"")
        if (ends - begins == size).all():
            rows = np.ndarray((count, size), np.uint8, buffer, int(begins[0]), (step, 1))
            data = rows.copy().reshape(-1).data
            return Column(np.arange(0, size * count + 1, size, dtype=np.int32), data)
    # What lies between two pieces is a row too, for the filter to drop.
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = begins
    offsets[1::2] = ends
    rows = _rows(offsets, buffer)
    every_other = pa.py_buffer(b"\x55" * (count // 4 + 1))
    mask = pa.Array.from_buffers(pa.bool_(), 2 * count - 1, [None, every_other])
    return _column(rows.filter(mask))


def _without_heads(buffer: Any, starts: I32s, begins: I32s, step: int) -> Column:
    """What each frame has after its head: `_pieces`, and twice as fast if all heads are equal."""
    head = int(begins[0] - starts[0])
    if step or np.count_nonzero(begins - starts[:-1] != head):
        return _pieces(buffer, begins, starts[1:], step)
    cut = pc.SliceOptions(head, COLUMN_BYTES_MAX)
    return _column(_SLICE.call([_rows(starts, buffer)], cut))


_SLICE: Final = pc.get_function("binary_slice")


def _rows(offsets: I32s, data: Any) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _column(array: pa.Array) -> Column:
    """A binary array without nulls, just made, as a column."""
    _, offsets, data = array.buffers()
    rows = np.frombuffer(offsets, np.int32, len(array) + 1)
    return Column(rows, b"" if data is None else memoryview(data)[: int(rows[-1])])


def _bits(there: Bools) -> Any:
    return np.packbits(there, bitorder="little")


# -- writing -----------------------------------------------------------------------------------


def encode_messages(messages: Messages, dialect: Dialect) -> memoryview:
    """All messages as MESSAGE frames, one after another.

    A message has an event time where `has_time` says so, and the flag for it then. A boundary
    has neither time nor payload. The shipped dialect has no flags, the others have no keys, and
    the literal one no streams; shipped, a time of 0 and a key of no bytes are read as none.
    """
    messages.check()
    count = len(messages)
    layout = LAYOUTS[dialect]
    payloads = messages.payloads.filled()
    sizes = np.diff(payloads.offsets)
    if dialect is Dialect.SHIPPED:
        parts = _shipped_parts(messages)
        flags = None
    else:
        flags, parts = _spec_parts(messages, sizes)
    parts.append(payloads)
    heads = np.empty(count, layout.head)
    lengths = np.full(count, layout.least, np.int64)
    for part in parts:
        lengths += np.diff(part.offsets)
    total = int(lengths.sum()) + 4 * count
    if total > COLUMN_BYTES_MAX:
        raise BatchTooLarge(f"{total} bytes at once: at most {COLUMN_BYTES_MAX}; send it in parts")
    heads["length"] = lengths
    heads["tag"] = layout.tag
    heads["id"] = messages.ids
    if dialect is not Dialect.LITERAL:
        heads["stream"] = messages.streams
    if flags is not None:
        heads["flags"] = flags
    else:
        heads["time"] = 0 if messages.times is None else messages.times
        heads["key"] = np.diff(parts[0].offsets) if len(parts) > 1 else 0
    return _woven(heads, parts, lengths)


def _shipped_parts(messages: Messages) -> list[Column]:
    if (messages.flags & np.uint16(0xFFFF ^ EVENT_TIME)).any():
        raise BadBatch("messages with flags: the shipped dialect has none")
    if messages.keys is None:
        return []
    if len(messages) and int(np.diff(messages.keys.offsets).max()) > 0xFFFF:
        raise BadBatch("a key with more than 65535 bytes: its length has 16 bits")
    return [messages.keys.filled()]


def _spec_parts(messages: Messages, sizes: I32s) -> tuple[U16s, list[Column]]:
    if messages.keys is not None:
        raise BadBatch("messages with keys: only the shipped dialect has them")
    flags = messages.flags
    if (flags > FLAGS).any():
        raise BadBatch(f"reserved flags: the flags there are end at {FLAGS}")
    boundary = (flags & BOUNDARY) != 0
    if (boundary & (sizes != 0)).any():
        raise BadBatch("a boundary with a payload: it has none")
    timed, times = messages.has_time, messages.times
    if timed is None or times is None or not timed.any():
        return np.where(boundary, flags, flags & ~np.uint16(EVENT_TIME)), []
    if (boundary & timed).any():
        raise BadBatch("a boundary with an event time: it has none")
    if (times[timed] < 0).any():
        raise BadBatch("an event time before 1970: only the shipped dialect has them")
    flags = np.where(boundary, flags, flags & ~np.uint16(EVENT_TIME))
    flags |= np.where(timed, np.uint16(EVENT_TIME), np.uint16(0))
    offsets = np.zeros(len(timed) + 1, np.int32)
    np.cumsum(8 * timed, out=offsets[1:])
    return flags, [Column(offsets, times[timed].astype("<i8"))]


def _woven(heads: Any, parts: list[Column], lengths: I64s) -> memoryview:
    """Head, parts, head, parts, ..., in one buffer."""
    count = len(heads)
    if count == 0:
        return memoryview(b"")
    size = heads.dtype.itemsize
    fixed = [_equal_size(part) for part in parts]
    if min(fixed) >= 0:
        rows = np.empty((count, 4 + int(lengths[0])), np.uint8)
        rows[:, :size] = heads.view(np.uint8).reshape(count, size)
        at = size
        for part, width in zip(parts, fixed, strict=True):
            if width == 0:
                continue
            data = np.frombuffer(part.data, np.uint8)
            rows[:, at : at + width] = data.reshape(count, width)
            at += width
        return rows.reshape(-1).data
    offsets = np.arange(0, size * count + 1, size, dtype=np.int32)
    columns = [Column(offsets, heads), *parts]
    joined = pc.binary_join_element_wise(*[column.array() for column in columns], b"")
    return memoryview(_column(joined).data)


def _equal_size(column: Column) -> int:
    """The size of every row, or -1 if they differ."""
    sizes = np.diff(column.offsets)
    return int(sizes[0]) if (sizes == sizes[0]).all() else -1
