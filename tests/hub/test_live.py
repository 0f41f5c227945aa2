"""Live tails, metrics, many connections, and doors that fail."""

from __future__ import annotations

import http.client
import json
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import requests
import structlog
from prometheus_client.parser import text_string_to_metric_families

from penstock import limits
from penstock.errors import StorageFailed
from penstock.hub.hub import Door
from penstock.log import Batch
from penstock.testing.hub import TestHub
from tests.hub.conftest import api, code_of, config
from tests.records import eventually

_tails: list[Tail] = []


@pytest.fixture(autouse=True)
def close_tails() -> Iterator[None]:
    yield
    while _tails:
        _tails.pop().close()


class Tail:
    """Reads events one at a time."""

    def __init__(self, hub: TestHub, query: str = "", **headers: str) -> None:
        host, port = hub.url.removeprefix("http://").split(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=30)
        self.connection.request("GET", f"/api/v1/streams/s/tail{query}", headers=headers)
        self.answer = self.connection.getresponse()
        _tails.append(self)
        assert self.answer.status == 200, self.answer.read()

    def close(self) -> None:
        self.answer.close()
        self.connection.close()

    def next(self) -> dict[str, Any] | None:
        """The next event; None when it is over."""
        event: dict[str, Any] = {}
        while line := self.answer.readline():
            name, _, value = line.rstrip(b"\n").decode().partition(": ")
            if name:
                event[name] = json.loads(value) if name == "data" else value
            elif "data" in event:
                return event
        return None

    def values(self, count: int) -> list[str]:
        events = [self.next() for _ in range(count)]
        return [event["data"]["value"] for event in events if event is not None]


@pytest.fixture
def hub(start: Callable[..., TestHub]) -> TestHub:
    hub = start()
    hub.log.create_stream("s", partitions=2)
    return hub


# -- tails -----------------------------------------------------------------------------------------


def test_events_arrive_as_they_are_committed(hub: TestHub) -> None:
    tail = Tail(hub)
    for value in (b"one", b"two"):
        hub.log.append("s", Batch.of([value], keys=[b"k"]), 1)
        event = tail.next()
        assert event is not None
        assert event["data"]["value"] == value.decode()
        assert (event["data"]["partition"], event["data"]["key"]) == (1, "k")
    tail.close()


def test_a_tail_may_begin_anywhere(hub: TestHub) -> None:
    hub.log.append("s", Batch.of([b"0", b"1", b"2"]), 0)
    assert Tail(hub, "?partition=0&from=earliest").values(3) == ["0", "1", "2"]
    assert Tail(hub, "?partition=0&from=2").values(1) == ["2"]


def test_the_last_event_id_resumes_every_partition(hub: TestHub) -> None:
    tail = Tail(hub)
    hub.log.append("s", Batch.of([b"a0"]), 0)
    event = tail.next()
    assert event is not None
    assert event["id"] == "0:0,1:-1"
    tail.close()
    hub.log.append("s", Batch.of([b"b0"]), 1)
    hub.log.append("s", Batch.of([b"a1"]), 0)
    again = Tail(hub, **{"Last-Event-ID": event["id"]})
    assert sorted(again.values(2)) == ["a1", "b0"]


@pytest.mark.parametrize("wrong", ["", "x", "0:x", "9:9", "²:1", "0:" + "9" * 40])
def test_a_last_event_id_that_is_none_is_ignored(hub: TestHub, wrong: str) -> None:
    tail = Tail(hub, **{"Last-Event-ID": wrong.encode().decode("latin-1")})
    hub.log.append("s", Batch.of([b"new"]), 0)
    assert tail.values(1) == ["new"]


def test_deleting_the_stream_ends_a_tail_with_an_error(hub: TestHub) -> None:
    tail = Tail(hub)
    hub.log.delete_stream("s")
    event = tail.next()
    assert event is not None
    assert event["event"] == "error"
    assert event["data"]["error"]["code"] == "unknown-stream"
    assert tail.next() is None


def test_stopping_the_hub_ends_tails_and_waiting_reads() -> None:
    with TestHub() as hub, ThreadPoolExecutor(1) as pool:
        hub.log.create_stream("s")
        tail = Tail(hub)
        waiting = pool.submit(api, hub, "GET", "/streams/s/partitions/0/records?wait=60")
        eventually(lambda: hub.hub.doors[0].connections == 2)
        hub.call(hub.hub.stop)
        assert tail.next() is None
        with suppress(requests.ConnectionError):  # it had not been asked yet
            assert waiting.result().status_code == 503


def test_a_tail_that_takes_nothing_is_closed_and_disturbs_nobody(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TAIL_WRITE_S_MAX", 0.2)
    monkeypatch.setattr(limits, "TAIL_END_S_MAX", 0.1)
    monkeypatch.setattr(limits, "TAIL_HEARTBEAT_S", 0.2)  # which notices clients that have gone
    host, port = hub.url.removeprefix("http://").split(":")
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect((host, int(port)))
        stuck.sendall(b"GET /api/v1/streams/s/tail?from=earliest HTTP/1.1\r\nHost: x\r\n\r\n")
        stuck.recv(10)
        other = Tail(hub, "?partition=0")
        for _ in range(40):
            hub.log.append("s", Batch.of([b"x" * 200_000]), 0)
        assert len(other.values(40)) == 40
        other.close()
        eventually(lambda: hub.hub.doors[0].connections == 0, 5)


# -- metrics ---------------------------------------------------------------------------------------

NAMES = {
    "penstock_records_appended", "penstock_appended_bytes", "penstock_commit_duration_seconds",
    "penstock_fsync_duration_seconds", "penstock_stream_end_index",
    "penstock_stream_earliest_index", "penstock_group_lag", "penstock_group_lag_seconds",
    "penstock_rejected", "penstock_buffered_bytes", "penstock_connections", "penstock_build_info",
}  # fmt: skip


def metrics(hub: TestHub) -> dict[str, Any]:
    answer = requests.get(hub.url + "/metrics", timeout=30)
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def test_metrics_are_what_prometheus_reads(hub: TestHub) -> None:
    hub.log.register_group("g", "s")
    api(hub, "POST", "/streams/s/records?partition=0", data=b"a\nb\n",
        headers={"Content-Type": "text/plain"})  # fmt: skip
    found = metrics(hub)
    assert set(found) >= NAMES
    (sample,) = [s for s in found["penstock_records_appended"].samples if s.labels]
    assert sample.labels == {"door": "http", "stream": "s"}
    assert sample.value == 2
    ends = {s.labels["partition"]: s.value for s in found["penstock_stream_end_index"].samples}
    assert ends == {"0": 2, "1": 0}
    lags = {s.labels["partition"]: s.value for s in found["penstock_group_lag"].samples}
    assert lags == {"0": 2, "1": 0}


def test_rejected_requests_are_counted_by_reason(hub: TestHub) -> None:
    for _ in range(3):
        api(hub, "GET", "/streams/nowhere")
    api(hub, "GET", "/nowhere")
    counted = {s.labels["reason"]: s.value for s in metrics(hub)["penstock_rejected"].samples}
    assert counted == {"unknown-stream": 3, "unknown-route": 1}


def test_labels_are_bounded(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METRIC_STREAMS_MAX", 3)
    monkeypatch.setattr(limits, "METRIC_PARTITIONS_MAX", 4)
    for number in range(6):
        name = f"m{number}"
        api(hub, "POST", "/streams", json={"name": name, "partitions": 3})
        api(hub, "POST", f"/streams/{name}/records", data=b"a\n",
            headers={"Content-Type": "text/plain"})  # fmt: skip
    found = metrics(hub)
    counted = {s.labels["stream"]: s.value for s in found["penstock_records_appended"].samples}
    assert counted == {"m0": 1, "m1": 1, "m2": 1, "_other": 3}
    assert len(found["penstock_stream_end_index"].samples) == 4


def test_after_a_failure_of_the_disk_the_hub_is_not_ready(hub: TestHub) -> None:
    assert requests.get(hub.url + "/readyz", timeout=30).status_code == 200
    hub.log._committer.stop(StorageFailed("the disk said no"))
    answer = requests.get(hub.url + "/readyz", timeout=30)
    assert answer.status_code == 503
    assert answer.json() == {"status": "stopped", "reason": "the disk said no"}
    assert requests.get(hub.url + "/healthz", timeout=30).status_code == 200
    refused = api(hub, "POST", "/streams/s/records", data=b"a",
                  headers={"Content-Type": "text/plain"})  # fmt: skip
    assert code_of(refused) == (500, "storage-failed")


# -- connections -----------------------------------------------------------------------------------


@pytest.fixture
def many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8_192, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_files")
def test_idle_connections_disturb_nobody(hub: TestHub) -> None:
    host, port = hub.url.removeprefix("http://").split(":")
    with ExitStack() as opened:
        for _ in range(1_000):
            opened.enter_context(socket.create_connection((host, int(port)), timeout=30))
        eventually(lambda: hub.hub.doors[0].connections == 1_000)
        assert api(hub, "GET", "/streams/s").status_code == 200
        samples = metrics(hub)["penstock_connections"].samples
        counts = {sample.labels["door"]: sample.value for sample in samples}
        assert counts["http"] >= 1_000
        assert counts["flight"] == 0
    eventually(lambda: hub.hub.doors[0].connections == 0, 5)


def test_connections_over_the_limit_are_told_so(start: Callable[..., TestHub]) -> None:
    hub = start(config(http={"connections_max": 2}))
    host, port = hub.url.removeprefix("http://").split(":")
    with ExitStack() as opened:
        for _ in range(2):
            opened.enter_context(socket.create_connection((host, int(port)), timeout=30))
        eventually(lambda: hub.hub.doors[0].connections == 2)
        with socket.create_connection((host, int(port)), timeout=30) as third:
            answer = third.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"too-many-connections" in answer
    eventually(lambda: hub.hub.doors[0].connections == 0, 5)
    assert api(hub, "GET", "/info").status_code == 200


# -- doors -----------------------------------------------------------------------------------------


class FakeDoor(Door):
    name = "fake"
    address = "nowhere"
    connections = 0

    def __init__(self, opens: bool, closed: threading.Event) -> None:
        self._opens = opens
        self._closed = closed

    async def open(self) -> None:
        if not self._opens:
            raise OSError("this door is jammed")

    async def close(self, seconds: float) -> None:
        self._closed.set()
        raise RuntimeError("this door does not close")


def test_a_door_that_does_not_open_stops_no_other() -> None:
    good = threading.Event()
    doors = [
        lambda _: FakeDoor(False, threading.Event()),
        lambda _: FakeDoor(True, good),
    ]
    with structlog.testing.capture_logs() as logs, TestHub(doors=doors) as hub:
        assert [door.name for door in hub.hub.doors] == ["http", "flight", "fake"]
        assert requests.get(hub.url + "/readyz", timeout=30).status_code == 200
    assert [each["event"] for each in logs] == [
        "a door did not open",
        "a door did not close cleanly",
    ]
    assert good.is_set()
