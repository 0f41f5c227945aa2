"""What the two sides say to each other, as objects; `wire.py` tells how it is written."""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

from penstock.errors import LocalError, RemoteError

VERSION: Final = "0.0.1"
"""The only version that was ever shipped."""

U64_MAX: Final = 2**64 - 1
SHORT_BYTES_MAX: Final = 2**16 - 1

EPHEMERAL: Final = 1
BOUNDARY: Final = 2
EOS: Final = 4
UNSTABLE_REFERENCE: Final = 8
EVENT_TIME: Final = 16
FLAGS: Final = 31
"""All flags there are; the other bits are reserved."""

UNABLE_TO_DECODE: Final = "Unable to decode message"
FRAME_TOO_LARGE: Final = "Frame too large"
TIME_TOO_LARGE: Final = "Event time too large"


class Dialect(enum.Enum):
    """How frames are written."""

    SPEC = "spec"
    LITERAL = "literal"
    SHIPPED = "shipped"

    @property
    def no_reference(self) -> int:
        """The point of reference that means there is none."""
        return U64_MAX if self is Dialect.SHIPPED else 0

    @property
    def order(self) -> str:
        """The byte order, as `struct` and numpy write it."""
        return ">" if self is Dialect.SHIPPED else "<"


class Role(enum.Enum):
    """Which side of a connection decodes."""

    WORKER = "worker"
    CONNECTOR = "connector"


class WireError(RemoteError):
    """The peer sent what is no frame. `reason` is for the ERROR frame that answers it."""

    code: ClassVar[str] = "wallaroo-frame"

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class BadFrame(LocalError):
    """A frame that cannot be written in that dialect, or not with such values."""

    code: ClassVar[str] = "wallaroo-bad-frame"


Point: TypeAlias = tuple[int, int]
"""A stream id and a point of reference."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A connector introduces itself."""

    version: str
    cookie: bytes
    program: str
    instance: str


@dataclass(frozen=True, slots=True)
class Greeting:
    """A HELLO as it is received: to be read, and judged, from left to right.

    Compare `version`, then `cookie()`, and only then ask for `hello()`.
    """

    version: bytes
    rest: bytes
    dialect: Dialect

    def cookie(self) -> bytes:
        """The cookie; a `WireError` if the frame ends before it does."""
        return Body(self.rest, self.dialect).short("the cookie of HELLO")

    def hello(self) -> Hello:
        """The whole frame; a `WireError` if it is not whole, or a name is not UTF-8."""
        body = Body(self.rest, self.dialect)
        cookie = body.short("the cookie of HELLO")
        program = utf8(body.short("the program of HELLO"), "the program of HELLO")
        instance = utf8(body.short("the instance of HELLO"), "the instance of HELLO")
        body.end("HELLO")
        return Hello(utf8(self.version, "the version of HELLO"), cookie, program, instance)


@dataclass(frozen=True, slots=True)
class Ok:
    """The worker accepts; `points` are of streams it knows, and never in the shipped dialect."""

    credits: int
    points: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True)
class Error:
    """Either side gives up."""

    reason: str


@dataclass(frozen=True, slots=True)
class Notify:
    """A connector introduces a stream, and says where it goes on."""

    stream: int
    name: bytes
    ref: int = 0

    def text(self) -> str:
        """The stream's name; a `WireError` if it is not UTF-8."""
        return utf8(self.name, "the stream name of NOTIFY")


@dataclass(frozen=True, slots=True)
class NotifyAck:
    """The worker answers a NOTIFY: go on after `ref`, or do not. Shipped only."""

    success: bool
    stream: int
    ref: int


@dataclass(frozen=True, slots=True)
class Message:
    """One message, for a look at it; many are `Messages`."""

    stream: int
    id: int
    payload: bytes = b""
    flags: int = 0
    time: int | None = None
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """The worker gives credits, and says how far it got with each stream."""

    credits: int
    points: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True)
class Nack:
    """The worker wants a stream again from `ref`. Not in the shipped dialect."""

    credits: int
    stream: int
    ref: int = 0


@dataclass(frozen=True, slots=True)
class Restart:
    """The worker ends the session: go to `address`, or come back if it is empty. Shipped only."""

    address: str = ""


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """A connector ends a stream. Shipped only; the others have a flag for it."""

    stream: int


Frame: TypeAlias = (
    Hello | Ok | Error | Notify | NotifyAck | Message | Ack | Nack | Restart | EndOfStream
)


def utf8(data: bytes, what: str) -> str:
    """`data` as text; a `WireError` if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise WireError(
            UNABLE_TO_DECODE, f"{what} is not UTF-8 (byte {error.start} of {len(data)})"
        ) from None


def shown(data: bytes, chars_max: int = 64) -> str:
    """Bytes from a peer as text that is safe to show: short, printable, on one line."""
    text = data[:chars_max].decode(errors="replace")
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return text if len(data) <= chars_max else f"{text}..."


class Body:
    """Reads a frame's body from left to right."""

    __slots__ = ("_at", "_data", "_order")

    def __init__(self, data: bytes, dialect: Dialect) -> None:
        self._data = data
        self._at = 0
        self._order = dialect.order

    @property
    def left(self) -> int:
        """How many bytes are unread."""
        return len(self._data) - self._at

    def numbers(self, layout: str, what: str) -> tuple[Any, ...]:
        """Numbers, as `struct` describes them."""
        at = self._advance(struct.calcsize(self._order + layout), what)
        return struct.unpack_from(self._order + layout, self._data, at)

    def octets(self, size: int, what: str) -> bytes:
        """So many bytes."""
        at = self._advance(size, what)
        return self._data[at : at + size]

    def short(self, what: str) -> bytes:
        """A 16-bit length and so many bytes."""
        return self.octets(self.numbers("H", what)[0], what)

    def points(self, count: int, what: str) -> tuple[Point, ...]:
        """So many pairs of stream and point of reference."""
        data = self.octets(16 * count, what)
        return tuple(struct.iter_unpack(f"{self._order}QQ", data))

    def end(self, what: str) -> None:
        """Nothing may follow."""
        if self.left:
            raise WireError(UNABLE_TO_DECODE, f"{self.left} bytes after the end of {what}")

    def _advance(self, size: int, what: str) -> int:
        if size > self.left:
            raise WireError(
                UNABLE_TO_DECODE, f"{what} takes {size} bytes, and the frame has {self.left} left"
            )
        self._at += size
        return self._at - size
