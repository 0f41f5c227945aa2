"""Wallaroo's frames: bytes to frames and back, in three dialects.

    spec      the specification: little-endian, tags in ASCII, the stream id in each MESSAGE
              (as its erratum has it)
    literal   the same without the stream id, as the specification's text has it
    shipped   what released workers and Python connectors speak: big-endian, tags 0 to 8

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

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from penstock import limits
from penstock.errors import BadSetting
from penstock.protocols.wallaroo.frames import (
    BOUNDARY,
    EOS,
    EPHEMERAL,
    EVENT_TIME,
    FLAGS,
    FRAME_TOO_LARGE,
    SHORT_BYTES_MAX,
    TIME_TOO_LARGE,
    U64_MAX,
    UNABLE_TO_DECODE,
    UNSTABLE_REFERENCE,
    VERSION,
    Ack,
    BadFrame,
    Body,
    Dialect,
    EndOfStream,
    Error,
    Frame,
    Greeting,
    Hello,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Point,
    Restart,
    Role,
    WireError,
    shown,
    utf8,
)
from penstock.protocols.wallaroo.messages import (
    LAYOUTS,
    Column,
    Messages,
    encode_messages,
)
from penstock.protocols.wallaroo.runs import Region, read_run

__all__ = [
    "BOUNDARY",
    "EOS",
    "EPHEMERAL",
    "EVENT_TIME",
    "FLAGS",
    "FRAME_TOO_LARGE",
    "TIME_TOO_LARGE",
    "U64_MAX",
    "UNABLE_TO_DECODE",
    "UNSTABLE_REFERENCE",
    "VERSION",
    "Ack",
    "BadFrame",
    "Column",
    "Decoder",
    "Dialect",
    "EndOfStream",
    "Error",
    "Frame",
    "Greeting",
    "Hello",
    "Message",
    "Messages",
    "Nack",
    "Notify",
    "NotifyAck",
    "Ok",
    "Point",
    "Received",
    "Restart",
    "Role",
    "WireError",
    "encode",
    "encode_messages",
    "shown",
]

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
"""What a decoder gives: a HELLO as a `Greeting`, messages in runs, an error as the last of all."""


# -- writing -----------------------------------------------------------------------------------


def encode(frame: Frame, dialect: Dialect) -> bytes:
    """One frame as bytes; `BadFrame` if the dialect has none such, or a value does not fit."""
    kind = KINDS[dialect].get(type(frame))
    if kind is None:
        raise BadFrame(f"the dialect {dialect.value} has no {type(frame).__name__}")
    try:
        body = kind.write(frame, dialect)
        return struct.pack(f"{dialect.order}IB", len(body) + 1, kind.tag) + body
    except struct.error as error:
        raise BadFrame(f"{frame} does not fit its frame: {error}") from None


def _short(data: bytes, dialect: Dialect) -> bytes:
    if len(data) > SHORT_BYTES_MAX:
        raise BadFrame(f"{len(data)} bytes where a frame has room for {SHORT_BYTES_MAX}")
    return struct.pack(f"{dialect.order}H", len(data)) + data


def _points(points: tuple[Point, ...], dialect: Dialect) -> bytes:
    numbers = [number for point in points for number in point]
    return struct.pack(f"{dialect.order}{len(numbers)}Q", *numbers)


def _write_hello(hello: Hello, dialect: Dialect) -> bytes:
    fields = (hello.version.encode(), hello.cookie, hello.program.encode(), hello.instance.encode())
    return b"".join(_short(field, dialect) for field in fields)


def _write_ok(ok: Ok, dialect: Dialect) -> bytes:
    if dialect is Dialect.SHIPPED and ok.points:
        raise BadFrame("an OK with points of reference: the shipped dialect gives them one by one")
    return struct.pack(f"{dialect.order}I", ok.credits) + _points(ok.points, dialect)


def _write_error(error: Error, dialect: Dialect) -> bytes:
    reason = error.reason.encode(errors="replace")
    if len(reason) > SHORT_BYTES_MAX:
        reason = reason[:SHORT_BYTES_MAX].decode(errors="ignore").encode()
    return _short(reason, dialect)


def _write_notify(notify: Notify, dialect: Dialect) -> bytes:
    stream, ref = (struct.pack(f"{dialect.order}Q", it) for it in (notify.stream, notify.ref))
    return stream + _short(notify.name, dialect) + ref


def _write_notify_ack(answer: NotifyAck, dialect: Dialect) -> bytes:
    return struct.pack(f"{dialect.order}?QQ", answer.success, answer.stream, answer.ref)


def _write_message(message: Message, dialect: Dialect) -> bytes:
    frames = encode_messages(
        Messages.of(
            message.stream,
            [message.id],
            [message.payload],
            flags=message.flags,
            times=[message.time],
            keys=[message.key],
        ),
        dialect,
    )
    return bytes(frames[5:])


def _write_ack(ack: Ack, dialect: Dialect) -> bytes:
    counts = [ack.credits, len(ack.points)] if dialect is Dialect.SHIPPED else [ack.credits]
    return struct.pack(f"{dialect.order}{len(counts)}I", *counts) + _points(ack.points, dialect)


def _write_nack(nack: Nack, dialect: Dialect) -> bytes:
    return struct.pack(f"{dialect.order}IQQ", nack.credits, nack.stream, nack.ref)


def _write_restart(restart: Restart, dialect: Dialect) -> bytes:
    address = restart.address.encode()
    return struct.pack(f"{dialect.order}I", len(address)) + address


def _write_end(end: EndOfStream, dialect: Dialect) -> bytes:
    return struct.pack(f"{dialect.order}Q", end.stream)


# -- reading -----------------------------------------------------------------------------------


def _read_hello(body: Body, dialect: Dialect) -> Greeting:
    version = body.short("the version of HELLO")
    return Greeting(version, body.octets(body.left, "HELLO"), dialect)


def _read_ok(body: Body, dialect: Dialect) -> Ok:
    (given,) = body.numbers("I", "OK")
    if dialect is Dialect.SHIPPED:
        return Ok(given)
    return Ok(given, _read_points(body, "OK"))


def _read_points(body: Body, what: str) -> tuple[Point, ...]:
    points = body.points(body.left // 16, what)
    body.end(what)
    return points


def _read_error(body: Body, dialect: Dialect) -> Error:
    reason = body.short("the reason of ERROR")
    body.end("ERROR")
    return Error(reason.decode(errors="replace"))


def _read_notify(body: Body, dialect: Dialect) -> Notify:
    (stream,) = body.numbers("Q", "the stream id of NOTIFY")
    name = body.short("the stream name of NOTIFY")
    (ref,) = body.numbers("Q", "the point of reference of NOTIFY")
    body.end("NOTIFY")
    return Notify(stream, name, ref)


def _read_notify_ack(body: Body, dialect: Dialect) -> NotifyAck:
    success, stream, ref = body.numbers("BQQ", "NOTIFY_ACK")
    body.end("NOTIFY_ACK")
    if success > 1:
        raise WireError(UNABLE_TO_DECODE, f"a NOTIFY_ACK with success {success}: it is 0 or 1")
    return NotifyAck(success == 1, stream, ref)


def _read_ack(body: Body, dialect: Dialect) -> Ack:
    if dialect is not Dialect.SHIPPED:
        (given,) = body.numbers("I", "ACK")
        return Ack(given, _read_points(body, "ACK"))
    given, count = body.numbers("II", "ACK")
    points = body.points(count, f"the {count} points of reference of ACK")
    body.end("ACK")
    return Ack(given, points)


def _read_nack(body: Body, dialect: Dialect) -> Nack:
    given, stream, ref = body.numbers("IQQ", "NACK")
    body.end("NACK")
    return Nack(given, stream, ref)


def _read_restart(body: Body, dialect: Dialect) -> Restart:
    if not body.left:
        return Restart()
    (size,) = body.numbers("I", "the address of RESTART")
    address = body.octets(size, "the address of RESTART")
    body.end("RESTART")
    return Restart(utf8(address, "the address of RESTART"))


def _read_end(body: Body, dialect: Dialect) -> EndOfStream:
    return EndOfStream(body.numbers("Q", "EOS_MESSAGE")[0])


def _read_message(body: Body, dialect: Dialect) -> Any:
    raise AssertionError("messages are read in runs")


class Kind(NamedTuple):
    """A kind of frame: who sends it, how it is written and read."""

    name: str
    tag: int
    senders: tuple[Role, ...]
    write: Callable[[Any, Dialect], bytes]
    read: Callable[[Body, Dialect], Any]


def _kinds(dialect: Dialect) -> dict[type, Kind]:
    """All kinds of a dialect; a tag of None means that it has none such."""
    shipped = dialect is Dialect.SHIPPED
    connector, worker = (Role.CONNECTOR,), (Role.WORKER,)
    table: list[tuple[type, str, str | None, int | None, tuple[Role, ...], Any, Any]] = [
        (Hello, "hello", "H", 0, connector, _write_hello, _read_hello),
        (Ok, "ok", "O", 1, worker, _write_ok, _read_ok),
        (Error, "error", "E", 2, connector + worker, _write_error, _read_error),
        (Notify, "notify", "N", 3, connector, _write_notify, _read_notify),
        (NotifyAck, "notify_ack", None, 4, worker, _write_notify_ack, _read_notify_ack),
        (Message, "message", "M", 5, connector, _write_message, _read_message),
        (Ack, "ack", "A", 6, worker, _write_ack, _read_ack),
        (Nack, "nack", "!", None, worker, _write_nack, _read_nack),
        (Restart, "restart", None, 7, worker, _write_restart, _read_restart),
        (EndOfStream, "eos_message", None, 8, connector, _write_end, _read_end),
    ]
    kinds = {}
    for frame, name, letter, number, senders, write, read in table:
        tag = number if shipped else ord(letter) if letter else None
        if tag is not None:
            kinds[frame] = Kind(name, tag, senders, write, read)
    return kinds


KINDS: Final = {dialect: _kinds(dialect) for dialect in Dialect}
_BY_TAG: Final = {
    dialect: {kind.tag: kind for kind in kinds.values()} for dialect, kinds in KINDS.items()
}

_SNIFFED: Final = 5
"""A length and a tag: what tells the dialect, and what a frame begins with."""


class Decoder:
    """Frames out of bytes that come in any pieces.

    Either `receive(data)`, or as a `BufferedProtocol` wants it, without a copy: write into
    `get_buffer()`, then `advance(count)`. Both give what became whole. A bad frame gives a
    `WireError` as the last of all, in the list and not raised, so that what came before it is
    not lost; it stays in `error`, and whatever comes later is discarded.

    The buffer starts small and doubles when a read fills it, up to `read_bytes`; only a frame
    that is larger makes it larger, by as much as has come. What was given never refers to it.
    """

    def __init__(
        self,
        role: Role,
        dialect: Dialect | None = None,
        *,
        literal: bool = False,
        frame_bytes_max: int = limits.WALLAROO_FRAME_BYTES_MAX,
        read_bytes: int = limits.WALLAROO_READ_BYTES,
    ) -> None:
        """`dialect` None: a worker finds out; `literal` says that `H` means that dialect."""
        if dialect is None and role is Role.CONNECTOR:
            raise BadSetting("a connector speaks first, so it has to choose a dialect")
        if not 0 < frame_bytes_max <= limits.WALLAROO_DIRECT_BYTES:
            raise BadSetting(
                f"frames of at most {frame_bytes_max} bytes: "
                f"the limit must be from 1 to {limits.WALLAROO_DIRECT_BYTES}"
            )
        self.role = role
        self.dialect = dialect
        self.error: WireError | None = None
        self._spec = Dialect.LITERAL if literal else Dialect.SPEC
        self._most = frame_bytes_max
        self._read_bytes = max(read_bytes, limits.WALLAROO_FIRST_READ_BYTES)
        self._buffer = bytearray(limits.WALLAROO_FIRST_READ_BYTES)
        self._start = 0
        self._end = 0
        self._filled = False

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return self._end - self._start

    @property
    def held(self) -> int:
        """Bytes of memory that the buffer takes."""
        return len(self._buffer)

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Room for the next bytes."""
        size = len(self._buffer)
        pending = self.pending
        wanted = size
        if self._filled and size < self._read_bytes:
            wanted = min(2 * size, self._read_bytes)
        elif pending == size:
            wanted = 2 * size
        elif size > self._read_bytes > 2 * pending:
            wanted = self._read_bytes
        self._filled = False
        if wanted != size:
            # A new one: this one may not change its size while somebody still looks at it.
            buffer = bytearray(wanted)
            buffer[:pending] = memoryview(self._buffer)[self._start : self._end]
            self._buffer, self._start, self._end = buffer, 0, pending
        elif self._start and (pending == 0 or size - self._end < size // 2):
            self._buffer[:pending] = self._buffer[self._start : self._end]
            self._start, self._end = 0, pending
        return memoryview(self._buffer)[self._end :]

    def advance(self, count: int) -> list[Received]:
        """Decode, now that `count` bytes were written to the buffer."""
        self._end += count
        self._filled = self._end == len(self._buffer)
        given, self._start = self._decode(Region(self._buffer, self._end), self._start)
        if self.error is not None:
            self._start = self._end = 0
        return given

    def receive(self, data: bytes | bytearray | memoryview) -> list[Received]:
        """Decode some bytes."""
        view = memoryview(data)
        given: list[Received] = []
        while len(view) and self.error is None:
            if not self.pending and len(view) >= len(self._buffer):
                view = view[self._receive_directly(view, given) :]
            room = self.get_buffer()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            view = view[count:]
            given += self.advance(count)
        return given

    def _receive_directly(self, view: memoryview, given: list[Received]) -> int:
        """Decode what is whole in much data, without a way through the buffer."""
        found, at = self._decode(Region(view, min(len(view), limits.WALLAROO_DIRECT_BYTES)), 0)
        given += found
        return at

    def _decode(self, region: Region, at: int) -> tuple[list[Received], int]:
        """What is whole in the region from `at` on, and where the rest begins."""
        given: list[Received] = []
        if self.error is not None:
            return given, region.end
        try:
            while region.end - at >= 4:
                until = self._decode_one(region, at, given)
                if until == at:
                    break
                at = until
        except WireError as error:
            self.error = error
        if self.error is not None:
            given.append(self.error)
            return given, region.end
        return given, at

    def _decode_one(self, region: Region, at: int, given: list[Received]) -> int:
        """Decode a frame, or a run of messages, and say where it ends; at `at` if not whole."""
        sniffed = region.end - at >= _SNIFFED
        if self.dialect is None:
            if not sniffed:
                return at
            self.dialect = self._sniff(region.buffer[at + 4])
        dialect = self.dialect
        length: int = struct.unpack_from(f"{dialect.order}I", region.buffer, at)[0]
        self._check_length(length, self._most)
        if not sniffed:
            return at
        kind = self._kind(region.buffer[at + 4], dialect)
        if kind.tag == LAYOUTS[dialect].tag:
            return self._decode_messages(region, at, length, dialect, given)
        if kind.tag == KINDS[dialect][Hello].tag:
            self._check_length(length, min(self._most, limits.WALLAROO_HELLO_BYTES_MAX))
        end = at + 4 + length
        if end > region.end:
            return at
        body = Body(bytes(memoryview(region.buffer)[at + 5 : end]), dialect)
        given.append(kind.read(body, dialect))
        return end

    def _decode_messages(
        self, region: Region, at: int, length: int, dialect: Dialect, given: list[Received]
    ) -> int:
        least = LAYOUTS[dialect].least
        if length < least:
            raise WireError(
                UNABLE_TO_DECODE, f"a MESSAGE of {length} bytes: its fields alone take {least}"
            )
        if at + 4 + length > region.end:
            return at
        end, messages, self.error = read_run(region, at, length, dialect, self._most)
        if messages is not None:
            given.append(messages)
        return region.end if self.error is not None else end

    def _sniff(self, tag: int) -> Dialect:
        for dialect in (self._spec, Dialect.SHIPPED):
            if tag == KINDS[dialect][Hello].tag:
                return dialect
        raise WireError(
            UNABLE_TO_DECODE,
            f"the first frame has the tag {tag:#04x}: it must be HELLO, 0x48 or 0x00",
        )

    def _kind(self, tag: int, dialect: Dialect) -> Kind:
        kind = _BY_TAG[dialect].get(tag)
        if kind is None:
            raise WireError(
                UNABLE_TO_DECODE, f"a frame with the tag {tag:#04x}, unknown in {dialect.value}"
            )
        if kind.senders == (self.role,):
            raise WireError(f"Invalid message: {kind.name}", f"only a {self.role.value} sends it")
        return kind

    def _check_length(self, length: int, most: int) -> None:
        if length == 0:
            raise WireError(UNABLE_TO_DECODE, "a frame of length 0: its tag alone takes 1")
        if length > most:
            raise WireError(FRAME_TOO_LARGE, f"{length} bytes: at most {most}")
