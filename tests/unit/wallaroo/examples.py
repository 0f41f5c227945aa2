"""Frames byte by byte: as worked out from the specification, and as the shipped module writes."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.protocols.wallaroo.wire import (
    BOUNDARY,
    EOS,
    EPHEMERAL,
    EVENT_TIME,
    U64_MAX,
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
    Restart,
    Role,
)

SPEC, LITERAL, SHIPPED = Dialect.SPEC, Dialect.LITERAL, Dialect.SHIPPED


class Example(NamedTuple):
    dialect: Dialect
    hex: str
    frame: Any

    @property
    def bytes(self) -> bytes:
        return bytes.fromhex(self.hex)

    @property
    def reader(self) -> Role:
        sent = (Hello, Notify, Message, EndOfStream)
        return Role.WORKER if isinstance(self.frame, sent) else Role.CONNECTOR


EXAMPLES = [
    Example(
        SHIPPED,
        "00000018 00 0005302e302e31 0002636b 000470726f67 0004696e7374",
        Hello("0.0.1", b"ck", "prog", "inst"),
    ),
    Example(
        SHIPPED,
        "00000016 00 0005302e302e31 0000     000470726f67 0004696e7374",
        Hello("0.0.1", b"", "prog", "inst"),
    ),
    Example(
        SHIPPED,
        "00000013000005302e302e310002636b0002c3a9000169",
        Hello("0.0.1", b"ck", "é", "i"),
    ),
    Example(
        SPEC,
        "18000000 48 0500302e302e31 0200636b 040070726f67 0400696e7374",
        Hello("0.0.1", b"ck", "prog", "inst"),
    ),
    Example(
        SPEC,
        "16000000480500302e302e310000040070726f670400696e7374",
        Hello("0.0.1", b"", "prog", "inst"),
    ),
    Example(SHIPPED, "00000005 01 000000c8", Ok(200)),
    Example(SPEC, "05000000 4f c8000000", Ok(200)),
    Example(SPEC, "15000000 4f c8000000 0700000000000000 0300000000000000", Ok(200, ((7, 3),))),
    Example(
        SPEC,
        "250000004fc8000000070000000000000003000000000000000800000000000000f401000000000000",
        Ok(200, ((7, 3), (8, 500))),
    ),
    Example(SHIPPED, "00000005 02 0002 6e6f", Error("no")),
    Example(SPEC, "05000000 45 0200 6e6f", Error("no")),
    Example(
        SHIPPED,
        "00000016 03 0000000000000007 0003616263 0000000000000000",
        Notify(7, b"abc", 0),
    ),
    Example(
        SHIPPED,
        "00000014 03 0102030405060708 000173 0000000000000009",
        Notify(0x0102030405060708, b"s", 9),
    ),
    Example(
        SPEC,
        "16000000 4e 0700000000000000 0300616263 0000000000000000",
        Notify(7, b"abc", 0),
    ),
    Example(
        SPEC,
        "160000004e070000000000000003006162630300000000000000",
        Notify(7, b"abc", 3),
    ),
    Example(
        SHIPPED,
        "00000012 04 01 0000000000000007 ffffffffffffffff",
        NotifyAck(True, 7, U64_MAX),
    ),
    Example(SHIPPED, "00000012 04 00 0000000000000007 000000000000000c", NotifyAck(False, 7, 12)),
    Example(
        SHIPPED,
        "0000001d 05 0000000000000007 0000000000000001 0000000000000000 0000 6869",
        Message(7, 1, b"hi"),
    ),
    Example(
        SHIPPED,
        "0000001e 05 0000000000000007 0000000000000002 ffffffffffffffff 00016b 6869",
        Message(7, 2, b"hi", time=-1, key=b"k"),
    ),
    Example(
        SHIPPED,
        "0000001b050000000000000007000000000000000300000000000000000000",
        Message(7, 3, b""),
    ),
    Example(SPEC, "15000000 4d 0700000000000000 0000 0100000000000000 6869", Message(7, 1, b"hi")),
    Example(
        SPEC,
        "13000000 4d 0700000000000000 0200 0400000000000000",
        Message(7, 4, flags=BOUNDARY),
    ),
    Example(
        SPEC,
        "1d000000 4d 0700000000000000 1000 0800000000000000 e803000000000000 6869",
        Message(7, 8, b"hi", EVENT_TIME, 1000),
    ),
    Example(
        SPEC,
        "140000004d07000000000000000400050000000000000078",
        Message(7, 5, b"x", EOS),
    ),
    Example(
        SPEC,
        "130000004d070000000000000006000500000000000000",
        Message(7, 5, flags=BOUNDARY | EOS),
    ),
    Example(
        SPEC,
        "150000004d0700000000000000010009000000000000006869",
        Message(7, 9, b"hi", EPHEMERAL),
    ),
    Example(
        SPEC,
        "140000004d07000000000000000800060000000000000078",
        Message(7, 6, b"x", UNSTABLE_REFERENCE),
    ),
    Example(LITERAL, "0d0000004d000001000000000000006869", Message(0, 1, b"hi")),
    Example(LITERAL, "0b0000004d02000400000000000000", Message(0, 4, flags=BOUNDARY)),
    Example(
        LITERAL,
        "150000004d10000800000000000000e8030000000000006869",
        Message(0, 8, b"hi", EVENT_TIME, 1000),
    ),
    Example(SHIPPED, "00000009 08 0000000000000007", EndOfStream(7)),
    Example(SHIPPED, "00000009 06 0000000a 00000000", Ack(10)),
    Example(
        SHIPPED,
        "00000019 06 0000000a 00000001 0000000000000007 0000000000000003",
        Ack(10, ((7, 3),)),
    ),
    Example(
        SHIPPED,
        "0000002906000000000000000200000000000000070000000000000003"
        "000000000000000800000000000001f4",
        Ack(0, ((7, 3), (8, 500))),
    ),
    Example(SPEC, "05000000 41 0a000000", Ack(10)),
    Example(SPEC, "15000000 41 0a000000 0700000000000000 0300000000000000", Ack(10, ((7, 3),))),
    Example(
        SPEC,
        "250000004100000000070000000000000003000000000000000800000000000000f401000000000000",
        Ack(0, ((7, 3), (8, 500))),
    ),
    Example(SPEC, "15000000 21 01000000 0700000000000000 0300000000000000", Nack(1, 7, 3)),
    Example(SPEC, "15000000210100000007000000000000000000000000000000", Nack(1, 7, 0)),
    Example(SHIPPED, "00000005 07 00000000", Restart()),
    Example(
        SHIPPED,
        "00000013 07 0000000e 3132372e302e302e313a37313031",
        Restart("127.0.0.1:7101"),
    ),
]
"""All there are; what the literal dialect shares with the spec's is in `WITH_LITERAL` too."""

WITH_LITERAL = EXAMPLES + [
    Example(LITERAL, each.hex, each.frame)
    for each in EXAMPLES
    if each.dialect is SPEC and not isinstance(each.frame, Message)
]
