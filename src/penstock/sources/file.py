"""A file's records: lines, rows of CSV, or JSON lines, from any place on.

A message's id is the number of bytes up to its end, so that to go on after it is to go there. A
file that is followed may be replaced by a new one (rotated) or cut to nothing: then another
*generation* begins, whose number stands in the upper 16 bits of the ids, and they still increase.
"""

from __future__ import annotations

import asyncio
import csv
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from penstock import limits
from penstock.errors import BadFormat, BadSetting, RecordTooLarge
from penstock.protocols.wallaroo.chunk import Chunk
from penstock.protocols.wallaroo.messages import Column

Form = Literal["lines", "csv", "jsonl"]
_Over = Literal["left", "cut", "replaced"] | None

_OFFSET_BITS: Final = 48
"""256 TiB of one file, and 65 thousand generations."""

_OFFSET_MAX: Final = 2**_OFFSET_BITS - 1
_HELD_MAX: Final = 8
"""Files that were replaced, and are held open until all of them is acked."""


class _Place(NamedTuple):
    """A file that is open, and how it is known."""

    generation: int
    fd: int
    inode: tuple[int, int]


class FileSource:
    """A file as a source; `follow` waits for more at its end, and for the file that replaces it.

    A row of CSV becomes a JSON object with the names of the first row. A JSON line is sent as it
    is. `notice` is told of what a person may want to know.
    """

    def __init__(
        self,
        path: str | Path,
        name: str | None = None,
        *,
        form: Form = "lines",
        follow: bool = False,
        poll_seconds: float = 0.2,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.path = Path(path)
        self.name = name or self.path.stem
        self._form = form
        self._follow = follow
        self._poll_s = poll_seconds
        self._notice = notice
        self._places: list[_Place] = []
        self._place: _Place | None = None
        self._offset = 0
        self._names: list[str] = []

    @property
    def size(self) -> int:
        """The file's size now, in bytes."""
        return os.fstat(self._place.fd).st_size if self._place else 0

    @property
    def offset(self) -> int:
        """How far it was read, in bytes."""
        return self._offset

    # -- places ------------------------------------------------------------------------------------

    async def reset(self, position: int | None) -> None:
        """Go on after this message."""
        generation, offset = divmod(position or 0, _OFFSET_MAX + 1)
        if not self._places:
            self._places = [self._open(generation)]
            size = os.fstat(self._places[0].fd).st_size
            if offset > size:
                self._notice(
                    f"{self.path} has {size:,} bytes, and the worker has had {offset:,}: it was "
                    "replaced, and is sent from its beginning"
                )
                self._places = [self._places[0]._replace(generation=generation + 1)]
                offset = 0
        for place in self._places:
            if place.generation >= generation:
                break
        else:
            place = self._places[-1]
        if place.generation != generation:
            if position is not None:
                self._notice(f"an earlier file at {self.path} is gone: what was not sent is lost")
            offset = 0
        self._place, self._offset = place, offset
        if self._form == "csv":
            self._read_heading()

    def _open(self, generation: int) -> _Place:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise BadSetting(f"{self.path} cannot be read: {error.strerror}") from None
        found = os.fstat(fd)
        return _Place(generation, fd, (found.st_dev, found.st_ino))

    def acked(self, position: int) -> None:
        """Earlier files are not needed any more."""
        generation = position >> _OFFSET_BITS
        while len(self._places) > 1 and self._places[0].generation < generation:
            self._drop_first()

    def close(self) -> None:
        """Close all files."""
        while self._places:
            self._drop_first()
        self._place = None

    def _drop_first(self) -> None:
        first = self._places.pop(0)
        if all(place.fd != first.fd for place in self._places):
            os.close(first.fd)

    def _over(self) -> _Over:
        """Why nothing more comes to this file; None: it may grow."""
        assert self._place is not None
        if self._place.generation < self._places[-1].generation:
            return "left"
        if os.fstat(self._place.fd).st_size < self._offset:
            return "cut"
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None  # it was moved away, and the next one is not there yet
        return "replaced" if (found.st_dev, found.st_ino) != self._place.inode else None

    def _go_on(self, over: _Over) -> None:
        """Go to the beginning of the next generation."""
        assert self._place is not None
        generation = self._place.generation + 1
        if over == "cut":
            self._notice(f"{self.path} was cut: it is sent from its beginning")
            # What was there is gone, so that nobody can be sent back to it.
            self._places = [self._place._replace(generation=generation)]
        elif over == "replaced":
            self._notice(f"{self.path} was replaced: the new file follows")
            self._places.append(self._open(generation))
            if len(self._places) > _HELD_MAX:
                self._drop_first()
        self._place = next(each for each in self._places if each.generation >= generation)
        self._offset = 0
        self._names = []

    # -- records -----------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """Records from where it is, as they stand in the file or come to it."""
        rest = b""
        """Of a record whose end was not read yet; `_offset` is where it begins."""
        ended = False
        while self._place is not None:
            data = await asyncio.to_thread(self._read, len(rest))
            if data:
                ended = False
                whole = rest + data
                chunk, used = self._cut(whole)
                self._offset += used
                rest = whole[used:]
                self._check_size(rest)
                if chunk is not None:
                    yield chunk
                continue
            over = self._over() if self._follow else None
            if self._follow and over is None:
                await asyncio.sleep(self._poll_s)
                continue
            if self._follow and not ended:
                ended = True  # read once more: something may have come before it was over
                continue
            if rest and over != "cut":
                chunk, used = self._cut(rest, last=True)
                self._offset += used
                if chunk is not None:
                    yield chunk
            if not self._follow:
                return
            rest, ended = b"", False
            self._go_on(over)

    def _read(self, held: int) -> bytes:
        assert self._place is not None
        return os.pread(self._place.fd, limits.SOURCE_READ_BYTES, self._offset + held)

    def _check_size(self, rest: bytes) -> None:
        if len(rest) > limits.WALLAROO_FRAME_BYTES_MAX:
            raise RecordTooLarge(
                f"{self.path} has a record of more than {len(rest)} bytes at byte {self._offset}: "
                f"at most {limits.WALLAROO_FRAME_BYTES_MAX}; is it of the format {self._form}?"
            )

    def _cut(self, data: bytes, *, last: bool = False) -> tuple[Chunk | None, int]:
        """The whole records in some bytes, and how many bytes they are."""
        assert self._place is not None
        base = (self._place.generation << _OFFSET_BITS) + self._offset
        if last:
            data += b"\n"  # so the last line has an end too; its id must not count it
        if self._form == "lines":
            chunk, used = _lines(data, base)
        else:
            chunk, used = self._rows(data, base)
        if last:
            if chunk is not None:
                most = np.uint64(base + len(data) - 1)
                chunk = Chunk(np.minimum(chunk.ids, most), chunk.payloads)
            if used < len(data):
                raise BadFormat(f"{self.path} ends within quotes, from byte {self._offset} on")
            used -= 1
        return chunk, used

    def _rows(self, data: bytes, base: int) -> tuple[Chunk | None, int]:
        """Records that are looked at one by one: JSON lines, CSV."""
        payloads, ids, used = [], [], 0
        for end, record in _records(data, quotes=self._form == "csv"):
            place, used = self._offset + used, end
            if not record.strip():
                continue
            if self._form == "csv" and not self._names:
                self._names = self._row(record, place)
                continue
            payloads.append(self._payload(record, place))
            ids.append(base + end)
        return (Chunk.of(payloads, ids) if ids else None), used

    def _payload(self, record: bytes, at: int) -> bytes:
        if self._form == "jsonl":
            try:
                msgspec.json.decode(record)
            except msgspec.DecodeError as error:
                raise BadFormat(f"{self.path} has no JSON at byte {at}: {error}") from None
            return record.strip()
        row = self._row(record, at)
        if len(row) != len(self._names):
            raise BadFormat(
                f"{self.path} has a row of {len(row)} values at byte {at}, and its first row has "
                f"{len(self._names)} names"
            )
        return msgspec.json.encode(dict(zip(self._names, row, strict=True)))

    def _row(self, record: bytes, at: int) -> list[str]:
        try:
            return next(csv.reader([record.decode("utf-8-sig")], strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadFormat(f"{self.path} has no CSV at byte {at}: {error}") from None

    def _read_heading(self) -> None:
        """The names of the columns stand in the first row, which is no message."""
        assert self._place is not None
        self._names = []
        if self._offset:
            data = os.pread(self._place.fd, limits.SOURCE_READ_BYTES, 0)
            for _, record in _records(data, quotes=True)[:1]:
                self._names = self._row(record, 0)


def _lines(data: bytes, base: int) -> tuple[Chunk | None, int]:
    """Lines without a Python object for each: ends are found, and taken out, by columns."""
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets == 10)
    if not len(ends):
        return None, 0
    used = int(ends[-1]) + 1
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends - np.arange(len(ends))
    kept = octets[:used][octets[:used] != 10]
    ids = (ends + 1).astype(np.uint64) + np.uint64(base)
    return Chunk(ids, Column(offsets, kept.data)), used


def _records(data: bytes, *, quotes: bool) -> list[tuple[int, bytes]]:
    """Where each record ends, and the record; one that is quoted may have line ends within."""
    found = []
    begin = at = 0
    odd = False
    quoted = quotes and b'"' in data
    while (end := data.find(b"\n", at)) >= 0:
        if quoted and data.count(b'"', at, end) % 2:
            odd = not odd
        at = end + 1
        if not odd:
            found.append((at, data[begin:end]))
            begin = at
    return found
