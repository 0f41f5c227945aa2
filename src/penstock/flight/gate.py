"""Who may call the Flight door, and how errors leave it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import structlog
from pyarrow import flight

from penstock.errors import HubBusy, LogClosed, PenstockError, Unauthorized
from penstock.flight import wire
from penstock.hub.users import User

if TYPE_CHECKING:
    from penstock.hub.hub import Hub

logger = structlog.get_logger("penstock.flight")
GATE: Final = "penstock"
_AUTHENTICATE_S_MAX: Final = 30.0


class Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets calls in: not more than `calls_max` at once, each with a valid token."""

    def __init__(
        self, hub: Hub, loop: asyncio.AbstractEventLoop, stopping: threading.Event
    ) -> None:
        self._hub = hub
        self._loop = loop
        self._stopping = stopping
        self._lock = threading.Lock()
        self.active = 0

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> _Caller:
        with told(self._hub):
            if self._stopping.is_set():
                raise LogClosed("the hub is stopping: try again when it is back")
            most = self._hub.config.flight.calls_max
            with self._lock:
                if self.active >= most:
                    raise HubBusy(f"{most} calls are under way (flight.calls_max): try again later")
                self.active += 1
            try:
                return _Caller(self, self._authenticate(headers))
            except BaseException:
                self.leave()
                raise

    def leave(self) -> None:
        with self._lock:
            self.active -= 1

    def _authenticate(self, headers: dict[str, list[Any]]) -> User:
        given = headers.get("authorization", [""])[0]
        if isinstance(given, bytes):
            given = given.decode("utf-8", "surrogateescape")
        scheme, _, token = given.partition(" ")
        if token and scheme.lower() != "bearer":
            raise Unauthorized("only bearer tokens are known: 'authorization: Bearer <token>'")
        users = self._hub.users
        if users.is_cached(token or None):
            return users.authenticate(token or None)
        asked = asyncio.run_coroutine_threadsafe(self._hub.authenticate(token), self._loop)
        try:
            return asked.result(_AUTHENTICATE_S_MAX)
        except concurrent.futures.TimeoutError:
            raise HubBusy("too many tokens are being checked: try again later") from None


class _Caller(flight.ServerMiddleware):  # type: ignore[misc]
    """Who calls, until the call is over."""

    def __init__(self, gate: Gate, user: User) -> None:
        self._gate = gate
        self.user = user

    def call_completed(self, exception: BaseException | None) -> None:
        self._gate.leave()


@contextlib.contextmanager
def told(hub: Hub) -> Iterator[None]:
    """Around every call: errors in Flight's words, and counted."""
    try:
        yield
    except PenstockError as error:
        hub.metrics.rejected("flight", error.code)
        raise wire.to_flight(error) from None
    except flight.FlightError:
        raise
    except Exception:
        logger.exception("a call failed")
        hub.metrics.rejected("flight", "internal")
        text = "this is a bug in Penstock; its log has the details"
        body = wire.encode({"code": "internal", "message": text})
        raise flight.FlightInternalError(text, body) from None


def user_of(context: Any) -> User:
    """Who makes this call."""
    caller = context.get_middleware(GATE)
    assert isinstance(caller, _Caller)
    return caller.user
