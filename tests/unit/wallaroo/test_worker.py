"""The worker's session: every frame in every state, credits, acks, NACKs, points of reference."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import limits
from penstock.errors import LocalError
from penstock.protocols.wallaroo.effects import Note
from penstock.protocols.wallaroo.states import SESSION, STREAMS, State, StreamState
from penstock.protocols.wallaroo.streams import Mark, add_mark
from penstock.protocols.wallaroo.wire import (
    BOUNDARY,
    EOS,
    EPHEMERAL,
    U64_MAX,
    UNSTABLE_REFERENCE,
    Ack,
    Decoder,
    Dialect,
    EndOfStream,
    Error,
    Hello,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    Role,
    WireError,
    encode,
)
from penstock.protocols.wallaroo.worker import Known, Rules
from tests.unit.wallaroo.talk import HELLO, Row, Talk, messages

SPEC, LITERAL, SHIPPED = Dialect.SPEC, Dialect.LITERAL, Dialect.SHIPPED
BOTH = pytest.mark.parametrize("dialect", [SPEC, SHIPPED], ids=lambda each: each.value)
ALL = pytest.mark.parametrize("dialect", list(Dialect), ids=lambda each: each.value)
BAD_STATE = "Bad protocol FSM state"


def greeting(dialect: Dialect, hello: Hello = HELLO) -> Any:
    return Decoder(Role.WORKER, dialect).receive(encode(hello, dialect))[0]


def credits_of(talk: Talk) -> tuple[int, int]:
    return talk.session.credits.left, talk.session.credits.taken


# -- the session's states --------------------------------------------------------------------------

FRAMES: dict[str, Callable[[Dialect], Any]] = {
    "hello": greeting,
    "ok": lambda _: Ok(1),
    "error": lambda _: Error("no"),
    "notify": lambda _: Notify(7, b"a"),
    "notify_ack": lambda _: NotifyAck(True, 7, 0),
    "message": lambda _: Message(7, 1, b"x"),
    "ack": lambda _: Ack(1),
    "nack": lambda _: Nack(1, 7),
    "restart": lambda _: Restart(),
    "eos": lambda _: EndOfStream(7),
    "undecodable": lambda _: WireError("Unable to decode message"),
}
INVALID = {
    name: f"Invalid message: {name}" for name in ("ok", "notify_ack", "ack", "nack", "restart")
}
ALWAYS = {**INVALID, "undecodable": "Unable to decode message", "error": "closed"}
NOT_YET = dict.fromkeys(("notify", "message", "eos"), BAD_STATE)
EXPECTED: dict[State, dict[str, str]] = {
    # "closed": without a word; "": nothing is said; else the reason of an ERROR
    State.CONNECTED: {**ALWAYS, **NOT_YET, "hello": ""},
    State.HANDSHAKE: {**ALWAYS, **NOT_YET, "hello": BAD_STATE},
    State.STREAMING: {
        **ALWAYS,
        "hello": BAD_STATE,
        "notify": "",
        "message": "Bad/unregistered stream_id 7 with message_id 1",
        "eos": "Bad/unregistered stream_id 7",
    },
    State.FAILED: dict.fromkeys(FRAMES, ""),
    State.ENDED: dict.fromkeys(FRAMES, ""),
}


def brought_to(state: State, dialect: Dialect) -> Talk:
    talk = Talk(dialect)
    talk.session.dialect = dialect
    if state is State.HANDSHAKE:
        talk.session.receive(greeting(dialect))
    elif state is not State.CONNECTED:
        talk.hello()
    if state is State.FAILED:
        talk.receive(Error("give up"))
        talk.closed = None
    elif state is State.ENDED:
        talk.session.end()
    assert talk.session.state is state
    talk.sent.clear()
    return talk


@BOTH
@pytest.mark.parametrize("state", list(State), ids=lambda each: each.value)
@pytest.mark.parametrize("frame", FRAMES)
def test_every_frame_in_every_state_of_a_session(
    dialect: Dialect, state: State, frame: str
) -> None:
    talk = brought_to(state, dialect)
    talk.receive(FRAMES[frame](dialect))
    expected = EXPECTED[state][frame]
    if expected in ("", "closed"):
        assert not any(isinstance(each, Error) for each in talk.sent)
        assert (talk.closed is not None) == (expected == "closed")
    else:
        assert talk.sent == [Error(expected)]
        assert talk.closed is not None
        assert talk.session.state is State.FAILED


def test_the_tables_are_complete() -> None:
    kinds = set(SESSION[State.CONNECTED])
    assert all(set(table) == kinds for table in SESSION.values())
    assert set(SESSION) == set(State)
    for table in STREAMS.values():
        assert set(table) == set(StreamState)
        assert all(set(row) == {"notify", "message", "eos", "nack"} for row in table.values())


# -- handshake -------------------------------------------------------------------------------------


@ALL
def test_a_connector_with_the_right_cookie_is_let_in(dialect: Dialect) -> None:
    talk = Talk(dialect, Rules(cookie=b"secret"))
    talk.receive(greeting(dialect, Hello("0.0.1", b"secret", "p", "i")))
    first = 200 if dialect is SHIPPED else 1000
    assert talk.sent == [Ok(first)]
    assert talk.session.hello == Hello("0.0.1", b"secret", "p", "i")


@BOTH
@pytest.mark.parametrize(
    ("hello", "cookie", "reason"),
    [
        (Hello("0.0.2", b"ck", "p", "i"), b"ck", "Unknown protocol version: 0.0.2"),
        (Hello("", b"ck", "p", "i"), b"ck", "Unknown protocol version: "),
        (Hello("0.0.1", b"guess", "p", "i"), b"secret", "Bad cookie"),
        (Hello("0.0.1", b"", "p", "i"), b"secret", "Bad cookie"),
        (Hello("0.0.1", b"guess", "p", "i"), b"", "Bad cookie"),
    ],
)
def test_a_wrong_version_or_cookie_is_refused_without_telling_the_secret(
    dialect: Dialect, hello: Hello, cookie: bytes, reason: str
) -> None:
    talk = Talk(dialect, Rules(cookie=cookie))
    talk.receive(greeting(dialect, hello))
    assert talk.sent == [Error(reason)]
    assert talk.closed is not None
    assert not cookie or cookie.decode() not in str(talk.closed)


@BOTH
def test_a_wrong_version_is_found_whatever_follows_it(dialect: Dialect) -> None:
    order = dialect.order
    tag = 0 if dialect is SHIPPED else ord("H")
    body = bytes([tag]) + struct.pack(f"{order}H", 1) + b"9" + b"\xff\xff\xff"
    data = struct.pack(f"{order}I", len(body)) + body
    talk = Talk(dialect)
    for item in Decoder(Role.WORKER).receive(data):
        talk.receive(item)
    assert talk.sent == [Error("Unknown protocol version: 9")]


def test_points_of_reference_come_with_ok_in_the_spec_only() -> None:
    for dialect, points in ((SPEC, ((7, 3),)), (SHIPPED, ())):
        talk = Talk(dialect)
        talk.session.receive(greeting(dialect))
        talk.do(talk.session.welcome(((7, 3),)))
        (ok,) = talk.sent
        assert ok.points == points


# -- streams ---------------------------------------------------------------------------------------

BAD_STREAM = "Bad/unregistered stream_id 7"
BAD_MESSAGE = f"{BAD_STREAM} with message_id 5"


def stream_in(state: StreamState, dialect: Dialect) -> Talk:
    talk = Talk(dialect).hello()
    if state is not StreamState.INTRO:
        talk.open(7)
    if state is StreamState.CLOSED:
        talk.receive(EndOfStream(7) if dialect is SHIPPED else Message(7, 1, b"x", EOS))
        talk.settle()
    elif state is StreamState.RESET:
        talk.do(talk.session.nack(7, 3))
    talk.rows.clear()
    talk.sent.clear()
    return talk


@pytest.mark.parametrize(
    ("state", "message", "last_message", "end_of_stream"),
    [
        (StreamState.INTRO, BAD_MESSAGE, BAD_MESSAGE, BAD_STREAM),
        (StreamState.OPEN, "stored", "closed", "closed"),
        (StreamState.CLOSED, BAD_MESSAGE, BAD_MESSAGE, BAD_STREAM),
        (StreamState.RESET, "ignored", "ignored", None),
    ],
)
def test_messages_in_every_state_of_a_stream(
    state: StreamState, message: str, last_message: str, end_of_stream: str | None
) -> None:
    cases: list[tuple[Dialect, Any, str]] = [
        (SPEC, Message(7, 5, b"x"), message),
        (SPEC, Message(7, 5, b"x", EOS), last_message),
        (SPEC, Message(7, 5, b"", EOS | BOUNDARY), last_message),
    ]
    if state is not StreamState.RESET:
        cases += [(SHIPPED, Message(7, 5, b"x"), message)]
        cases += [(SHIPPED, EndOfStream(7), str(end_of_stream))]
    for dialect, item, expected in cases:
        talk = stream_in(state, dialect)
        talk.receive(item)
        if expected.startswith("Bad"):
            assert talk.sent == [Error(expected)]
            continue
        assert talk.sent == []
        stored = isinstance(item, Message) and not item.flags & BOUNDARY and expected != "ignored"
        assert len(talk.rows) == stored
        (view,) = talk.session.streams()
        assert view.state == {"stored": "open", "closed": "closed", "ignored": "reset"}[expected]


@pytest.mark.parametrize("state", [each for each in StreamState if each is not StreamState.OPENING])
def test_a_notify_in_every_state_of_a_stream(state: StreamState) -> None:
    talk = stream_in(state, SPEC)
    talk.receive(Notify(7, b"renamed", 3))
    (view,) = talk.session.streams()
    assert (view.state, view.name) == ("open", "renamed")
    if state is StreamState.RESET:
        return  # shipped connectors know no NACK
    talk = stream_in(state, SHIPPED)
    answer = talk.receive(Notify(7, b"renamed", 3))
    if state is StreamState.OPEN:
        assert answer == [NotifyAck(False, 7, 3)]
    else:
        assert answer == [NotifyAck(True, 7, U64_MAX)]


def test_notifies_may_come_while_streams_are_looked_up_and_nothing_else() -> None:
    for dialect in (SPEC, SHIPPED):
        talk = Talk(dialect).hello()
        talk.answers_introductions = False
        talk.receive(Notify(7, b"a"))
        talk.receive(Notify(8, b"b"))
        assert talk.session.is_introducing
        with pytest.raises(LocalError):
            talk.receive(Message(7, 1, b"x"))
        again = talk.receive(Notify(7, b"a", 2))
        assert again == ([NotifyAck(False, 7, 2)] if dialect is SHIPPED else [])
        talk.introduce()
        assert not talk.session.is_introducing
        talk.receive(Message(7, 1, b"x"))
        assert len(talk.rows) == 1


def test_a_stream_that_cannot_be_had_ends_the_session() -> None:
    talk = Talk(SPEC).hello()
    talk.answers_introductions = False
    talk.receive(Notify(7, b"a"))
    talk.do(talk.session.refused(7, "no such thing"))
    assert talk.sent[-1] == Error("Stream 7 refused: no such thing")


def test_a_refused_notify_is_followed_by_an_ack_so_that_it_is_tried_again() -> None:
    talk = Talk(SHIPPED).hello()
    talk.answers_introductions = False
    talk.receive(Notify(7, b"a", 12))
    talk.do(talk.session.refused(7, "in use", ref=12, later=True))
    assert talk.sent[-1] == NotifyAck(False, 7, 12)
    assert talk.session.was_refused
    talk.do(talk.session.acks(force=True))
    assert talk.sent[-1] == Ack(1)
    assert not talk.session.was_refused
    talk.introducing.clear()
    talk.answers_introductions = True
    assert talk.receive(Notify(7, b"a", 12)) == [NotifyAck(True, 7, U64_MAX)]


def test_a_session_has_so_many_streams_at_most() -> None:
    talk = Talk(SPEC, Rules(streams_max=2)).hello().open(1, 2, 1)
    assert talk.closed is None
    talk.open(3)
    assert talk.sent[-1] == Error("Too many streams: at most 2")


def test_a_stream_name_has_to_be_text() -> None:
    talk = Talk(SHIPPED).hello()
    assert talk.receive(Notify(7, b"\xff")) == [Error("Unable to decode message")]


def test_a_shipped_connector_hears_where_to_go_on() -> None:
    talk = Talk(SHIPPED, known={7: Known("s", 1, ref=12, last=12, logged=12)}).hello()
    assert talk.receive(Notify(7, b"a", 99)) == [NotifyAck(True, 7, 12)]


# -- NACKs -----------------------------------------------------------------------------------------


def test_a_nacked_stream_ignores_messages_until_it_is_introduced_again() -> None:
    talk = Talk(SPEC).hello().open(7, 8)
    talk.receive(Message(7, 1, b"a"))
    talk.do(talk.session.nack(7, None))
    assert talk.sent[-1] == Nack(2, 7, 0)  # with the credits of two NOTIFYs
    talk.receive(messages([Message(7, 2, b"b"), Message(8, 1, b"c"), Message(7, 3, b"d", EOS)]))
    talk.receive(Notify(7, b"s7"))
    talk.receive(Message(7, 1, b"again"))
    assert [row.payload for row in talk.rows] == [b"a", b"c", b"again"]
    assert talk.session.counts == (3, 2, 0)


def test_nacks_stack_and_each_takes_its_notify() -> None:
    talk = Talk(SPEC).hello().open(7)
    for ref in (5, 3, 4):
        talk.do(talk.session.nack(7, ref))
    for _ in range(2):
        talk.receive(Notify(7, b"s7", 5))
        talk.receive(Message(7, 6, b"early"))
    assert talk.session.streams()[0].nacks == 1
    assert talk.rows == []
    talk.receive(Notify(7, b"s7", 4))
    talk.receive(Message(7, 5, b"now"))
    assert [row.payload for row in talk.rows] == [b"now"]
    assert [each.ref for each in talk.sent if isinstance(each, Nack)] == [5, 3, 4]


def test_acks_of_what_was_stored_before_a_nack_still_come() -> None:
    talk = Talk(SPEC).hello().open(7)
    talk.receive(Message(7, 1, b"a"))
    talk.do(talk.session.nack(7, None))
    assert talk.settle()[-1].points == ((7, 1),)


@pytest.mark.parametrize(
    ("dialect", "state"),
    [(SPEC, StreamState.INTRO), (SHIPPED, StreamState.OPEN), (SHIPPED, StreamState.CLOSED)],
)
def test_what_cannot_be_asked_for_again_is_not_asked_for(
    dialect: Dialect, state: StreamState
) -> None:
    talk = stream_in(state, dialect)
    with pytest.raises(LocalError, match="cannot be asked for again"):
        talk.session.nack(7, 1)


def test_a_restart_is_a_frame_only_where_there_is_one() -> None:
    for dialect, sent in ((SHIPPED, [Restart("127.0.0.1:1")]), (SPEC, [])):
        talk = Talk(dialect).hello()
        talk.sent.clear()
        talk.do(talk.session.restart("127.0.0.1:1"))
        assert talk.sent == sent
        assert talk.closed is not None


# -- acks ------------------------------------------------------------------------------------------


@BOTH
def test_an_ack_has_the_last_id_of_each_stream_once_it_is_on_disk(dialect: Dialect) -> None:
    talk = Talk(dialect).hello().open(7, 8, 9)
    talk.settle()
    talk.receive(messages([Message(7, 1, b"a"), Message(8, 5, b"b"), Message(7, 2, b"c")]))
    assert talk.settle(0) == []
    talk.receive(Message(8, 6, b"d"))
    (ack,) = talk.settle()
    assert ack.points == ((7, 2), (8, 6))  # and 9 not at all: it had no message
    assert talk.settle() == []


def test_acks_keep_the_order_of_the_messages() -> None:
    talk = Talk(SPEC).hello().open(7)
    for number in (1, 2, 3):
        talk.receive(Message(7, number, b"x"))
    first, second, third = talk.taken
    for taken in (third, second):
        talk.session.stored(taken)
    assert talk.session.acks() == []
    talk.session.stored(first)
    talk.taken.clear()
    assert talk.settle()[0].points == ((7, 3),)


def test_what_could_not_be_stored_is_never_acked() -> None:
    talk = Talk(SPEC).hello().open(7, 8)
    talk.receive(Message(7, 1, b"a"))
    talk.receive(Message(8, 2, b"b"))
    talk.session.lost(talk.taken.popleft())
    assert talk.settle()[0].points == ((8, 2),)
    assert talk.session.is_settled


def test_the_end_of_a_stream_is_acked_with_its_last_message_exactly() -> None:
    talk = Talk(SHIPPED).hello().open(7)
    talk.receive(messages([Message(7, 1, b"a"), Message(7, 9, b"b")]))
    talk.receive(EndOfStream(7))
    assert talk.settle(0) == []
    assert talk.settle()[0].points == ((7, 9),)


def test_the_end_of_a_stream_that_was_acked_before_is_acked_again() -> None:
    talk = Talk(SHIPPED, known={7: Known("s", 1, ref=12, last=12, logged=12)}).hello().open(7)
    talk.receive(EndOfStream(7))
    assert talk.settle()[0].points == ((7, 12),)


def test_the_end_of_a_stream_without_messages_is_not_acked() -> None:
    talk = Talk(SHIPPED).hello().open(7)
    talk.receive(EndOfStream(7))
    assert talk.settle() == []


@BOTH
@pytest.mark.parametrize("number", [2**63 - 1, 2**63, U64_MAX - 1, U64_MAX])
def test_ids_use_all_64_bits(dialect: Dialect, number: int) -> None:
    talk = Talk(dialect).hello()
    talk.receive(Notify(U64_MAX, b"a"))
    talk.receive(Notify(2**63, b"b"))
    rows = [Message(U64_MAX, number, b"x"), Message(2**63, number, b"y")]
    talk.receive(messages(rows))
    (ack,) = [each for each in talk.settle() if each.points]
    assert set(ack.points) == {(U64_MAX, number), (2**63, number)}
    assert [row.id for row in talk.rows] == [number, number]


# -- repeated messages -----------------------------------------------------------------------------


def test_shipped_messages_that_were_stored_are_dropped_and_their_credits_come_back() -> None:
    known = {7: Known("s", 1, ref=10, last=10, logged=10)}
    talk = Talk(SHIPPED, known=known).hello().open(7)
    before = credits_of(talk)
    talk.receive(messages([Message(7, number, b"x") for number in (4, 9, 10)]))
    assert talk.rows == []
    assert talk.settle() == [Ack(4, ((7, 10),))]
    assert credits_of(talk) == (before[0] + 1, 0)
    talk.receive(messages([Message(7, number, b"%d" % number) for number in (10, 11, 11, 3, 12)]))
    assert [row.payload for row in talk.rows] == [b"11", b"12"]
    assert talk.session.counts == (2, 0, 6)


def test_in_the_spec_ids_may_come_in_any_order() -> None:
    known = {7: Known("s", 1, ref=10, last=10, logged=10)}
    talk = Talk(SPEC, known=known).hello().open(7)
    talk.receive(messages([Message(7, number, b"%d" % number) for number in (10, 3, 3)]))
    assert [row.payload for row in talk.rows] == [b"10", b"3", b"3"]
    assert not any(row.drop_resent for row in talk.rows)
    assert talk.settle()[0].points == ((7, 3),)


def test_after_a_rewind_shipped_messages_are_stored_again() -> None:
    known = {7: Known("s", 1, ref=4, last=4, logged=10, noted=True, rewound=True)}
    talk = Talk(SHIPPED, known=known).hello().open(7)
    talk.receive(messages([Message(7, number, b"x") for number in (4, 5, 6)]))
    talk.receive(Message(7, 7, b"x"))
    assert [(row.id, row.drop_resent) for row in talk.rows] == [(5, False), (6, False), (7, True)]


# -- points of reference ---------------------------------------------------------------------------


def test_the_log_hears_only_of_stable_ids() -> None:
    talk = Talk(SPEC).hello().open(7)
    rows = [
        Message(7, 1, b"before any", UNSTABLE_REFERENCE),
        Message(7, 2, b"stable"),
        Message(7, 3, b"unstable", UNSTABLE_REFERENCE),
        Message(7, 4, b"ephemeral", EPHEMERAL),
        Message(7, 5, b"stable"),
    ]
    talk.receive(messages(rows))
    assert [row.id for row in talk.rows] == [0, 2, 2, 2, 5]
    assert talk.settle()[-1].points == ((7, 5),)
    talk.receive(Message(7, 6, b"unstable", UNSTABLE_REFERENCE))
    assert talk.rows[-1].id == 5
    assert talk.settle()[-1].points == ((7, 6),)  # acked, though no point of reference
    (view,) = talk.session.streams()
    assert (view.last, view.last_stable, view.acked) == (6, 5, 6)
    assert talk.notes == []


def test_a_boundary_is_noted_before_it_is_acked() -> None:
    talk = Talk(SPEC).hello().open(7)
    talk.receive(messages([Message(7, 1, b"a"), Message(7, 2, b"", BOUNDARY)]))
    assert talk.notes == [Note(7, "noted", 2, 1)]
    assert talk.settle()[-1].points == ((7, 2),)
    talk.receive(Message(7, 3, b"", BOUNDARY | UNSTABLE_REFERENCE))
    assert len(talk.notes) == 1
    assert talk.settle()[-1].points == ((7, 3),)


def test_a_boundary_that_a_record_follows_needs_no_note() -> None:
    talk = Talk(SPEC).hello().open(7)
    rows = [
        Message(7, 1, b"a"),
        Message(7, 2, b"", BOUNDARY),
        Message(7, 3, b"b", UNSTABLE_REFERENCE),
    ]
    talk.receive(messages(rows))
    assert talk.notes == []
    assert talk.rows == [Row(107, b"a", 1, False), Row(107, b"b", 2, False)]


def test_the_first_thing_of_a_stream_may_be_a_boundary() -> None:
    talk = Talk(SPEC).hello().open(7)
    talk.receive(Message(7, 4, b"", BOUNDARY))
    assert talk.notes == [Note(7, "noted", 4, None)]
    assert talk.settle()[-1].points == ((7, 4),)


def test_a_note_is_taken_back_when_the_logs_last_id_would_not_show_that_it_is_old() -> None:
    talk = Talk(SPEC).hello().open(7)
    talk.receive(messages([Message(7, 1, b"a"), Message(7, 2, b"", BOUNDARY)]))
    talk.receive(Message(7, 1, b"a again"))
    assert talk.notes == [Note(7, "noted", 2, 1), Note(7, "stored")]
    talk.receive(Message(7, 2, b"", BOUNDARY))
    talk.receive(Message(7, 3, b"b"))
    assert talk.notes[2:] == [Note(7, "noted", 2, 1)]  # the log's last id, 3, shows it


# -- against a slow and simple worker --------------------------------------------------------------

FLAGS = st.sampled_from(
    [0, 0, 0, EOS, EPHEMERAL, UNSTABLE_REFERENCE, BOUNDARY, BOUNDARY | EOS, BOUNDARY | 8, 16 | 8]
)
ROWS = st.lists(
    st.builds(
        lambda stream, number, flags: Message(
            stream, number, b"" if flags & BOUNDARY else b"%d" % number, flags,
            5 if flags & 16 else None,
        ),
        st.integers(1, 4), st.integers(1, 9), FLAGS,
    ),
    max_size=30,
)  # fmt: skip


class Simple:
    """One message at a time."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.rows: list[tuple[int, bytes, int]] = []
        self.last: dict[int, int] = {}
        self.stable: dict[int, int] = {}
        self.closed = {4}  # never introduced
        self.reset = {3}
        self.failed = False

    def receive(self, row: Message) -> None:
        if self.failed or row.stream in self.reset:
            return
        if row.stream in self.closed:
            self.failed = True
            return
        if self.dialect is SHIPPED and row.id <= self.last.get(row.stream, 0):
            return
        self.last[row.stream] = row.id
        if not row.flags & (EPHEMERAL | UNSTABLE_REFERENCE):
            self.stable[row.stream] = row.id
        if not row.flags & BOUNDARY:
            self.rows.append((row.stream, row.payload, self.stable.get(row.stream, 0)))
        if row.flags & EOS:
            self.closed.add(row.stream)


@BOTH
@settings(deadline=None)
@given(st.data())
def test_runs_of_messages_are_taken_as_one_by_one(dialect: Dialect, data: st.DataObject) -> None:
    rows = data.draw(ROWS)
    if dialect is SHIPPED:
        rows = [Message(row.stream, row.id, b"%d" % row.id) for row in rows if row.stream != 3]
    talk = Talk(dialect).hello().open(1, 2)
    if dialect is SPEC:
        talk.open(3)
        talk.do(talk.session.nack(3, None))
    simple = Simple(dialect)
    at = 0
    while at < len(rows):
        size = data.draw(st.integers(1, len(rows) - at))
        talk.receive(messages(rows[at : at + size]))
        at += size
    for row in rows:
        simple.receive(row)
    assert [(row.target - 100, row.payload, row.id) for row in talk.rows] == simple.rows
    assert (talk.closed is not None) == simple.failed
    talk.settle()
    views = {view.id: view for view in talk.session.streams()}
    for stream in (1, 2):
        assert views[stream].last == simple.last.get(stream)
        assert views[stream].last_stable == simple.stable.get(stream)
        assert views[stream].acked == simple.last.get(stream)
        assert (views[stream].state == "closed") == (stream in simple.closed)
    # After the last note or record, the log and the notes together know the point of reference.
    for stream in (1, 2):
        logged = [row.id for row in talk.rows if row.target == 100 + stream]
        noted = [note for note in talk.notes if note.stream == stream][-1:]
        point = logged[-1] if logged else None
        if noted and noted[0].kind == "noted" and noted[0].over == point:
            point = noted[0].ref
        assert (point or None) == simple.stable.get(stream)


# -- literal ---------------------------------------------------------------------------------------


def test_literal_messages_are_of_the_stream_that_was_introduced_last_and_is_open() -> None:
    talk = Talk(LITERAL).hello().open(1, 2)
    rows = [
        Message(0, 1, b"of 2"),
        Message(0, 2, b"of 2, its last", EOS),
        Message(0, 3, b"of 1"),
        Message(0, 4, b"of 1, its last", EOS),
    ]
    talk.receive(messages(rows))
    assert [(row.target, row.payload) for row in talk.rows] == [
        (102, b"of 2"),
        (102, b"of 2, its last"),
        (101, b"of 1"),
        (101, b"of 1, its last"),
    ]
    talk.receive(Message(0, 5, b"of none"))
    assert talk.sent[-1] == Error("Bad/unregistered stream_id 0 with message_id 5")


# -- credits ---------------------------------------------------------------------------------------


def test_credits_are_used_up_by_notifies_and_messages_and_come_back_when_on_disk() -> None:
    talk = Talk(SPEC, Rules(credits_max=10)).hello().open(7)
    assert credits_of(talk) == (9, 0)
    talk.receive(messages([Message(7, number, b"x") for number in range(1, 8)]))
    assert credits_of(talk) == (2, 7)
    assert talk.settle(0) == [Ack(1)]  # the one of the NOTIFY
    assert talk.settle() == [Ack(7, ((7, 7),))]
    assert credits_of(talk) == (10, 0)


def test_an_overdraft_ends_a_session_of_the_spec_after_what_was_paid_for() -> None:
    talk = Talk(SPEC, Rules(credits_max=5)).hello().open(7)
    talk.receive(messages([Message(7, number, b"%d" % number) for number in range(1, 8)]))
    assert [row.payload for row in talk.rows] == [b"1", b"2", b"3", b"4"]
    assert talk.sent[-1] == Error("Credit exhausted")
    talk = Talk(SPEC, Rules(credits_max=1)).hello().open(1, 2)
    assert talk.sent[-1] == Error("Credit exhausted")


def test_shipped_connectors_may_overdraw() -> None:
    talk = Talk(SHIPPED, Rules(credits_max=2)).hello().open(1, 2, 3)
    talk.receive(messages([Message(1, number, b"x") for number in range(1, 8)]))
    assert len(talk.rows) == 7
    assert credits_of(talk) == (-8, 7)
    talk.settle()
    assert credits_of(talk) == (2, 0)


@pytest.mark.parametrize(("size", "window"), [(100, 32_768), (100_000, 125), (2**20, 16)])
def test_the_window_follows_the_size_of_messages(size: int, window: int) -> None:
    talk = Talk(SPEC).hello().open(7)
    row = messages([Message(7, 1, b"x" * size)])
    for _ in range(20_000):
        talk.session.credits.measure(row)
    assert talk.session.credits.window == window


def test_shipped_connectors_have_at_most_a_megabyte_on_the_way() -> None:
    talk = Talk(SHIPPED).hello().open(7)
    for number in range(1, 200):
        talk.receive(Message(7, number, b"x" * 5000))
        talk.settle()
    assert talk.session.credits.window * 5000 <= limits.WALLAROO_SHIPPED_WINDOW_BYTES


def test_few_messages_do_not_open_the_window_wide() -> None:
    talk = Talk(SHIPPED).hello().open(7)
    talk.receive(Message(7, 1, b""))
    assert talk.session.credits.window == 200


def test_the_end_of_a_shipped_stream_takes_a_credit_that_comes_back() -> None:
    """The shipped worker counts it, the shipped connector does not: so nobody runs dry."""
    talk = Talk(SHIPPED, Rules(credits_max=4)).hello().open(7)
    talk.receive(EndOfStream(7))
    assert credits_of(talk) == (2, 0)
    assert talk.settle() == [Ack(2)]


def test_held_credits_do_not_come_back_until_they_are_let_go() -> None:
    talk = Talk(SPEC, Rules(credits_max=10)).hello().open(7)
    talk.session.credits.held = True
    talk.receive(Message(7, 1, b"x"))
    assert talk.settle() == [Ack(0, ((7, 1),))]
    talk.session.credits.held = False
    talk.do(talk.session.acks(force=True))
    assert talk.sent[-1] == Ack(2)


@BOTH
@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_connector_that_obeys_its_credits_never_stands_still(
    dialect: Dialect, data: st.DataObject
) -> None:
    """Whatever is ignored, repeated, slow or rewound: in the end all that is sent is taken."""
    talk = Talk(dialect, Rules(credits_max=data.draw(st.integers(4, 40))))
    talk.hello().open(1, 2)
    left = 0
    seen = 0
    number = 1
    nacked = 0

    def take_answers() -> None:
        nonlocal left, seen, nacked
        for frame in talk.sent[seen:]:
            if isinstance(frame, (Ok, Ack, Nack)):
                left += frame.credits
            nacked += isinstance(frame, Nack)
        seen = len(talk.sent)

    left -= 2
    take_answers()
    for _ in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(["send", "send", "settle", "window", "nack", "again"]))
        if step == "send" and left > 0:
            count = data.draw(st.integers(1, left))
            rows = [Message(1 + at % 2, number + at, b"x") for at in range(count)]
            talk.receive(messages(rows))
            left, number = left - count, number + count
            talk.do(talk.session.acks())
        elif step == "again" and left > 0:
            talk.receive(messages([Message(1, 1, b"x")] * left))
            left = 0
            talk.do(talk.session.acks())
        elif step == "settle":
            talk.settle(data.draw(st.integers(0, 3)))
        elif step == "window":
            talk.session.credits.set_window(data.draw(st.sampled_from([0, 500, 10**6])))
            talk.do(talk.session.acks())
        elif step == "nack" and dialect is SPEC and not nacked:
            talk.do(talk.session.nack(1, 1))
        take_answers()
        assert left == talk.session.credits.left
        assert talk.closed is None
        if nacked and left > 0 and data.draw(st.booleans()):
            talk.receive(Notify(1, b"s1", 1))
            left, nacked = left - 1, nacked - 1
            talk.do(talk.session.acks())
            take_answers()
    talk.settle()
    take_answers()
    assert talk.session.is_settled
    assert left > 0
    assert talk.closed is None


# -- ack = "processed" -----------------------------------------------------------------------------


def test_processed_ids_are_acked_when_the_group_has_passed_them_and_that_is_noted() -> None:
    talk = Talk(SPEC, Rules(ack="processed", credits_max=10)).hello().open(7)
    talk.receive(messages([Message(7, 1, b"a"), Message(7, 2, b"b", UNSTABLE_REFERENCE)]))
    talk.receive(Message(7, 3, b"c"))
    first, second = talk.taken
    talk.session.stored(first, {107: 2})
    talk.session.stored(second, {107: 3})
    talk.do(talk.session.acks(force=True))
    assert talk.sent[-1] == Ack(4)  # credits, but no ids
    assert talk.session.waiting() == [("p.s7", 107)]
    assert talk.session.passed({107: 1}) == []
    talk.do(talk.session.passed({107: 2}))
    assert talk.notes == [Note(7, "processed", 1)]
    assert talk.settle(0) == [Ack(0, ((7, 2),))]
    talk.do(talk.session.passed({107: 9}))
    assert talk.notes[-1] == Note(7, "processed", 3)
    assert talk.settle(0) == [Ack(0, ((7, 3),))]
    assert talk.session.waiting() == []


def test_a_processed_boundary_waits_for_the_records_before_it() -> None:
    talk = Talk(SPEC, Rules(ack="processed")).hello().open(7)
    talk.receive(Message(7, 1, b"a"))
    talk.session.stored(talk.taken.popleft(), {107: 5})
    talk.receive(Message(7, 2, b"", BOUNDARY))
    assert talk.notes == []
    talk.do(talk.session.passed({107: 4}))
    assert talk.settle(0) == []
    talk.do(talk.session.passed({107: 5}))
    assert talk.settle(0)[-1].points == ((7, 2),)


def test_processed_acks_never_tell_of_more_than_was_sent_in_the_session() -> None:
    known = {7: Known("s", 107, ref=4, last=10, logged=10, marks=(Mark(30, 10, 10),))}
    talk = Talk(SHIPPED, Rules(ack="processed"), known=known).hello()
    assert talk.receive(Notify(7, b"a", 0)) == [NotifyAck(True, 7, 4)]
    talk.do(talk.session.passed({107: 30}))
    assert talk.settle() == []  # nothing was sent yet
    talk.receive(messages([Message(7, number, b"x") for number in (5, 6, 7)]))
    assert talk.rows == []
    assert talk.settle()[-1].points == ((7, 7),)
    talk.receive(messages([Message(7, number, b"x") for number in (8, 9, 10, 11)]))
    assert [row.id for row in talk.rows] == [11]
    talk.session.stored(talk.taken.popleft(), {107: 31})
    assert talk.settle()[-1].points == ((7, 10),)
    talk.do(talk.session.passed({107: 31}))
    assert talk.settle()[-1].points == ((7, 11),)
    talk.receive(EndOfStream(7))
    assert talk.settle()[-1].points == ((7, 11),)


def test_what_a_group_has_not_passed_is_handed_on_when_the_session_ends() -> None:
    talk = Talk(SHIPPED, Rules(ack="processed")).hello().open(7)
    talk.receive(Message(7, 1, b"a"))
    talk.session.stored(talk.taken.popleft(), {107: 1})
    assert talk.session.leave() == [(7, (Mark(1, 1, 1),))]


def test_marks_are_bounded_and_the_newest_stays() -> None:
    marks: deque[Mark] = deque()
    for number in range(10_000):
        add_mark(marks, Mark(number, number, None))
        assert len(marks) <= limits.WALLAROO_MARKS_MAX
        assert marks[-1].id == number
    assert [mark.end for mark in marks] == sorted(mark.end for mark in marks)
