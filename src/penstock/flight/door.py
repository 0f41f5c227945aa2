"""The Flight door: Arrow Flight on one port, beside HTTP.

gRPC runs its own threads. A call is let in by the gate (not too many, a valid token), runs in one
of those threads, and talks to the log as any thread may.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import structlog

from penstock.errors import BadSetting
from penstock.hub.hub import Door, split_address

if TYPE_CHECKING:
    from penstock.hub.hub import Hub

logger = structlog.get_logger("penstock.flight")
_GRACE_S: Final = 2.0
"""How long calls may go on after the door has closed before their connections are cut."""

_CUT_S_MAX: Final = 5.0
_REOPEN_S_MAX: Final = 5.0


class FlightDoor(Door):
    """pyarrow's Flight server on one port."""

    name = "flight"

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._server: Any = None
        self._stopping = threading.Event()
        self._closing: list[threading.Thread] = []
        self._host, self._port = "", 0

    @property
    def address(self) -> str:
        shown = f"[{self._host}]" if ":" in self._host else self._host
        return f"{self._scheme}://{shown}:{self._port}"

    @property
    def connections(self) -> int:
        """Calls under way: gRPC does not tell how many connections it has."""
        return 0 if self._server is None else self._server.gate.active

    @property
    def _scheme(self) -> str:
        return "grpc" if self._hub.config.tls.certificate is None else "grpc+tls"

    async def open(self) -> None:
        self._host, self._port = split_address(self._hub.config.flight.listen)
        loop = asyncio.get_running_loop()
        try:
            self._server = await asyncio.to_thread(self._listen, loop)
        except ImportError as error:
            raise BadSetting(
                f"this pyarrow has no Flight ({error}): install the wheel from PyPI, or set "
                "flight.enabled = false"
            ) from None
        except (OSError, pa.ArrowException) as error:
            raise BadSetting(
                f"cannot listen on {self._host}:{self._port} ({error}): is another hub running? "
                "Stop it, or choose another port with flight.listen"
            ) from None
        self._port = self._server.port

    def _listen(self, loop: asyncio.AbstractEventLoop) -> Any:
        from penstock.flight.server import FlightServer

        pair = None
        tls = self._hub.config.tls
        if tls.certificate is not None and tls.key is not None:
            with open(tls.certificate, "rb") as chain, open(tls.key, "rb") as key:
                pair = (chain.read(), key.read())
        if self._port:
            with socket.create_server((self._host, self._port), family=_family(self._host)):
                pass  # gRPC would not tell why it cannot listen
        return FlightServer(self._hub, self.address, pair, loop, self._stopping)

    async def renew_tls(self) -> None:
        """Listen anew with the new files; calls under way end with the old."""
        if self._server is None or self._stopping.is_set():
            return
        self._shut(self._server)
        loop = asyncio.get_running_loop()
        deadline = time.monotonic() + _REOPEN_S_MAX
        while True:
            try:
                self._server = await asyncio.to_thread(self._listen, loop)
            except (OSError, pa.ArrowException) as error:
                if time.monotonic() > deadline:
                    logger.error("the door did not open again", error=str(error))  # noqa: TRY400
                    return
                await asyncio.sleep(0.05)
            else:
                return

    async def close(self, seconds: float) -> None:
        self._stopping.set()
        if self._server is None:
            return
        self._shut(self._server)
        if not await self._all_closed(min(seconds, _GRACE_S)):
            # A peer that sends nothing, or takes nothing, keeps its call for ever, and gRPC's
            # shutdown waits for it.
            cut_connections(self._port)
            if not await self._all_closed(_CUT_S_MAX):
                logger.error("calls are still under way", count=self.connections)

    def _shut(self, server: Any) -> None:
        thread = threading.Thread(target=server.shutdown, name="penstock-flight-close", daemon=True)
        thread.start()
        self._closing = [each for each in self._closing if each.is_alive()] + [thread]

    async def _all_closed(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        for thread in self._closing:
            await asyncio.to_thread(thread.join, max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._closing)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def cut_connections(port: int) -> None:
    """Shut down every connection of this process that was accepted at `port`."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            copy = os.dup(int(name))
            try:
                found = socket.socket(fileno=copy)
            except OSError:
                os.close(copy)
                continue
            with found:
                if found.family in (socket.AF_INET, socket.AF_INET6):
                    found.getpeername()  # raises for what listens
                    if found.getsockname()[1] == port:
                        found.shutdown(socket.SHUT_RDWR)
