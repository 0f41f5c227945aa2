"""Runs of MESSAGE frames read into columns, without an object for each message.

A message of 100 bytes costs about 30 ns when all frames of a run are of one size (numpy steps
through them), and 80 otherwise: `scan.py` finds where frames begin, numpy gathers their heads,
Arrow their payloads. A run costs some 30 us besides, and a few frames are read one by one.
"""

from __future__ import annotations

import itertools
import struct
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.protocols.wallaroo.frames import (
    BOUNDARY,
    EVENT_TIME,
    FLAGS,
    TIME_TOO_LARGE,
    UNABLE_TO_DECODE,
    Dialect,
    WireError,
)
from penstock.protocols.wallaroo.messages import (
    COLUMN_BYTES_MAX,
    LAYOUTS,
    Bools,
    Column,
    I32s,
    I64s,
    Layout,
    Messages,
    U16s,
    U64s,
    bits,
    column_of,
)
from penstock.protocols.wallaroo.scan import message_starts

EQUAL_FRAMES_MIN: Final = 256
"""So many frames of one size are taken as a run of their own, though others follow at once: a run
costs some microseconds, whatever its length."""

EQUAL_FRAMES_LOOK: Final = 32
"""How many frames are compared first."""

FEW_FRAMES: Final = 40
"""So many are read one by one: a call of numpy costs as much for one number as for a hundred."""

_SPEC_HEAD: Final = struct.Struct("<5xQHQ")
_LITERAL_HEAD: Final = struct.Struct("<5xHQ")
_SHIPPED_HEAD: Final = struct.Struct(">5xQQqH")


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
            keys = keys._replace(validity=bits(sizes > 0))
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
    return column_of(rows.filter(mask))


def _without_heads(buffer: Any, starts: I32s, begins: I32s, step: int) -> Column:
    """What each frame has after its head: `_pieces`, and twice as fast if all heads are equal."""
    head = int(begins[0] - starts[0])
    if step or np.count_nonzero(begins - starts[:-1] != head):
        return _pieces(buffer, begins, starts[1:], step)
    cut = pc.SliceOptions(head, COLUMN_BYTES_MAX)
    return column_of(_SLICE.call([_rows(starts, buffer)], cut))


_SLICE: Final = pc.get_function("binary_slice")


def _rows(offsets: I32s, data: Any) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
