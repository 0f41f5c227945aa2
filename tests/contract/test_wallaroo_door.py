"""The Wallaroo door keeps the contract of doors, in both dialects."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from typing import ClassVar

import pytest

from penstock.protocols.wallaroo.wire import (
    U64_MAX,
    Dialect,
    Error,
    Hello,
    Message,
    Messages,
    Nack,
    encode,
)
from tests.contract.doors import Client, DoorAdapter, DoorContract, Refused
from tests.wallaroo_peer import Peer

pytestmark = pytest.mark.slow
COOKIE = "contract"


class Connector(Client):
    def __init__(self, port: int, dialect: Dialect) -> None:
        self.peer = Peer(port, dialect)
        self._points = dict(self.peer.hello(cookie=COOKIE.encode()).points)
        self._ids: dict[str, int] = {}

    def id_of(self, stream: str) -> int:
        """A number that is the stream's in all sessions."""
        return int.from_bytes(stream.encode()[:8], "big")

    def resume(self, stream: str) -> int:
        number = self.id_of(stream)
        nacks = [each for each in self.peer.heard if isinstance(each, Nack)]
        known = self._points.get(number, 0)
        if nacks:
            known = nacks[-1].ref
        ref = self.peer.open(number, stream, known)
        if ref is None:
            return known
        return 0 if ref == U64_MAX else ref

    def write(self, stream: str, first: int, values: Sequence[bytes]) -> None:
        ids = range(first, first + len(values))
        try:
            self.peer.write(self.id_of(stream), ids, values)
        except ConnectionError:
            errors = [each.reason for each in self.peer.heard if isinstance(each, Error)]
            if errors:
                raise Refused(errors[0]) from None
            raise

    def begin(self, stream: str, first: int, values: Sequence[bytes]) -> None:
        ids = range(first, first + len(values))
        self.peer.send(Messages.of(self.id_of(stream), ids, values))

    def send_half(self, stream: str, number: int, value: bytes) -> None:
        frame = encode(Message(self.id_of(stream), number, value), self.peer.dialect)
        self.peer.send(frame[: len(frame) // 2])

    def flood(self, stream: str, first: int, values: Sequence[bytes]) -> None:
        try:
            while True:
                self.begin(stream, first, values)
                first += len(values)
        except OSError:
            pass

    def close(self) -> None:
        self.peer.close()


class WallarooAdapter(DoorAdapter):
    name = "wallaroo"

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def settings(self, port: int) -> Mapping[str, str]:
        return {"wallaroo.listen": f"127.0.0.1:{port}", "wallaroo.cookie": COOKIE}

    def connect(self, port: int) -> Connector:
        return Connector(port, self._dialect)

    def intrude(self, port: int) -> None:
        with Peer(port, self._dialect) as peer:
            peer.send(Hello("0.0.1", b"guess", "prog", "inst"))
            raise Refused(peer.refused())

    def stored_as(self, stream: str) -> str:
        return f"prog.inst.{stream}"

    def replay(self, hub_url: str, client: Client, stream: str, after: int) -> Client:
        assert isinstance(client, Connector)
        body = {
            "program": "prog",
            "instance": "inst",
            "stream": client.id_of(stream),
            "ref": after,
        }
        request = urllib.request.Request(
            hub_url + "/api/v1/wallaroo/rewind", json.dumps(body).encode(), method="POST"
        )
        urllib.request.urlopen(request, timeout=30).close()
        if self._dialect is Dialect.SPEC:
            client.peer.wait(Nack)
            return client
        port: int = client.peer.socket.getpeername()[1]
        return Connector(port, self._dialect)


class TestShippedConnectors(DoorContract):
    @pytest.fixture
    def adapter(self) -> WallarooAdapter:
        return WallarooAdapter(Dialect.SHIPPED)


class SpecAdapter(WallarooAdapter):
    exactly_once: ClassVar[bool] = False  # ids may come in any order


class TestConnectorsOfTheSpec(DoorContract):
    @pytest.fixture
    def adapter(self) -> WallarooAdapter:
        return SpecAdapter(Dialect.SPEC)
