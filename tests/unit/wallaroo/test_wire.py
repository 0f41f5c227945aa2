from __future__ import annotations

import itertools
import random
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.errors import BadBatch, BadSetting, LocalError, RemoteError
from penstock.log.batch import Batch, BinaryColumn
from penstock.protocols.wallaroo import wire
from penstock.protocols.wallaroo.wire import (
    BOUNDARY,
    EVENT_TIME,
    U64_MAX,
    Ack,
    Column,
    Decoder,
    Dialect,
    EndOfStream,
    Error,
    Greeting,
    Hello,
    Message,
    Messages,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    Role,
    WireError,
    encode,
    encode_messages,
)
from tests.feeding import fed
from tests.unit.wallaroo.examples import WITH_LITERAL, Example
from tests.unit.wallaroo.reference import flat, reference

SPEC, LITERAL, SHIPPED = Dialect.SPEC, Dialect.LITERAL, Dialect.SHIPPED
WORKER, CONNECTOR = Role.WORKER, Role.CONNECTOR
DIALECTS = pytest.mark.parametrize("dialect", Dialect, ids=lambda dialect: dialect.value)


def plain(found: list[Any]) -> list[Any]:
    """What a decoder gave, with greetings read and messages one by one."""
    return [each.hello() if isinstance(each, Greeting) else each for each in flat(found)]


# -- the examples ------------------------------------------------------------------------------


@pytest.mark.parametrize("example", WITH_LITERAL, ids=lambda it: f"{it.dialect.value} {it.frame}")
class TestEveryExample:
    def test_is_what_the_frame_is_written_as(self, example: Example) -> None:
        assert encode(example.frame, example.dialect) == example.bytes

    def test_is_read_whole_byte_by_byte_and_with_a_tail(self, example: Example) -> None:
        def make() -> Decoder:
            return Decoder(example.reader, example.dialect)

        for tail in (example.bytes[:1], example.bytes[:4], example.bytes[:-1]):
            for way, found in fed(make, example.bytes, tail):
                assert plain(found) == [example.frame], way

    def test_is_read_twice_in_a_row(self, example: Example) -> None:
        decoder = Decoder(example.reader, example.dialect)
        assert plain(decoder.receive(example.bytes * 2)) == [example.frame] * 2
        assert decoder.pending == 0

    def test_is_no_frame_when_cut_short_by_its_length(self, example: Example) -> None:
        order = example.dialect.order
        body = example.bytes[4:-1]
        decoder = Decoder(example.reader, example.dialect)
        found = plain_or_error(decoder, struct.pack(f"{order}I", len(body)) + body)
        message = isinstance(example.frame, Message) and example.frame.payload
        assert found != [example.frame]
        assert message or isinstance(found[-1], WireError) or found == [Restart()]


def plain_or_error(decoder: Decoder, data: bytes) -> list[Any]:
    try:
        return [
            each.hello() if isinstance(each, Greeting) else each for each in decoder.receive(data)
        ]
    except WireError as error:
        return [error]


# -- the first frame ---------------------------------------------------------------------------


@DIALECTS
def test_a_worker_learns_the_dialect_from_the_fifth_byte(dialect: Dialect) -> None:
    hello = Hello("0.0.1", b"secret", "program", "instance")
    message = Message(0 if dialect is LITERAL else 7, 1, b"hi")
    data = encode(hello, dialect) + encode(message, dialect)

    def make() -> Decoder:
        return Decoder(WORKER, literal=dialect is LITERAL)

    for way, found in fed(make, data, data[:5]):
        assert plain(found) == [hello, message], way
    decoder = make()
    decoder.receive(data[:4])
    assert decoder.dialect is None
    decoder.receive(data[4:5])
    assert decoder.dialect is dialect


@pytest.mark.parametrize("tag", [1, 5, ord("M"), ord("G"), 0xFF])
def test_any_other_first_frame_is_refused(tag: int) -> None:
    decoder = Decoder(WORKER)
    (error,) = decoder.receive(bytes([9, 0, 0, 0, tag]))
    assert isinstance(error, WireError)
    assert error.reason == "Unable to decode message"
    assert decoder.dialect is None


def test_a_connector_has_to_choose_a_dialect() -> None:
    with pytest.raises(BadSetting, match="choose a dialect"):
        Decoder(CONNECTOR)


@pytest.mark.parametrize("limit", [0, -1, 2**30])
def test_a_limit_out_of_range_is_refused(limit: int) -> None:
    with pytest.raises(BadSetting, match="from 1 to"):
        Decoder(WORKER, frame_bytes_max=limit)


@DIALECTS
def test_a_version_can_be_judged_whatever_follows_it(dialect: Dialect) -> None:
    version = struct.pack(f"{dialect.order}H", 3) + b"9.9"
    tag = encode(Hello("", b"", "", ""), dialect)[4:5]
    for garbage in (b"", b"\xff", b"\xff\xff garbage"):
        frame = tag + version + garbage
        data = struct.pack(f"{dialect.order}I", len(frame)) + frame
        (greeting,) = Decoder(WORKER, literal=dialect is LITERAL).receive(data)
        assert isinstance(greeting, Greeting)
        assert greeting.version == b"9.9"
        with pytest.raises(WireError, match="the cookie of HELLO"):
            greeting.cookie()
        with pytest.raises(WireError, match="the cookie of HELLO"):
            greeting.hello()


def test_a_cookie_can_be_judged_whatever_follows_it() -> None:
    greeting = Greeting(b"0.0.1", b"\x02\x00ck garbage", SPEC)
    assert greeting.cookie() == b"ck"
    with pytest.raises(WireError, match="the program of HELLO"):
        greeting.hello()


@pytest.mark.parametrize(
    ("version", "rest", "wrong"),
    [
        (b"0.0.1", b"\x00\x00\x01\x00\xff\x01\x00i", "the program of HELLO is not UTF-8"),
        (b"0.0.1", b"\x00\x00\x01\x00p\x02\x00\xc3\x28", "the instance of HELLO is not UTF-8"),
        (b"0.\xff", b"\x00\x00\x01\x00p\x01\x00i", "the version of HELLO is not UTF-8"),
        (b"0.0.1", b"\x00\x00\x01\x00p\x01\x00i+", "1 bytes after the end of HELLO"),
    ],
)
def test_bad_names_are_refused(version: bytes, rest: bytes, wrong: str) -> None:
    with pytest.raises(WireError, match=wrong) as caught:
        Greeting(version, rest, SPEC).hello()
    assert caught.value.reason == "Unable to decode message"


def test_a_stream_name_is_bytes_and_has_a_checked_text() -> None:
    for dialect in Dialect:
        (notify,) = Decoder(WORKER, dialect).receive(encode(Notify(1, b"\xff", 2), dialect))
        assert notify == Notify(1, b"\xff", 2)
        assert isinstance(notify, Notify)
        with pytest.raises(WireError, match="stream name"):
            notify.text()
    assert Notify(1, "é".encode()).text() == "é"


# -- bad frames --------------------------------------------------------------------------------

UNABLE = "Unable to decode message"
SPEC_HEAD = "4d 0700000000000000"
SHIPPED_HEAD = "05 0000000000000007 0000000000000001 0000000000000000"

BAD = [
    ("length 0", WORKER, SPEC, "00000000", UNABLE),
    ("length 0", WORKER, SHIPPED, "00000000", UNABLE),
    ("one byte too large", WORKER, SPEC, "01004000", "Frame too large"),
    ("largest length", WORKER, SPEC, "ffffffff", "Frame too large"),
    ("little-endian length", WORKER, SHIPPED, "18000000 00", "Frame too large"),
    ("large HELLO", WORKER, SPEC, "01400000 48", "Frame too large"),
    ("unknown tag", WORKER, SPEC, "01000000 5a", UNABLE),
    ("a tag of the other dialect", WORKER, SPEC, "0900000008", UNABLE),
    ("NOTIFY_ACK's tag", CONNECTOR, SPEC, "0900000004", UNABLE),
    ("NACK's tag", CONNECTOR, SHIPPED, "0000001521", UNABLE),
    ("WORKERS_LEFT", CONNECTOR, SHIPPED, "0000000509", UNABLE),
    ("no version", WORKER, SPEC, "01000000 48", UNABLE),
    ("half a version", WORKER, SPEC, "06000000 48 0500302e30", UNABLE),
    ("OK to a worker", WORKER, SPEC, "05000000 4f c8000000", "Invalid message: ok"),
    ("OK to a worker", WORKER, SHIPPED, "00000005 01", "Invalid message: ok"),
    ("NOTIFY_ACK to a worker", WORKER, SHIPPED, "00000012 04", "Invalid message: notify_ack"),
    ("ACK to a worker", WORKER, SPEC, "05000000 41", "Invalid message: ack"),
    ("NACK to a worker", WORKER, SPEC, "15000000 21", "Invalid message: nack"),
    ("RESTART to a worker", WORKER, SHIPPED, "00000001 07", "Invalid message: restart"),
    ("HELLO to a connector", CONNECTOR, SPEC, "05000000 48", "Invalid message: hello"),
    ("NOTIFY to a connector", CONNECTOR, SPEC, "05000000 4e", "Invalid message: notify"),
    ("MESSAGE to a connector", CONNECTOR, SHIPPED, "00000005 05", "Invalid message: message"),
    ("EOS to a connector", CONNECTOR, SHIPPED, "00000009 08", "Invalid message: eos_message"),
    ("short OK", CONNECTOR, SHIPPED, "00000004 01 000000", UNABLE),
    ("OK with half a point", CONNECTOR, SPEC, "0d000000 4f c8000000 0700000000000000", UNABLE),
    ("ERROR without its reason", WORKER, SPEC, "03000000 45 0500", UNABLE),
    ("bytes after ERROR", WORKER, SPEC, "04000000 45 0000 00", UNABLE),
    ("NOTIFY without a reference", WORKER, SPEC, "0c000000 4e 0700000000000000 010061", UNABLE),
    ("bytes after NOTIFY", WORKER, SPEC, "14000000 4e" + "00" * 19, UNABLE),
    ("neither success nor failure", CONNECTOR, SHIPPED, "00000012 04 02" + "00" * 16, UNABLE),
    ("bytes after NOTIFY_ACK", CONNECTOR, SHIPPED, "00000013 04 01" + "00" * 17, UNABLE),
    ("ACK with half a point", CONNECTOR, SPEC, "0d000000 41 0a000000 0700000000000000", UNABLE),
    ("ACK with a large count", CONNECTOR, SHIPPED, "00000009 06 0000000a ffffffff", UNABLE),
    ("bytes after ACK", CONNECTOR, SHIPPED, "0000000a 06 0000000a 00000000 00", UNABLE),
    ("short NACK", CONNECTOR, SPEC, "14000000 21" + "00" * 19, UNABLE),
    ("bytes after NACK", CONNECTOR, SPEC, "16000000 21" + "00" * 21, UNABLE),
    ("RESTART with a large length", CONNECTOR, SHIPPED, "00000005 07 ffffffff", UNABLE),
    ("RESTART with half a length", CONNECTOR, SHIPPED, "00000003 07 0000", UNABLE),
    ("RESTART to no text", CONNECTOR, SHIPPED, "00000006 07 00000001 ff", UNABLE),
    ("bytes after RESTART", CONNECTOR, SHIPPED, "00000006 07 00000000 00", UNABLE),
    ("short EOS", WORKER, SHIPPED, "00000008 08 00000000000000", UNABLE),
    ("short MESSAGE", WORKER, SPEC, "12000000 4d" + "00" * 17, UNABLE),
    ("short MESSAGE", WORKER, LITERAL, "0a000000 4d" + "00" * 9, UNABLE),
    ("short MESSAGE", WORKER, SHIPPED, "0000001a 05" + "00" * 25, UNABLE),
    ("a reserved flag", WORKER, SPEC, f"13000000 {SPEC_HEAD} 2000 0100000000000000", UNABLE),
    ("all flags", WORKER, SPEC, f"13000000 {SPEC_HEAD} ffff 0100000000000000", UNABLE),
    ("BOUNDARY with payload", WORKER, SPEC, f"14000000 {SPEC_HEAD} 0200 {'00' * 9}", UNABLE),
    ("BOUNDARY with a time", WORKER, SPEC, f"1b000000 {SPEC_HEAD} 1200 {'00' * 16}", UNABLE),
    ("half a time", WORKER, SPEC, f"17000000 {SPEC_HEAD} 1000 {'00' * 12}", UNABLE),
    (
        "a time of 2^63",
        WORKER,
        SPEC,
        f"1b000000 {SPEC_HEAD} 1000 {'00' * 8} 0000000000000080",
        "Event time too large",
    ),
    ("a key longer than all", WORKER, SHIPPED, f"0000001c {SHIPPED_HEAD} 0002 61", UNABLE),
]


@pytest.mark.parametrize(
    ("role", "dialect", "data", "reason"),
    [each[1:] for each in BAD],
    ids=[f"{each[0]}, {each[2].value}" for each in BAD],
)
def test_a_bad_frame_is_an_error_with_a_reason(
    role: Role, dialect: Dialect, data: str, reason: str
) -> None:
    before = encode(Error("before"), dialect)
    bad = bytes.fromhex(data)
    for way, found in fed(lambda: Decoder(role, dialect), before + bad):
        assert found[0] == Error("before"), way
        assert isinstance(found[-1], WireError), way
        assert isinstance(found[-1], RemoteError)
        assert found[-1].reason == reason
        assert str(found[-1]).startswith(f"{reason}: ")
        assert len(found) == 2
    decoder = Decoder(role, dialect)
    decoder.receive(before + bad)
    assert isinstance(decoder.error, WireError)
    assert decoder.receive(before) == []
    assert decoder.pending == 0


@DIALECTS
def test_messages_before_a_bad_one_are_given_first(dialect: Dialect) -> None:
    stream = 0 if dialect is LITERAL else 7
    for count in (0, 1, 2, 31, 500):
        good = [Message(stream, number, b"x" * (number % 3)) for number in range(count)]
        frames = b"".join(encode(each, dialect) for each in good)
        bad = bytearray.fromhex(f"0000001c {SHIPPED_HEAD} 0002 61")
        if dialect is not SHIPPED:
            bad = bytearray(encode(Message(stream, 0, b""), dialect))
            bad[-9] = 0x80
        decoder = Decoder(WORKER, dialect)
        found = decoder.receive(frames + bad + frames)
        assert flat(found) == [*good, UNABLE]
        assert decoder.receive(frames) == []


def test_what_shipped_peers_allow_is_allowed() -> None:
    connector = Decoder(CONNECTOR, SHIPPED)
    ok = bytes.fromhex("00000015 01 000000c8") + bytes(16)
    bare = bytes.fromhex("00000001 07")
    assert connector.receive(ok + bare) == [Ok(200), Restart()]
    end = bytes.fromhex("00000011 08 0000000000000007 0000000000000001")
    assert Decoder(WORKER, SHIPPED).receive(end) == [EndOfStream(7)]


def test_a_boundary_may_have_the_flag_of_a_time_it_does_not_have() -> None:
    data = bytes.fromhex(f"13000000 {SPEC_HEAD} 1200 0100000000000000")
    (messages,) = Decoder(WORKER, SPEC).receive(data)
    assert isinstance(messages, Messages)
    assert messages.has_time is None
    assert messages.rows() == [Message(7, 1, b"", BOUNDARY | EVENT_TIME)]
    assert encode_messages(messages, SPEC) == data


def test_a_reason_that_is_no_text_is_shown_anyway() -> None:
    assert Decoder(WORKER, SPEC).receive(b"\x05\0\0\0E\x02\0n\xff") == [
        Error("n\N{REPLACEMENT CHARACTER}")
    ]


def test_a_large_frame_is_refused_before_its_body_comes() -> None:
    decoder = Decoder(WORKER, SPEC, frame_bytes_max=100)
    assert decoder.receive(struct.pack("<IB", 100, ord("M"))) == []
    decoder = Decoder(WORKER, SPEC, frame_bytes_max=100)
    (error,) = decoder.receive(struct.pack("<I", 101))
    assert isinstance(error, WireError)
    assert error.reason == "Frame too large"
    assert "at most 100" in str(error)


def test_a_message_as_large_as_the_limit_is_read() -> None:
    size = limits.WALLAROO_FRAME_BYTES_MAX
    data = encode(Message(7, 1, bytes(size - 19)), SPEC)
    (messages,) = Decoder(WORKER, SPEC).receive(data)
    assert isinstance(messages, Messages)
    assert messages.payloads.offsets.tolist() == [0, size - 19]
    (error,) = Decoder(WORKER, SPEC).receive(encode(Message(7, 1, bytes(size - 18)), SPEC))
    assert isinstance(error, WireError)


def test_bytes_are_shown_in_short_and_on_one_line() -> None:
    assert wire.shown(b"0.0.1") == "0.0.1"
    assert wire.shown(b"a\nb\xff") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"
    assert wire.shown(b"x" * 65_000) == "x" * 64 + "..."


# -- writing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "dialect"),
    [
        (NotifyAck(True, 1, 2), SPEC),
        (Restart(), LITERAL),
        (EndOfStream(7), SPEC),
        (Nack(1, 2, 3), SHIPPED),
        (Ok(1, ((1, 2),)), SHIPPED),
        (Ok(-1), SPEC),
        (Ok(2**32), SPEC),
        (Ack(1, ((1, 2**64),)), SHIPPED),
        (Notify(-1, b""), SPEC),
        (Notify(1, bytes(2**16)), SPEC),
        (Hello("0.0.1", b"", "p" * 2**16, ""), SPEC),
        (Message(7, 2**64), SPEC),
        (Message(-7, 1), SPEC),
        (Message(7, 1, flags=32), SPEC),
        (Message(7, 1, b"x", flags=BOUNDARY), SPEC),
        (Message(7, 1, flags=BOUNDARY, time=1), SPEC),
        (Message(7, 1, time=-1), SPEC),
        (Message(7, 1, key=b"k"), SPEC),
        (Message(7, 1, flags=BOUNDARY), SHIPPED),
        (Message(7, 1, key=bytes(2**16)), SHIPPED),
        (Message(7, 1, time=2**63), SHIPPED),
    ],
    ids=str,
)
def test_what_cannot_be_written_is_the_callers_mistake(frame: Any, dialect: Dialect) -> None:
    with pytest.raises(LocalError):
        encode(frame, dialect)


@DIALECTS
def test_a_long_reason_is_cut_where_a_character_ends(dialect: Dialect) -> None:
    data = encode(Error("é" * 40_000), dialect)
    assert Decoder(WORKER, dialect).receive(data) == [Error("é" * 32_767)]


def test_columns_that_do_not_fit_together_are_refused() -> None:
    good = Messages.of(7, [1, 2], [b"a", b"b"])
    with pytest.raises(BadBatch, match="3 payloads for 2 ids"):
        Messages.of(7, [1, 2], [b"a", b"b", b"c"])
    with pytest.raises(BadBatch):
        Messages.of([7], [1, 2, 3], [b"a", b"b"])
    with pytest.raises(BadBatch, match="1 keys"):
        Messages.of(7, [1, 2], [b"a", b"b"], keys=[b"k"])
    with pytest.raises(BadBatch, match="has_time"):
        Messages(good.streams, good.ids, good.payloads, good.flags, np.zeros(2, np.int64)).check()
    with pytest.raises(BadBatch, match="end at 2 for 3 bytes"):
        encode_messages(
            Messages(good.streams, good.ids, Column(good.payloads.offsets, b"abc"), good.flags),
            SPEC,
        )


@DIALECTS
def test_no_messages_are_no_bytes(dialect: Dialect) -> None:
    assert bytes(encode_messages(Messages.of(7, [], []), dialect)) == b""


# -- round trips -------------------------------------------------------------------------------

u64 = st.integers(0, U64_MAX)
u32 = st.integers(0, 2**32 - 1)
points = st.lists(st.tuples(u64, u64), max_size=5).map(tuple)
names = st.binary(max_size=20)
SENT_BY_WORKER = {
    SPEC: st.one_of(
        st.builds(Ok, u32, points), st.builds(Ack, u32, points), st.builds(Nack, u32, u64, u64)
    ),
    SHIPPED: st.one_of(
        st.builds(Ok, u32),
        st.builds(Ack, u32, points),
        st.builds(NotifyAck, st.booleans(), u64, u64),
        st.builds(Restart, st.text(max_size=20)),
    ),
}
SENT_BY_WORKER[LITERAL] = SENT_BY_WORKER[SPEC]
HELLOS = st.builds(Hello, st.text(max_size=9), names, st.text(max_size=9), st.text(max_size=9))
SENT_BY_ALL = st.builds(Error, st.text(max_size=40))


def messages_of(dialect: Dialect, sizes: st.SearchStrategy[int]) -> st.SearchStrategy[Message]:
    payloads = sizes.map(bytes) | st.binary(max_size=30)
    if dialect is SHIPPED:
        times = st.none() | st.integers(-(2**63), 2**63 - 1).filter(bool)
        keys = st.none() | st.binary(min_size=1, max_size=9)
        return st.builds(Message, u64, u64, payloads, st.just(0), times, keys)

    def fitting(message: Message) -> Message:
        flags = message.flags
        if flags & BOUNDARY:
            return Message(message.stream, message.id, b"", flags)
        if flags & EVENT_TIME:
            return message
        return Message(message.stream, message.id, message.payload, flags)

    streams = st.just(0) if dialect is LITERAL else u64
    times = st.integers(0, 2**63 - 1)
    every = st.builds(Message, streams, u64, payloads, st.integers(0, 31), times)
    return (every | st.builds(Message, streams, u64, payloads)).map(fitting)


def connector_frames(dialect: Dialect) -> st.SearchStrategy[list[Any]]:
    message = messages_of(dialect, st.sampled_from([0, 1, 2, 2, 2, 300]))
    others: list[st.SearchStrategy[Any]] = [HELLOS, SENT_BY_ALL, st.builds(Notify, u64, names, u64)]
    if dialect is SHIPPED:
        others.append(st.builds(EndOfStream, u64))
    return st.lists(st.one_of(message, message, message, *others), max_size=40)


def in_pieces(decoder: Decoder, data: bytes, cuts: list[int]) -> list[Any]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [
        each
        for begin, end in itertools.pairwise(edges)
        for each in decoder.receive(data[begin:end])
    ]


cuts = st.lists(st.integers(0, 10_000), max_size=12)


@DIALECTS
@given(data=st.data())
def test_what_a_connector_sends_arrives(dialect: Dialect, data: st.DataObject) -> None:
    frames = data.draw(connector_frames(dialect))
    sent = b"".join(encode(frame, dialect) for frame in frames)
    for decoder in (Decoder(WORKER, dialect), Decoder(WORKER, dialect, read_bytes=1)):
        assert plain(in_pieces(decoder, sent, data.draw(cuts))) == frames
        assert decoder.pending == 0
        assert decoder.error is None


@DIALECTS
@given(data=st.data())
def test_what_a_worker_sends_arrives(dialect: Dialect, data: st.DataObject) -> None:
    frames = data.draw(st.lists(SENT_BY_WORKER[dialect] | SENT_BY_ALL, max_size=20))
    sent = b"".join(encode(frame, dialect) for frame in frames)
    assert in_pieces(Decoder(CONNECTOR, dialect), sent, data.draw(cuts)) == frames


@DIALECTS
@given(data=st.data())
def test_columns_are_written_as_each_message_would_be(
    dialect: Dialect, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(messages_of(dialect, st.sampled_from([0, 5, 5, 5])), min_size=1))
    columns = Messages.of(
        [row.stream for row in rows],
        [row.id for row in rows],
        [row.payload for row in rows],
        flags=[row.flags for row in rows],
        times=[row.time for row in rows],
        keys=[row.key for row in rows],
    )
    assert columns.rows() == rows
    written = bytes(encode_messages(columns, dialect))
    assert written == b"".join(encode(row, dialect) for row in rows)
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    kept = columns.filter(keep)
    kept.check()
    assert kept.rows() == [row for row, wanted in zip(rows, keep, strict=True) if wanted]


# -- against a second decoder ------------------------------------------------------------------


def random_frames(chooser: random.Random, dialect: Dialect, bad: float) -> bytes:
    """Runs of messages of equal and of mixed sizes, other frames between them, some spoiled."""
    frames = []
    for _ in range(chooser.randint(1, 12)):
        size = chooser.choice([0, 1, 8, 40, 100])
        mixed = chooser.random() < 0.5
        adorned = chooser.random() < 0.4
        for _ in range(chooser.choice([1, 2, 20, 33, 300, 900])):
            length = chooser.randint(0, 2 * size) if mixed else size
            frames.append(random_message(chooser, dialect, length, adorned))
        if chooser.random() < 0.6:
            frames.append(encode(Notify(chooser.randrange(9), b"name", 3), dialect))
        if chooser.random() < bad:
            spoiled = bytearray(frames[-1])
            spoiled[chooser.randrange(4, len(spoiled))] ^= 1 << chooser.randrange(8)
            frames.append(bytes(spoiled))
    return b"".join(frames)


def random_message(chooser: random.Random, dialect: Dialect, length: int, adorned: bool) -> bytes:
    stream = 0 if dialect is LITERAL else chooser.randrange(100)
    number = chooser.choice([chooser.randrange(2**64), 2**63, U64_MAX, 0])
    payload = chooser.randbytes(length)
    if not adorned:
        return quick(dialect, stream, number, payload, 0, None, b"")
    if dialect is SHIPPED:
        key = chooser.choice([b"", b"k", b"key"])
        signed = chooser.choice([0, -1, 2**63 - 1, -(2**63)])
        return quick(dialect, stream, number, payload, 0, signed, key)
    flags = chooser.choice([0, 1, 2, 4, 6, 8, 16, 16, 20, 31])
    if flags & BOUNDARY:
        return quick(dialect, stream, number, b"", flags, None, b"")
    time = chooser.choice([0, 2**63 - 1]) if flags & EVENT_TIME else None
    return quick(dialect, stream, number, payload, flags, time, b"")


def quick(
    dialect: Dialect,
    stream: int,
    number: int,
    payload: bytes,
    flags: int,
    time: int | None,
    key: bytes,
) -> bytes:
    """A MESSAGE by `struct` alone: nothing of what is tested takes part."""
    if dialect is SHIPPED:
        body = struct.pack(">QQqH", stream, number, time or 0, len(key)) + key + payload
        return struct.pack(">IB", len(body) + 1, 5) + body
    body = b"" if dialect is LITERAL else struct.pack("<Q", stream)
    body += struct.pack("<HQ", flags, number)
    body += b"" if time is None else struct.pack("<Q", time)
    return struct.pack("<IB", len(body) + len(payload) + 1, ord("M")) + body + payload


def seen_by_reference(data: bytes, dialect: Dialect) -> list[Any]:
    """What the simple decoder gives, its other frames read by a decoder that sees nothing else."""
    rows = []
    for each in reference(data, dialect):
        if isinstance(each, tuple):
            tag, body = each
            frame = struct.pack(f"{dialect.order}IB", len(body) + 1, tag) + body
            rows += flat(Decoder(WORKER, dialect).receive(frame))
            if isinstance(rows[-1], str):
                break
        else:
            rows.append(each)
    return rows


@DIALECTS
@pytest.mark.parametrize("bad", [0.0, 0.3], ids=["good", "spoiled"])
@pytest.mark.parametrize("seed", range(6))
def test_columns_hold_what_a_simple_decoder_gives(dialect: Dialect, bad: float, seed: int) -> None:
    chooser = random.Random(f"{dialect} {bad} {seed}")
    data = random_frames(chooser, dialect, bad)
    expected = seen_by_reference(data, dialect)
    assert flat(Decoder(WORKER, dialect).receive(data)) == expected
    for largest in (50, 5_000, 100_000):
        decoder = Decoder(WORKER, dialect, read_bytes=chooser.choice([4_096, 65_536]))
        found: list[Any] = []
        at = 0
        while at < len(data):
            size = chooser.randint(1, largest)
            found += decoder.receive(data[at : at + size])
            at += size
        assert flat(found) == expected


def test_much_data_at_once_is_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_frames(random.Random(1), SPEC, 0.0)
    expected = seen_by_reference(data, SPEC)
    decoder = Decoder(WORKER, SPEC)
    monkeypatch.setattr(limits, "WALLAROO_DIRECT_BYTES", 10_001)
    assert flat(decoder.receive(data)) == expected


@DIALECTS
def test_every_place_to_cut_gives_the_same(dialect: Dialect) -> None:
    chooser = random.Random(5)
    data = b"".join(random_message(chooser, dialect, n % 4, n % 2 == 0) for n in range(12))
    data += encode(Notify(1, b"n", 2), dialect) + data
    expected = seen_by_reference(data, dialect)
    assert len(expected) == 25
    for cut in range(len(data) + 1):
        decoder = Decoder(WORKER, dialect)
        assert flat(decoder.receive(data[:cut]) + decoder.receive(data[cut:])) == expected


@DIALECTS
def test_equal_messages_of_no_bytes_are_read(dialect: Dialect) -> None:
    stream = 0 if dialect is LITERAL else 3
    data = b"".join(encode(Message(stream, number), dialect) for number in range(400))
    (messages,) = Decoder(WORKER, dialect).receive(data)
    assert isinstance(messages, Messages)
    messages.check()
    assert messages.ids.tolist() == list(range(400))
    assert bytes(messages.payloads.data) == b""
    assert bytes(encode_messages(messages, dialect)) == data


# -- what is given ------------------------------------------------------------------------------


@DIALECTS
@pytest.mark.parametrize("count", [1, 2, 40])
@pytest.mark.parametrize("mixed", [False, True], ids=["equal", "mixed"])
def test_what_was_given_does_not_change_when_the_buffer_is_used_again(
    dialect: Dialect, count: int, mixed: bool
) -> None:
    chooser = random.Random(3)
    data = b"".join(
        quick(
            dialect,
            0 if dialect is LITERAL else number,
            number,
            chooser.randbytes(9 + number % 5 * mixed),
            0 if dialect is SHIPPED else EVENT_TIME,
            number + 1,
            b"key",
        )
        for number in range(count)
    )
    decoder = Decoder(WORKER, dialect)
    room = decoder.get_buffer()
    room[: len(data)] = data
    (messages,) = decoder.advance(len(data))
    assert isinstance(messages, Messages)
    before = messages.rows()
    assert before == reference(data, dialect)
    room[:] = b"\xee" * len(room)
    assert messages.rows() == before


def test_columns_are_what_the_log_takes() -> None:
    rows = [Message(7, n, b"v" * n, time=n or None, key=b"k" if n % 2 else None) for n in range(50)]
    data = b"".join(encode(row, SHIPPED) for row in rows)
    (messages,) = Decoder(WORKER, SHIPPED).receive(data)
    assert isinstance(messages, Messages)
    assert messages.keys is not None
    batch = Batch(BinaryColumn(*messages.payloads), BinaryColumn(*messages.keys), messages.times)
    assert batch.count == 50
    assert batch.key_array().to_pylist() == [row.key for row in rows]
    assert batch.largest == 50
    equal = encode_messages(Messages.of(7, range(100), [b"x" * 9] * 100), SPEC)
    (messages,) = Decoder(WORKER, SPEC).receive(equal)
    assert isinstance(messages, Messages)
    assert Batch(BinaryColumn(*messages.payloads)).largest == 9


def test_literal_messages_are_given_their_stream() -> None:
    messages = Messages.of(0, [1, 2], [b"a", b"b"])
    assert [row.stream for row in messages.on(U64_MAX).rows()] == [U64_MAX] * 2


# -- memory -------------------------------------------------------------------------------------


def test_the_buffer_grows_with_what_comes_and_shrinks_again() -> None:
    decoder = Decoder(WORKER, SPEC)
    assert decoder.held == limits.WALLAROO_FIRST_READ_BYTES
    frame = encode(Message(7, 1, bytes(3_000_000)), SPEC)
    came = 0
    for at in range(0, len(frame) - 1, 1_000):
        part = frame[at : at + 1_000][: len(frame) - 1 - at]
        assert decoder.receive(part) == []
        came += len(part)
        assert decoder.pending == came
        assert decoder.held <= max(2 * came + 2_000, 2 * limits.WALLAROO_FIRST_READ_BYTES)
    (messages,) = decoder.receive(frame[-1:])
    assert isinstance(messages, Messages)
    assert decoder.pending == 0
    decoder.get_buffer()
    assert decoder.held == limits.WALLAROO_READ_BYTES


def test_a_busy_connection_gets_a_larger_buffer_and_an_idle_one_keeps_its_small_one() -> None:
    frame = encode(Message(7, 1, bytes(100)), SPEC)
    idle, busy = Decoder(WORKER, SPEC), Decoder(WORKER, SPEC)
    stream = frame * 20_000
    while stream:
        room = idle.get_buffer()
        room[: len(frame)] = frame
        idle.advance(len(frame))
        room = busy.get_buffer()
        size = min(len(room), len(stream))
        room[:size] = stream[:size]
        busy.advance(size)
        stream = stream[size:]
    assert idle.held == limits.WALLAROO_FIRST_READ_BYTES
    assert busy.held == limits.WALLAROO_READ_BYTES


def test_there_is_always_room() -> None:
    chooser = random.Random(8)
    decoder = Decoder(WORKER, SPEC, read_bytes=8_192)
    stream = b"".join(
        encode(Message(7, number, bytes(chooser.choice([0, 10, 5_000, 40_000]))), SPEC)
        for number in range(300)
    )
    ids = []
    while stream:
        room = decoder.get_buffer()
        assert len(room) > 0
        size = min(len(room), len(stream), chooser.choice([1, 100, 5_000, 50_000]))
        room[:size] = stream[:size]
        for messages in decoder.advance(size):
            assert isinstance(messages, Messages)
            ids += messages.ids.tolist()
        stream = stream[size:]
    assert ids == list(range(300))
