"""The contract of doors: nothing confirmed is lost, nothing is stored twice, nobody holds it up."""

from __future__ import annotations

import base64
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.testing.served import ServedHub
from tests.contract.doors.base import STREAM, Client, DoorAdapter, Refused

SMALL = {
    "log.journal_bytes": str(4 * 1024 * 1024),
    "log.checkpoint_bytes": str(512 * 1024),
    "log.buffer_bytes": str(4 * 1024 * 1024),
    "log.record_bytes_max": str(256 * 1024),
    "log.retention_check_seconds": "0",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def values(first: int, count: int) -> list[bytes]:
    return [b"%08d" % number for number in range(first, first + count)]


class Running:
    """A hub as a process of its own, with one door under test."""

    def __init__(self, adapter: DoorAdapter, data: Path) -> None:
        self.adapter = adapter
        self.port = free_port()
        self.hub = ServedHub(data, {**SMALL, **adapter.settings(self.port)})
        self.hub.start()
        self._clients: list[Client] = []

    def connect(self) -> Client:
        client = self.adapter.connect(self.port)
        self._clients.append(client)
        return client

    def stored(self, stream: str = STREAM) -> list[bytes]:
        """All values of the stream, over HTTP."""
        name = self.adapter.stored_as(stream)
        found: list[bytes] = []
        while True:
            path = f"/api/v1/streams/{name}/partitions/0/records"
            path += f"?from={len(found) + self.earliest(stream)}&limit=10000&max_bytes=8388608"
            status, body = self.hub.request("GET", path)
            assert status == 200, body
            rows = [json.loads(line) for line in body.splitlines()]
            if not rows:
                return found
            found += [_value(row) for row in rows]

    def earliest(self, stream: str = STREAM) -> int:
        name = self.adapter.stored_as(stream)
        _, body = self.hub.request("GET", f"/api/v1/streams/{name}/partitions/0")
        found: int = json.loads(body)["earliest"]
        return found

    def end(self, stream: str = STREAM) -> int:
        name = self.adapter.stored_as(stream)
        status, body = self.hub.request("GET", f"/api/v1/streams/{name}/partitions/0")
        return int(json.loads(body)["end"]) if status == 200 else 0

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.hub.end(signal.SIGKILL)


def _value(row: dict[str, str]) -> bytes:
    if "value" in row:
        return row["value"].encode()
    return base64.b64decode(row["value64"])


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


class DoorContract:
    """A subclass says with which adapter."""

    @pytest.fixture
    def adapter(self) -> DoorAdapter:
        raise NotImplementedError("a subclass gives its adapter")

    @pytest.fixture
    def running(self, adapter: DoorAdapter, tmp_path: Path) -> Iterator[Running]:
        running = Running(adapter, tmp_path)
        yield running
        running.close()

    def test_what_is_written_is_stored_in_order(self, running: Running) -> None:
        client = running.connect()
        assert client.resume(STREAM) == 0
        client.write(STREAM, 1, values(1, 3000))
        client.write(STREAM, 3001, [b"", bytes(range(256))])
        assert running.stored() == [*values(1, 3000), b"", bytes(range(256))]

    def test_several_streams_keep_their_own_order(self, running: Running) -> None:
        client = running.connect()
        for name in ("a", "b"):
            client.resume(name)
        for at in range(1, 100, 10):
            for name in ("a", "b"):
                client.write(name, at, values(at, 10))
        assert running.stored("a") == running.stored("b") == values(1, 100)

    def test_after_a_disconnect_a_client_goes_on_where_it_was(self, running: Running) -> None:
        number = 0
        for _ in range(5):
            with running.connect() as client:
                number = client.resume(STREAM)
                client.write(STREAM, number + 1, values(number + 1, 100))
                client.begin(STREAM, number + 101, values(number + 101, 50))
        client = running.connect()
        number = client.resume(STREAM)
        assert number >= 500
        client.write(STREAM, number + 1, values(number + 1, 1))
        assert running.stored() == values(1, number + 1)

    def test_what_is_written_again_is_stored_once(self, running: Running) -> None:
        if not running.adapter.exactly_once:
            pytest.skip("the protocol does not tell what is written again")
        with running.connect() as client:
            client.resume(STREAM)
            client.write(STREAM, 1, values(1, 100))
        client = running.connect()
        client.resume(STREAM)
        client.write(STREAM, 51, values(51, 100))
        assert running.stored() == values(1, 150)

    def test_what_was_confirmed_can_be_asked_for_again(self, running: Running) -> None:
        client = running.connect()
        client.resume(STREAM)
        client.write(STREAM, 1, values(1, 100))
        again = running.adapter.replay(running.hub.url, client, STREAM, 60)
        if again is None:
            pytest.skip("the protocol has no such thing")
        assert again.resume(STREAM) == 60
        again.write(STREAM, 61, values(61, 50))
        assert running.stored() == values(1, 100) + values(61, 50)
        again.close()

    def test_retention_does_not_move_the_place_to_go_on(self, running: Running) -> None:
        with running.connect() as client:
            client.resume(STREAM)
            for at in range(1, 2001, 100):
                client.write(STREAM, at, [b"%0500d" % number for number in range(at, at + 100)])
        name = running.adapter.stored_as(STREAM)
        change = json.dumps({"settings": {"segment_bytes": 16384}}).encode()
        running.hub.request("PATCH", f"/api/v1/streams/{name}", change)
        trim = json.dumps({"before": 2000}).encode()
        running.hub.request("POST", f"/api/v1/streams/{name}/partitions/0/trim", trim)
        client = running.connect()
        assert client.resume(STREAM) == 2000
        client.write(STREAM, 2001, [b"after"])
        assert running.stored()[-1] == b"after"
        assert running.end() == 2001

    def test_a_message_too_large_is_refused_and_changes_nothing(self, running: Running) -> None:
        client = running.connect()
        client.resume(STREAM)
        client.write(STREAM, 1, values(1, 10))
        with pytest.raises((Refused, ConnectionError)):
            client.write(STREAM, 11, [bytes(300 * 1024)])
        client = running.connect()
        assert client.resume(STREAM) == 10
        client.write(STREAM, 11, values(11, 10))
        assert running.stored() == values(1, 20)

    def test_wrong_credentials_are_refused(self, running: Running) -> None:
        with pytest.raises(Refused):
            running.adapter.intrude(running.port)
        assert running.end() == 0
        client = running.connect()
        client.resume(STREAM)
        client.write(STREAM, 1, values(1, 10))

    def test_a_client_that_reads_no_answers_holds_nobody_up(self, running: Running) -> None:
        slow, other = running.connect(), running.connect()
        slow.resume("slow")
        other.resume(STREAM)
        thread = threading.Thread(target=slow.flood, args=("slow", 1, values(1, 2000)))
        thread.start()
        began = time.monotonic()
        for at in range(1, 1001, 100):
            other.write(STREAM, at, values(at, 100))
        assert time.monotonic() - began < 20
        assert running.stored() == values(1, 1000)
        slow.close()
        thread.join(30)
        assert not thread.is_alive()

    def test_a_disconnect_in_the_middle_of_a_message_loses_only_that(
        self, running: Running
    ) -> None:
        with running.connect() as client:
            client.resume(STREAM)
            client.write(STREAM, 1, values(1, 10))
            client.send_half(STREAM, 11, b"never whole" * 100)
        client = running.connect()
        assert client.resume(STREAM) == 10
        client.write(STREAM, 11, values(11, 10))
        assert running.stored() == values(1, 20)

    @pytest.mark.crash
    def test_a_hub_killed_and_started_again_has_all_once_and_in_order(
        self, running: Running
    ) -> None:
        confirmed = 0
        for _ in range(4):
            client = running.connect()
            number = client.resume(STREAM)
            assert number >= confirmed
            confirmed = number
            stop = threading.Timer(0.3, lambda: running.hub.end(signal.SIGKILL))
            stop.start()
            try:
                while True:
                    client.write(STREAM, confirmed + 1, values(confirmed + 1, 50))
                    confirmed += 50
            except ConnectionError:
                client.close()
            stop.join()
            running.hub.start()
        client = running.connect()
        number = client.resume(STREAM)
        assert number >= confirmed > 0
        client.write(STREAM, number + 1, values(number + 1, 10))
        assert running.stored() == values(1, number + 10)
