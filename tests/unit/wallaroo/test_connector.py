"""The connector's rules: tables, credits, NACKs, resuming; and a connector against a worker."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import limits
from penstock.errors import BadBatch, LocalError, RecordTooLarge
from penstock.protocols.wallaroo.chunk import Chunk
from penstock.protocols.wallaroo.connector import (
    CREDITS_MAX,
    SESSION,
    STREAMS,
    Acked,
    Failed,
    Finished,
    Reset,
    Restarted,
    Session,
    State,
    StreamState,
    Welcomed,
    stream_id,
)
from penstock.protocols.wallaroo.wire import (
    BOUNDARY,
    EOS,
    U64_MAX,
    UNSTABLE_REFERENCE,
    Ack,
    Decoder,
    Dialect,
    EndOfStream,
    Error,
    Message,
    Messages,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    Role,
    WireError,
)
from tests.unit.wallaroo.pair import HELLO, Feed, Pair, Store

SPEC, SHIPPED = Dialect.SPEC, Dialect.SHIPPED
FRAMES = (Ok, NotifyAck, Ack, Nack, Restart, Error, WireError)


def decoded(data: bytes | memoryview, dialect: Dialect = SPEC) -> list[Any]:
    """The frames in some bytes, messages one by one."""
    found: list[Any] = []
    for item in Decoder(Role.WORKER, dialect).receive(data):
        found += item.rows() if isinstance(item, Messages) else [item]
    return found


def opened(dialect: Dialect = SPEC, credits_given: int = 100, streams: int = 1) -> Session:
    """A session whose streams 1 and on are open and at their beginning."""
    session = Session(HELLO, dialect)
    for number in range(1, streams + 1):
        session.add(number, b"s%d" % number)
    session.hello()
    events = session.receive(Ok(credits_given + streams))
    if dialect is SHIPPED:
        session.notifies()
        for number in range(1, streams + 1):
            events += session.receive(NotifyAck(True, number, U64_MAX))
    for event in events:
        if isinstance(event, Reset):
            assert event.position is None
            assert session.ready(event.stream, event.turn)
    session.notifies()
    assert session.credits == credits_given
    return session


def chunk(first: int, count: int, **more) -> Chunk:
    ids = range(first, first + count)
    return Chunk.of([b"m%d" % number for number in ids], ids, **more)


# -- tables ------------------------------------------------------------------------------------


def test_every_state_knows_every_frame():
    for state in State:
        assert set(SESSION[state]) == set(FRAMES)
        assert all(hasattr(Session, name) for name in SESSION[state].values())


@pytest.mark.parametrize("dialect", list(Dialect))
def test_every_stream_state_that_can_be_reached_is_in_the_table(dialect):
    table = STREAMS[dialect]
    reached, new = set(), {StreamState.INTRO}
    while new:
        reached |= new
        new = {after for state in new for after in table[state].values()} - reached
    assert reached == set(table)
    shipped_only = {StreamState.WAITING, StreamState.REFUSED}
    assert set(StreamState) - reached == (set() if dialect is SHIPPED else shipped_only)


def test_a_stream_id_is_the_one_stock_connectors_have():
    assert stream_id("stream-0") == 2464235669953761731
    assert stream_id("é") == int(hashlib.sha256("é".encode()).hexdigest()[:16], 16)


# -- handshake ---------------------------------------------------------------------------------


def test_hello_is_said_once_and_nothing_before_ok():
    session = Session(HELLO, SPEC)
    session.add(1, b"s")
    session.hello()
    with pytest.raises(LocalError, match="begins once"):
        session.hello()
    assert session.notifies() == b""
    assert session.messages(1, chunk(1, 1)) == (0, b"")


@pytest.mark.parametrize("frame", [Ack(1), Nack(1, 1, 0), NotifyAck(True, 1, 0), Restart()])
def test_nothing_but_ok_or_error_comes_before_ok(frame):
    session = Session(HELLO, SPEC)
    session.hello()
    (failed,) = session.receive(frame)
    assert failed == Failed("Bad protocol FSM state", ours=True, welcomed=False)
    assert decoded(session.error()) == [Error("Bad protocol FSM state")]
    assert session.error() == b""
    assert session.receive(Ok(1)) == []


def test_a_second_ok_is_an_error():
    session = opened()
    assert session.receive(Ok(1)) == [Failed("Bad protocol FSM state", ours=True, welcomed=True)]


def test_an_error_ends_the_session_without_an_answer():
    session = opened()
    assert session.receive(Error("no")) == [Failed("no", ours=False, welcomed=True)]
    assert session.error() == session.notifies() == b""
    assert session.receive(Ack(5)) == []


def test_bytes_that_are_no_frame_are_answered_with_an_error():
    session = opened()
    (failed,) = session.receive(WireError("Frame too large", "9 bytes"))
    assert isinstance(failed, Failed)
    assert failed.ours
    assert decoded(session.error()) == [Error("Frame too large: 9 bytes")]


def test_restart_ends_the_session_and_says_where_to_go():
    assert opened(SHIPPED).receive(Restart("other:1")) == [Restarted("other:1")]


# -- resuming ----------------------------------------------------------------------------------


def test_ok_says_where_streams_go_on_and_notify_repeats_it():
    session = Session(HELLO, SPEC)
    session.add(7, b"seven")
    session.add(8, b"eight")
    session.hello()
    events = session.receive(Ok(10, ((7, 3), (99, 5))))
    assert events == [Welcomed(), Reset(7, 3, 1), Reset(8, None, 1)]
    assert session.notifies() == b""
    assert session.ready(7, 1)
    assert decoded(session.notifies()) == [Notify(7, b"seven", 3)]
    assert session.ready(8, 1)
    assert decoded(session.notifies()) == [Notify(8, b"eight", 0)]
    assert session.credits == 8


def test_shipped_the_answer_to_notify_says_where_streams_go_on():
    session = Session(HELLO, SHIPPED)
    session.add(7, b"seven", ref=50)
    session.add(8, b"eight")
    session.hello()
    assert session.receive(Ok(10)) == [Welcomed()]
    assert decoded(session.notifies(), SHIPPED) == [
        Notify(7, b"seven", 50),
        Notify(8, b"eight", U64_MAX),
    ]
    assert not session.is_open(7)
    assert session.receive(NotifyAck(True, 7, 3)) == [Reset(7, 3, 1)]
    assert session.receive(NotifyAck(True, 8, U64_MAX)) == [Reset(8, None, 1)]
    assert session.ready(7, 1)
    assert session.is_open(7)
    assert not session.is_open(8)


def test_a_refused_notify_is_tried_again_at_the_next_ack():
    session = Session(HELLO, SHIPPED)
    session.add(7, b"seven")
    session.hello()
    session.receive(Ok(10))
    session.notifies()
    assert session.receive(NotifyAck(False, 7, U64_MAX)) == []
    assert session.notifies() == b""
    session.receive(Ack(0))
    assert decoded(session.notifies(), SHIPPED) == [Notify(7, b"seven", U64_MAX)]
    assert session.receive(NotifyAck(True, 7, 12)) == [Reset(7, 12, 1)]


@pytest.mark.parametrize("stream", [7, 99])
def test_a_notify_ack_that_nobody_waits_for_is_an_error(stream):
    session = opened(SHIPPED, streams=7)
    (failed,) = session.receive(NotifyAck(True, stream, 0))
    assert isinstance(failed, Failed)
    assert failed.ours


def test_a_stream_may_join_later():
    session = opened()
    assert session.add(2, b"two") == [Reset(2, None, 1)]
    assert session.ready(2, 1)
    assert decoded(session.notifies()) == [Notify(2, b"two", 0)]
    with pytest.raises(LocalError, match="same stream id"):
        session.add(2, b"three")


# -- credits -----------------------------------------------------------------------------------


def test_each_frame_takes_a_credit_and_none_goes_without():
    session = opened(credits_given=3)
    count, frames = session.messages(1, chunk(1, 10))
    assert (count, session.credits) == (3, 0)
    assert [each.id for each in decoded(frames)] == [1, 2, 3]
    assert session.messages(1, chunk(4, 7)) == (0, b"")
    assert session.end_of_stream(1) is None
    session.receive(Ack(1))
    assert session.messages(1, chunk(4, 7))[0] == 1
    session.receive(Nack(2, 1, 1))
    assert session.credits == 2


def test_the_end_of_a_stream_takes_a_credit():
    for dialect in (SPEC, SHIPPED):
        session = opened(dialect, credits_given=2)
        session.messages(1, chunk(1, 1))
        assert session.end_of_stream(1)
        assert session.credits == 0


def test_more_credits_than_32_bits_hold_are_not_believed():
    session = opened(credits_given=10)
    assert session.receive(Ack(CREDITS_MAX - 10)) == []
    assert session.credits == CREDITS_MAX
    (failed,) = session.receive(Ack(1))
    assert isinstance(failed, Failed)
    assert failed.ours
    assert "Too many credits" in failed.reason
    assert decoded(session.error())[0].reason.startswith("Too many credits")


def test_an_error_of_ours_is_free():
    session = opened(credits_given=0)
    assert decoded(session.fail("cannot go on")) == [Error("cannot go on")]
    assert session.fail("again") == b""


def test_notifies_go_before_messages():
    session = opened(credits_given=1, streams=2)
    session.receive(Nack(0, 2, 0))
    session.ready(2, 2)
    assert session.messages(1, chunk(1, 5)) == (0, b"")
    assert decoded(session.notifies()) == [Notify(2, b"s2", 0)]
    session.receive(Ack(5))
    assert session.messages(1, chunk(1, 5))[0] == 5


def test_a_turn_ends_after_so_many_bytes_but_has_one_message():
    session = opened()
    large = Chunk.of([b"x" * 1000] * 10, range(1, 11))
    assert session.messages(1, large, bytes_max=2500)[0] == 2
    assert session.messages(1, large, 2, bytes_max=10)[0] == 1
    assert session.messages(1, large, 3, messages_max=4)[0] == 4
    assert session.messages(1, large, 7)[0] == 3


# -- acks --------------------------------------------------------------------------------------


def test_acks_say_how_many_messages_are_safe():
    session = opened()
    stream = session.streams[1]
    for first in (1, 11, 21):
        session.messages(1, chunk(first, 10))
    assert session.receive(Ack(0, ((1, 20), (99, 5)))) == [Acked(1, 20)]
    assert (stream.sent, stream.confirmed) == (30, 20)
    assert not session.is_settled
    assert session.receive(Ack(0, ((1, 30),))) == [Acked(1, 30)]
    assert stream.confirmed == 30
    assert session.is_settled


def test_shipped_an_ack_within_a_run_counts_what_is_below():
    session = opened(SHIPPED)
    for first in (1, 11, 21):
        session.messages(1, chunk(first, 10))
    session.receive(Ack(0, ((1, 25),)))
    assert session.streams[1].confirmed == 20


def test_an_ack_of_nothing_means_nothing():
    session = opened(SHIPPED)
    assert session.receive(Ack(1, ((1, U64_MAX),))) == []
    session = opened()
    assert session.receive(Ack(1, ((1, 0),))) == []


def test_marks_of_acks_that_never_come_are_bounded():
    session = opened(credits_given=CREDITS_MAX - 1)
    for number in range(1, 10 * limits.WALLAROO_MARKS_MAX):
        session.messages(1, chunk(number, 1))
    assert len(session.streams[1].marks) <= limits.WALLAROO_MARKS_MAX


# -- the end -----------------------------------------------------------------------------------


def test_the_end_bears_the_last_id_and_is_over_when_that_is_acked():
    session = opened()
    session.messages(1, chunk(5, 3))
    end = session.end_of_stream(1)
    assert end is not None
    assert decoded(end) == [Message(1, 7, flags=BOUNDARY | EOS)]
    assert session.messages(1, chunk(8, 1)) == (0, b"")
    assert session.end_of_stream(1) == b""
    assert session.receive(Ack(0, ((1, 6),))) == [Acked(1, 6)]
    assert session.receive(Ack(0, ((1, 7),))) == [Acked(1, 7), Finished(1)]


def test_an_empty_stream_ends_with_an_id_that_is_no_point_of_reference():
    session = opened()
    end = session.end_of_stream(1)
    assert end is not None
    assert decoded(end) == [Message(1, 0, flags=BOUNDARY | EOS | UNSTABLE_REFERENCE)]
    assert session.receive(Ack(0, ((1, 0),))) == [Finished(1)]


def test_shipped_an_end_without_messages_needs_no_ack():
    session = opened(SHIPPED)
    end = session.end_of_stream(1)
    assert end is not None
    assert decoded(end, SHIPPED) == [EndOfStream(1)]
    assert session.finished(1)


def test_shipped_an_end_is_over_when_the_last_message_is_acked():
    session = opened(SHIPPED)
    session.messages(1, chunk(1, 3))
    session.end_of_stream(1)
    assert not session.finished(1)
    session.receive(Ack(0, ((1, 2),)))
    assert session.receive(Ack(0, ((1, 3),))) == [Acked(1, 3), Finished(1)]


def test_a_message_may_be_the_end_itself():
    session = opened()
    assert session.messages(1, chunk(1, 3, flags=[0, 0, EOS]))[0] == 3
    assert not session.is_open(1)
    assert session.receive(Ack(0, ((1, 3),)))[-1] == Finished(1)
    with pytest.raises(BadBatch, match="after the end"):
        opened().messages(1, chunk(1, 3, flags=[0, EOS, 0]))


# -- NACKs -------------------------------------------------------------------------------------


def test_a_nack_is_answered_with_its_own_ref_after_the_source_was_reset():
    session = opened()
    session.messages(1, chunk(1, 9))
    assert session.receive(Nack(5, 1, 3)) == [Reset(1, 3, 2)]
    assert session.notifies() == b""
    assert session.messages(1, chunk(10, 1)) == (0, b"")
    assert session.ready(1, 2)
    assert decoded(session.notifies()) == [Notify(1, b"s1", 3)]
    assert session.messages(1, chunk(4, 1))[0] == 1
    assert session.streams[1].repeated == 9


def test_each_of_many_nacks_gets_one_answer_in_order_and_the_newest_counts():
    session = opened(credits_given=2)
    events = [event for ref in (3, 0, 5) for event in session.receive(Nack(0, 1, ref))]
    assert events == [Reset(1, 3, 2), Reset(1, None, 3), Reset(1, 5, 4)]
    assert not session.ready(1, 2)
    assert not session.ready(1, 3)
    assert session.ready(1, 4)
    assert decoded(session.notifies()) == [Notify(1, b"s1", 3), Notify(1, b"s1", 0)]
    assert not session.is_open(1)
    # One more comes before the last was answered.
    assert session.receive(Nack(5, 1, 2)) == [Reset(1, 2, 5)]
    assert session.ready(1, 5)
    assert decoded(session.notifies()) == [Notify(1, b"s1", 5), Notify(1, b"s1", 2)]
    assert session.is_open(1)
    assert session.streams[1].position == 2


@pytest.mark.parametrize("acked", [False, True])
def test_a_stream_at_its_end_may_be_wanted_again(acked):
    session = opened()
    session.messages(1, chunk(1, 1))
    session.end_of_stream(1)
    if acked:
        session.receive(Ack(0, ((1, 1),)))
    assert session.receive(Nack(0, 1, 0)) == [Reset(1, None, 2)]
    assert session.receive(Ack(0, ((1, 1),))) == [Acked(1, 1)]
    session.ready(1, 2)
    assert decoded(session.notifies()) == [Notify(1, b"s1", 0)]
    assert session.messages(1, chunk(1, 1))[0] == 1


@pytest.mark.parametrize("dialect", [SPEC, SHIPPED])
def test_a_nack_for_a_stream_that_is_not_there_is_an_error(dialect):
    (failed,) = opened(dialect).receive(Nack(0, 99, 0))
    assert isinstance(failed, Failed)
    assert failed.ours


def test_nacks_without_credits_do_not_fill_the_memory():
    session = opened(credits_given=0)
    for _ in range(limits.WALLAROO_NACKS_MAX):
        session.receive(Nack(0, 1, 0))
    (failed,) = session.receive(Nack(0, 1, 0))
    assert isinstance(failed, Failed)
    assert "Too many nacks" in failed.reason


# -- what a source may not offer ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "ids", "why"),
    [
        (SPEC, [0], "ids begin at 1"),
        (SHIPPED, [1, 1], "do not increase"),
        (SHIPPED, [2, 1], "do not increase"),
        (SHIPPED, [U64_MAX], "means that there is none"),
    ],
)
def test_ids_that_a_worker_would_misunderstand_are_refused(dialect, ids, why):
    session = opened(dialect)
    with pytest.raises(BadBatch, match=why):
        session.messages(1, Chunk.of([b"x"] * len(ids), ids))
    assert session.credits == 100


def test_shipped_ids_increase_from_chunk_to_chunk():
    session = opened(SHIPPED)
    session.messages(1, chunk(5, 2))
    with pytest.raises(BadBatch, match="do not increase"):
        session.messages(1, chunk(6, 2))


def test_a_message_that_fits_no_frame_is_refused():
    session = opened()
    large = Chunk.of([b"x", b"x" * limits.WALLAROO_FRAME_BYTES_MAX], [1, 2])
    with pytest.raises(RecordTooLarge, match="message 2"):
        session.messages(1, large, 1)


def test_the_literal_dialect_has_one_stream():
    session = Session(HELLO, Dialect.LITERAL)
    session.add(1, b"s")
    with pytest.raises(LocalError, match="only one"):
        session.add(2, b"t")


# -- against a worker --------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["up", "down", "sync", "send", "rewind", "nack", "cut", "crash", "refuse"]),
        st.integers(0, 400),
    ),
    max_size=80,
)


def play(dialect: Dialect, feeds: list[Feed], steps, credits_max: int, *, rewinds: bool) -> Store:
    """Let a connector and a worker go through some steps, then let all flow to the end."""
    store = Store()
    pair = Pair(dialect, feeds, store, credits_max)
    for step, number in steps:
        if step == "up":
            pair.to_worker(number)
        elif step == "down":
            pair.to_connector(number)
        elif step == "sync":
            store.sync(number % 5)
            pair.ack()
        elif step == "send":
            pair.send(1 + number % 20)
        elif step == "rewind":
            pair.rewind()
        elif step == "refuse" and dialect is SHIPPED:
            pair.refusals += number % 3
        elif step == "nack" and dialect is not SHIPPED:
            feed = feeds[number % len(feeds)]
            store.sync()
            known = store.records.get(feed.number, [])
            ref = store.point(feed.number)
            if rewinds and known:
                stable = [each for each in known if each in feed.stable]
                ref = stable[number % len(stable)] if stable else None
            pair.nack(feed.number, ref)
        elif step in ("cut", "crash"):
            if step == "cut":
                store.sync()  # the door lets the new session wait for what the old one sent
            else:
                store.crash()
            for feed in feeds:
                stream = pair.connector.streams.get(feed.number)
                feed.ref = feed.ref if stream is None else stream.ref
            pair = Pair(dialect, feeds, store, credits_max)
    pair.refusals = 0
    pair.drain()
    return store


def feeds_of(counts: list[int], order=None, flags=None) -> list[Feed]:
    found = []
    for number, count in enumerate(counts, 1):
        ids = list(range(1, count + 1))
        if order is not None:
            order.shuffle(ids)
        marks = [0] * count
        if flags is not None:
            marks = [flags.choice([0, 0, UNSTABLE_REFERENCE]) for _ in ids]
        found.append(Feed(number, ids, marks))
    return found


COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=4)
RELAXED = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@RELAXED
@given(STEPS, COUNTS, st.sampled_from([1, 2, 7, 1000]))
def test_shipped_each_message_arrives_once_whatever_breaks(steps, counts, credits_max):
    feeds = feeds_of(counts)
    store = play(SHIPPED, feeds, steps, credits_max, rewinds=False)
    for feed in feeds:
        assert store.records.get(feed.number, []) == feed.ids


@RELAXED
@given(STEPS, COUNTS, st.sampled_from([1, 2, 7, 1000]), st.randoms(use_true_random=False))
def test_each_stable_message_arrives_once_in_order_if_nobody_rewinds(
    steps, counts, credits_max, chance
):
    feeds = feeds_of(counts, chance, chance)
    store = play(SPEC, feeds, steps, credits_max, rewinds=False)
    for feed in feeds:
        stable = feed.stable
        found = store.records.get(feed.number, [])
        assert [each for each in found if each in stable] == stable
        assert set(found) == set(feed.ids)


@RELAXED
@given(STEPS, COUNTS, st.sampled_from([1, 2, 7, 1000]), st.randoms(use_true_random=False))
def test_a_rewound_stream_has_each_message_at_least_once_and_goes_on_after_the_ref(
    steps, counts, credits_max, chance
):
    feeds = feeds_of(counts, chance)
    store = play(SPEC, feeds, steps, credits_max, rewinds=True)
    for feed in feeds:
        found = store.records.get(feed.number, [])
        assert list(dict.fromkeys(found)) == feed.ids
        place = {number: at for at, number in enumerate(feed.ids)}
        # Each message follows the one before it in the source, or begins again further up.
        places = [-1, *(place[number] for number in found)]
        assert all(b <= a + 1 for a, b in itertools.pairwise(places))


@RELAXED
@given(STEPS, st.integers(0, 60), st.sampled_from([1, 3, 1000]))
def test_the_literal_dialect_with_its_one_stream(steps, count, credits_max):
    feeds = feeds_of([count])
    store = play(Dialect.LITERAL, feeds, steps, credits_max, rewinds=False)
    assert store.records.get(1, []) == feeds[0].ids


@pytest.mark.parametrize("dialect", [SPEC, SHIPPED])
def test_one_credit_is_enough_for_many_streams_and_many_ends(dialect):
    feeds = feeds_of([5] * 50)
    store = play(dialect, feeds, [], 1, rewinds=False)
    assert all(store.records[feed.number] == feed.ids for feed in feeds)
