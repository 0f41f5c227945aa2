"""A second decoder, as simple as can be, to compare the columnar one with."""

from __future__ import annotations

import struct
from typing import Any

from penstock.protocols.wallaroo.wire import (
    BOUNDARY,
    EVENT_TIME,
    FLAGS,
    FRAME_TOO_LARGE,
    TIME_TOO_LARGE,
    UNABLE_TO_DECODE,
    Dialect,
    Message,
    Messages,
    WireError,
)


def reference(data: bytes, dialect: Dialect, frame_bytes_max: int = 2**22) -> list[Any]:
    """A `Message` for each MESSAGE, (tag, body) for other frames, and the reason of an error."""
    order = ">" if dialect is Dialect.SHIPPED else "<"
    given: list[Any] = []
    at = 0
    while len(data) - at >= 5:
        length, tag = struct.unpack_from(f"{order}IB", data, at)
        if length == 0:
            return [*given, UNABLE_TO_DECODE]
        if length > frame_bytes_max:
            return [*given, FRAME_TOO_LARGE]
        if tag != (5 if dialect is Dialect.SHIPPED else ord("M")):
            if at + 4 + length > len(data):
                break
            given.append((tag, data[at + 5 : at + 4 + length]))
        else:
            least = {Dialect.SPEC: 19, Dialect.LITERAL: 11, Dialect.SHIPPED: 27}[dialect]
            if length < least:
                return [*given, UNABLE_TO_DECODE]
            if at + 4 + length > len(data):
                break
            try:
                given.append(one_message(data[at + 5 : at + 4 + length], dialect))
            except ValueError as error:
                return [*given, str(error)]
        at += 4 + length
    return given


def one_message(body: bytes, dialect: Dialect) -> Message:
    if dialect is Dialect.SHIPPED:
        stream, number, time, size = struct.unpack_from(">QQqH", body)
        if size > len(body) - 26:
            raise ValueError(UNABLE_TO_DECODE)
        return Message(
            stream, number, body[26 + size :], 0, time or None, body[26 : 26 + size] or None
        )
    stream = 0
    if dialect is Dialect.SPEC:
        (stream,) = struct.unpack_from("<Q", body)
        body = body[8:]
    flags, number = struct.unpack_from("<HQ", body)
    body = body[10:]
    if flags & ~FLAGS:
        raise ValueError(UNABLE_TO_DECODE)
    if flags & BOUNDARY:
        if body:
            raise ValueError(UNABLE_TO_DECODE)
        return Message(stream, number, b"", flags)
    if not flags & EVENT_TIME:
        return Message(stream, number, body, flags)
    if len(body) < 8:
        raise ValueError(UNABLE_TO_DECODE)
    (time,) = struct.unpack_from("<Q", body)
    if time >= 2**63:
        raise ValueError(TIME_TOO_LARGE)
    return Message(stream, number, body[8:], flags, time)


def flat(given: list[Any]) -> list[Any]:
    """What a decoder gave, with a `Message` for each and the reason of an error."""
    rows: list[Any] = []
    for each in given:
        if isinstance(each, Messages):
            each.check()
            rows += each.rows()
        else:
            rows.append(each.reason if isinstance(each, WireError) else each)
    return rows
