"""The worker's side of one session: what every frame does in every state.

    session = Session(Rules(cookie=b"..."))
    for item in decoder.advance(count):
        for effect in session.receive(item):
            ...                              a driver carries them out, in order

`states.py` has the tables, `effects.py` what is to be done: frames to send, streams to look up,
messages to store. The driver answers some of that (`welcome`, `introduced` or `refused`, `stored`,
`remembered`), and asks for ACKs (`acks`) when it has told all that it knows.

An id is acked when its message is on disk, and everything the connector sent before it; or, with
ack = "processed", when a group has read past it. One ACK has one pair for each stream: its last
message. A stream that never had a message is in none.
"""

from __future__ import annotations

import hmac
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from penstock import limits
from penstock.errors import LocalError
from penstock.protocols.wallaroo.credits import Credits
from penstock.protocols.wallaroo.effects import (
    Close,
    Effect,
    Introduce,
    Note,
    Remember,
    Send,
    Store,
    Taken,
    Welcome,
)
from penstock.protocols.wallaroo.intake import Taker
from penstock.protocols.wallaroo.states import OWN_FRAMES, SESSION, STREAMS, State, StreamState
from penstock.protocols.wallaroo.streams import (
    Known,
    Mark,
    Slots,
    Stream,
    StreamView,
    Table,
    add_mark,
)
from penstock.protocols.wallaroo.wire import (
    EOS,
    VERSION,
    Ack,
    Dialect,
    EndOfStream,
    Error,
    Greeting,
    Hello,
    Messages,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Point,
    Received,
    Restart,
    WireError,
    shown,
)

__all__ = [
    "Close",
    "Effect",
    "Introduce",
    "Known",
    "Mark",
    "Note",
    "Remember",
    "Rules",
    "Send",
    "Session",
    "State",
    "Store",
    "StreamState",
    "StreamView",
    "Taken",
    "Welcome",
]

BAD_STATE: Final = "Bad protocol FSM state"
BAD_COOKIE: Final = "Bad cookie"
CREDIT_EXHAUSTED: Final = "Credit exhausted"


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for all sessions of a worker."""

    version: bytes = VERSION.encode()
    cookie: bytes = b""
    ack: Literal["durable", "processed"] = "durable"
    credits_max: int = limits.WALLAROO_CREDITS_MAX
    streams_max: int = limits.WALLAROO_STREAMS_MAX


class Session:
    """One connector's session. `dialect` and `hello` are known once it has said HELLO."""

    def __init__(self, rules: Rules, window_bytes: int = limits.WALLAROO_WINDOW_BYTES) -> None:
        self.rules = rules
        self.state = State.CONNECTED
        self.dialect = Dialect.SPEC
        self.hello: Hello | None = None
        self.credits = Credits(rules.credits_max, window_bytes)
        self.was_refused = False
        """Whether a NOTIFY was refused since the last ACK: the next one has it tried again."""
        self._table = Table()
        self._taker = self._new_taker()
        self.taken_count = 0
        """How many times something was taken, and how many of these are settled: in order."""
        self.settled_count = 0
        self._taken: deque[Taken] = deque()
        self._introducing = 0
        self._notified: list[int] = []
        """Slots in the order of their NOTIFYs: a literal message is of the last that is open."""

    def _new_taker(self) -> Taker:
        return Taker(self._table, self.dialect, processed=self.rules.ack == "processed")

    # -- frames ------------------------------------------------------------------------------------

    def receive(self, item: Received) -> list[Effect]:
        """What is to be done about a frame, or a run of messages."""
        if self._introducing and not isinstance(item, (Notify, Error, WireError)):
            raise LocalError("streams are being introduced: answer that first")
        effects: list[Effect] = getattr(self, SESSION[self.state][type(item)])(item)
        return effects

    @property
    def is_introducing(self) -> bool:
        """Whether nothing but NOTIFYs may be received, because streams are being looked up."""
        return self._introducing > 0

    def fail(self, reason: str, code: str = "wallaroo-session") -> list[Effect]:
        """End the session with an ERROR."""
        if self.state in (State.FAILED, State.ENDED):
            return []
        self.state = State.FAILED
        return [Send(Error(reason)), Close(reason, code)]

    def restart(self, address: str = "") -> list[Effect]:
        """Have the connector come back, here or elsewhere: RESTART, or just the end of it."""
        effects: list[Effect] = []
        if self.dialect is Dialect.SHIPPED and self.state is State.STREAMING:
            effects.append(Send(Restart(address)))
        self.state = State.FAILED
        return [*effects, Close("it was told to restart")]

    def end(self) -> None:
        """The connection is closed."""
        self.state = State.ENDED

    def _discard(self, item: Received) -> list[Effect]:
        return []

    def _out_of_state(self, item: Received) -> list[Effect]:
        return self.fail(BAD_STATE)

    def _not_theirs(self, item: Received) -> list[Effect]:
        return self.fail(f"Invalid message: {OWN_FRAMES[type(item)]}")

    def _undecodable(self, item: WireError) -> list[Effect]:
        return self.fail(item.reason, item.code)

    def _peer_failed(self, item: Error) -> list[Effect]:
        self.state = State.FAILED
        return [Close(f"the connector gave up: {shown(item.reason.encode(), 300)}")]

    # -- handshake ---------------------------------------------------------------------------------

    def _hello(self, item: Greeting) -> list[Effect]:
        self.dialect = item.dialect
        self._taker = self._new_taker()
        if not hmac.compare_digest(item.version, self.rules.version):
            return self.fail(f"Unknown protocol version: {shown(item.version)}", "wallaroo-version")
        try:
            if not hmac.compare_digest(item.cookie(), self.rules.cookie):
                return self.fail(BAD_COOKIE, "wallaroo-cookie")
            self.hello = item.hello()
        except WireError as error:
            return self._undecodable(error)
        self.state = State.HANDSHAKE
        return [Welcome(self.hello)]

    def welcome(self, points: tuple[Point, ...] = ()) -> list[Effect]:
        """Let the connector in; `points` are of its streams, as far as they are known."""
        if self.state is not State.HANDSHAKE:
            return []
        self.state = State.STREAMING
        given = self.credits.begin(self.dialect)
        return [Send(Ok(given, () if self.dialect is Dialect.SHIPPED else points))]

    # -- streams -----------------------------------------------------------------------------------

    def _notify(self, item: Notify) -> list[Effect]:
        if self.credits.overdrawn(1):
            return self.fail(CREDIT_EXHAUSTED)
        self.credits.left -= 1
        try:
            name = item.text()
        except WireError as error:
            return self._undecodable(error)
        stream, state = self._find(item.stream)
        rule = STREAMS[self.dialect][state]["notify"]
        if rule == "refuse":
            return self._refuse(item.stream, item.ref)
        if rule == "fail":
            return self.fail(BAD_STATE)
        if stream is None:
            if len(self._table) >= self.rules.streams_max:
                return self.fail(f"Too many streams: at most {self.rules.streams_max}", "too-many")
            stream = self._table.add(item.stream, name)
        if rule == "count":
            stream.depth -= 1
            if stream.depth:
                return []
        stream.name = name
        self._introducing += 1
        self._table.states[stream.slot] = StreamState.OPENING
        return [Introduce(item.stream, name, item.ref)]

    def _find(self, stream: int) -> tuple[Stream | None, StreamState]:
        found = self._table.get(stream)
        return found, StreamState.INTRO if found is None else self._table.state(found)

    def _refuse(self, stream: int, ref: int) -> list[Effect]:
        self.was_refused = True
        return [Send(NotifyAck(False, stream, ref))]

    def introduced(self, stream: int, known: Known) -> list[Effect]:
        """A stream was found or made."""
        found = self._answered(stream)
        if found is None:
            return []
        self._table.open(found, known)
        if found.slot in self._notified:
            self._notified.remove(found.slot)
        self._notified.append(found.slot)
        if self.dialect is not Dialect.SHIPPED:
            return []
        ref = self.dialect.no_reference if known.ref is None else known.ref
        return [Send(NotifyAck(True, stream, ref))]

    def refused(
        self, stream: int, reason: str, *, ref: int = 0, later: bool = False
    ) -> list[Effect]:
        """A stream cannot be had: not now (`later`: the connector may ask again), or not at all."""
        found = self._answered(stream)
        if found is None:
            return []
        self._table.states[found.slot] = StreamState.CLOSED
        if later and self.dialect is Dialect.SHIPPED:
            return self._refuse(stream, ref)
        return self.fail(f"Stream {stream} refused: {reason}", "wallaroo-stream")

    def _answered(self, stream: int) -> Stream | None:
        found = self._table.get(stream)
        if found is None or not self._introducing:
            raise LocalError(f"stream {stream} is not being introduced")
        self._introducing -= 1
        return found if self.state is State.STREAMING else None

    def is_open(self, stream: int) -> bool:
        """Whether this session sends messages of a stream, or will after a NOTIFY that it owes."""
        live = (StreamState.OPENING, StreamState.OPEN, StreamState.RESET)
        return self.state is State.STREAMING and self._find(stream)[1] in live

    def may_nack(self, stream: int) -> bool:
        """Whether a stream may be asked for again."""
        rule = STREAMS[self.dialect][self._find(stream)[1]]["nack"]
        return self.state is State.STREAMING and rule == "reset"

    def nack(self, stream: int, ref: int | None) -> list[Effect]:
        """Ask for a stream again, from after `ref` on. Not in the shipped dialect."""
        found, state = self._find(stream)
        if found is None or not self.may_nack(stream):
            raise LocalError(
                f"stream {stream} cannot be asked for again: it is {state.name.lower()}, and the "
                f"dialect is {self.dialect.value}"
            )
        self._table.states[found.slot] = StreamState.RESET
        found.depth += 1
        found.marks.clear()
        return [Send(Nack(self.credits.give(), stream, ref or 0))]

    # -- messages ----------------------------------------------------------------------------------

    def _messages(self, messages: Messages) -> list[Effect]:
        self.credits.measure(messages)
        if self.dialect is Dialect.LITERAL:
            return self._literal_messages(messages)
        return self._take(messages, self._table.find(messages.streams))

    def _literal_messages(self, messages: Messages) -> list[Effect]:
        """Each is of the stream that was introduced last and is open; an EOS closes that one."""
        effects: list[Effect] = []
        ends = np.flatnonzero(messages.flags & EOS)
        at, count = 0, len(messages)
        while at < count and self.state is State.STREAMING:
            end = ends[np.searchsorted(ends, at) :][:1]
            until = int(end[0]) + 1 if len(end) else count
            slot = self._bound_slot()
            part = messages
            if at or until < count:
                rows = np.zeros(count, np.bool_)
                rows[at:until] = True
                part = messages.filter(rows)
            stream = self._table.streams[slot].id if slot >= 0 else 0
            effects += self._take(part.on(stream), slot)
            at = until
        return effects

    def _bound_slot(self) -> int:
        states = self._table.states
        for slot in reversed(self._notified):
            if states[slot] in (StreamState.OPEN, StreamState.RESET):
                return slot
        return -1

    def _take(self, messages: Messages, slots: int | Slots) -> list[Effect]:
        """Take messages up to the first that breaks a rule."""
        most = count = len(messages)
        if self.credits.overdrawn(count):
            most = self.credits.left
        taken = self._taker.take(messages, slots, most)
        effects = taken.effects
        self.credits.left -= taken.size
        if taken.taken is not None:
            self._enqueue(taken.taken)
        if taken.broken:
            stream, number = int(messages.streams[taken.size]), int(messages.ids[taken.size])
            return effects + self.fail(
                f"Bad/unregistered stream_id {stream} with message_id {number}", "wallaroo-stream"
            )
        if taken.size < count:
            return effects + self.fail(CREDIT_EXHAUSTED)
        return effects

    def _end_of_stream(self, item: EndOfStream) -> list[Effect]:
        stream, state = self._find(item.stream)
        if stream is None or STREAMS[self.dialect][state]["eos"] != "close":
            return self.fail(f"Bad/unregistered stream_id {item.stream}", "wallaroo-stream")
        self.credits.left -= 1  # a connector that does not count it just has one more
        table, slot = self._table, stream.slot
        table.states[slot] = StreamState.CLOSED
        last = table.optional("last", slot)
        if last is None:
            return []  # it never had a message: an ack would tell of one
        if not table.has_seen[slot]:
            table.put("seen", slot, last)
        taken = Taken(0, np.array([slot]), np.array([last], np.uint64), [last])
        taken.is_end = True
        self._enqueue(taken)
        return []

    # -- acks --------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether everything taken is on disk."""
        return not self._taken

    def _enqueue(self, taken: Taken) -> None:
        self._taken.append(taken)
        self.taken_count += 1
        self.credits.taken += taken.count
        if not taken.waits:
            self._settle()

    def stored(self, taken: Taken, ends: Mapping[int, int] | None = None) -> None:
        """What was taken is on disk; with ack = "processed", up to which index by partition."""
        if self.rules.ack == "processed":
            self._mark(taken, ends or {})
        taken.waits -= 1
        self._settle()

    def lost(self, taken: Taken) -> None:
        """What was taken could not be stored, or noted: it is never acked."""
        taken.slots, taken.ids, taken.stable = taken.slots[:0], taken.ids[:0], []
        taken.waits -= 1
        self._settle()

    def remembered(self, taken: Taken) -> None:
        """Notes were made."""
        taken.waits -= 1
        if taken.is_passed:
            self._table.put_all("passed", taken.slots, taken.ids)
            for slot in taken.slots.tolist():
                self._ack_passed(slot)
        else:
            self._settle()

    def _settle(self) -> None:
        """Go through what was taken, in order, up to the first that is not on disk."""
        table = self._table
        processed = self.rules.ack == "processed"
        while self._taken and not self._taken[0].waits:
            taken = self._taken.popleft()
            self.settled_count += 1
            self.credits.taken -= taken.count
            if processed:
                self._settle_processed(taken)
            else:
                table.put_all("acked", taken.slots, taken.ids)
                table.dirty[taken.slots] = True

    def acks(self, *, force: bool = False) -> list[Effect]:
        """An ACK, if there is something to say: ids, or credits for who has few left."""
        if self.state is not State.STREAMING:
            return []
        table = self._table
        slots = np.flatnonzero(table.dirty[: len(table)])
        due = len(slots) or (self.credits.are_few and self.credits.owed())
        if not due and not (force and (self.was_refused or self.credits.owed())):
            return []
        points: tuple[Point, ...] = ()
        if len(slots):
            table.dirty[slots] = False
            pairs = zip(table.ids[slots].tolist(), table.acked[slots].tolist(), strict=True)
            points = tuple(pairs)
        self.was_refused = False
        return [Send(Ack(self.credits.give(), points))]

    # -- ack = "processed" -------------------------------------------------------------------------

    def _mark(self, taken: Taken, ends: Mapping[int, int]) -> None:
        """Note up to which index a group has to read before these ids may be acked."""
        table = self._table
        rows = zip(taken.slots.tolist(), taken.ids.tolist(), taken.stable, strict=True)
        for slot, number, stable in rows:
            end = ends.get(int(table.targets[slot]))
            if end is not None:
                add_mark(table.streams[slot].marks, Mark(end, number, stable))

    def _settle_processed(self, taken: Taken) -> None:
        """What has no index of its own: boundaries, ends, and messages that were sent before."""
        table = self._table
        rows = zip(taken.slots.tolist(), taken.ids.tolist(), taken.stable, strict=True)
        for slot, number, stable in rows:
            marks = table.streams[slot].marks
            newest = marks[-1] if marks else None
            if self.dialect is Dialect.SHIPPED:
                self._ack_passed(slot, again=taken.is_end)
            elif newest is None or newest.id != number:
                add_mark(marks, Mark(newest.end if newest else 0, number, stable))

    def waiting(self) -> list[tuple[str, int]]:
        """Streams of the log, and partitions, with messages that wait for a group."""
        table = self._table
        return [
            (each.stream, int(table.targets[each.slot])) for each in table.streams if each.marks
        ]

    def passed(self, positions: Mapping[int, int]) -> list[Effect]:
        """How far a group got, by partition: what it has passed is acked once that is noted."""
        table = self._table
        found: list[tuple[Stream, Mark]] = []
        for stream in table.streams:
            position = positions.get(int(table.targets[stream.slot]), 0)
            newest = None
            while stream.marks and stream.marks[0].end <= position:
                newest = stream.marks.popleft()
            if newest is not None:
                found.append((stream, newest))
        if not found:
            return []
        taken = Taken(
            0,
            np.array([stream.slot for stream, _ in found]),
            np.array([mark.id for _, mark in found], np.uint64),
            [],
        )
        taken.waits, taken.is_passed = 1, True
        notes = [Note(stream.id, "processed", mark.stable) for stream, mark in found]
        return [Remember(tuple(notes), taken)]

    def _ack_passed(self, slot: int, *, again: bool = False) -> None:
        """Ack what was passed; never more than the connector has sent in this session."""
        table = self._table
        number = table.optional("passed", slot)
        if number is None:
            return
        if self.dialect is Dialect.SHIPPED:
            seen = table.optional("seen", slot)
            if seen is None:
                return
            number = min(number, seen)
        if again or number != table.optional("acked", slot):
            table.put("acked", slot, number)
            table.dirty[slot] = True

    def leave(self) -> list[tuple[int, tuple[Mark, ...]]]:
        """Streams whose messages still wait for a group, when the session is over."""
        return [(each.id, tuple(each.marks)) for each in self._table.streams if each.marks]

    # -- for people --------------------------------------------------------------------------------

    def streams(self) -> list[StreamView]:
        """All streams."""
        return self._table.views()

    @property
    def counts(self) -> tuple[int, int, int]:
        """Messages stored, ignored, and sent before."""
        return self._taker.messages, self._taker.ignored, self._taker.repeated

    def counted(self) -> list[tuple[str, int, int]]:
        """Stream, records and bytes handed to the log since the last call."""
        return self._table.counted()
