"""The connector over real sockets: against a hub, and against workers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import ssl
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests
import trustme

from penstock import limits
from penstock.clients import Backoff, Chunk, Connector, Progress, Single, Source, WorkerFailed
from penstock.config import Config
from penstock.errors import BadBatch, BadSetting, HubUnreachable, LocalError, Unauthorized
from penstock.protocols.wallaroo.client import split_address
from penstock.protocols.wallaroo.connector import stream_id
from penstock.protocols.wallaroo.wire import (
    Ack,
    Decoder,
    Dialect,
    Error,
    Greeting,
    Messages,
    Notify,
    Ok,
    Restart,
    Role,
    encode,
)
from penstock.testing.hub import TestHub
from tests.hub.conftest import config
from tests.records import read_all, rows

BOTH = pytest.mark.parametrize("dialect", ["spec", "shipped"])


class Numbers:
    """Messages 1 to `count`: "1", "2", and so on, in chunks or one by one."""

    def __init__(self, name: str, count: int, chunk: int = 100, pause: float = 0.0) -> None:
        self.name = name
        self.count = count
        self.resets: list[int | None] = []
        self.acks: list[int] = []
        self.at = 0
        self.made = 0
        self._chunk = chunk
        self._pause = pause

    async def reset(self, position: int | None) -> None:
        self.resets.append(position)
        self.at = position or 0

    async def __aiter__(self) -> AsyncIterator[Any]:
        while self.at < self.count:
            ids = range(self.at + 1, min(self.at + self._chunk, self.count) + 1)
            self.at = ids[-1]
            self.made += len(ids)
            if len(ids) == 1:
                yield b"%d" % ids[0], ids[0]
            else:
                yield Chunk.of([b"%d" % number for number in ids], ids)
            if self._pause:
                await asyncio.sleep(self._pause)

    def acked(self, position: int) -> None:
        self.acks.append(position)


def opened(**settings: Any) -> Config:
    return config(wallaroo={"listen": "127.0.0.1:0", "debug": True, **settings})


_numbers = itertools.count()
_program = "feed"


@pytest.fixture(scope="module")
def open_hub() -> Iterator[TestHub]:
    with TestHub(config=opened()) as hub:
        yield hub


@pytest.fixture
def hub(open_hub: TestHub) -> TestHub:
    """The hub of this file, for a connector with a name of its own."""
    global _program
    _program = f"feed{next(_numbers)}"
    return open_hub


def connector(hub: TestHub | str, **more: Any) -> Connector:
    address = hub if isinstance(hub, str) else hub.wallaroo.address
    given: dict[str, Any] = {"program": _program, "instance": "1", "backoff": Backoff(0.01, 0.05)}
    return Connector(address, **given | more)


def run(connector: Connector, sources: list[Any], then: Callable[[], Awaitable[Any]] | None = None):
    """Run a connector to its end, and something else beside it."""

    async def running() -> Progress:
        async with asyncio.timeout(60), connector:
            task = asyncio.create_task(connector.run(sources))
            try:
                if then is not None:
                    await then()
                return await task
            finally:
                task.cancel()

    return asyncio.run(running())


def stored(hub: TestHub, name: str) -> list[bytes]:
    stream = f"{_program}.1.{name}"
    return [] if stream not in hub.log.streams() else read_all(hub.log, stream, step=50_000)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(1, count + 1)]


async def until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def debug(hub: TestHub, **wanted: Any) -> None:
    """Make a fault in this test's session."""

    def ask() -> None:
        url = hub.url + "/api/v1/wallaroo/sessions"
        found = requests.get(url, timeout=30).json()["sessions"]
        (session,) = [each for each in found if each["program"] == _program]
        answer = requests.post(
            f"{url}/{session['session']}/debug", data=msgspec.json.encode(wanted), timeout=30
        )
        assert answer.ok, answer.text

    await asyncio.to_thread(ask)


# -- with a hub --------------------------------------------------------------------------------


@BOTH
def test_all_messages_of_all_sources_arrive_once_and_in_order(hub, dialect):
    sources = [Numbers("a", 5000), Numbers("b", 500, chunk=1), Numbers("c", 0), Numbers("d", 1)]
    done = run(connector(hub, dialect=dialect), sources)
    assert (done.sent, done.acked, done.repeated, done.streams) == (5501, 5501, 0, 0)
    assert (done.state, done.connections, done.problem) == ("ended", 1, "")
    for source in sources:
        assert stored(hub, source.name) == numbers(source.count)
        assert source.resets == [None]
    assert [source.acks[-1:] for source in sources] == [[5000], [500], [], [1]]
    assert isinstance(sources[0], Source)


def test_a_literal_connector_has_one_source():
    with TestHub(config=opened(literal=True)) as hub:
        run(connector(hub, dialect="literal"), [Numbers("a", 1000)])
        assert stored(hub, "a") == numbers(1000)
        with pytest.raises(BadSetting, match="one source"):
            run(connector(hub, dialect="literal"), [Numbers("a", 1), Numbers("b", 1)])


def test_keys_and_times_arrive(hub):
    class Keyed(Numbers):
        async def __aiter__(self):
            yield [b"one", b"two"], [1, 2], [b"k", None], [5_000, None]
            yield Single(b"three", 3, b"key", 7_000)

    run(connector(hub, dialect="shipped"), [Keyed("a", 3)])
    found = rows(hub.log.read(f"{_program}.1.a", 0, 0))
    assert [(each["key"], each["value"]) for each in found] == [
        (b"k", b"one"), (None, b"two"), (b"key", b"three"),
    ]  # fmt: skip
    assert [int(found[row]["timestamp"].timestamp() * 1e6) for row in (0, 2)] == [5, 7]


@BOTH
def test_the_next_connector_goes_on_where_the_last_ended(hub, dialect):
    run(connector(hub, dialect=dialect), [Numbers("a", 1000)])
    more = Numbers("a", 1500)
    done = run(connector(hub, dialect=dialect), [more])
    assert (more.resets, done.sent) == ([1000], 500)
    assert stored(hub, "a") == numbers(1500)


@BOTH
def test_a_cut_connection_is_made_again_and_nothing_is_lost_or_doubled(hub, dialect):
    sources = [Numbers("a", 20_000, pause=0.001), Numbers("b", 20_000, pause=0.001)]
    sending = connector(hub, dialect=dialect)

    async def cut() -> None:
        for _ in range(3):
            before = sending.progress.acked
            await until(lambda: sending.progress.acked > before + 2000)  # noqa: B023
            await debug(hub, force="cut")
            await until(lambda: sending.progress.state != "streaming" or sending.progress.problem)

    done = run(sending, sources, cut)
    assert done.connections >= 3
    assert done.acked >= 20_000
    for source in sources:
        assert stored(hub, source.name) == numbers(20_000)


def test_nacks_rewind_the_source(hub):
    source = Numbers("a", 3000, pause=0.002)
    sending = connector(hub)

    async def rewind() -> None:
        await until(lambda: source.acks)
        for _ in range(3):
            await debug(hub, force="nack", stream=stream_id("a"), ref=10)

    done = run(sending, [source], rewind)
    assert source.resets[0] is None
    assert source.resets[-1] == 10
    assert done.connections == 1
    found = stored(hub, "a")
    assert found[-2990:] == numbers(3000)[10:]
    assert set(found) == set(numbers(3000))


def test_a_rewind_by_the_operator_sends_again(hub):
    source = Numbers("a", 2000, pause=0.002)

    async def rewind() -> None:
        await until(lambda: source.acks)
        body = {"program": _program, "instance": "1", "stream": stream_id("a"), "ref": 5}
        url = hub.url + "/api/v1/wallaroo/rewind"
        data = msgspec.json.encode(body)
        answer = await asyncio.to_thread(lambda: requests.post(url, data=data, timeout=30))
        assert answer.ok, answer.text

    run(connector(hub, dialect="shipped"), [source], rewind)
    assert source.resets[-1] == 5
    assert stored(hub, "a")[-1995:] == numbers(2000)[5:]


@BOTH
@pytest.mark.parametrize("force", ["error", "restart"])
def test_a_session_that_the_worker_ends_is_begun_again(hub, dialect, force):
    source = Numbers("a", 3000, pause=0.002)
    sending = connector(hub, dialect=dialect)

    async def end() -> None:
        await until(lambda: source.acks)
        await debug(hub, force=force, text="" if force == "restart" else "for a test")

    done = run(sending, [source], end)
    assert done.connections == 2
    assert stored(hub, "a") == numbers(3000)
    if force == "error":
        assert done.problem == "for a test"


def test_a_source_is_read_no_further_than_credits_go(hub):
    source = Numbers("a", 100_000_000, chunk=1000)
    sending = connector(hub, stop_seconds=0.1)

    async def hold() -> None:
        await until(lambda: source.acks)
        await debug(hub, hold_credits=True)
        await until(lambda: sending.progress.credits == 0)
        made = source.made
        await asyncio.sleep(0.3)
        assert source.made == made
        assert made - sending.progress.sent <= 1000 * (limits.WALLAROO_CHUNKS_MAX + 1)
        await debug(hub, hold_credits=False)
        await until(lambda: source.made > made + 10_000)
        sending.stop()

    done = run(sending, [source], hold)
    assert done.acked <= done.sent <= source.made


def test_one_busy_source_does_not_keep_others_waiting(hub):
    busy, few = Numbers("busy", 10**9, chunk=5000), [Numbers(f"few{n}", 50, 1) for n in range(20)]
    sending = connector(hub)

    async def wait() -> None:
        await until(lambda: all(source.acks[-1:] == [50] for source in few))
        sending.stop()

    run(sending, [busy, *few], wait)
    assert all(stored(hub, source.name) == numbers(50) for source in few)


@BOTH
def test_a_stop_waits_for_acks_of_what_was_sent(hub, dialect):
    source = Numbers("a", 10**9, chunk=1000)
    sending = connector(hub, dialect=dialect)

    async def stop() -> None:
        await until(lambda: source.acks)
        sending.stop()

    done = run(sending, [source], stop)
    assert done.sent == done.acked == len(stored(hub, "a")) > 0


def test_a_stop_does_not_wait_for_ever(hub):
    source = Numbers("a", 10**9)
    sending = connector(hub, stop_seconds=0.2)

    async def stop() -> None:
        await until(lambda: source.acks)
        await debug(hub, stutter_seconds=3600.0)
        await until(lambda: sending.progress.credits == 0)
        sending.stop()

    done = run(sending, [source], stop)
    assert done.sent > done.acked > 0


def test_a_wrong_cookie_is_not_tried_twice():
    with TestHub(config=opened(cookie="secret")) as hub:
        with pytest.raises(Unauthorized, match="refuses the cookie"):
            run(connector(hub, cookie="wrong"), [Numbers("a", 1)])
        run(connector(hub, cookie="secret"), [Numbers("a", 1)])
        assert stored(hub, "a") == [b"1"]


def test_a_wrong_version_is_not_tried_twice(hub):
    with pytest.raises(WorkerFailed, match="Unknown protocol version"):
        run(connector(hub, version="9"), [Numbers("a", 1)])


def test_an_error_that_does_not_go_away_ends_it():
    with TestHub(config=opened(create=False)) as hub:
        sending = connector(hub)
        with pytest.raises(WorkerFailed, match=r"gave up: Stream .* refused"):
            run(sending, [Numbers("a", 1)])
        assert sending.progress.connections == limits.WALLAROO_ERRORS_MAX


def test_tls(tmp_path: Path):
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    key.write_bytes(leaf.private_key_pem.bytes())
    context = ssl.create_default_context()
    authority.configure_trust(context)
    settings = {"certificate": str(certificate), "key": str(key)}
    with TestHub(config=msgspec.structs.replace(opened(), tls=config(tls=settings).tls)) as hub:
        address = hub.wallaroo.address.removeprefix("wallaroo+tls://")
        run(connector(address, tls=context), [Numbers("a", 5000)])
        assert stored(hub, "a") == numbers(5000)
        with pytest.raises(HubUnreachable, match="certificate"):
            run(connector(address, tls=True, give_up_seconds=0.1), [Numbers("a", 1)])
    with warnings.catch_warnings(action="ignore"):
        gc.collect()  # connections within their handshake


# -- sources that fail -------------------------------------------------------------------------


class Broken(Numbers):
    """Raises after some messages."""

    async def __aiter__(self):
        yield b"1", 1
        await asyncio.sleep(0.05)
        raise ValueError("secret details")


class Forgetful(Numbers):
    """Cannot go back."""

    async def reset(self, position: int | None) -> None:
        await super().reset(position)
        if len(self.resets) > 1:
            raise LookupError("what was there is gone")


def test_an_error_of_a_source_ends_the_run_and_is_told_without_details(worker):
    address, seen = worker(told(Ok(100)))
    with pytest.raises(ValueError, match="secret details"):
        run(connector(address), [Broken("a", 1)])
    assert seen[-1] == Error("The source of a failed: ValueError")


def test_an_error_of_a_source_is_not_taken_for_one_of_the_connection(hub):
    class Gone(Numbers):
        async def reset(self, position: int | None) -> None:
            raise FileNotFoundError("the file is gone")

    class Deaf(Numbers):
        def acked(self, position: int) -> None:
            raise ConnectionError("of a database")

    with pytest.raises(FileNotFoundError):
        run(connector(hub), [Gone("a", 1)])
    with pytest.raises(ConnectionError, match="of a database"):
        run(connector(hub), [Deaf("a", 1)])


def test_a_source_that_cannot_go_back_ends_the_run(hub):
    source = Forgetful("a", 10**9)

    async def nack() -> None:
        await until(lambda: source.acks)
        await debug(hub, force="nack", stream=stream_id("a"), ref=1)

    with pytest.raises(LookupError, match="is gone"):
        run(connector(hub), [source], nack)


@pytest.mark.parametrize(
    ("item", "error"),
    [
        ("text", LocalError),
        ((b"x",), BadBatch),
        (([b"x"], [1, 2]), BadBatch),
        ((b"x", 0), BadBatch),
        ((b"x", 1, b"key"), BadBatch),
    ],
)
def test_what_is_no_message_ends_the_run(hub, item, error):
    class Odd(Numbers):
        async def __aiter__(self):
            yield item

    with pytest.raises(error):
        run(connector(hub), [Odd("a", 1)])


def test_two_sources_of_one_name_are_refused(hub):
    with pytest.raises(LocalError, match="two sources"):
        run(connector(hub), [Numbers("a", 1), Numbers("a", 1)])


def test_a_connector_runs_once_at_a_time(hub):
    sending = connector(hub)

    async def again() -> None:
        await until(lambda: sending.progress.state == "streaming")
        with pytest.raises(LocalError, match="runs already"):
            await sending.run([Numbers("b", 1)])
        sending.stop()

    run(sending, [Numbers("a", 10**9)], again)
    run(sending, [Numbers("b", 5)])
    assert stored(hub, "b") == numbers(5)


# -- workers that misbehave --------------------------------------------------------------------

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter, list[Any]], Awaitable[None]]


def told(*frames: Any, dialect: Dialect = Dialect.SPEC, more: bytes = b"") -> Script:
    """A worker that says this after HELLO, whatever it hears."""

    async def script(reader, writer, seen) -> None:
        decoder = Decoder(Role.WORKER)
        while data := await reader.read(65536):
            for item in decoder.receive(data):
                seen.append(item)
                if isinstance(item, Greeting):
                    for frame in frames:
                        writer.write(encode(frame, dialect))
                    writer.write(more)

    return script


@pytest.fixture
def worker() -> Iterator[Callable[..., tuple[str, list[Any]]]]:
    """Start a worker of a few lines; tells its address, and what it will have seen."""
    servers: list[asyncio.Server] = []
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def call(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    def start(*scripts: Script) -> tuple[str, list[Any]]:
        seen: list[Any] = []
        left = list(scripts)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            script = left.pop(0) if len(left) > 1 else left[0]
            try:
                with contextlib.suppress(ConnectionError):
                    await script(reader, writer, seen)
            finally:
                writer.close()

        server = call(asyncio.start_server(serve, "127.0.0.1", 0))
        servers.append(server)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}", seen

    yield start

    async def end() -> None:
        for server in servers:
            server.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0.01)

    call(end())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (told(Ok(2**32 - 1), Ack(2**32 - 1)), "Too many credits"),
        (told(Ok(1), Ok(1)), "Bad protocol FSM state"),
        (told(Ok(1), more=b"\0\0\0\0"), "length 0"),
        (told(more=b"\xff" * 100), "Frame too large"),
        (told(Ack(1)), "Bad protocol FSM state"),
    ],
)
def test_a_worker_that_breaks_the_rules_is_told_and_left_after_some_tries(worker, script, why):
    address, seen = worker(script)
    with pytest.raises(WorkerFailed, match=f"broke the protocol: .*{why}"):
        run(connector(address), [Numbers("a", 1)])
    said = [each for each in seen if isinstance(each, Error)]
    assert said
    assert why in said[0].reason


def test_a_worker_that_says_nothing_is_left(worker, monkeypatch):
    monkeypatch.setattr(limits, "WALLAROO_CONNECT_S_MAX", 0.1)
    address, seen = worker(told())
    with pytest.raises(HubUnreachable, match="does not answer HELLO"):
        run(connector(address, give_up_seconds=0.3), [Numbers("a", 1)])
    assert len(seen) >= 2


def test_nobody_there_is_an_error_only_if_that_is_wished(worker, hub):
    with pytest.raises(HubUnreachable, match=r"no worker at 127\.0\.0\.1:1"):
        run(connector("127.0.0.1:1", give_up_seconds=0.1), [Numbers("a", 1)])
    sending = connector("127.0.0.1:1")

    async def stop() -> None:
        await until(lambda: sending.progress.state == "waiting")
        assert "nobody answers" in sending.progress.problem
        sending.stop()

    assert run(sending, [Numbers("a", 1)], stop).sent == 0


def test_restart_leads_to_another_worker(worker, hub):
    address = hub.wallaroo.address.removeprefix("wallaroo://")
    first, seen = worker(told(Ok(100), Restart(address), dialect=Dialect.SHIPPED))
    run(connector(first, dialect="shipped"), [Numbers("a", 10)])
    assert stored(hub, "a") == numbers(10)
    assert isinstance(seen[0], Greeting)


def test_no_frame_goes_without_a_credit(worker):
    async def stingy(reader, writer, seen) -> None:
        """Gives one credit at a time, and has none more than one be spent."""
        decoder = Decoder(Role.WORKER)
        while data := await reader.read(65536):
            for item in decoder.receive(data):
                seen.append(item)
                if isinstance(item, Greeting):
                    writer.write(encode(Ok(1), Dialect.SPEC))
                elif isinstance(item, Notify):
                    writer.write(encode(Ack(1), Dialect.SPEC))
                elif isinstance(item, Messages):
                    assert len(item) == 1
                    pair = (int(item.streams[0]), int(item.ids[0]))
                    writer.write(encode(Ack(1, (pair,)), Dialect.SPEC))

    address, seen = worker(stingy)
    done = run(connector(address), [Numbers("a", 20), Numbers("b", 20, chunk=1)])
    assert done.acked == 40
    assert not any(isinstance(each, Error) for each in seen)


# -- small things ------------------------------------------------------------------------------


def test_pauses_double_to_a_limit_and_begin_again():
    backoff = Backoff(1, 10, chance=lambda: 1.0)
    assert [backoff.pause() for _ in range(5)] == [1, 2, 4, 8, 10]
    backoff.reset()
    assert backoff.pause() == 1
    assert Backoff(1, 10, chance=lambda: 0.0).pause() == 0.5


def test_addresses():
    assert split_address("wallaroo://host:1") == ("host", 1)
    assert split_address("[::1]:7472") == ("::1", 7472)
    for bad in ("", "host", "host:", ":1", "host:0", "host:65536", "::1", "host:x"):
        with pytest.raises(BadSetting, match="no address"):
            split_address(bad)


def test_an_unknown_dialect_is_refused_with_those_there_are():
    with pytest.raises(BadSetting, match="spec, literal, shipped"):
        Connector("h:1", program="p", instance="i", dialect="other")
