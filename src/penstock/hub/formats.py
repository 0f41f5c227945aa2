"""Records in the formats people send and ask for: JSON lines, CSV, Arrow, plain lines.

A JSON line is an object: `value` (text, or any JSON, which is stored as its text) or `value64`
(base64), and if wished `key` or `key64`, `timestamp` (microseconds, or ISO 8601), `headers`
(name to text) and `id` (its producer's number for it). Records are given the same way, with
`partition` and `index`; bytes that are not UTF-8 come as base64.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc
from pyarrow import csv, ipc

from penstock import limits
from penstock.errors import BadBatch, BadFormat, PenstockError, TooMany
from penstock.log import SCHEMA, Batch

JSON_LINES: Final = "application/x-ndjson"
CSV: Final = "text/csv"
ARROW: Final = "application/vnd.apache.arrow.stream"
LINES: Final = "text/plain"
FORMATS: Final = {"jsonl": JSON_LINES, "csv": CSV, "arrow": ARROW, "lines": LINES}
_PIECE: Final = 256 * limits.KIB
JSON_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding JSON raises for what is not JSON, not UTF-8, or nested too deep."""

_ALIASES: Final = {"application/jsonl": JSON_LINES, "application/json-lines": JSON_LINES}


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    value: Any = msgspec.UNSET
    value64: str | None = None
    key: str | None = None
    key64: str | None = None
    timestamp: int | str | None = None
    headers: dict[str, str] | None = None
    id: int | None = None
    # Records are given with these; taking them lets what was read be written elsewhere.
    partition: int | None = None
    index: int | None = None


class Parsed(NamedTuple):
    """The records of a body, and their producer's ids if they have any."""

    batch: Batch
    ids: NDArray[np.uint64] | None = None


_line_decoder = msgspec.json.Decoder(_Line)


def media_type(content_type: str) -> str:
    """The format of a content type, or `BadFormat`."""
    plain = content_type.partition(";")[0].strip().lower()
    plain = _ALIASES.get(plain, plain)
    if plain not in FORMATS.values():
        raise BadFormat(
            f"content type {plain!r:.100} is not known: use {JSON_LINES}, {CSV}, {ARROW} or {LINES}"
        )
    return plain


def parse(content_type: str, body: bytes, now: int) -> Parsed:
    """The records of a body. `now` is given to those without a time if others have one."""
    kind = media_type(content_type)
    if kind == JSON_LINES:
        return _parse_json_lines(body, now)
    if kind == ARROW:
        return _parse_arrow(body)
    if kind == CSV:
        return _parse_csv(body)
    lines = body.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    return Parsed(Batch.of(lines))


def _parse_json_lines(body: bytes, now: int) -> Parsed:
    lines: list[_Line] = []
    try:
        for piece in _pieces(body):
            lines += _line_decoder.decode_lines(piece)
            _check_count(len(lines))
    except JSON_ERRORS as error:
        raise BadFormat(_explain_line(body, error)) from None
    values: list[bytes] = []
    encode = msgspec.json.encode
    for number, line in enumerate(lines, 1):
        value = line.value
        if type(value) is str:
            values.append(value.encode())
        elif value is not msgspec.UNSET:
            try:
                values.append(encode(value))
            except OverflowError:
                raise BadFormat(
                    f"line {number} has a number of more than 64 bits: send it as text"
                ) from None
        elif line.value64 is not None:
            values.append(_unbase64(line.value64, number))
        else:
            raise BadFormat(f"line {number} has neither value nor value64")
    keys = times = headers = None
    if any(line.key is not None or line.key64 is not None for line in lines):
        keys = [_key(line, number) for number, line in enumerate(lines, 1)]
    if any(line.timestamp is not None for line in lines):
        times = [_time(line, number, now) for number, line in enumerate(lines, 1)]
    if any(line.headers for line in lines):
        headers = [
            [(name, text.encode()) for name, text in (line.headers or {}).items()] for line in lines
        ]
    ids = None
    if any(line.id is not None for line in lines):
        ids = _ids(pa.array, [line.id for line in lines])
    return Parsed(Batch.of(values, keys=keys, timestamps=times, headers=headers), ids)


def _ids(make: Callable[..., pa.Array], column: Any) -> NDArray[np.uint64]:
    """Producer ids as numbers; `make` turns the column into an array of a type."""
    try:
        array = make(column, pa.uint64())
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        array = None
    if array is None or array.null_count:
        raise BadBatch("ids must be whole numbers from 0 to 2**64 - 1, one for each record")
    ids: NDArray[np.uint64] = array.to_numpy(zero_copy_only=False)
    return ids


def _pieces(body: bytes) -> Iterator[memoryview]:
    """Whole lines, about 256 KiB at a time: other threads get their turn in between."""
    view = memoryview(body)
    at = 0
    while at < len(body):
        end = body.find(b"\n", at + _PIECE) + 1 or len(body)
        yield view[at:end]
        at = end


def _explain_line(body: bytes, error: Exception) -> str:
    """Which line is wrong: decoding them all at once does not tell."""
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            try:
                _line_decoder.decode(line)
            except JSON_ERRORS as own:
                return f"line {number} is not a record: {own}"
    return f"the body is not JSON lines: {error}"


def _key(line: _Line, number: int) -> bytes | None:
    if line.key is not None:
        return line.key.encode()
    return None if line.key64 is None else _unbase64(line.key64, number)


def _time(line: _Line, number: int, now: int) -> int:
    if line.timestamp is None:
        return now
    if isinstance(line.timestamp, int):
        return line.timestamp
    try:
        return parse_time(line.timestamp)
    except ValueError:
        raise BadFormat(
            f"line {number}: timestamp {line.timestamp!r:.60} is neither microseconds nor ISO 8601"
        ) from None


def parse_time(text: str) -> int:
    """Microseconds since 1970 from a number or ISO 8601 text (UTC unless it says otherwise)."""
    if _WHOLE.fullmatch(text):
        return int(text)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = datetime.fromisoformat(text + "+00:00")
    return round(moment.timestamp() * 1_000_000)


_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")


def _unbase64(text: str, number: int) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadFormat(f"line {number} has bad base64") from None


def _parse_arrow(body: bytes) -> Parsed:
    try:
        table = ipc.open_stream(body).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise BadFormat(f"the body is not an Arrow IPC stream: {error}") from None
    return _from_table(table)


def _parse_csv(body: bytes) -> Parsed:
    try:
        table = csv.read_csv(io.BytesIO(body), **csv_options())
    except (pa.ArrowException, OSError) as error:
        raise BadFormat(f"the body is not CSV with a header line: {error}") from None
    return _from_table(without_null_values(table))


def csv_options() -> dict[str, Any]:
    """How CSV is read: keys and values are text, and a key of nothing, not even quotes, is none."""
    convert = csv.ConvertOptions(
        column_types={name: pa.binary() for name in ("key", "value")},
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    return {
        "convert_options": convert,
        # Or a quoted line end where two blocks meet would end the record.
        "parse_options": csv.ParseOptions(newlines_in_values=True),
        # A record must fit into a block, with every quote in it doubled.
        "read_options": csv.ReadOptions(block_size=2 * limits.RECORD_BYTES_MAX),
    }


def without_null_values(records: Any) -> Any:
    """A table or batch of CSV whose values of nothing are empty."""
    at = records.schema.get_field_index("value")
    if at < 0 or not records.column(at).null_count:
        return records
    return records.set_column(at, "value", records.column(at).fill_null(b""))


def _from_table(table: pa.Table) -> Parsed:
    """The column `id`, if there is one, is the producer's; the others are the record's."""
    _check_count(table.num_rows)
    names = table.schema.names
    if len(set(names)) != len(names):
        raise BadFormat(f"the columns are {names}: each may be there once")
    table = table.combine_chunks()
    ids = None
    if "id" in names:
        ids = _ids(pc.cast, table["id"].combine_chunks())
        table = table.drop(["id"])
    return Parsed(Batch.from_table(table), ids)


def _check_count(count: int) -> None:
    if count > limits.BATCH_RECORDS_MAX:
        raise TooMany(f"{count} records in one request: at most {limits.BATCH_RECORDS_MAX}")


# -- giving ----------------------------------------------------------------------------------------

Render = Callable[[int, list[pa.RecordBatch]], bytes]


def render_json_lines(partition: int, batches: list[pa.RecordBatch]) -> bytes:
    """An object a line."""
    return b"".join([line + b"\n" for line in json_records(partition, batches)])


def json_records(partition: int, batches: list[pa.RecordBatch]) -> Iterator[bytes]:
    """Each record as JSON."""
    encode = msgspec.json.encode
    for batch in batches:
        times = batch.column(1).view(pa.int64())
        for index, time, key, value, headers in zip(
            *(column.to_pylist() for column in (batch.column(0), times, *batch.columns[2:])),
            strict=True,
        ):
            record: dict[str, Any] = {"partition": partition, "index": index, "timestamp": time}
            if key is not None:
                _put_bytes(record, "key", key)
            _put_bytes(record, "value", value)
            if headers:
                record["headers"] = {
                    each["name"]: each["value"].decode("utf-8", "replace") for each in headers
                }
            yield encode(record)


def _put_bytes(record: dict[str, Any], name: str, data: bytes) -> None:
    try:
        record[name] = data.decode()
    except UnicodeDecodeError:
        record[name + "64"] = base64.b64encode(data).decode()


def render_arrow(partition: int, batches: list[pa.RecordBatch]) -> bytes:
    """An Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def render_csv(partition: int, batches: list[pa.RecordBatch]) -> bytes:
    """Columns index, timestamp, key, value; text only."""
    table = pa.Table.from_batches(batches, SCHEMA).drop(["headers"])
    try:
        text = table.set_column(2, "key", table["key"].cast(pa.utf8()))
        text = text.set_column(3, "value", text["value"].cast(pa.utf8()))
    except pa.ArrowException:
        raise BadFormat("some values are not text: ask for JSON lines or Arrow") from None
    sink = pa.BufferOutputStream()
    csv.write_csv(text, sink)
    return bytes(sink.getvalue())


def render_lines(partition: int, batches: list[pa.RecordBatch]) -> bytes:
    """The values alone, a line each."""
    return b"".join([value + b"\n" for batch in batches for value in batch.column(3).to_pylist()])


def encode_error(error: PenstockError) -> bytes:
    """An error as the API gives it."""
    return msgspec.json.encode({"error": {"code": error.code, "message": str(error)}})


RENDERERS: Final[dict[str, Render]] = {
    JSON_LINES: render_json_lines,
    ARROW: render_arrow,
    CSV: render_csv,
    LINES: render_lines,
}


def choose(accept: str) -> str:
    """The first known format in an Accept header; JSON lines if anything will do."""
    for part in accept.split(","):
        plain = part.partition(";")[0].strip().lower()
        plain = _ALIASES.get(plain, plain)
        if plain in RENDERERS:
            return plain
        if plain in ("*/*", "", "application/*"):
            return JSON_LINES
    raise BadFormat(f"none of {accept!r:.100} can be given: ask for {', '.join(RENDERERS)}")
