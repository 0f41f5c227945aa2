"""The hub: one process that owns a log and opens its doors.

    hub = await Hub.start(config)     log open, doors listening
    await hub.stop()                  doors closed, what came committed, log closed

Doors are isolated: each runs by itself, and one that fails is reported and started again, or left
closed, without touching the others.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ipaddress
import os
import secrets
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog
from prometheus_client.core import Metric

from penstock.config import Config
from penstock.errors import BadSetting, PenstockError
from penstock.hub.metrics import Metrics
from penstock.hub.tls import Tls
from penstock.hub.users import User, Users
from penstock.log import Appended, Batch, EmbeddedLog, now_us, open_log

T = TypeVar("T")
_THREADS = 8
"""Log calls that may wait for the disk run in these; appends never do."""

_RELOAD_S = 5.0
_CLOSE_MORE_S = 5.0
"""How much longer than it was given a door may take to close before the hub goes on without it."""

logger = structlog.get_logger("penstock.hub")


class Door(ABC):
    """A way in and out. It speaks one protocol, and knows the log only through the hub."""

    name: str

    @abstractmethod
    async def open(self) -> None:
        """Listen. Raises if that cannot be."""

    @abstractmethod
    async def close(self, seconds: float) -> None:
        """Take no more, finish what is under way within `seconds`, and close."""

    def metrics(self) -> Iterable[Metric]:
        """What it tells of itself, besides what all doors do; called in a thread."""
        return ()

    async def renew_tls(self) -> None:  # noqa: B027
        """New TLS files are in use; most doors have the hub's context, which knows."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where it listens, for people."""

    @property
    @abstractmethod
    def connections(self) -> int:
        """How many are open."""


class Hub:
    """A running hub. Make one with `start`."""

    def __init__(self, config: Config, log: EmbeddedLog) -> None:
        self.config = config
        self.log = log
        self.data_id = data_id(Path(config.hub.data))
        """A random number of the data directory, so that others can tell it from a namesake."""
        self.users = Users(Path(config.hub.data))
        self.tls = Tls(config.tls)
        self.metrics = Metrics(self)
        self.doors: list[Door] = []
        self.ready = False
        self.started_at = time.time()
        self._reloading: asyncio.Task[None] | None = None
        self._checker = concurrent.futures.ThreadPoolExecutor(1, "penstock-users")
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "penstock-hub")

    @classmethod
    async def start(
        cls,
        config: Config,
        *,
        doors: Sequence[Callable[[Hub], Door]] = (),
        clock: Callable[[], int] = now_us,
    ) -> Hub:
        """Open the log and the doors: HTTP, Flight, and those that `doors` make.

        Without HTTP nobody could look into the hub, so it has to open. Another door that cannot
        is reported and left closed.
        """
        from penstock.flight.door import FlightDoor
        from penstock.hub.http import HttpDoor
        from penstock.protocols.wallaroo.door import WallarooDoor
        from penstock.protocols.wallaroo.door import check as check_wallaroo

        log = await asyncio.to_thread(open_log, config.hub.data, config.log, clock=clock)
        try:
            hub = cls(config, log)
        except BaseException:
            await asyncio.to_thread(log.close)
            raise
        try:
            listens = [config.http.listen]
            if config.flight.enabled:
                listens.append(config.flight.listen)
                doors = (FlightDoor, *doors)
            for listen in listens:
                check_exposure(config, hub.users, listen)
            if config.wallaroo.listen is not None:
                check_wallaroo(hub)
                doors = (WallarooDoor, *doors)
            hub.users.required = any(is_exposed(config, listen) for listen in listens)
            http = HttpDoor(hub)
            hub.doors.append(http)
            await http.open()
            for make in doors:
                await hub._open(make)
        except BaseException:
            await hub.stop()
            raise
        hub.ready = True
        hub._reloading = asyncio.create_task(hub._reload_tls())
        return hub

    async def _open(self, make: Callable[[Hub], Door]) -> None:
        door = make(self)
        try:
            await door.open()
        except PenstockError as error:
            logger.error("a door did not open", door=door.name, error=str(error))  # noqa: TRY400
        except Exception as error:
            logger.exception("a door did not open", door=door.name, error=str(error))
        else:
            self.doors.append(door)

    async def stop(self) -> None:
        """Close the doors, commit what they took, close the log."""
        self.ready = False
        if self._reloading is not None:
            self._reloading.cancel()
        seconds = self.config.hub.stop_seconds
        closing = [
            asyncio.wait_for(door.close(seconds), seconds + _CLOSE_MORE_S) for door in self.doors
        ]
        outcomes = await asyncio.gather(*closing, return_exceptions=True)
        for door, outcome in zip(self.doors, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                logger.error("a door did not close cleanly", door=door.name, error=repr(outcome))
        await asyncio.to_thread(self.log.close)
        self._threads.shutdown(wait=False)
        self._checker.shutdown(wait=False)

    async def _reload_tls(self) -> None:
        """Use new certificates as they come; a bad one is reported once, and the old one kept."""
        reported = None
        while True:
            await asyncio.sleep(_RELOAD_S)
            if await asyncio.to_thread(self.tls.reload):
                logger.info("new TLS files are in use")
                for door in self.doors:
                    await door.renew_tls()
            if self.tls.problem != reported:
                reported = self.tls.problem
                if reported:
                    logger.error("new TLS files are not used", reason=reported)

    # -- what doors use --------------------------------------------------------------------------

    async def run(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a log call that may wait, without holding up the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: call(*args, **kwargs))

    async def authenticate(self, token: str | None) -> User:
        """Who has this token. One at a time: argon2id takes 50 ms and 64 MiB, on purpose."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._checker, self.users.authenticate, token)

    async def append(
        self, door: str, stream: str, batch: Batch, partition: int | None = None, **producer: Any
    ) -> Appended:
        """Append for a door, and count it."""
        done = await self.log.append_async(stream, batch, partition, **producer)
        self.metrics.appended(door, stream, done.count, batch.nbytes)
        return done

    def ssl_context(self) -> ssl.SSLContext | None:
        return self.tls.context()


def data_id(data: Path) -> str:
    """The id of a data directory; it is given one when a hub first opens it."""
    path = data / "id"
    with contextlib.suppress(FileNotFoundError):
        found = path.read_text(encoding="ascii", errors="replace").strip()
        if found:
            return found
    new = path.with_suffix(".new")
    with open(new, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(16) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    return data_id(data)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def split_address(listen: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:7470` or `[::1]:7470`."""
    host, colon, port = listen.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise BadSetting(f"{listen!r:.100} is no address: write host:port, as in 127.0.0.1:7470")
    return host, int(port)


def is_exposed(config: Config, listen: str) -> bool:
    """Whether others can reach the hub, and nobody said that this is fine."""
    host, _ = split_address(listen)
    return not (is_loopback(host) or config.hub.insecure)


def check_exposure(config: Config, users: Users, listen: str) -> None:
    """Refuse to listen beyond this machine without TLS and users, unless told to."""
    if not is_exposed(config, listen):
        return
    lacking = []
    if config.tls.certificate is None:
        lacking.append("TLS (set tls.certificate and tls.key)")
    if not users.exist():
        lacking.append("users (penstock user add NAME --right admin)")
    if lacking:
        raise BadSetting(
            f"listening on {listen} would let others in without {' and '.join(lacking)}. Set that "
            "up, listen on 127.0.0.1, or say --insecure if the network is trusted"
        )
