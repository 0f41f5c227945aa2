"""The Flight door under load: limits, peers that stall, and a hub that stops or is killed."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from penstock import limits
from penstock.errors import HubBusy, HubUnreachable, LogClosed, PenstockError
from penstock.flight.client import Appender, FlightClient
from penstock.flight.door import cut_connections
from penstock.flight.wire import Appended
from penstock.testing.hub import TestHub
from penstock.testing.served import ServedHub
from tests.hub.conftest import config
from tests.hub.test_many import memory
from tests.records import eventually, numbered, padded, values

SMALL = {
    "log.journal_bytes": "8388608",
    "log.checkpoint_bytes": "262144",
    "log.record_bytes_max": "65536",
}


def batch(*found: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(found, pa.binary())})


def filled(hub: TestHub, megabytes: int = 20) -> int:
    """A stream of that much; returns how many records it has."""
    hub.log.create_stream("s")
    for number in range(2 * megabytes):
        hub.log.append("s", numbered(250, 250 * number))
    return 500 * megabytes


# -- limits ----------------------------------------------------------------------------------------


def test_calls_over_the_limit_are_refused_and_may_try_again(
    start: Callable[..., TestHub], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start(config(flight={"calls_max": 3}))
    hub.log.create_stream("s")
    with FlightClient(hub.url) as client, ExitStack() as held:
        appenders = [held.enter_context(client.appender("s")) for _ in range(3)]
        for appender in appenders:
            appender.write(batch(b"v"))
            appender.flush()
        monkeypatch.setattr(limits, "FLIGHT_BUSY_S_MAX", 0.2)
        with pytest.raises(HubBusy, match=r"3 calls are under way \(flight.calls_max\)"):
            client.info()
        with pytest.raises(HubBusy):
            list(client.read("s", 0, 0, 1))
        with pytest.raises(HubBusy):
            client.append("s", batch(b"v"))
        monkeypatch.undo()
        threading.Timer(0.3, appenders[0].close).start()
        assert client.look(["s"])["s"][0].end == 3
        assert client.append("s", batch(b"v")).records == 1
    assert hub.log.bounds("s", 0) == (0, 4)


def test_many_clients_at_once_are_all_served(hub: TestHub) -> None:
    hub.log.create_stream("s", 4)
    wrong: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with FlightClient(hub.url) as client:
                for at in range(10):
                    client.append(
                        "s", batch(b"%d" % at), number % 4, producer=f"p{number}", ids=[at]
                    )
                    end = client.look(["s"])["s"][number % 4].end
                    list(client.read("s", number % 4, 0, end))
        except BaseException as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sum(end for _, end in hub.log.all_bounds("s")) == 160


def test_more_looks_than_may_wait_are_answered_at_once(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.log.create_stream("s", 2)
    reads = hub.hub.doors[1]._server._reads  # type: ignore[attr-defined]
    monkeypatch.setattr(reads, "_waiting", threading.BoundedSemaphore(1))
    reads._waiting.acquire()
    began = time.monotonic()
    raw = flight.FlightClient(hub.flight_url)
    asked = b'{"streams":["s"],"known":{"s":[0,0]},"wait":5}'
    assert list(raw.do_action(flight.Action("look", asked)))
    assert time.monotonic() - began < 2


@pytest.mark.slow
def test_readers_that_take_nothing_do_not_grow_memory(tmp_path: Path) -> None:
    hub = ServedHub(tmp_path / "data")
    hub.start()
    try:
        with FlightClient(hub.url) as client, ExitStack() as held:
            client.create_stream("s")
            with client.appender("s", 0) as appender:
                for number in range(100):
                    appender.write(
                        batch(*(padded(n) for n in range(500 * number, 500 * number + 500)))
                    )
            assert len(list(client.read("s", 0, 0, 50_000))) > 1
            before = memory(hub)
            readers = []
            for _ in range(40):
                other = held.enter_context(FlightClient(hub.url))
                readers.append(other.read("s", 0, 0, 50_000))
                next(readers[-1])
            time.sleep(2)
            assert memory(hub) - before < 40 * 10 * limits.FLIGHT_MESSAGE_BYTES
            assert values(readers[0])[-1] == padded(49_999)
            readers.clear()
    finally:
        hub.end()


def test_a_client_that_breaks_off_leaves_nothing_behind(hub: TestHub) -> None:
    count = filled(hub)
    with FlightClient(hub.url) as client:
        appender = client.appender("s")
        appender.write(batch(b"v"))
        stager = client.stage("w", 0)
        stager.write(pa.record_batch({"topic": ["s"], "value": [b"v"]}))
        reading = client.read("s", 0, 0, count)
        next(reading)
        # The read may be over: gRPC buffers what it sends, up to some megabytes.
        eventually(lambda: hub.hub.doors[1].connections >= 2)
        hub_side = hub.flight_url.rpartition(":")[2]
        cut_connections(int(hub_side))
    eventually(lambda: hub.hub.doors[1].connections == 0)
    eventually(lambda: not any((hub.data / "staging").rglob("*.*")))
    assert hub.log.bounds("s", 0)[1] <= count + 1


# -- stopping --------------------------------------------------------------------------------------


def test_a_stop_ends_readers_and_writers_within_seconds() -> None:
    with ExitStack() as left:
        hub = left.enter_context(TestHub())
        count = filled(hub)
        client = left.enter_context(FlightClient(hub.url))
        reading = client.read("s", 0, 0, count)
        next(reading)
        idle = client.appender("s")
        idle.write(batch(b"v"))
        assert idle.flush().records == 1
        stager = client.stage("w", 0)
        stager.write(pa.record_batch({"topic": ["s"], "value": [b"v"]}))

        def wait() -> None:
            with pytest.raises(PenstockError):
                client.look(["s"], known={"s": [count + 1]}, wait_seconds=60)

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.2)
        began = time.monotonic()
        hub.call(hub.hub.stop)
        assert time.monotonic() - began < 10
        waiting.join(10)
        assert not waiting.is_alive()
        with suppress(HubUnreachable, LogClosed):  # unless gRPC had buffered all of it
            list(reading)
        with pytest.raises((HubUnreachable, LogClosed)):
            _write_and_flush(idle)
        with pytest.raises((HubUnreachable, LogClosed)):
            stager.finish()


def _write_and_flush(appender: Appender) -> None:
    appender.write(batch(b"v"))
    appender.flush()


def test_a_served_hub_stops_cleanly_with_calls_under_way(tmp_path: Path) -> None:
    hub = ServedHub(tmp_path / "data", SMALL)
    hub.start()
    with FlightClient(hub.url) as client:
        client.create_stream("s")
        appender = client.appender("s")
        appender.write(batch(b"v"))
        appender.flush()
        began = time.monotonic()
        assert hub.end(signal.SIGTERM) == 0
        assert time.monotonic() - began < 15


# -- killing ---------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedHub]:
    hub = ServedHub(tmp_path / "data", SMALL)
    hub.start()
    yield hub
    hub.end(signal.SIGKILL)


class Sender(threading.Thread):
    """Appends numbered records without waiting for each; begins again where it was confirmed."""

    def __init__(self, hub: ServedHub, name: str) -> None:
        super().__init__(daemon=True)
        self.sender = name
        self.confirmed = 0
        self.stopping = threading.Event()
        self.wrong: BaseException | None = None
        self._hub = hub

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._send()
            except (HubUnreachable, LogClosed):
                time.sleep(0.02)
            except BaseException as error:  # noqa: BLE001
                self.wrong = error
                return

    def _send(self) -> None:
        at = self.confirmed

        def confirm(done: Appended) -> None:
            self.confirmed += done.records + done.dropped

        with (
            FlightClient(self._hub.url) as client,
            client.appender(
                "s", 0, producer=self.sender, first_id=at, on_confirmed=confirm
            ) as appender,
        ):
            while not self.stopping.is_set():
                appender.write(
                    batch(*(b"%s %d" % (self.sender.encode(), n) for n in range(at, at + 20)))
                )
                at += 20


def _has_sent(senders: list[Sender], target: int) -> bool:
    assert all(sender.wrong is None for sender in senders), [each.wrong for each in senders]
    return sum(sender.confirmed for sender in senders) >= target


@pytest.mark.crash
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_every_confirmed_batch_is_there_once_however_the_hub_ends(
    served: ServedHub, end: signal.Signals
) -> None:
    with FlightClient(served.url) as client:
        client.create_stream("s")
    senders = [Sender(served, f"client{number}") for number in range(3)]
    for sender in senders:
        sender.start()
    for _ in range(4):
        target = sum(sender.confirmed for sender in senders) + 2_000
        eventually(partial(_has_sent, senders, target), 60)
        time.sleep(random.random() * 0.1)
        served.end(end)
        served.start()
    for sender in senders:
        sender.stopping.set()
    for sender in senders:
        sender.join(60)
        assert sender.wrong is None, sender.wrong
    with FlightClient(served.url) as client:
        total = client.look(["s"])["s"][0].end
        found: dict[str, list[int]] = {}
        for value in values(client.read("s", 0, 0, total)):
            name, number = value.decode().split()
            found.setdefault(name, []).append(int(number))
    for sender in senders:
        assert found[sender.sender] == list(range(len(found[sender.sender])))
        assert len(found[sender.sender]) >= sender.confirmed
