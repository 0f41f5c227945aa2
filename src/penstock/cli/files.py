"""Records in files and pipes: told apart by name, cut into requests, put together from pages."""

from __future__ import annotations

import io
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec
import pyarrow as pa
import typer
from pyarrow import csv, ipc

from penstock.errors import BadFormat
from penstock.hub import formats
from penstock.log import SCHEMA

REQUEST_BYTES: Final = 4 * 1024 * 1024
"""A request ends here even if it has fewer records than asked for: larger ones are not faster."""


class Format(StrEnum):
    """How records are written down."""

    JSONL = "jsonl"
    CSV = "csv"
    ARROW = "arrow"
    LINES = "lines"

    @property
    def media_type(self) -> str:
        return formats.FORMATS[self.value]


_SUFFIXES: Final = {
    ".jsonl": Format.JSONL, ".ndjson": Format.JSONL, ".json": Format.JSONL,
    ".csv": Format.CSV,
    ".arrow": Format.ARROW, ".arrows": Format.ARROW, ".ipc": Format.ARROW,
    ".txt": Format.LINES, ".log": Format.LINES,
}  # fmt: skip


def guess(path: Path | None) -> Format:
    """The format a file's name tells; JSON lines for a pipe."""
    if path is None or str(path) == "-":
        return Format.JSONL
    found = _SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise typer.BadParameter(
            f"the name {path.name!r} does not tell its format: say --format jsonl, csv, arrow or "
            f"lines, or name it with one of {' '.join(_SUFFIXES)}"
        )
    return found


class Part(NamedTuple):
    """The records of one request."""

    media_type: str
    body: bytes
    records: int


def cut(source: BinaryIO, form: Format, records: int) -> Iterator[Part]:
    """Cut a file into requests of so many records at most."""
    if form in (Format.JSONL, Format.LINES):
        return _cut_lines(source, form, records)
    batches = _csv_batches(source) if form is Format.CSV else _arrow_batches(source)
    return _cut_batches(batches, records)


class _Keys(msgspec.Struct):
    key: str | None = None
    key64: str | None = None


_keys_decoder = msgspec.json.Decoder(_Keys)


def _cut_lines(source: BinaryIO, form: Format, records: int) -> Iterator[Part]:
    lines: list[bytes] = []
    held = 0
    for line in source:
        if form is Format.JSONL and not line.strip():
            continue
        if lines and held + len(line) > REQUEST_BYTES:
            yield _part_of_lines(lines, form)
            lines, held = [], 0
        lines.append(line)
        held += len(line)
        if len(lines) >= records:  # now, not with the next line: a pipe may be silent for long
            yield _part_of_lines(lines, form)
            lines, held = [], 0
    if lines:
        yield _part_of_lines(lines, form)


def _part_of_lines(lines: list[bytes], form: Format) -> Part:
    body = b"".join(lines)
    return Part(form.media_type, body, len(lines))


def _csv_batches(source: BinaryIO) -> Iterator[pa.RecordBatch]:
    """CSV is read here, not cut: a quoted value may hold line ends."""
    first = source.read(1)
    if not first:
        return
    try:
        # Arrow reads ahead in blocks, so what was looked at goes back in front.
        with csv.open_csv(_Rejoined(first, source), **formats.csv_options()) as reader:
            yield from map(formats.without_null_values, reader)
    except (pa.ArrowException, OSError) as error:
        raise BadFormat(f"this is not CSV with a header line: {error}") from None


def _arrow_batches(source: BinaryIO) -> Iterator[pa.RecordBatch]:
    """Both of Arrow's layouts: the stream, and the file with its table of contents at the end."""
    first = source.read(6)
    if not first:
        return
    try:
        if first == b"ARROW1":
            file = ipc.open_file(pa.BufferReader(first + source.read()))
            for number in range(file.num_record_batches):
                yield file.get_batch(number)
        else:
            yield from ipc.open_stream(_Rejoined(first, source))
    except (pa.ArrowException, OSError) as error:
        raise BadFormat(f"this is not an Arrow IPC stream or file: {error}") from None


class _Rejoined(io.RawIOBase):
    """A pipe whose first bytes were looked at, whole again."""

    def __init__(self, first: bytes, rest: BinaryIO) -> None:
        self._first = first
        self._rest = rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size is None or size < 0:
            first, self._first = self._first, b""
            return first + self._rest.read()
        first, self._first = self._first[:size], self._first[size:]
        return first + self._rest.read(size - len(first))


def _cut_batches(batches: Iterator[pa.RecordBatch], records: int) -> Iterator[Part]:
    for batch in batches:
        at = 0
        while at < batch.num_rows:
            part = batch.slice(at, records)
            while part.nbytes > REQUEST_BYTES and part.num_rows > 1:
                part = part.slice(0, part.num_rows // 2)
            at += part.num_rows
            yield _part_of_batch(part)


def _part_of_batch(batch: pa.RecordBatch) -> Part:
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return Part(formats.ARROW, bytes(sink.getvalue()), batch.num_rows)


def halves(part: Part) -> list[Part]:
    """A part of several records as two, for a hub that takes less at once."""
    middle = part.records // 2
    if part.media_type == formats.ARROW:
        (batch,) = ipc.open_stream(part.body).read_all().combine_chunks().to_batches()
        return [_part_of_batch(each) for each in (batch.slice(0, middle), batch.slice(middle))]
    lines = [line + b"\n" for line in part.body.removesuffix(b"\n").split(b"\n")]
    bodies = (b"".join(lines[:middle]), b"".join(lines[middle:]))
    counts = (middle, part.records - middle)
    return [
        part._replace(body=body, records=records)
        for body, records in zip(bodies, counts, strict=True)
    ]


class Joiner:
    """Puts pages of one format together into one document; feed it, then `end` it."""

    def __init__(self, form: Format) -> None:
        self._form = form
        self._empty = True
        self._sink = io.BytesIO()
        self._writer = ipc.new_stream(self._sink, SCHEMA) if form is Format.ARROW else None

    def feed(self, page: bytes) -> bytes:
        """What of a page is to be written."""
        if self._writer is not None:
            for batch in ipc.open_stream(page):
                self._writer.write_batch(batch)
            return self._taken()
        if self._form is Format.CSV and not self._empty:
            page = page.partition(b"\n")[2]  # each page has the heading
        self._empty = False
        return page

    def end(self) -> bytes:
        """What comes after the last page."""
        if self._writer is None:
            return b""
        self._writer.close()
        return self._taken()

    def _taken(self) -> bytes:
        data = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return data
