"""A batch of records as columns, ready to be appended.

Columns are kept as plain buffers in Arrow's layout, so that a decoder can hand over what it
gathered, the journal can write it without a copy, and the segment writer can map it as Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import limits
from penstock.errors import BadBatch, BatchTooLarge, TooMany
from penstock.log.schema import HEADERS

Offsets = NDArray[np.int32]
Times = NDArray[np.int64]
Headers = Sequence[tuple[str, bytes]] | Mapping[str, bytes]


_COLUMNS = {"index", "key", "value", "timestamp", "headers"}
_BATCH_OVERHEAD = 512
_COPIED_BELOW = 32 * 1024
"""A small batch is copied into one buffer for the journal, so it takes its memory twice."""


class BinaryColumn(NamedTuple):
    """Row i is `offsets[i]` to `offsets[i + 1]` of `data`; `validity`, if any, has a bit a row."""

    offsets: Offsets
    data: Any
    validity: Any = None


class HeaderColumn(NamedTuple):
    """Row i has the headers `offsets[i]` to `offsets[i + 1]` of `names` and `values`."""

    offsets: Offsets
    names: BinaryColumn
    values: BinaryColumn


class Batch:
    """Columns of `count` records. Make one with `of`, `from_arrow`, `from_table`, or of columns.

    `nbytes` is the memory it takes until it is on disk, `largest` the size of its largest record.
    """

    __slots__ = ("count", "headers", "keys", "largest", "nbytes", "timestamps", "values")

    def __init__(
        self,
        values: BinaryColumn,
        keys: BinaryColumn | None = None,
        timestamps: Times | None = None,
        headers: HeaderColumn | None = None,
    ) -> None:
        count = len(values.offsets) - 1
        if count < 0:
            raise BadBatch("the value offsets are empty: n records have n + 1 offsets, from 0")
        if count > limits.BATCH_RECORDS_MAX:
            raise BatchTooLarge(
                f"a batch of {count} records is too large: at most {limits.BATCH_RECORDS_MAX}; "
                "append it in parts"
            )
        self.count = count
        self.values = values
        self.keys = keys
        self.timestamps = timestamps
        self.headers = headers
        sizes = _row_sizes(values, count, "value")
        nbytes = values.offsets.nbytes + len(values.data)
        if keys is not None:
            sizes = sizes + _row_sizes(keys, count, "key")
            nbytes += keys.offsets.nbytes + len(keys.data) + count // 8 + 1
            if keys.validity is not None:
                needed = (count + 7) // 8
                if len(keys.validity) < needed:
                    raise BadBatch(f"the keys' validity bitmap is too short for {count} records")
                if len(keys.validity) > needed:
                    self.keys = keys._replace(validity=keys.validity[:needed])
        if timestamps is not None:
            if len(timestamps) != count:
                raise BadBatch(f"{len(timestamps)} timestamps for {count} values")
            if timestamps.dtype != np.int64:
                raise BadBatch(f"the timestamps are {timestamps.dtype}: they must be int64")
            nbytes += timestamps.nbytes
        if headers is not None:
            sizes = sizes + _header_sizes(headers, count)
            nbytes += headers.offsets.nbytes + 8 * len(headers.names.offsets)
            nbytes += len(headers.names.data) + len(headers.values.data)
        self.largest = int(sizes.max()) if count else 0
        nbytes += _BATCH_OVERHEAD + 2 * count
        self.nbytes = nbytes if nbytes > _COPIED_BELOW else 2 * nbytes

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"<Batch of {self.count} records, {self.nbytes} bytes>"

    @classmethod
    def of(
        cls,
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[int] | None = None,
        headers: Sequence[Headers | None] | None = None,
    ) -> Batch:
        """A batch from Python lists of equal length; timestamps in microseconds since 1970."""
        try:
            return cls.from_arrow(
                pa.array(values, type=pa.binary()),
                keys=None if keys is None else pa.array(keys, type=pa.binary()),
                timestamps=None if timestamps is None else pa.array(timestamps, type=pa.int64()),
                headers=None if headers is None else _headers_array(headers),
            )
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise BadBatch(f"values and keys must be bytes, timestamps integers: {error}") from None

    @classmethod
    def from_arrow(
        cls,
        values: pa.Array,
        *,
        keys: pa.Array | None = None,
        timestamps: pa.Array | None = None,
        headers: pa.Array | None = None,
    ) -> Batch:
        """A batch from Arrow arrays; strings are taken as UTF-8 bytes."""
        try:
            value_column = _binary_column(values, "values")
            if values.null_count:
                raise BadBatch("values cannot be null: use an empty value")
            key_column = None
            if keys is not None and keys.null_count < len(keys):
                key_column = _binary_column(keys, "keys")
            if keys is not None and len(keys) != len(values):
                raise BadBatch(f"{len(keys)} keys for {len(values)} values")
            header_column = None
            if headers is not None:
                if len(headers) != len(values):
                    raise BadBatch(f"{len(headers)} header lists for {len(values)} values")
                header_column = _header_column(headers)
            return cls(
                value_column,
                key_column,
                None if timestamps is None else _times(timestamps, len(values)),
                header_column,
            )
        except pa.ArrowException as error:
            raise BadBatch(f"these Arrow columns cannot be appended: {error}") from None

    @classmethod
    def from_table(cls, table: pa.Table | pa.RecordBatch) -> Batch:
        """A batch from a table with the columns value and, if wished, key, timestamp, headers."""
        names = set(table.schema.names)
        if "value" not in names or names - _COLUMNS:
            raise BadBatch(
                f"the columns are {sorted(names)}; needed is value, allowed are "
                "key, timestamp, headers (and index, which is ignored)"
            )

        def column(name: str) -> pa.Array | None:
            if name not in names:
                return None
            found = table.column(name)
            return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found

        return cls.from_arrow(
            column("value"),
            keys=column("key"),
            timestamps=column("timestamp"),
            headers=column("headers"),
        )

    def key_array(self) -> pa.Array:
        """The keys as Arrow; all null when there are none."""
        if self.keys is None:
            return pa.nulls(self.count, pa.binary())
        return _as_array(self.keys, self.count)

    def filter(self, keep: NDArray[np.bool_]) -> Batch:
        """The batch with only the rows where `keep` is true."""
        mask = pa.array(keep)
        headers = None
        if self.headers is not None:
            headers = headers_as_array(self.headers, self.count).filter(mask)
        return Batch.from_arrow(
            _as_array(self.values, self.count).filter(mask),
            keys=None if self.keys is None else self.key_array().filter(mask),
            timestamps=None if self.timestamps is None else pa.array(self.timestamps[keep]),
            headers=headers,
        )


def headers_as_array(headers: HeaderColumn, count: int) -> pa.Array:
    """The headers of `count` records as Arrow."""
    entries = len(headers.names.offsets) - 1
    names = pa.Array.from_buffers(
        pa.utf8(),
        entries,
        [None, pa.py_buffer(headers.names.offsets), pa.py_buffer(headers.names.data)],
    )
    values = _as_array(headers.values, entries)
    struct = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    return pa.ListArray.from_arrays(pa.array(headers.offsets), struct, type=HEADERS)


def _as_array(column: BinaryColumn, count: int) -> pa.Array:
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    return pa.Array.from_buffers(
        pa.binary(), count, [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    )


def _row_sizes(column: BinaryColumn, count: int, what: str) -> Offsets:
    """Bytes of each row; checks that the offsets can be trusted."""
    offsets = column.offsets
    if offsets.dtype != np.int32:
        raise BadBatch(f"the {what} offsets are {offsets.dtype}: they must be int32")
    if len(offsets) != count + 1:
        raise BadBatch(f"{len(offsets) - 1} {what}s for {count} records")
    sizes = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != len(column.data) or (count and sizes.min() < 0):
        raise BadBatch(
            f"the {what} offsets must rise from 0 to the {len(column.data)} bytes of the data; "
            f"they go from {offsets[0]} to {offsets[-1]}"
        )
    return sizes


def _header_sizes(headers: HeaderColumn, count: int) -> Offsets:
    entries = len(headers.names.offsets) - 1
    if headers.offsets.dtype != np.int32:
        raise BadBatch(f"the header offsets are {headers.offsets.dtype}: they must be int32")
    if len(headers.offsets) != count + 1:
        raise BadBatch(f"{len(headers.offsets) - 1} header lists for {count} records")
    each = np.diff(headers.offsets)
    try:
        headers_as_array(headers, count).flatten().field(0).validate(full=True)
    except pa.ArrowException:
        raise BadBatch("header names must be UTF-8 text") from None
    if headers.offsets[0] != 0 or headers.offsets[-1] != entries or (count and each.min() < 0):
        raise BadBatch("the header offsets must rise from 0 to the number of headers")
    if count and each.max() > limits.RECORD_HEADERS_MAX:
        raise TooMany(
            f"a record with {each.max()} headers: at most {limits.RECORD_HEADERS_MAX} are allowed"
        )
    sizes = _row_sizes(headers.names, entries, "header name")
    sizes = sizes + _row_sizes(headers.values, entries, "header value")
    total = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    return np.diff(total[headers.offsets]).astype(np.int32)


def _binary_column(array: pa.Array, what: str) -> BinaryColumn:
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        array = array.cast(
            pa.large_binary() if pa.types.is_large_string(array.type) else pa.binary()
        )
    if array.type != pa.binary():
        if not (pa.types.is_large_binary(array.type) or pa.types.is_fixed_size_binary(array.type)):
            raise BadBatch(f"the {what} are {array.type}: they must be binary or string")
        array = array.cast(pa.binary())
    if array.offset:
        array = pa.concat_arrays([array, pa.array([], type=array.type)])
    count = len(array)
    validity, offsets, data = array.buffers()
    if count == 0:
        return BinaryColumn(np.zeros(1, np.int32), b"")
    rows = np.frombuffer(offsets, np.int32, count + 1)
    first, last = int(rows[0]), int(rows[-1])
    data = memoryview(data)[first:last] if data is not None else b""
    if first:
        rows = rows - first
    if array.null_count == 0:
        return BinaryColumn(rows, data)
    return BinaryColumn(rows, data, memoryview(validity)[: (count + 7) // 8])


def _header_column(array: pa.Array) -> HeaderColumn | None:
    if array.null_count == len(array):
        return None
    if array.type != HEADERS:
        array = array.cast(HEADERS)
    flat = array.flatten()  # null lists have nothing in it
    if len(flat) == 0:
        return None
    each = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    rows = np.zeros(len(array) + 1, np.int32)
    np.cumsum(each, out=rows[1:])
    names, values = flat.flatten()
    if names.null_count or values.null_count:
        raise BadBatch("a header needs a name and a value; use an empty value for none")
    return HeaderColumn(
        rows,
        _binary_column(names, "header names"),
        _binary_column(values, "header values"),
    )


def _headers_array(headers: Sequence[Headers | None]) -> pa.Array:
    rows = []
    for each in headers:
        pairs = [] if each is None else each.items() if isinstance(each, Mapping) else each
        rows.append([{"name": name, "value": value} for name, value in pairs])
    return pa.array(rows, type=HEADERS)


def _times(array: pa.Array, count: int) -> Times:
    if len(array) != count:
        raise BadBatch(f"{len(array)} timestamps for {count} values")
    if array.null_count:
        raise BadBatch(
            "timestamps cannot be null: leave the column out to have them set on arrival"
        )
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("us", tz=array.type.tz)).view(pa.int64())
    if array.type != pa.int64():
        array = array.cast(pa.int64())
    times: Times = array.to_numpy(zero_copy_only=False)
    return times
