"""The connector's side of one session: what every frame does, and what may be sent.

    session = Session(hello, Dialect.SPEC)
    session.add(stream_id("orders"), b"orders")
    send(session.hello())
    for item in decoder.receive(data):
        for event in session.receive(item):
            ...                              a driver acts on them
    send(session.notifies())                 what streams owe, as far as credits go
    count, frames = session.messages(stream, chunk, at)
    send(frames)

The session goes through the states of `SESSION`:

    CONNECTED --HELLO--> HANDSHAKE --OK--> STREAMING
    any --ERROR, RESTART, or a broken rule--> ENDED

and each stream through those of `STREAMS`, which differ: by the specification OK says where
streams go on, in the shipped dialect the answer to their NOTIFY does.

    spec      INTRO --OK--> RESETTING --ready--> NOTIFYING --notified--> OPEN
              any but INTRO --NACK--> RESETTING
    shipped   INTRO --OK--> NOTIFYING --notified--> WAITING
              WAITING --NOTIFY_ACK--> RESETTING --ready--> OPEN
              WAITING --NOTIFY_ACK that refuses--> REFUSED --next ACK--> NOTIFYING
    both      OPEN --end--> ENDING --acked--> ENDED

Each frame after the handshake takes a credit, only ERROR is free. NOTIFYs go before messages, and
each NACK is answered with one of its own, in their order; messages go on after the newest.
A position is the id of the last message that need not be sent again; None is the beginning.
"""

from __future__ import annotations

import enum
import hashlib
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import numpy as np

from penstock import limits
from penstock.errors import BadBatch, LocalError, RecordTooLarge
from penstock.protocols.wallaroo.chunk import Chunk
from penstock.protocols.wallaroo.messages import LAYOUTS
from penstock.protocols.wallaroo.wire import (
    BOUNDARY,
    EOS,
    UNSTABLE_REFERENCE,
    Ack,
    Dialect,
    EndOfStream,
    Error,
    Hello,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Received,
    Restart,
    WireError,
    encode,
    encode_messages,
    shown,
)

CREDITS_MAX: Final = 2**32 - 1
"""More than a frame can give at once is not to be believed."""

BAD_STATE: Final = "Bad protocol FSM state"


def stream_id(name: str | bytes) -> int:
    """The id of a stream by its name: the first 64 bits of its SHA-256, as stock connectors do."""
    data = name.encode() if isinstance(name, str) else name
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")


# -- events ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The worker accepts."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Bring a source to a position, drop what it had offered, then say `ready` with `turn`."""

    stream: int
    position: int | None
    turn: int


@dataclass(frozen=True, slots=True)
class Acked:
    """The worker is done with a stream up to a message."""

    stream: int
    position: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a stream was acked."""

    stream: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The session is over: the worker said ERROR, or broke a rule (`ours`: we say ERROR)."""

    reason: str
    ours: bool
    welcomed: bool
    """Whether the worker had said OK."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """The session is over: begin another, at an address if there is one."""

    address: str


Event: TypeAlias = Welcomed | Reset | Acked | Finished | Failed | Restarted


# -- tables ------------------------------------------------------------------------------------


class State(enum.Enum):
    """Of a session."""

    CONNECTED = "connected"
    HANDSHAKE = "handshake"
    STREAMING = "streaming"
    ENDED = "ended"


class StreamState(enum.Enum):
    """Of a stream within a session."""

    INTRO = "intro"
    RESETTING = "resetting"
    NOTIFYING = "notifying"
    WAITING = "waiting"
    REFUSED = "refused"
    OPEN = "open"
    ENDING = "ending"
    ENDED = "ended"


_FRAMES: Final = (Ok, NotifyAck, Ack, Nack, Restart)
_ANY_STATE: Final = {Error: "_worker_failed", WireError: "_undecodable"}

SESSION: Final[dict[State, dict[type, str]]] = {
    State.CONNECTED: {**_ANY_STATE, **dict.fromkeys(_FRAMES, "_out_of_state")},
    State.HANDSHAKE: {**_ANY_STATE, **dict.fromkeys(_FRAMES, "_out_of_state"), Ok: "_ok"},
    State.STREAMING: {
        **_ANY_STATE,
        Ok: "_out_of_state",
        NotifyAck: "_notify_ack",
        Ack: "_ack",
        Nack: "_nack",
        Restart: "_restart",
    },
    State.ENDED: dict.fromkeys((*_FRAMES, *_ANY_STATE), "_discard"),
}
"""What a session does with each frame, by the name of a method."""

Move: TypeAlias = Literal[
    "introduce", "ready", "notified", "accepted", "refused", "retry", "nack", "end", "acked"
]
_S: TypeAlias = StreamState

_SPEC: Final[dict[StreamState, dict[Move, StreamState]]] = {
    _S.INTRO: {"introduce": _S.RESETTING},
    _S.RESETTING: {"ready": _S.NOTIFYING, "nack": _S.RESETTING},
    _S.NOTIFYING: {"notified": _S.OPEN, "nack": _S.RESETTING},
    _S.OPEN: {"end": _S.ENDING, "nack": _S.RESETTING},
    _S.ENDING: {"acked": _S.ENDED, "nack": _S.RESETTING},
    _S.ENDED: {"nack": _S.RESETTING},
}
STREAMS: Final[dict[Dialect, dict[StreamState, dict[Move, StreamState]]]] = {
    Dialect.SPEC: _SPEC,
    Dialect.LITERAL: _SPEC,
    Dialect.SHIPPED: {
        _S.INTRO: {"introduce": _S.NOTIFYING},
        _S.NOTIFYING: {"notified": _S.WAITING},
        _S.WAITING: {"accepted": _S.RESETTING, "refused": _S.REFUSED},
        _S.REFUSED: {"retry": _S.NOTIFYING},
        _S.RESETTING: {"ready": _S.OPEN},
        _S.OPEN: {"end": _S.ENDING},
        _S.ENDING: {"acked": _S.ENDED},
        _S.ENDED: {},
    },
}
"""Where a stream goes. A move that is not there is not allowed."""


@dataclass(slots=True)
class Stream:
    """A stream of a session."""

    id: int
    name: bytes
    ref: int | None
    """The last position that was acked, for the NOTIFY of the shipped dialect."""
    state: StreamState = StreamState.INTRO
    position: int | None = None
    """Where it goes on."""
    turn: int = 0
    """How often it was reset: what belongs to an earlier turn is void."""
    owed: deque[int] = field(default_factory=deque)
    """The points of reference of NOTIFYs that are to be sent."""
    last: int | None = None
    """The id sent last since it was opened."""
    acked: int | None = None
    sent: int = 0
    confirmed: int = 0
    repeated: int = 0
    """Messages of this session: sent, of these acked, and those that had to be sent again."""
    marks: deque[tuple[int, int]] = field(default_factory=deque)
    """Ids that were sent and not yet acked, with the number of messages up to them."""


class Session:
    """One session with a worker."""

    def __init__(
        self,
        hello: Hello,
        dialect: Dialect,
        *,
        frame_bytes_max: int = limits.WALLAROO_FRAME_BYTES_MAX,
    ) -> None:
        self.state = State.CONNECTED
        self.dialect = dialect
        self.credits = 0
        self.streams: dict[int, Stream] = {}
        self._hello = hello
        self._most = frame_bytes_max
        self._notifying: deque[Stream] = deque()
        self._owed = 0
        self._error: bytes = b""

    # -- what the driver says ----------------------------------------------------------------------

    def hello(self) -> bytes:
        """The first frame."""
        if self.state is not State.CONNECTED:
            raise LocalError("HELLO was said already: a session begins once")
        self.state = State.HANDSHAKE
        return encode(self._hello, self.dialect)

    def add(self, stream: int, name: bytes, ref: int | None = None) -> list[Event]:
        """Send a stream too; `ref`: the last position known to be acked. Before or after OK."""
        if stream in self.streams:
            taken = shown(self.streams[stream].name)
            raise LocalError(f"{shown(name)!r} and {taken!r} have the same stream id {stream}")
        if self.dialect is Dialect.LITERAL and self.streams:
            raise LocalError("the literal dialect has no stream ids, so only one stream")
        found = self.streams[stream] = Stream(stream, name, ref)
        return self._introduce(found, {}) if self.state is State.STREAMING else []

    def ready(self, stream: int, turn: int) -> bool:
        """A source is where it was asked to be; False: it is wanted elsewhere by now."""
        found = self.streams[stream]
        if self.state is not State.STREAMING or turn != found.turn:
            return False
        self._move(found, "ready")
        return True

    def fail(self, reason: str) -> bytes:
        """End the session with an ERROR, which is to be sent: a source cannot go on, say."""
        if self.state is State.ENDED:
            return b""
        self.state = State.ENDED
        return encode(Error(reason), self.dialect)

    def is_open(self, stream: int) -> bool:
        """Whether messages of a stream may be sent, once there are credits."""
        return self.state is State.STREAMING and self.streams[stream].state is StreamState.OPEN

    @property
    def is_settled(self) -> bool:
        """Whether all that was sent is acked."""
        return all(
            each.last is None or self._is_acked(each) or each.state is StreamState.ENDED
            for each in self.streams.values()
        )

    # -- what is to be sent ------------------------------------------------------------------------

    def error(self) -> bytes:
        """The ERROR that answers a broken rule, once."""
        error, self._error = self._error, b""
        return error

    def notifies(self) -> bytes:
        """NOTIFYs that are owed, as far as credits go."""
        frames = []
        while self._notifying and self.credits and self.state is State.STREAMING:
            stream = self._notifying[0]
            if stream.state is not StreamState.NOTIFYING:
                self._notifying.popleft()  # a NACK came before its answers were sent
                continue
            frames.append(
                encode(Notify(stream.id, stream.name, stream.owed.popleft()), self.dialect)
            )
            self._owed -= 1
            self.credits -= 1
            if not stream.owed:
                self._notifying.popleft()
                self._move(stream, "notified")
        return b"".join(frames)

    def messages(
        self,
        stream: int,
        chunk: Chunk,
        start: int = 0,
        *,
        messages_max: int = limits.BATCH_RECORDS_MAX,
        bytes_max: int = limits.WALLAROO_TURN_BYTES,
    ) -> tuple[int, bytes | memoryview]:
        """As many messages of a chunk, from row `start` on, as may go: their count and frames."""
        found = self.streams[stream]
        if not self.is_open(stream) or self._notifying:
            return 0, b""
        stop = min(len(chunk), start + min(self.credits, messages_max))
        offsets = chunk.payloads.offsets
        enough = int(offsets[start]) + bytes_max
        if int(offsets[stop]) > enough:
            at = int(np.searchsorted(offsets[start : stop + 1], enough, "right"))
            stop = start + max(1, at - 1)
        if stop <= start:
            return 0, b""
        messages = chunk.messages(stream, start, stop)
        ends = self._check(found, chunk, start, stop)
        frames = encode_messages(messages, self.dialect)
        self.credits -= stop - start
        found.last = int(chunk.ids[stop - 1])
        found.sent += stop - start
        self._mark(found)
        if ends:
            self._move(found, "end")
        return stop - start, frames

    def end_of_stream(self, stream: int) -> bytes | None:
        """The end of a stream whose source has no more, or None while there is no credit.

        It has no message of its own, so it bears the id of the last one: by the specification an
        end has one, and whoever resumes then goes on after the last message.
        """
        found = self.streams[stream]
        if found.state in (StreamState.ENDING, StreamState.ENDED):
            return b""
        if not self.is_open(stream) or self._notifying or not self.credits:
            return None
        if self.dialect is Dialect.SHIPPED:
            frame = encode(EndOfStream(stream), self.dialect)
        else:
            number = found.last if found.last is not None else found.position
            flags = BOUNDARY | EOS | (UNSTABLE_REFERENCE if number is None else 0)
            found.last = number or 0
            frame = encode(Message(stream, found.last, flags=flags), self.dialect)
        self.credits -= 1
        self._move(found, "end")
        return frame

    def finished(self, stream: int) -> bool:
        """Whether the end of a stream needs no ack: shipped, and nothing was sent before it."""
        found = self.streams[stream]
        if found.state is StreamState.ENDING and found.last is None:
            self._move(found, "acked")
        return found.state is StreamState.ENDED

    def _check(self, stream: Stream, chunk: Chunk, start: int, stop: int) -> bool:
        """Refuse what the worker would drop or misunderstand; says whether the stream ends."""
        name = shown(stream.name)
        ids = chunk.ids[start:stop]
        sizes = np.diff(chunk.payloads.offsets[start : stop + 1])
        size = int(sizes.max()) + LAYOUTS[self.dialect].head.itemsize
        if size > self._most:
            at = start + int(sizes.argmax())
            raise RecordTooLarge(
                f"message {chunk.ids[at]} of {name!r} takes a frame of {size} bytes: at most "
                f"{self._most}"
            )
        if self.dialect is Dialect.SHIPPED:
            before = ids[0] if stream.last is None else np.uint64(stream.last)
            if (ids[1:] <= ids[:-1]).any() or (stream.last is not None and ids[0] <= before):
                raise BadBatch(
                    f"ids of {name!r} that do not increase, near {ids[0]}: the shipped dialect "
                    "drops messages whose id is not above all before"
                )
            if int(ids[-1]) == self.dialect.no_reference:
                raise BadBatch(f"message {ids[-1]} of {name!r}: this id means that there is none")
            return False
        if (ids == np.uint64(0)).any():
            raise BadBatch(
                f"message 0 of {name!r}: as a point of reference 0 means the beginning, so ids "
                "begin at 1"
            )
        if chunk.flags is None:
            return False
        ends = np.flatnonzero(chunk.flags[start:stop] & EOS)
        if len(ends) and int(ends[0]) < len(chunk) - start - 1:
            raise BadBatch(f"messages of {name!r} after the end of the stream ({ids[ends[0]]})")
        return bool(len(ends))

    def _mark(self, stream: Stream) -> None:
        """Note how many messages an ack of the last id means; of very many, keep every second."""
        if len(stream.marks) >= limits.WALLAROO_MARKS_MAX:
            kept = list(stream.marks)[1::2]
            stream.marks.clear()
            stream.marks.extend(kept)
        assert stream.last is not None
        stream.marks.append((stream.last, stream.sent))

    # -- frames ------------------------------------------------------------------------------------

    def receive(self, item: Received) -> list[Event]:
        """What a frame of the worker's means."""
        events: list[Event] = getattr(self, SESSION[self.state][type(item)])(item)
        return events

    def _discard(self, item: Received) -> list[Event]:
        return []

    def _broken(self, reason: str) -> list[Event]:
        """The worker broke a rule: tell it, and end."""
        welcomed = self.state is State.STREAMING
        self._error = self.fail(reason)
        return [Failed(reason, ours=True, welcomed=welcomed)]

    def _out_of_state(self, item: Received) -> list[Event]:
        return self._broken(BAD_STATE)

    def _undecodable(self, item: WireError) -> list[Event]:
        return self._broken(str(item))

    def _worker_failed(self, item: Error) -> list[Event]:
        welcomed = self.state is State.STREAMING
        self.state = State.ENDED
        return [Failed(shown(item.reason.encode(), 1_000), ours=False, welcomed=welcomed)]

    def _restart(self, item: Restart) -> list[Event]:
        self.state = State.ENDED
        return [Restarted(item.address)]

    def _ok(self, item: Ok) -> list[Event]:
        self.state = State.STREAMING
        broken = self._grant(item.credits)
        if broken:
            return broken
        points = dict(item.points)
        events: list[Event] = [Welcomed()]
        for stream in self.streams.values():
            events += self._introduce(stream, points)
        return events

    def _introduce(self, stream: Stream, points: dict[int, int]) -> list[Event]:
        self._move(stream, "introduce")
        if self.dialect is Dialect.SHIPPED:
            self._owe(stream, self.dialect.no_reference if stream.ref is None else stream.ref)
            return []
        ref = points.get(stream.id, 0)
        self._owe(stream, ref)
        return self._reset(stream, ref)

    def _notify_ack(self, item: NotifyAck) -> list[Event]:
        stream = self.streams.get(item.stream)
        if stream is None or stream.state is not StreamState.WAITING:
            return self._broken(f"Unexpected notify_ack for stream_id {item.stream}")
        if not item.success:
            self._move(stream, "refused")
            return []
        self._move(stream, "accepted")
        return self._reset(stream, item.ref)

    def _ack(self, item: Ack) -> list[Event]:
        broken = self._grant(item.credits)
        if broken:
            return broken
        events: list[Event] = []
        for number, ref in item.points:
            stream = self.streams.get(number)
            # A stream of an earlier session may be acked in this one.
            if stream is not None and stream.state is not StreamState.INTRO:
                events += self._acked(stream, ref)
        for stream in self.streams.values():
            if stream.state is StreamState.REFUSED:
                self._move(stream, "retry")
                self._owe(stream, self.dialect.no_reference if stream.ref is None else stream.ref)
        return events

    def _acked(self, stream: Stream, ref: int) -> list[Event]:
        if ref == self.dialect.no_reference and ref != stream.last:
            return []  # nothing is acked: some workers list streams without a message
        stream.acked = ref
        marks = stream.marks
        place = next((at for at, mark in enumerate(marks) if mark[0] == ref), None)
        if place is None and self.dialect is Dialect.SHIPPED:
            place = next((at - 1 for at, mark in enumerate(marks) if mark[0] > ref), None)
        if place is not None:
            for _ in range(place + 1):
                stream.confirmed = marks.popleft()[1]
        events: list[Event] = []
        if ref != self.dialect.no_reference:
            stream.ref = ref
            events.append(Acked(stream.id, ref))
        if stream.state is StreamState.ENDING and self._is_acked(stream):
            stream.confirmed = stream.sent
            self._move(stream, "acked")
            events.append(Finished(stream.id))
        return events

    def _is_acked(self, stream: Stream) -> bool:
        """Whether the last message is acked; only in the shipped dialect ids have an order."""
        if stream.acked is None or stream.last is None:
            return False
        if self.dialect is Dialect.SHIPPED:
            return stream.acked >= stream.last
        return stream.acked == stream.last

    def _nack(self, item: Nack) -> list[Event]:
        broken = self._grant(item.credits)
        if broken:
            return broken
        stream = self.streams.get(item.stream)
        if stream is None or "nack" not in STREAMS[self.dialect][stream.state]:
            return self._broken(f"Unexpected nack for stream_id {item.stream}")
        if self._owed >= limits.WALLAROO_NACKS_MAX:
            return self._broken(f"Too many nacks to answer: at most {limits.WALLAROO_NACKS_MAX}")
        self._move(stream, "nack")
        self._owe(stream, item.ref)
        return self._reset(stream, item.ref)

    def _grant(self, given: int) -> list[Event]:
        if self.credits + given > CREDITS_MAX:
            return self._broken(
                f"Too many credits: {given} more than the {self.credits} there are, and at most "
                f"{CREDITS_MAX} are believed"
            )
        self.credits += given
        return []

    # -- streams -----------------------------------------------------------------------------------

    def _move(self, stream: Stream, move: Move) -> None:
        after = STREAMS[self.dialect][stream.state].get(move)
        if after is None:
            raise LocalError(f"stream {stream.id} is {stream.state.value}: no {move} there")
        stream.state = after
        if after is StreamState.NOTIFYING:
            self._notifying.append(stream)

    def _owe(self, stream: Stream, ref: int) -> None:
        stream.owed.append(ref)
        self._owed += 1

    def _reset(self, stream: Stream, ref: int) -> list[Event]:
        stream.turn += 1
        stream.position = None if ref == self.dialect.no_reference else ref
        stream.last = stream.acked = None
        stream.marks.clear()
        stream.repeated += stream.sent - stream.confirmed
        stream.sent = stream.confirmed
        return [Reset(stream.id, stream.position, stream.turn)]
