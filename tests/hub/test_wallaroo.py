"""The Wallaroo door over real sockets: what connectors send is stored, acked, and never twice."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import trustme

from penstock import limits
from penstock.config import Config
from penstock.errors import BadSetting
from penstock.hub.users import Grant
from penstock.log import Batch, small_log
from penstock.protocols.wallaroo.wire import (
    BOUNDARY,
    EOS,
    EPHEMERAL,
    U64_MAX,
    UNSTABLE_REFERENCE,
    Ack,
    Dialect,
    EndOfStream,
    Error,
    Hello,
    Message,
    Messages,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    encode,
)
from penstock.testing.hub import TestHub
from tests.hub.conftest import api, code_of, config
from tests.records import values
from tests.wallaroo_peer import Peer

SPEC, LITERAL, SHIPPED = Dialect.SPEC, Dialect.LITERAL, Dialect.SHIPPED
BOTH = pytest.mark.parametrize("dialect", [SPEC, SHIPPED], ids=lambda each: each.value)

Connect = Callable[..., Peer]


def opened(**settings: Any) -> Config:
    return config(wallaroo={"listen": "127.0.0.1:0", **settings})


def port_of(hub: TestHub) -> int:
    return int(hub.wallaroo.address.rpartition(":")[2])


@pytest.fixture
def hub() -> Iterator[TestHub]:
    with TestHub(config=opened()) as hub:
        yield hub


@pytest.fixture
def connect() -> Iterator[Connect]:
    with contextlib.ExitStack() as stack:

        def connector(hub: TestHub, dialect: Dialect = SPEC, **more: Any) -> Peer:
            return stack.enter_context(Peer(port_of(hub), dialect, **more))

        yield connector


def stored(hub: TestHub, stream: str = "prog.inst.s7") -> list[bytes]:
    return values(hub.log.read(stream, 0, 0))


def until(condition: Callable[[], Any], seconds: float = 20) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)
    return found


# -- writing ---------------------------------------------------------------------------------------


@BOTH
def test_messages_are_stored_in_order_and_acked(
    hub: TestHub, connect: Connect, dialect: Dialect
) -> None:
    peer = connect(hub, dialect)
    peer.hello()
    peer.open(7)
    peer.write(7, range(1, 5001))
    assert stored(hub) == [b"%d" % number for number in range(1, 5001)]
    assert hub.log.last_id("wallaroo/prog/inst", "prog.inst.s7", 0) == 5000


@BOTH
def test_streams_may_be_mixed_at_will(hub: TestHub, connect: Connect, dialect: Dialect) -> None:
    peer = connect(hub, dialect)
    peer.hello()
    for stream in range(5):
        peer.open(stream)
    order = [number % 5 if number % 3 else number % 2 for number in range(150)]
    ids = [order[: at + 1].count(stream) for at, stream in enumerate(order)]
    peer.send(Messages.of(order, ids, [b"%d" % number for number in ids]))
    for stream in range(5):
        peer.wait_acked(stream, order.count(stream))
        expected = [b"%d" % number for number in range(1, order.count(stream) + 1)]
        assert stored(hub, f"prog.inst.s{stream}") == expected


def test_keys_and_event_times_are_kept(hub: TestHub, connect: Connect) -> None:
    peer = connect(hub, SHIPPED)
    peer.hello()
    peer.open(7)
    rows = Messages.of(
        7, [1, 2, 3], [b"a", b"b", b""], keys=[b"k", None, b"k"], times=[5_000_123, None, -1500]
    )
    peer.send(rows)
    peer.wait_acked(7, 3)
    (batch,) = hub.log.read("prog.inst.s7", 0, 0)
    assert batch.column("key").to_pylist() == [b"k", None, b"k"]
    assert batch.column("value").to_pylist() == [b"a", b"b", b""]
    times = batch.column("timestamp").cast("int64").to_pylist()
    assert times[0] == 5000
    assert times[1] > 1_700_000_000_000_000
    assert times[2] == -2


@pytest.mark.parametrize(
    ("unit", "given", "kept"), [("s", 2, 2_000_000), ("ms", 2, 2000), ("us", 2, 2), ("ns", 2000, 2)]
)
def test_the_unit_of_event_times_is_a_setting(
    start: Callable[..., TestHub], connect: Connect, unit: str, given: int, kept: int
) -> None:
    hub = start(opened(event_time=unit))
    peer = connect(hub)
    peer.hello()
    peer.open(7)
    peer.send(Messages.of(7, [1], [b"a"], times=[given], flags=16))
    peer.wait_acked(7, 1)
    (batch,) = hub.log.read("prog.inst.s7", 0, 0)
    assert batch.column("timestamp").cast("int64").to_pylist() == [kept]


def test_boundaries_are_no_records_and_everything_else_is(hub: TestHub, connect: Connect) -> None:
    peer = connect(hub)
    peer.hello()
    peer.open(7)
    for number, flags in enumerate((0, EPHEMERAL, BOUNDARY, UNSTABLE_REFERENCE, EOS), 1):
        peer.send(Message(7, number, b"" if flags == BOUNDARY else b"%d" % number, flags))
        peer.wait_acked(7, number)
    assert stored(hub) == [b"1", b"2", b"4", b"5"]
    peer.send(Message(7, 6, b"late"))
    assert peer.refused() == "Bad/unregistered stream_id 7 with message_id 6"


def test_a_message_larger_than_a_read_is_stored(hub: TestHub, connect: Connect) -> None:
    peer = connect(hub)
    peer.hello()
    peer.open(7)
    payload = bytes(range(256)) * 1500
    peer.write(7, [1, 2], [payload, b"small"])
    assert stored(hub) == [payload, b"small"]


def test_more_than_one_commit_takes_is_appended_in_parts(
    start: Callable[..., TestHub], connect: Connect
) -> None:
    log = small_log(journal_bytes=limits.MIB, checkpoint_bytes=128 * 1024, record_bytes_max=65536)
    hub = start(msgspec.structs.replace(opened(), log=log))
    peer = connect(hub)
    peer.hello()
    peer.open(7)
    peer.open(8)
    payloads = [b"%d" % number * 9000 for number in range(1, 9)] * 10
    streams = [7, 8] * 40
    peer.send(Messages.of(streams, range(1, 81), payloads))
    peer.wait_acked(8, 80)
    assert stored(hub) == payloads[::2]
    assert stored(hub, "prog.inst.s8") == payloads[1::2]


def test_the_literal_form_is_an_option(start: Callable[..., TestHub], connect: Connect) -> None:
    hub = start(opened(literal=True))
    peer = connect(hub, LITERAL)
    peer.hello()
    peer.open(7)
    peer.send(Message(0, 1, b"a"), Message(0, 2, b"b"))
    peer.wait_acked(7, 2)
    assert stored(hub) == [b"a", b"b"]


# -- going on --------------------------------------------------------------------------------------


def test_a_connector_of_the_spec_hears_where_its_streams_go_on(
    hub: TestHub, connect: Connect
) -> None:
    peer = connect(hub)
    assert peer.hello().points == ()
    peer.open(7)
    peer.open(8)
    peer.open(9)
    peer.write(7, [1, 2, 3])
    peer.write(8, [U64_MAX])
    peer.send(Message(7, 4, b"unstable", UNSTABLE_REFERENCE))
    peer.wait_acked(7, 4)
    peer.send(Message(9, 5, b"", BOUNDARY))
    peer.wait_acked(9, 5)
    peer.close()
    again = connect(hub)
    assert set(again.hello().points) == {(7, 3), (8, U64_MAX), (9, 5)}
    other = connect(hub)
    assert other.hello(instance="other").points == ()


def test_points_of_reference_survive_a_restart(tmp_path: Path, connect: Connect) -> None:
    with TestHub(tmp_path, opened()) as hub:
        peer = connect(hub)
        peer.hello()
        peer.open(7)
        peer.open(8)
        peer.write(7, [1, 2, 3])
        peer.send(Message(7, 9, b"", BOUNDARY), Message(8, 5, b"", BOUNDARY))
        peer.wait_acked(7, 9)
        peer.wait_acked(8, 5)
    with TestHub(tmp_path, opened()) as hub:
        peer = connect(hub)
        assert set(peer.hello().points) == {(7, 9), (8, 5)}
        peer.open(7)
        peer.write(7, [10])
    with TestHub(tmp_path, opened()) as hub:
        assert set(connect(hub).hello().points) == {(7, 10), (8, 5)}
        assert stored(hub) == [b"1", b"2", b"3", b"10"]


def test_a_shipped_connector_goes_on_after_what_was_stored_and_repeats_are_dropped(
    tmp_path: Path, connect: Connect
) -> None:
    with TestHub(tmp_path, opened()) as hub:
        peer = connect(hub, SHIPPED)
        assert peer.hello().points == ()
        assert peer.open(7) == U64_MAX
        peer.write(7, [1, 2, 3])
        peer.close()
        peer = connect(hub, SHIPPED)
        peer.hello()
        assert peer.open(7) == 3
        peer.send(Messages.of(7, [2, 3, 4], [b"x"] * 3))
        peer.wait_acked(7, 4)
        assert peer.credits >= 199
    with TestHub(tmp_path, opened()) as hub:
        peer = connect(hub, SHIPPED)
        peer.hello()
        assert peer.open(7) == 4
        peer.send(EndOfStream(7))
        assert peer.wait(Ack).points == ((7, 4),)
        assert stored(hub) == [b"1", b"2", b"3", b"x"]


@BOTH
def test_what_was_on_its_way_when_a_connection_broke_is_counted_before_the_next(
    hub: TestHub, connect: Connect, dialect: Dialect
) -> None:
    """Whatever the kernel and the log still had of it, nothing is stored twice."""
    number, total = 1, 20_000
    while number <= total:
        peer = connect(hub, dialect)
        ok = peer.hello()
        ref = peer.open(7)
        point = dict(ok.points).get(7, 0) if dialect is SPEC else (ref or 0)
        number = 1 if point in (0, U64_MAX) else point + 1
        until_ = min(total, number + 2500)
        for first in range(number, until_ + 1, 100):
            if peer.credits < 100:
                break
            ids = range(first, min(first + 100, until_ + 1))
            peer.send(Messages.of(7, ids, [b"%d" % each for each in ids]))
        peer.close()
    until(lambda: hub.log.bounds("prog.inst.s7", 0)[1] >= total)
    found = [int(each) for each in stored(hub)]
    assert found == list(range(1, total + 1))


# -- names -----------------------------------------------------------------------------------------


def test_program_and_instance_keep_streams_apart(hub: TestHub, connect: Connect) -> None:
    for program, instance in (("a", "b"), ("a", "c"), ("a.b", "c"), ("a", "b.c"), ("", "é/")):
        peer = connect(hub)
        peer.hello(program, instance)
        peer.open(1, "orders")
        peer.write(1, [1])
    assert hub.log.streams() == [
        "-x.-xc3-xa9-x2f.orders",
        "a-x2eb.c.orders",
        "a.b-x2ec.orders",
        "a.b.orders",
        "a.c.orders",
    ]


def test_the_mapping_is_a_setting(start: Callable[..., TestHub], connect: Connect) -> None:
    hub = start(opened(streams="in-{stream}"))
    peer = connect(hub)
    peer.hello()
    peer.open(1, "a/b")
    peer.write(1, [1])
    assert hub.log.streams() == ["in-a-x2fb"]


def test_a_stream_keeps_its_place_under_another_id(hub: TestHub, connect: Connect) -> None:
    peer = connect(hub, SHIPPED)
    peer.hello()
    peer.open(1, "a")
    peer.open(2, "b")
    peer.write(1, [5])
    peer.write(2, [6])
    peer.close()
    peer = connect(hub, SHIPPED)
    peer.hello()
    assert peer.open(2, "a") == 5
    assert peer.open(1, "b") == 6


@BOTH
def test_a_stream_is_open_under_one_id_only(
    hub: TestHub, connect: Connect, dialect: Dialect
) -> None:
    peer = connect(hub, dialect)
    peer.hello()
    peer.open(1, "a")
    peer.send(Notify(2, b"a"))
    if dialect is SPEC:
        assert peer.refused() == "Stream 2 refused: it is open as stream id 1"
    else:
        assert not peer.wait(NotifyAck).success


def test_a_stream_of_several_partitions_takes_a_connectors_stream_in_one(
    hub: TestHub, connect: Connect
) -> None:
    hub.log.create_stream("prog.inst.s7", 4)
    peer = connect(hub, SHIPPED)
    peer.hello()
    peer.open(7)
    peer.write(7, [1, 2, 3])
    hub.log.add_partitions("prog.inst.s7", 9)
    peer.close()
    peer = connect(hub, SHIPPED)
    peer.hello()
    assert peer.open(7) == 3
    ends = [end for _, end in hub.log.all_bounds("prog.inst.s7")]
    assert sorted(ends)[-2:] == [0, 3]


def test_streams_are_made_only_if_that_is_allowed(
    start: Callable[..., TestHub], connect: Connect
) -> None:
    hub = start(opened(create=False))
    peer = connect(hub)
    peer.hello()
    peer.open(1, "a")
    assert "there is no stream 'prog.inst.a'" in peer.refused()
    hub.log.create_stream("prog.inst.a")
    peer = connect(hub)
    peer.hello()
    peer.open(1, "a")
    peer.write(1, [1])


def test_connectors_have_the_rights_of_a_user(
    start: Callable[..., TestHub], connect: Connect
) -> None:
    hub = start(opened(user="feeds"))
    peer = connect(hub)
    peer.hello()
    peer.open(1)
    assert "there is none such" in peer.refused()
    hub.hub.users.add("feeds", [Grant.parse("write:prog.*"), Grant.parse("admin:prog.inst.*")])
    for instance, refused in (
        ("inst", None),
        ("other", "no right to admin"),
        (None, "no right to"),
    ):
        peer = connect(hub)
        peer.hello("prog" if instance else "else", instance or "x")
        peer.open(1)
        if refused:
            assert refused in peer.refused()
        else:
            peer.write(1, [1])


def test_a_stream_deleted_under_a_connector_ends_its_session_and_is_made_again(
    hub: TestHub, connect: Connect
) -> None:
    peer = connect(hub)
    peer.hello()
    peer.open(7)
    peer.write(7, [1])
    hub.log.delete_stream("prog.inst.s7")
    peer.send(Message(7, 2, b"x"))
    assert "deleted" in peer.refused()
    peer = connect(hub)
    assert peer.hello().points == ()
    peer.open(7)
    peer.write(7, [2])
    assert stored(hub) == [b"2"]


# -- two connections -------------------------------------------------------------------------------


def test_shipped_connectors_take_turns_with_a_stream(hub: TestHub, connect: Connect) -> None:
    first, second = connect(hub, SHIPPED), connect(hub, SHIPPED)
    for peer in (first, second):
        peer.hello()
    first.open(7)
    first.write(7, [1])
    second.send(Notify(7, b"s7", 12))
    assert second.wait(NotifyAck) == NotifyAck(False, 7, 12)
    assert second.wait(Ack) == Ack(1)  # which has it try again
    first.send(EndOfStream(7))
    first.wait(Ack)
    assert second.open(7) == 1
    second.write(7, [2])
    assert stored(hub) == [b"1", b"2"]


def test_a_session_that_failed_has_no_stream_any_more(hub: TestHub, connect: Connect) -> None:
    """Though its connection stays for a moment, so that it can read why."""
    failed = connect(hub, SHIPPED)
    failed.hello()
    failed.open(7)
    failed.write(7, [1])
    failed.send(EndOfStream(8))
    failed.wait(Error)
    peer = connect(hub, SHIPPED)
    peer.hello()
    assert peer.open(7) == 1


def test_connectors_of_the_spec_may_share_a_stream(hub: TestHub, connect: Connect) -> None:
    first, second = connect(hub), connect(hub)
    for peer in (first, second):
        peer.hello()
        peer.open(7)
    first.write(7, [1])
    second.write(7, [1])
    assert stored(hub) == [b"1", b"1"]


# -- bad input -------------------------------------------------------------------------------------


def frame(dialect: Dialect, tag: int, body: bytes = b"", length: int | None = None) -> bytes:
    size = len(body) + 1 if length is None else length
    return struct.pack(f"{dialect.order}IB", size, tag) + body


GREETED: list[tuple[str, Dialect, Any, str]] = [
    ("second-hello", SPEC, Hello("0.0.1", b"", "p", "i"), "Bad protocol FSM state"),
    ("second-hello", SHIPPED, Hello("0.0.1", b"", "p", "i"), "Bad protocol FSM state"),
    ("ok", SPEC, Ok(1), "Invalid message: ok"),
    ("ok", SHIPPED, Ok(1), "Invalid message: ok"),
    ("ack", SPEC, Ack(1), "Invalid message: ack"),
    ("ack", SHIPPED, Ack(1), "Invalid message: ack"),
    ("nack", SPEC, Nack(1, 7), "Invalid message: nack"),
    ("notify-ack", SHIPPED, NotifyAck(True, 7, 0), "Invalid message: notify_ack"),
    ("restart", SHIPPED, frame(SHIPPED, 7), "Invalid message: restart"),
    ("unknown-tag", SPEC, frame(SPEC, ord("?")), "Unable to decode message"),
    ("workers-left", SHIPPED, frame(SHIPPED, 9), "Unable to decode message"),
    ("two-phase", SHIPPED, frame(SHIPPED, 201), "Unable to decode message"),
    ("length-0", SPEC, bytes(5), "Unable to decode message"),
    ("length-0", SHIPPED, bytes(5), "Unable to decode message"),
    ("too-large", SPEC, frame(SPEC, ord("M"), length=2**31), "Frame too large"),
    ("too-large", SHIPPED, frame(SHIPPED, 5, length=2**32 - 1), "Frame too large"),
    ("short", SPEC, frame(SPEC, ord("M"), bytes(17)), "Unable to decode message"),
    ("short", SHIPPED, frame(SHIPPED, 5, bytes(25)), "Unable to decode message"),
    ("short", SHIPPED, frame(SHIPPED, 8, bytes(7)), "Unable to decode message"),
    ("long", SPEC, frame(SPEC, ord("N"), bytes(30)), "Unable to decode message"),
    ("reserved-flag", SPEC, frame(SPEC, ord("M"), struct.pack("<QHQ", 7, 32, 1)),
     "Unable to decode message"),
    ("boundary-payload", SPEC, frame(SPEC, ord("M"), struct.pack("<QHQ", 7, 2, 1) + b"x"),
     "Unable to decode message"),
    ("time-too-large", SPEC, frame(SPEC, ord("M"), struct.pack("<QHQQ", 7, 16, 1, 2**63)),
     "Event time too large"),
    ("stream-name", SPEC, Notify(7, b"\xff\xfe"), "Unable to decode message"),
    ("stream-name", SHIPPED, Notify(7, b"\xff\xfe"), "Unable to decode message"),
    ("unknown-stream", SPEC, Message(8, 5, b"x"),
     "Bad/unregistered stream_id 8 with message_id 5"),
    ("unknown-stream", SHIPPED, Message(8, 5, b"x"),
     "Bad/unregistered stream_id 8 with message_id 5"),
    ("unknown-stream-ends", SHIPPED, EndOfStream(8), "Bad/unregistered stream_id 8"),
    ("long-stream-name", SPEC, Notify(7, b"/" * 100), "at most 249 fit"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "sent", "reason"),
    [each[1:] for each in GREETED],
    ids=[f"{name}-{dialect.value}" for name, dialect, _, _ in GREETED],
)
def test_what_breaks_the_rules_ends_the_session_with_a_reason(
    hub: TestHub, connect: Connect, dialect: Dialect, sent: Any, reason: str
) -> None:
    peer = connect(hub, dialect)
    peer.hello()
    peer.open(3)
    peer.send(Message(3, 1, b"before"), sent)
    with contextlib.suppress(ConnectionError):
        peer.send(Message(3, 2, b"after"))
    assert reason in peer.refused()
    until(lambda: hub.log.bounds("prog.inst.s3", 0)[1])
    assert stored(hub, "prog.inst.s3") == [b"before"]
    assert hub.wallaroo.connections == 0 or until(lambda: not hub.wallaroo.connections)


UNGREETED: list[tuple[str, bytes, Dialect, str]] = [
    ("http", b"GET / HTTP/1.1\r\n\r\n", SPEC, "Unable to decode message"),
    ("garbage", b"\xff" * 100, SPEC, "Unable to decode message"),
    ("zeros", bytes(100), SHIPPED, "Unable to decode message"),
    ("message", encode(Message(7, 1, b"x"), SPEC), SPEC, "Unable to decode message"),
    ("notify", encode(Notify(7, b"x"), SHIPPED), SPEC, "Unable to decode message"),
    ("hello-too-large", frame(SPEC, ord("H"), length=2**20), SPEC, "Frame too large"),
    ("version", encode(Hello("9", b"ck", "p", "i"), SPEC), SPEC, "Unknown protocol version: 9"),
    ("version", encode(Hello("9", b"ck", "p", "i"), SHIPPED), SHIPPED,
     "Unknown protocol version: 9"),
    ("cookie", encode(Hello("0.0.1", b"guess", "p", "i"), SPEC), SPEC, "Bad cookie"),
    ("cookie", encode(Hello("0.0.1", b"guess", "p", "i"), SHIPPED), SHIPPED, "Bad cookie"),
    ("program", frame(SPEC, ord("H"), b"\5\x000.0.1\2\0ck\1\0\xff\0\0"), SPEC,
     "Unable to decode message"),
    ("truncated", frame(SPEC, ord("H"), b"\5\x000.0.1\2\0ck\1\0"), SPEC,
     "Unable to decode message"),
    ("names-too-long", encode(Hello("0.0.1", b"ck", "/" * 100, "i"), SPEC), SPEC, "at most 255"),
]  # fmt: skip


@pytest.fixture(scope="module")
def guarded() -> Iterator[TestHub]:
    with TestHub(config=opened(cookie="ck")) as hub:
        yield hub


@pytest.mark.parametrize(
    ("sent", "dialect", "reason"),
    [each[1:] for each in UNGREETED],
    ids=[f"{each[0]}-{each[2].value}" for each in UNGREETED],
)
def test_who_does_not_say_hello_properly_is_told_so(
    guarded: TestHub, connect: Connect, sent: bytes, dialect: Dialect, reason: str
) -> None:
    peer = connect(guarded, dialect)
    peer.send(sent)
    told = peer.refused()
    assert reason in told
    assert "ck" not in told.split()


def test_an_overdraft_ends_a_session_of_the_spec(
    start: Callable[..., TestHub], connect: Connect
) -> None:
    hub = start(opened(credits_max=3))
    peer = connect(hub)
    assert peer.hello().credits == 3
    peer.send(encode(Notify(7, b"s7"), SPEC) + b"".join(
        encode(Message(7, number, b"%d" % number), SPEC) for number in range(1, 9)
    ))  # fmt: skip
    assert peer.refused() == "Credit exhausted"
    until(lambda: hub.log.bounds("prog.inst.s7", 0)[1])
    assert stored(hub)[0] == b"1"
    shipped = connect(hub, SHIPPED)
    shipped.hello("other")
    shipped.open(7)
    shipped.send(Messages.of(7, range(1, 9), [b"x"] * 8))
    shipped.wait_acked(7, 8)


def test_a_record_the_log_does_not_take_ends_the_session(hub: TestHub, connect: Connect) -> None:
    peer = connect(hub)
    peer.hello()
    peer.open(7)
    peer.send(Message(7, 1, bytes(hub.log.settings.record_bytes_max + 1)))
    assert "too large" in peer.refused()


def test_an_error_of_the_connectors_is_logged_and_not_answered(
    hub: TestHub, connect: Connect
) -> None:
    peer = connect(hub)
    peer.hello()
    with structlog.testing.capture_logs() as logs:
        peer.send(Error("cannot\nrewind"))
        assert peer.hear() == []
        until(lambda: not hub.wallaroo.connections)
    assert [each for each in logs if "cannot\N{REPLACEMENT CHARACTER}rewind" in str(each)]


def test_refusals_are_counted(hub: TestHub, connect: Connect) -> None:
    with connect(hub) as bad:
        bad.send(b"\xff" * 10).refused()
    until(lambda: not hub.wallaroo.connections)
    peer = connect(hub)
    peer.hello()
    peer.open(7)
    peer.write(7, [1, 2, 3])
    until(lambda: b'penstock_records_appended_total{door="wallaroo"' in hub.hub.metrics.render())
    told = hub.hub.metrics.render().decode()
    assert 'penstock_rejected_total{door="wallaroo",reason="wallaroo-frame"} 1.0' in told
    assert 'penstock_connections{door="wallaroo"} 1.0' in told
    assert 'penstock_records_appended_total{door="wallaroo",stream="prog.inst.s7"} 3.0' in told, (
        told
    )


# -- slow and many ---------------------------------------------------------------------------------


def test_a_frame_may_come_byte_by_byte(hub: TestHub, connect: Connect) -> None:
    peer = connect(hub)
    data = encode(Hello("0.0.1", b"", "prog", "inst"), SPEC)
    data += encode(Notify(7, b"s7"), SPEC) + encode(Message(7, 1, b"slow"), SPEC)
    for byte in data:
        peer.send(bytes([byte]))
    peer.wait_acked(7, 1)
    assert stored(hub) == [b"slow"]


def test_a_peer_that_sends_a_byte_now_and_then_is_not_waited_for(
    hub: TestHub, connect: Connect
) -> None:
    hub.wallaroo.frame_s_max = 0.5
    peer = connect(hub)
    peer.hello()
    peer.open(7)
    data = encode(Message(7, 1, bytes(100)), SPEC)
    with contextlib.suppress(ConnectionError):
        for byte in data[:20]:
            peer.send(bytes([byte]))
            time.sleep(0.1)
    assert peer.refused() == "A frame took too long to arrive"
    idle = connect(hub)
    idle.hello()
    time.sleep(1.0)
    idle.open(7)  # to say nothing is fine
    idle.write(7, [1])


def test_a_thousand_connections_that_never_say_hello_are_closed_in_time(
    hub: TestHub, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.wallaroo.hello_s_max = 3.0
    silent = [connect(hub) for _ in range(1000)]
    silent[0].send(b"\x18")
    peer = connect(hub)
    peer.hello()
    peer.open(7)
    peer.write(7, range(1, 2000))
    until(lambda: hub.wallaroo.connections == 1, 30)
    assert silent[0].refused() == silent[-1].refused() == "No HELLO in time"
    peer.write(7, [2000])


def test_connections_are_limited(start: Callable[..., TestHub], connect: Connect) -> None:
    hub = start(opened(connections_max=2))
    kept = [connect(hub) for _ in range(2)]
    for peer in kept:
        peer.hello()
    extra = connect(hub)
    with contextlib.suppress(ConnectionError):
        assert extra.hear() == []
    kept[0].close()
    until(lambda: hub.wallaroo.connections == 1)
    connect(hub).hello()


def test_a_peer_that_never_reads_is_cut_off_and_others_go_on(
    hub: TestHub, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WALLAROO_WRITE_S_MAX", 1.0)
    monkeypatch.setattr(limits, "WALLAROO_WRITE_BYTES_MAX", 4096)
    deaf = connect(hub, SHIPPED, receive_buffer=2048)
    deaf.hello()
    for stream in range(300):
        deaf.open(stream)
    other = connect(hub)
    other.hello("other")
    other.open(1)
    with contextlib.suppress(ConnectionError):
        for number in range(1, 100_000):  # each is acked with 300 pairs, which fill its buffers
            deaf.send(Messages.of(list(range(300)), [number] * 300, [b"x"] * 300))
    other.write(1, range(1, 1000))
    until(lambda: hub.wallaroo.connections == 1)


def test_a_connector_that_ends_sending_still_hears_its_acks(hub: TestHub, connect: Connect) -> None:
    peer = connect(hub)
    peer.hello()
    peer.open(7)
    peer.send(Messages.of(7, range(1, 501), [b"x"] * 500))
    peer.socket.shutdown(socket.SHUT_WR)
    peer.wait_acked(7, 500)
    while peer.hear():
        pass


def test_a_full_log_makes_connectors_wait_and_loses_nothing(
    start: Callable[..., TestHub], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start(opened(credits_max=1_000_000, window_bytes=64 * limits.MIB))
    log: Any = hub.log
    sync = log._journal.sync

    def slow() -> None:
        time.sleep(0.05)
        sync()

    monkeypatch.setattr(log._journal, "sync", slow)
    peer = connect(hub, SHIPPED)
    peer.hello()
    peer.open(7)
    most = 0
    payloads = [b"%06d" % number * 300 for number in range(500)]
    for at in range(0, 20_000, 500):  # tolerated: shipped connectors may overdraw
        peer.send(Messages.of(7, range(at + 1, at + 501), payloads))
        most = max(most, log.buffered_bytes)
    peer.wait_acked(7, 20_000, 60)
    assert most <= log.settings.buffer_bytes + limits.MIB
    earliest, end = hub.log.bounds("prog.inst.s7", 0)
    assert (earliest, end) == (0, 20_000)


def test_acks_come_only_after_the_sync(hub: TestHub, connect: Connect) -> None:
    log: Any = hub.log
    sync = log._journal.sync
    held: list[bool] = []

    def holding() -> None:
        while held:
            time.sleep(0.01)
        sync()

    log._journal.sync = holding
    peer = connect(hub)
    peer.hello()
    peer.open(7)
    held.append(True)
    peer.send(Message(7, 1, b"x"))
    peer.socket.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while True:
            peer.hear()
    assert peer.acked == {}
    held.clear()
    peer.wait_acked(7, 1)


def test_a_stop_commits_and_acks_what_came(tmp_path: Path, connect: Connect) -> None:
    with TestHub(tmp_path, opened()) as hub:
        peer = connect(hub)
        peer.hello()
        peer.open(7)
        peer.send(Messages.of(7, range(1, 801), [b"x"] * 800))
        until(lambda: "prog.inst.s7" in hub.log.streams() and hub.log.bounds("prog.inst.s7", 0)[1])
    with contextlib.suppress(ConnectionError):
        while peer.hear():
            pass
    with TestHub(tmp_path, opened()) as hub:
        assert peer.acked[7] == hub.log.bounds("prog.inst.s7", 0)[1]


# -- processed -------------------------------------------------------------------------------------


@BOTH
def test_processed_messages_are_acked_when_the_group_has_passed_them(
    tmp_path: Path, connect: Connect, dialect: Dialect
) -> None:
    settings = opened(ack="processed", group="spark", credits_max=50)
    with TestHub(tmp_path, settings) as hub:
        peer = connect(hub, dialect)
        peer.hello()
        peer.open(7)
        for first in range(1, 201, 10):  # more than there are credits: these come when on disk
            while peer.credits < 10:
                peer.listen()
            peer.send(Messages.of(7, range(first, first + 10), [b"x"] * 10))
        until(lambda: hub.log.bounds("prog.inst.s7", 0)[1] == 200)
        time.sleep(0.3)
        assert peer.acked == {}
        hub.log.save_positions("spark", "prog.inst.s7", {0: 155})
        while not peer.acked:
            peer.listen()
        acked = peer.acked[7]
        assert 100 <= acked <= 155
        peer.close()
        hub.log.save_positions("spark", "prog.inst.s7", {0: 160})
    with TestHub(tmp_path, settings) as hub:
        peer = connect(hub, dialect)
        points = dict(peer.hello().points)
        ref = peer.open(7)
        assert (ref if dialect is SHIPPED else points[7]) == acked
        if dialect is SHIPPED:
            peer.send(Messages.of(7, range(acked + 1, 202), [b"x"] * (201 - acked)))
            until(lambda: hub.log.bounds("prog.inst.s7", 0)[1] == 201)  # once each
            time.sleep(0.2)
            assert peer.acked.get(7, 0) <= acked
            hub.log.save_positions("spark", "prog.inst.s7", {0: 201})
            peer.wait_acked(7, 201)
            peer.send(EndOfStream(7))
            peer.wait(Ack)
        else:
            peer.send(Messages.of(7, [acked + 1], [b"again"]))
            until(lambda: hub.log.bounds("prog.inst.s7", 0)[1] == 201)
            hub.log.save_positions("spark", "prog.inst.s7", {0: 201})
            peer.wait_acked(7, acked + 1)


def test_processed_streams_keep_what_the_group_has_not_read(
    start: Callable[..., TestHub], connect: Connect
) -> None:
    hub = start(opened(ack="processed", group="spark"))
    peer = connect(hub)
    peer.hello()
    peer.open(7)
    peer.send(Message(7, 1, b"", BOUNDARY))
    peer.wait_acked(7, 1)  # nothing before it to be processed
    (lag,) = hub.log.lags("spark")
    assert lag.registered


# -- TLS -------------------------------------------------------------------------------------------


def test_connectors_may_come_over_tls(
    tmp_path: Path, start: Callable[..., TestHub], connect: Connect
) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost")
    paths = {"certificate": tmp_path / "cert.pem", "key": tmp_path / "key.pem"}
    paths["certificate"].write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    paths["key"].write_bytes(leaf.private_key_pem.bytes())
    tls = {name: str(path) for name, path in paths.items()}
    hub = start(config(wallaroo={"listen": "127.0.0.1:0", "cookie": "ck"}, tls=tls))
    assert hub.wallaroo.address.startswith("wallaroo+tls://")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    peer = connect(hub, SHIPPED, context=context)
    peer.hello(cookie=b"ck")
    peer.open(7)
    peer.write(7, range(1, 3001))
    assert len(stored(hub)) == 3000
    bad = connect(hub, SHIPPED, context=context)
    bad.send(Hello("0.0.1", b"guess", "p", "i"))
    assert bad.refused() == "Bad cookie"
    for each in (peer, bad):
        with contextlib.suppress(OSError, ValueError):
            each.socket.unwrap()  # type: ignore[attr-defined]


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "hub_settings", "told"),
    [
        ({"listen": "0.0.0.0:0"}, {}, "without TLS .* and a cookie"),
        ({"listen": "0.0.0.0:0", "cookie": "c"}, {}, "without TLS"),
        ({"listen": "0.0.0.0:0", "debug": True}, {"insecure": True}, "only where"),
        ({"ack": "processed"}, {}, "needs wallaroo.group"),
        ({"streams": "all"}, {}, "lacks {stream}"),
        ({"listen": "nowhere"}, {}, "is no address"),
    ],
)
def test_settings_that_cannot_be_are_told(
    start: Callable[..., TestHub], settings: Any, hub_settings: Any, told: str
) -> None:
    with pytest.raises(BadSetting, match=told):
        start(config(wallaroo={"listen": "127.0.0.1:0", **settings}, hub=hub_settings))


def test_the_door_is_closed_unless_it_is_told_to_listen(shared: TestHub) -> None:
    assert [door.name for door in shared.hub.doors] == ["http", "flight"]
    for path in ("sessions", "streams"):
        assert code_of(api(shared, "GET", f"/wallaroo/{path}")) == (404, "door-closed")


def test_a_port_that_is_taken_leaves_the_other_doors_open(
    start: Callable[..., TestHub], hub: TestHub
) -> None:
    with structlog.testing.capture_logs() as logs:
        other = start(opened(listen=f"127.0.0.1:{port_of(hub)}"))
    assert [door.name for door in other.hub.doors] == ["http", "flight"]
    assert "cannot listen" in str(logs)


def test_notes_that_cannot_be_read_are_told_and_left(tmp_path: Path) -> None:
    with TestHub(tmp_path, opened()) as hub:
        hub.log.put_notes("wallaroo", {"wallaroo/a/b/1": b"{}", "else": b"x"})
    with structlog.testing.capture_logs() as logs, TestHub(tmp_path, opened()) as hub:
        assert hub.wallaroo.book.count == 0
    assert len([each for each in logs if each["event"] == "a note cannot be read"]) == 2


def test_streams_that_are_remembered_are_limited(
    hub: TestHub, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WALLAROO_NOTES_MAX", 1)
    peer = connect(hub)
    peer.hello()
    peer.open(1)
    peer.write(1, [1])
    peer.open(2)
    assert "no more fit" in peer.refused()


def test_other_producers_may_write_to_the_same_stream(hub: TestHub, connect: Connect) -> None:
    peer = connect(hub, SHIPPED)
    peer.hello()
    peer.open(7)
    peer.write(7, [1])
    hub.log.append("prog.inst.s7", Batch.of([b"by hand"]), 0, producer="p", ids=[99])
    peer.write(7, [2])
    assert stored(hub) == [b"1", b"by hand", b"2"]
