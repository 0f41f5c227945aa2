"""Sources, and what they offer: messages of one stream as columns, or one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from penstock.errors import BadBatch
from penstock.protocols.wallaroo.messages import Bools, Column, I64s, Messages, U16s, U64s


@runtime_checkable
class Source(Protocol):
    """Where messages come from.

    `reset` is called before messages are asked for, and whenever they are to be sent again: with
    the id of the last message that need not be, or None for the beginning. If that cannot be,
    raise an error: the worker is told, and `run` ends with it.

    Iteration yields a `Chunk`, a tuple `(payloads, ids[, keys, times])` of lists, or one message
    as `Single` or `(payload, id[, key, time])`. Its end is the end of the stream.

    If there is a method `acked(position)`, it is told when a message is safe with the worker. If
    there is a number `stream_id`, it is taken instead of a hash of the name.
    """

    name: str

    async def reset(self, position: int | None) -> None:
        """Go on after this message."""

    def __aiter__(self) -> AsyncIterator[Any]:
        """Messages from there on."""


class Single(NamedTuple):
    """One message: a source may yield these, or plain tuples of the same order."""

    payload: bytes
    id: int
    key: bytes | None = None
    time: int | None = None
    flags: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Messages in the order they are to be sent. `Chunk.of` makes one of lists or Arrow."""

    ids: U64s
    payloads: Column
    flags: U16s | None = None
    times: I64s | None = None
    has_time: Bools | None = None
    keys: Column | None = None

    @classmethod
    def of(
        cls,
        payloads: Sequence[bytes] | Column | pa.Array,
        ids: Sequence[int] | U64s,
        keys: Sequence[bytes | None] | Column | pa.Array | None = None,
        times: Sequence[int | None] | I64s | None = None,
        flags: int | Sequence[int] | U16s = 0,
    ) -> Chunk:
        """Columns of lists, Arrow arrays or numpy arrays; one set of flags may stand for all.

        A range of ids is the cheapest, then an array; a list of payloads costs some 100 ns each.
        """
        count = len(ids)
        column = _column(payloads, "payloads")
        key_column = None if keys is None else _column(keys, "keys")
        if key_column is not None and not key_column.offsets[-1]:
            key_column = None
        try:
            numbers = _ids(ids)
            flag_column = None
            if not isinstance(flags, int):
                flag_column = np.asarray(flags, np.uint16)
            elif flags:
                flag_column = np.full(count, flags, np.uint16)
            time_column, has_time = _times(times)
        except (OverflowError, TypeError, ValueError) as error:
            raise BadBatch(
                "ids are from 0 to 2^64 - 1, times from -2^63 to 2^63 - 1, flags from 0 to "
                f"2^16 - 1: {error}"
            ) from None
        chunk = cls(numbers, column, flag_column, time_column, has_time, key_column)
        for name, found in (
            ("payloads", column.rows),
            ("keys", count if key_column is None else key_column.rows),
            ("times", count if time_column is None else len(time_column)),
            ("flags", count if flag_column is None else len(flag_column)),
        ):
            if found != count:
                raise BadBatch(f"{found} {name} for {count} ids: each message has one of each")
        return chunk

    @classmethod
    def of_singles(cls, singles: Iterable[Sequence[Any]]) -> Chunk:
        """Columns of messages that came one by one."""
        payloads, ids, keys, times, flags = [], [], [], [], []
        for each in singles:
            try:
                payload, number, key, time, flag = Single(*each)
            except TypeError:
                raise BadBatch(
                    f"a message of {len(each)} values: it has 2 to 5, {', '.join(Single._fields)}"
                ) from None
            payloads.append(payload)
            ids.append(number)
            keys.append(key)
            times.append(time)
            flags.append(flag)
        return cls.of(
            payloads,
            ids,
            keys if any(key is not None for key in keys) else None,
            times if any(time is not None for time in times) else None,
            flags if any(flags) else 0,
        )

    def __len__(self) -> int:
        """How many messages."""
        return len(self.ids)

    @property
    def bytes(self) -> int:
        """Of payloads and keys."""
        return len(self.payloads.data) + (0 if self.keys is None else len(self.keys.data))

    def messages(self, stream: int, start: int, stop: int) -> Messages:
        """Some rows, as messages of a stream."""
        count = stop - start
        rows = slice(start, stop)
        return Messages(
            np.full(count, stream, np.uint64),
            self.ids[rows],
            _sliced(self.payloads, start, stop),
            np.zeros(count, np.uint16) if self.flags is None else self.flags[rows],
            None if self.times is None else self.times[rows],
            None if self.has_time is None else self.has_time[rows],
            None if self.keys is None else _sliced(self.keys, start, stop),
        )


def _sliced(column: Column, start: int, stop: int) -> Column:
    """Some rows of a column, without a copy of their data; none of them is missing."""
    if start == 0 and stop == column.rows:
        return column.filled()
    offsets = column.offsets[start : stop + 1]
    first = offsets[0]
    data = memoryview(column.data)[int(first) : int(offsets[-1])]
    return Column(offsets - first if first else offsets, data)


def _ids(ids: Any) -> U64s:
    if isinstance(ids, range):
        if ids and (min(ids[0], ids[-1]) < 0 or max(ids[0], ids[-1]) >= 2**64):
            raise OverflowError(f"{ids}")
        first, step = (ids.start, ids.step) if ids else (0, 1)
        steps = np.arange(len(ids), dtype=np.uint64)
        if step < 0:
            return np.uint64(first) - steps * np.uint64(-step)
        return np.uint64(first) + steps * np.uint64(step)
    if isinstance(ids, np.ndarray) and ids.dtype.kind == "i" and len(ids) and ids.min() < 0:
        raise OverflowError(f"{ids.min()}")
    return np.asarray(ids, np.uint64)


def _times(times: Any) -> tuple[I64s | None, Bools | None]:
    if times is None:
        return None, None
    if isinstance(times, np.ndarray):
        return times.astype(np.int64, copy=False), np.ones(len(times), np.bool_)
    there = np.array([time is not None for time in times], np.bool_)
    if not there.any():
        return None, None
    return np.array([time or 0 for time in times], np.int64), there


def _column(rows: Any, what: str) -> Column:
    if isinstance(rows, Column):
        return rows if rows.offsets[0] == 0 else _rebased(rows)
    if isinstance(rows, pa.ChunkedArray):
        rows = rows.combine_chunks()
    if isinstance(rows, pa.Array):
        return _of_arrow(rows, what)
    try:
        return Column.of(rows).filled()
    except TypeError as error:
        raise BadBatch(f"{what} are bytes: {error}") from None


def _of_arrow(rows: pa.Array, what: str) -> Column:
    if not (
        pa.types.is_binary(rows.type)
        or pa.types.is_string(rows.type)
        or pa.types.is_large_binary(rows.type)
        or pa.types.is_large_string(rows.type)
    ):
        raise BadBatch(f"{what} are an array of {rows.type}: binary or string is wanted")
    if rows.null_count:
        rows = rows.fill_null(b"" if "binary" in str(rows.type) else "")
    if not pa.types.is_binary(rows.type):
        rows = rows.cast(pa.binary())
    _, offsets, data = rows.buffers()
    if offsets is None or len(rows) == 0:
        return Column(np.zeros(len(rows) + 1, np.int32), b"")
    found = np.frombuffer(offsets, np.int32)[rows.offset : rows.offset + len(rows) + 1]
    return _rebased(Column(found, b"" if data is None else memoryview(data)))


def _rebased(column: Column) -> Column:
    """The same rows with offsets from 0, and no bytes that are none of theirs."""
    first, last = int(column.offsets[0]), int(column.offsets[-1])
    offsets = column.offsets if first == 0 else column.offsets - np.int32(first)
    return Column(offsets, memoryview(column.data)[first:last])
