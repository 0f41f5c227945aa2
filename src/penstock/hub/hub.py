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
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import structlog

from penstock.config import Config
from penstock.errors import BadSetting
from penstock.hub.metrics import Metrics
from penstock.hub.tls import Tls
from penstock.hub.users import Users
from penstock.log import Appended, Batch, EmbeddedLog, open_log

T = TypeVar("T")
_THREADS = 8
"""Log calls that may wait for the disk run in these; appends never do."""

_RELOAD_S = 5.0
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
        self.users = Users(Path(config.hub.data))
        self.tls = Tls(config.tls)
        self.metrics = Metrics(self)
        self.doors: list[Door] = []
        self.ready = False
        self.started_at = time.time()
        self._reloading: asyncio.Task[None] | None = None
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "penstock-hub")

    @classmethod
    async def start(cls, config: Config) -> Hub:
        """Open the log and the doors."""
        from penstock.hub.http import HttpDoor

        log = await asyncio.to_thread(open_log, config.hub.data, config.log)
        hub = cls(config, log)
        try:
            check_exposure(config, hub.users, config.http.listen)
            hub.doors.append(HttpDoor(hub))
            for door in hub.doors:
                await door.open()
        except BaseException:
            await hub.stop()
            raise
        hub.ready = True
        hub._reloading = asyncio.create_task(hub._reload_tls())
        return hub

    async def stop(self) -> None:
        """Close the doors, commit what they took, close the log."""
        self.ready = False
        if self._reloading is not None:
            self._reloading.cancel()
        seconds = self.config.hub.stop_seconds
        closing = [door.close(seconds) for door in self.doors]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException):
                logger.error("a door did not close cleanly", error=repr(outcome))
        await asyncio.to_thread(self.log.close)
        self._threads.shutdown(wait=False)

    async def _reload_tls(self) -> None:
        """Use new certificates as they come; a bad one is reported once, and the old one kept."""
        reported = None
        while True:
            await asyncio.sleep(_RELOAD_S)
            if await asyncio.to_thread(self.tls.reload):
                logger.info("new TLS files are in use")
            if self.tls.problem != reported:
                reported = self.tls.problem
                if reported:
                    logger.error("new TLS files are not used", reason=reported)

    # -- what doors use --------------------------------------------------------------------------

    async def run(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a log call that may wait, without holding up the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: call(*args, **kwargs))

    async def append(
        self, door: str, stream: str, batch: Batch, partition: int | None = None, **producer: Any
    ) -> Appended:
        """Append for a door, and count it."""
        done = await self.log.append_async(stream, batch, partition, **producer)
        self.metrics.appended(door, stream, done.count, batch.nbytes)
        return done

    def ssl_context(self) -> ssl.SSLContext | None:
        return self.tls.context()


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


def check_exposure(config: Config, users: Users, listen: str) -> None:
    """Refuse to listen beyond this machine without TLS and users, unless told to."""
    host, _ = split_address(listen)
    if is_loopback(host) or config.hub.insecure:
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
