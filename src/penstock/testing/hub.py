"""The whole hub in a test's own process, in one line.

with TestHub() as hub:
    requests.post(hub.url + "/api/v1/streams", json={"name": "orders"})
    hub.log.append("orders", Batch.of([b"one"]))
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from penstock.config import Config
from penstock.hub.hub import Door, Hub
from penstock.log import EmbeddedLog, now_us, small_log
from penstock.protocols.wallaroo.door import WallarooDoor


class TestHub:
    """A hub on a free port of this machine, with a small log in a temporary directory."""

    __test__ = False  # not a test, whatever its name makes pytest think

    def __init__(
        self,
        data: str | Path | None = None,
        config: Config | None = None,
        *,
        doors: Sequence[Callable[[Hub], Door]] = (),
        clock: Callable[[], int] = now_us,
    ) -> None:
        self._own = data is None
        self.data = Path(data or tempfile.mkdtemp(prefix="penstock-test-"))
        config = config or Config(log=small_log())
        self.config = msgspec.structs.replace(
            config,
            hub=msgspec.structs.replace(config.hub, data=str(self.data)),
            http=msgspec.structs.replace(config.http, listen=_any_port(config.http.listen)),
            flight=msgspec.structs.replace(config.flight, listen=_any_port(config.flight.listen)),
        )
        self._doors = doors
        self._clock = clock
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._hub: Hub | None = None

    @property
    def hub(self) -> Hub:
        assert self._hub is not None, "use it as a context manager"
        return self._hub

    @property
    def log(self) -> EmbeddedLog:
        return self.hub.log

    @property
    def url(self) -> str:
        """Where the HTTP API is."""
        return self.hub.doors[0].address

    @property
    def flight_url(self) -> str:
        """Where the Flight door is."""
        return next(door.address for door in self.hub.doors if door.name == "flight")

    @property
    def wallaroo(self) -> WallarooDoor:
        """The door for Wallaroo connectors; it is closed unless the configuration opens it."""
        door = next(door for door in self.hub.doors if door.name == "wallaroo")
        assert isinstance(door, WallarooDoor)
        return door

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a coroutine function in the hub's event loop."""
        return asyncio.run_coroutine_threadsafe(function(), self._loop).result()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._hub = self.call(
                lambda: Hub.start(self.config, doors=self._doors, clock=self._clock)
            )
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self.hub.stop)
        self._end()

    def _end(self) -> None:
        self.call(_end_tasks)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._own:
            with contextlib.suppress(OSError):
                shutil.rmtree(self.data)


async def _end_tasks() -> None:
    """End what is left, such as connections within their TLS handshake, as `asyncio.run` does."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.sleep(0.01)  # transports close in the next turns of the loop


def _any_port(listen: str) -> str:
    """The default port is the user's own hub's: a test takes any other."""
    taken = (Config().http.listen, Config().flight.listen)
    return "127.0.0.1:0" if listen in taken else listen
