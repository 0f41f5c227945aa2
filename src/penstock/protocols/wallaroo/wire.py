"""Wallaroo's frames: bytes to frames and back, in three dialects.

    spec      the specification: little-endian, tags in ASCII, the stream id in each MESSAGE
              (as its erratum has it)
    literal   the same without the stream id, as the specification's text has it
    shipped   what Wallaroo 0.6 and its Python connectors speak: big-endian, tags 0 to 8

A frame is a u32 length, which counts all that follows it, a tag byte, and a body. A *short* is a
u16 length and that many bytes.

    frame        spec, literal                           shipped
    HELLO        version short, cookie short, program short, instance short
    OK           u32 credits, (u64 stream, u64 ref)*     u32 credits
    ERROR        reason short
    NOTIFY       u64 stream, name short, u64 ref
    NOTIFY_ACK   -                                       u8 success, u64 stream, u64 ref
    MESSAGE      [u64 stream], u16 flags, u64 id,        u64 stream, u64 id, i64 event time,
                 [u64 event time], payload               key short, payload
    ACK          u32 credits, (u64 stream, u64 ref)*     u32 credits, u32 count, (stream, ref)*
    NACK         u32 credits, u64 stream, u64 ref        -
    RESTART      -                                       u32 length and an address
    EOS          - (a flag of MESSAGE)                   u64 stream

What is not said there, or said twice, is decided here:

- A worker learns the dialect from the fifth byte: `H` or 0. Any other is an error, and what it is
  answered with goes out in the spec's dialect.
- A length of 0, an unknown tag, a body that is too short, and bytes after a body's end are
  "Unable to decode message". Where shipped peers are lenient, so is this: bytes after an OK or
  an EOS are ignored in the shipped dialect, and a RESTART may have no body.
- A length over the limit is "Frame too large", as soon as its four bytes and the tag are there;
  HELLO has a smaller limit, because nobody has shown a cookie yet.
- A frame that only the own side may send is "Invalid message: ok" (or whatever it is), unread.
- HELLO is read in steps, see `Greeting`: a wrong version is found whatever follows it.
- Program and instance are UTF-8. A stream's name is bytes, as shipped connectors have it;
  `Notify.text` is its checked form. Reasons are shown to people, so bad bytes are replaced there.
- A reserved flag is an error: a later draft put a key in front of the payload and a flag for it,
  so to ignore the flag could be to misread the message.
- A BOUNDARY ends after its id, with EVENT_TIME or without; bytes after it are an error.
- An event time of 2^63 or more (the spec's are unsigned) is "Event time too large": the log's
  are signed, and a changed time would be worse than none. Shipped: signed, and 0 means none.
- A key of no bytes means none. Ids and points of reference use all 64 bits.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock import limits
from penstock.errors import BadBatch, LocalError, RemoteError

U64S: TypeAlias = NDArray[np.uint64]
U16S: TypeAlias = NDArray[np.uint16]
I64S: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

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


# -- frames ------------------------------------------------------------------------------------

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
        return _Body(self.rest, self.dialect).short("the cookie of HELLO")

    def hello(self) -> Hello:
        """The whole frame; a `WireError` if it is not whole, or a name is not UTF-8."""
        body = _Body(self.rest, self.dialect)
        cookie = body.short("the cookie of HELLO")
        program = body.text("the program name of HELLO")
        instance = body.text("the instance name of HELLO")
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
    """A connector introduces a stream, and where it will go on."""

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
    """The worker ends the session; go to `address`, or come back here if it is empty."""

    address: str = ""


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """A connector ends a stream. Shipped only; the others have a flag for it."""

    stream: int


class Column(NamedTuple):
    """Row i is `offsets[i]` to `offsets[i + 1]` of `data`; `validity`, if any, has a bit a row.

    The same three as the log's `BinaryColumn`, which this folder may not know.
    """

    offsets: NDArray[np.int32]
    data: Any
    validity: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Consecutive MESSAGE frames as columns, which own their memory.

    `times` and `has_time` are None when no message has a time, `keys` when none has a key. A time
    that is not there is 0 in `times`. `streams` are 0 in the literal dialect: see `on`.
    """

    streams: U64S
    ids: U64S
    payloads: Column
    flags: U16S
    times: I64S | None = None
    has_time: Bools | None = None
    keys: Column | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(
        cls,
        streams: int | Sequence[int] | U64S,
        ids: Sequence[int] | U64S,
        payloads: Sequence[bytes],
        *,
        flags: int | Sequence[int] | U16S = 0,
        times: Sequence[int | None] | None = None,
        keys: Sequence[bytes | None] | None = None,
    ) -> Messages:
        """Columns of Python lists."""
        raise NotImplementedError

    def on(self, stream: int) -> Messages:
        """The same, all of one stream: a worker gives literal messages theirs."""
        return replace(self, streams=np.full(len(self), stream, np.uint64))

    def rows(self) -> list[Message]:
        """An object for each: for tests and tools, far too slow for a door."""
        raise NotImplementedError


Frame: TypeAlias = (
    Hello | Ok | Error | Notify | NotifyAck | Message | Ack | Nack | Restart | EndOfStream
)
Received: TypeAlias = (
    Greeting
    | Ok
    | Error
    | Notify
    | NotifyAck
    | Messages
    | Ack
    | Nack
    | Restart
    | EndOfStream
    | WireError
)
"""What a decoder gives. A HELLO comes as a `Greeting`, messages in runs, an error as the last."""


def encode(frame: Frame, dialect: Dialect) -> bytes:
    """One frame as bytes. A frame that the dialect does not have is a `LocalError`."""
    raise NotImplementedError


def encode_messages(messages: Messages, dialect: Dialect) -> bytes | memoryview:
    """All messages as MESSAGE frames, one after another.

    Flags decide in the spec's dialects: BOUNDARY leaves the payload out (it must be empty), and
    EVENT_TIME is set where there is a time. The shipped dialect has no flags: any is an error.
    """
    raise NotImplementedError


class Decoder:
    """Frames out of bytes that come in any pieces.

    Either `receive(data)`, or as a `BufferedProtocol` wants it, without a copy: write into
    `get_buffer()`, then `advance(count)`. Both give what became whole. A bad frame gives a
    `WireError` as the last of all, in the list and not raised, so that what came before it is
    not lost; it stays in `error`, and whatever comes later is discarded.
    """

    def __init__(
        self,
        role: Role,
        dialect: Dialect | None = None,
        *,
        literal: bool = False,
        frame_bytes_max: int = 4 * 1024 * 1024,
    ) -> None:
        """`dialect` None: a worker finds out; `literal` says that `H` means that dialect."""
        self.role = role
        self.dialect = dialect
        self.error: WireError | None = None

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Room for the next bytes."""
        raise NotImplementedError

    def advance(self, count: int) -> list[Received]:
        """Decode, now that `count` bytes were written to the buffer."""
        raise NotImplementedError

    def receive(self, data: bytes | bytearray | memoryview) -> list[Received]:
        """Decode some bytes."""
        raise NotImplementedError

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not whole yet."""
        raise NotImplementedError


def utf8(data: bytes, what: str) -> str:
    """`data` as text; a `WireError` if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise WireError(
            UNABLE_TO_DECODE, f"{what} is not UTF-8 (byte {error.start} of {len(data)})"
        ) from None


def shown(data: bytes, chars_max: int = 64) -> str:
    """Bytes from a peer as text that is safe to show: short, printable, without line ends."""
    text = data[:chars_max].decode(errors="replace")
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return text if len(data) <= chars_max else f"{text}..."


class _Body:
    """Reads a frame's body from left to right."""

    __slots__ = ("at", "data", "order")

    def __init__(self, data: bytes, dialect: Dialect) -> None:
        self.data = data
        self.at = 0
        self.order = ">" if dialect is Dialect.SHIPPED else "<"

    def unpack(self, layout: str, what: str) -> tuple[Any, ...]:
        form = struct.Struct(self.order + layout)
        if len(self.data) - self.at < form.size:
            raise WireError(
                UNABLE_TO_DECODE,
                f"{what} takes {form.size} bytes, and the frame has {len(self.data) - self.at} left",
            )
        self.at += form.size
        return form.unpack_from(self.data, self.at - form.size)

    def bytes(self, size: int, what: str) -> bytes:
        if len(self.data) - self.at < size:
            raise WireError(
                UNABLE_TO_DECODE,
                f"{what} has {size} bytes, and the frame has {len(self.data) - self.at} left",
            )
        self.at += size
        return self.data[self.at - size : self.at]

    def short(self, what: str) -> bytes:
        (size,) = self.unpack("H", what)
        return self.bytes(size, what)

    def text(self, what: str) -> str:
        return utf8(self.short(what), what)

    def end(self, what: str) -> None:
        if self.at < len(self.data):
            raise WireError(
                UNABLE_TO_DECODE, f"{len(self.data) - self.at} bytes after the end of {what}"
            )
