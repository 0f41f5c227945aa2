"""What requests carry: bodies with their memory bounded, and parameters with their limits."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Annotated, Final, Literal

import msgspec
from aiohttp import web

from penstock.errors import BadFormat, BatchTooLarge
from penstock.hub import formats
from penstock.log import StreamSettings

_UInt64 = Annotated[int, msgspec.Meta(ge=0)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class NewStream(msgspec.Struct, forbid_unknown_fields=True):
    """Make a stream."""

    name: str
    partitions: _Int64 = 1
    settings: StreamSettings = StreamSettings()


class StreamChange(msgspec.Struct, forbid_unknown_fields=True):
    """Change a stream's settings, or add partitions."""

    settings: StreamSettings | None = None
    partitions: _Int64 | None = None


class Trim(msgspec.Struct, forbid_unknown_fields=True):
    """Drop whole segments below an index."""

    before: _Int64


class Positions(msgspec.Struct, forbid_unknown_fields=True):
    """Save positions, by partition."""

    positions: dict[_Int64, _Int64]


class Reset(msgspec.Struct, forbid_unknown_fields=True):
    """Move positions anywhere."""

    to: Literal["earliest", "latest", "index", "timestamp", "shift"]
    value: _Int64 = 0
    partitions: list[_Int64] | None = None
    dry_run: bool = False


class WallarooRewind(msgspec.Struct, forbid_unknown_fields=True):
    """Have a connector's stream sent again from after a point of reference; null: all of it."""

    program: str
    instance: str
    stream: _UInt64
    ref: _UInt64 | None = None


class WallarooDebug(msgspec.Struct, forbid_unknown_fields=True):
    """Make faults in a connector's session on purpose."""

    stutter_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] | None = None
    """Acks wait for so long; 0 ends it."""
    hold_credits: bool | None = None
    """Whether no credits are given back."""
    force: Literal["nack", "error", "restart", "cut"] | None = None
    stream: _UInt64 | None = None
    """For nack."""
    ref: _UInt64 = 0
    text: str = "forced by an operator"
    """The reason of an error, or the address of a restart."""


class ByteBudget:
    """Bytes that may be held at once; who wants more waits for its turn."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def take(self, count: int) -> AsyncIterator[None]:
        count = min(count, self._most)
        async with self._changed:
            await self._changed.wait_for(lambda: self._held + count <= self._most)
            self._held += count
        try:
            yield
        finally:
            async with self._changed:
                self._held -= count
                self._changed.notify_all()


def too_large(most: int) -> BatchTooLarge:
    """The error for a body over the limit."""
    return BatchTooLarge(
        f"the body is larger than {most} bytes (http.body_bytes_max): send it in parts"
    )


def path_partition(request: web.Request) -> int:
    """The partition in the path."""
    return _whole("partition", request.match_info["partition"])


def path_session(request: web.Request) -> int:
    """The session in the path."""
    return _whole("session", request.match_info["session"])


_WHOLE: Final = re.compile(r"-?[0-9]{1,20}")


def _whole(name: str, text: str) -> int:
    """`int` also takes spaces, underscores and the digits of all scripts."""
    if not _WHOLE.fullmatch(text):
        raise BadFormat(f"{name} is {text!r:.50}: it must be a whole number")
    return int(text)


def query_time(request: web.Request) -> int | None:
    """`time` in microseconds, if it is given."""
    text = request.query.get("time")
    if text is None:
        return None
    try:
        return formats.parse_time(text)
    except (ValueError, OverflowError):
        raise BadFormat(f"time is {text!r:.60}: it must be microseconds or ISO 8601") from None


def query_bool(request: web.Request, name: str, default: bool) -> bool:
    """A parameter that is true or false."""
    text = request.query.get(name)
    if text not in (None, "true", "false"):
        raise BadFormat(f"{name} is {text!r:.50}: use true or false")
    return default if text is None else text == "true"


def query_int(
    request: web.Request,
    name: str,
    default: int | None,
    least: int = -(2**63),
    most: int = 2**63 - 1,
) -> int | None:
    """A parameter that is a whole number within limits."""
    text = request.query.get(name)
    if text is None:
        return default
    value = _whole(name, text)
    if not least <= value <= most:
        raise BadFormat(f"{name} is {value}: it must be from {least} to {most}")
    return value


def query_float(
    request: web.Request, name: str, default: float, least: float, most: float
) -> float:
    """A parameter that is a number within limits."""
    text = request.query.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError:
        raise BadFormat(f"{name} is {text!r:.50}: it must be a number") from None
    if not least <= value <= most:
        raise BadFormat(f"{name} is {value}: it must be from {least} to {most}")
    return value
