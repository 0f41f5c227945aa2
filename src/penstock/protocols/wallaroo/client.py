"""A connector: sources on one side, a worker on the other, and a socket that may break between.

    class Numbers:
        name = "numbers"

        async def reset(self, position):
            self.at = position or 0

        async def __aiter__(self):
            while self.at < 1_000_000:
                ids = range(self.at + 1, self.at + 1001)
                self.at += 1000
                yield Chunk.of([b"%d" % number for number in ids], ids)

    async with Connector("127.0.0.1:7472", program="feed", instance="1") as connector:
        await connector.run([Numbers()])

What a session does is in `connector.py`; here are the socket, the tasks that read sources, and
the next session when one breaks. Nothing that was sent is held for a repetition: that is what
sources are for. A source is read only as far as credits, and two chunks more, want it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

from penstock import limits
from penstock.errors import (
    BadSetting,
    HubUnreachable,
    LocalError,
    RemoteError,
    Unauthorized,
)
from penstock.protocols.backoff import Backoff
from penstock.protocols.wallaroo.chunk import Chunk, Single, Source
from penstock.protocols.wallaroo.connector import (
    Acked,
    Event,
    Failed,
    Finished,
    Reset,
    Restarted,
    Session,
    State,
    Welcomed,
    stream_id,
)
from penstock.protocols.wallaroo.feed import Feed
from penstock.protocols.wallaroo.wire import VERSION, Decoder, Dialect, Hello, Role

DEFAULT_ADDRESS: Final = "127.0.0.1:7472"
_CLOSE_S: Final = 2.0
"""How long a worker may take to close its side, after we have closed ours."""


class WorkerFailed(RemoteError):
    """The worker answers with ERROR, or with what is not of the protocol."""

    code = "wallaroo-worker"


@dataclass(frozen=True, slots=True)
class Progress:
    """What a connector has done since `run` began."""

    state: str
    """connecting, streaming, waiting (until it connects again), stopping or ended."""
    sent: int
    """Messages; those that had to be sent again count once more in `repeated`."""
    acked: int
    """As far as acks came: what a worker had on disk when a connection broke is not counted."""
    repeated: int
    bytes: int
    """Of frames."""
    credits: int
    streams: int
    """Not yet at their end."""
    connections: int
    problem: str
    """Why the last session ended."""


@dataclass(slots=True)
class _Totals:
    """Of sessions that are over."""

    sent: int = 0
    acked: int = 0
    repeated: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class _SourceFailed:
    """What a source raised: not to be taken for an error of the connection."""

    error: BaseException


_Ended: TypeAlias = Failed | Restarted | OSError | _SourceFailed | None
"""How a session ended; None: all is done."""


class _Link(asyncio.BufferedProtocol):
    """One session over one connection. `over` says how it ended."""

    def __init__(self, session: Session, feeds: dict[int, Feed], stopping: bool) -> None:
        self.session = session
        self.feeds = feeds
        self.over: asyncio.Future[_Ended] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        self.bytes = 0
        self.progressed = False
        """Whether something was acked."""
        self.welcomed = False
        self.stopping = stopping
        self._decoder = Decoder(Role.CONNECTOR, session.dialect)
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._woken = False
        self._closing = False
        self._turns: deque[Feed] = deque()

    # -- the socket --------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=4 * limits.WALLAROO_TURN_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._write(self.session.hello())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        items = self._decoder.advance(nbytes)
        if self._closing:
            return
        try:
            for item in items:
                for event in self.session.receive(item):
                    self._handle(event)
        except Exception as error:  # noqa: BLE001 - a source's: `run` raises it
            self._end(_SourceFailed(error))
        self.flush()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()
        if not isinstance(error, OSError):
            error = ConnectionResetError("the worker closed the connection")
        self._end(error)

    def _write(self, data: bytes | memoryview) -> None:
        if len(data) and self._transport is not None and not self._closing:
            self.bytes += len(data)
            self._transport.write(data)

    def _end(self, how: _Ended) -> None:
        if not self.over.done():
            self.over.set_result(how)

    async def close(self, *, clean: bool) -> None:
        """End the connection: after all that was written has arrived, if it is to be clean."""
        self._closing = True
        await _ended(each.task for each in self.feeds.values())
        transport = self._transport
        if transport is None:
            return
        if clean and transport.can_write_eof() and not transport.is_closing():
            transport.write_eof()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self.closed.wait()
        elif not transport.is_closing() and transport.get_write_buffer_size():
            transport.close()  # an ERROR may be on its way
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self.closed.wait()
        transport.abort()
        await self.closed.wait()

    # -- events ------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        match event:
            case Welcomed():
                self.welcomed = True
            case Reset():
                self._restart(self.feeds[event.stream], event)
            case Acked():
                self.progressed = True
                self.feeds[event.stream].acked(event.position)
            case Finished():
                self._finish(self.feeds[event.stream])
            case Failed() | Restarted():
                self._write(self.session.error())
                self._end(event)

    def _finish(self, feed: Feed) -> None:
        feed.finished = True
        if all(each.finished for each in self.feeds.values()):
            self._end(None)

    def _restart(self, feed: Feed, event: Reset) -> None:
        """Read a source from elsewhere."""
        feed.clear()
        feed.finished = False
        before, feed.task = feed.task, None
        if before is not None:
            before.cancel()
        if self.stopping:
            return
        feed.task = asyncio.create_task(self._pump(feed, event, before))
        feed.task.add_done_callback(lambda task: self._pumped(feed, task))

    def _pumped(self, feed: Feed, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._source_failed(feed, error)

    def _source_failed(self, feed: Feed, error: BaseException) -> None:
        self._write(
            self.session.fail(f"The source of {feed.source.name} failed: {type(error).__name__}")
        )
        self._end(_SourceFailed(error))

    async def _pump(self, feed: Feed, event: Reset, before: asyncio.Task[None] | None) -> None:
        """Bring a source to its place, and take what it yields, while there is room."""
        await _ended([before])
        await feed.source.reset(event.position)
        if not self.session.ready(event.stream, event.turn):
            return
        self._wake()
        stream = self.session.streams[event.stream]
        messages = aiter(feed.source)
        try:
            async for item in messages:
                if stream.turn != event.turn:
                    return
                feed.put(item)
                self._queue(feed)
                if feed.is_full:
                    await feed.room()
        finally:
            close = getattr(messages, "aclose", None)
            if close is not None:
                await close()
        feed.ended = True
        self._queue(feed)

    # -- sending -----------------------------------------------------------------------------------

    def _queue(self, feed: Feed) -> None:
        if not feed.queued:
            feed.queued = True
            self._turns.append(feed)
        self._wake()

    def _wake(self) -> None:
        """Send soon: after the source has had its chance to yield more."""
        if not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Send what credits and the socket allow: NOTIFYs first, then each stream in its turn."""
        self._woken = False
        session = self.session
        if session.state is not State.STREAMING or self._closing:
            return
        self._write(session.notifies())
        turns, idle = self._turns, 0
        while turns and session.credits and not self._paused and idle < len(turns):
            feed = turns.popleft()
            try:
                went = self._send_some(feed)
            except Exception as error:  # noqa: BLE001 - what a source offers: `run` raises it
                self._source_failed(feed, error)
                return
            idle = 0 if went else idle + 1
            if feed.has_more and not feed.finished:
                turns.append(feed)
            else:
                feed.queued = False
        if self.stopping and session.is_settled:
            self._end(None)

    def _send_some(self, feed: Feed) -> bool:
        """Send a stream's share; False if it has to wait for something else than credits."""
        session = self.session
        chunk = feed.chunk()
        if chunk is not None:
            share = session.credits // (len(self._turns) + 1)
            count, frames = session.messages(
                feed.id, chunk, feed.at, messages_max=max(share, limits.WALLAROO_TURN_MESSAGES)
            )
            if count:
                self._write(frames)
                feed.sent(count)
            return count > 0
        if not feed.ended:
            return False
        end = session.end_of_stream(feed.id)
        if end is None:
            return False
        self._write(end)
        feed.ended = False
        if session.finished(feed.id):
            self._finish(feed)
        return True

    def stop(self) -> None:
        """Send nothing more, and end when all that was sent is acked."""
        self.stopping = True
        for feed in self.feeds.values():
            if feed.task is not None:
                feed.task.cancel()
            if not feed.finished:
                feed.clear()
        self._turns.clear()
        if self.session.state is not State.STREAMING or self.session.is_settled:
            self._end(None)


class Connector:
    """Sends the messages of sources to a worker, each until it is acked."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        program: str,
        instance: str,
        cookie: str | bytes = b"",
        dialect: str | Dialect = Dialect.SPEC,
        version: str = VERSION,
        tls: ssl.SSLContext | bool = False,
        errors_max: int = limits.WALLAROO_ERRORS_MAX,
        give_up_seconds: float | None = None,
        stop_seconds: float = limits.WALLAROO_STOP_S,
        backoff: Backoff | None = None,
    ) -> None:
        """`program` and `instance` name the connector: with them a worker knows it again.

        It connects as often as it takes, or until no session was had for `give_up_seconds`; after
        `errors_max` ERRORs in a row it gives up.
        """
        self._address = split_address(address)
        try:
            self._dialect = Dialect(dialect)
        except ValueError:
            known = ", ".join(each.value for each in Dialect)
            raise BadSetting(f"the dialect {dialect!r} is unknown: there are {known}") from None
        secret = cookie.encode() if isinstance(cookie, str) else cookie
        self._hello = Hello(version, secret, program, instance)
        self._tls = ssl.create_default_context() if tls is True else tls or None
        self._errors_max = errors_max
        self._give_up_s = give_up_seconds
        self._stop_s = stop_seconds
        self._backoff = backoff or Backoff(limits.WALLAROO_RETRY_S_MIN, limits.WALLAROO_RETRY_S_MAX)
        self._feeds: dict[int, Feed] = {}
        self._link: _Link | None = None
        self._totals = _Totals()
        self._connections = 0
        self._problem = ""
        self._state = "ended"
        self._stopping = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    @property
    def progress(self) -> Progress:
        """How far it got."""
        totals, link = self._totals, self._link
        streams = [] if link is None else list(link.session.streams.values())
        return Progress(
            state="stopping" if self._stopping.is_set() and link is not None else self._state,
            sent=totals.sent + sum(each.sent for each in streams),
            acked=totals.acked + sum(each.confirmed for each in streams),
            repeated=totals.repeated + sum(each.repeated for each in streams),
            bytes=totals.bytes + (0 if link is None else link.bytes),
            credits=0 if link is None else link.session.credits,
            streams=sum(not each.finished for each in self._feeds.values()),
            connections=self._connections,
            problem=self._problem,
        )

    def stop(self) -> None:
        """Let `run` end: what was sent is still acked, for `stop_seconds` at most."""
        self._stopping.set()
        if self._link is not None:
            self._link.stop()
            asyncio.get_running_loop().call_later(self._stop_s, self._link._end, None)

    async def run(self, sources: Iterable[Source]) -> Progress:
        """Send all that these sources have; it ends when the last message of all is acked."""
        if self._state != "ended":
            raise LocalError("this connector runs already: make one more, with another instance")
        self._feeds = {}
        for source in sources:
            feed = Feed(source)
            if feed.id in self._feeds:
                other = self._feeds[feed.id].source.name
                raise LocalError(
                    f"two sources with the stream id {feed.id}: {other}, {source.name}"
                )
            self._feeds[feed.id] = feed
        if self._dialect is Dialect.LITERAL and len(self._feeds) > 1:
            raise BadSetting("the literal dialect has no stream ids: it takes one source")
        self._totals, self._connections, self._problem = _Totals(), 0, ""
        self._stopping.clear()
        try:
            await self._sessions()
        finally:
            self._state = "ended"
        return self.progress

    async def _sessions(self) -> None:
        """One session after another, until all is sent."""
        address, errors = self._address, 0
        loop = asyncio.get_running_loop()
        alone = loop.time()
        while self._unfinished() and not self._stopping.is_set():
            self._state = "connecting"
            began = loop.time()
            how, link = await self._session(address)
            if how is None:
                return
            if link.welcomed:
                alone = loop.time()
            if link.progressed or loop.time() - began > limits.WALLAROO_RETRY_S_MAX:
                self._backoff.reset()
                errors = 0
            address = self._address
            match how:
                case Failed():
                    errors += 1
                    self._judge(how, errors)
                    self._problem = how.reason
                case Restarted():
                    address = self._elsewhere(how.address)
                    self._problem = "the worker restarts"
                case OSError():
                    self._problem = str(how) or type(how).__name__
                case _SourceFailed():
                    raise how.error
            if self._give_up_s is not None and loop.time() - alone > self._give_up_s:
                raise HubUnreachable(f"no worker at {_shown(self._address)}: {self._problem}")
            self._state = "waiting"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._backoff.pause()):
                    await self._stopping.wait()

    def _unfinished(self) -> bool:
        return any(not each.finished for each in self._feeds.values())

    async def _session(self, address: tuple[str, int]) -> tuple[_Ended, _Link]:
        """How a session ended, and what is left of it."""
        session = Session(self._hello, self._dialect)
        feeds = {feed.id: feed for feed in self._feeds.values() if not feed.finished}
        for feed in feeds.values():
            session.add(feed.id, feed.name, feed.ref)
        link = _Link(session, feeds, self._stopping.is_set())
        self._link = link
        how: _Ended = None
        try:
            try:
                async with asyncio.timeout(limits.WALLAROO_CONNECT_S_MAX):
                    await asyncio.get_running_loop().create_connection(
                        lambda: link, *address, ssl=self._tls
                    )
            except OSError as error:
                return _unreachable(address, error), link
            self._connections += 1
            asyncio.get_running_loop().call_later(limits.WALLAROO_CONNECT_S_MAX, _hurry, link)
            self._state = "streaming"
            how = await link.over
            return how, link
        finally:
            try:
                await link.close(clean=how is None and link.over.done())
            finally:
                self._link = None
                self._count(link)

    def _count(self, link: _Link) -> None:
        totals = self._totals
        totals.bytes += link.bytes
        for stream in link.session.streams.values():
            totals.acked += stream.confirmed
            totals.repeated += stream.repeated
            if self._stopping.is_set() or not self._unfinished():
                totals.sent += stream.sent
            else:
                totals.sent += stream.confirmed
                totals.repeated += stream.sent - stream.confirmed

    def _judge(self, failed: Failed, errors: int) -> None:
        """Raise what another attempt would not change."""
        who = _shown(self._address)
        if not failed.ours and not failed.welcomed and failed.reason.startswith("Bad cookie"):
            raise Unauthorized(f"the worker at {who} refuses the cookie: give the one it wants")
        final = failed.reason.startswith("Unknown protocol version") and not failed.welcomed
        if final or errors >= self._errors_max:
            said = "broke the protocol" if failed.ours else "gave up"
            raise WorkerFailed(f"the worker at {who} {said}: {failed.reason}")

    def _elsewhere(self, address: str) -> tuple[str, int]:
        """Where RESTART leads: nowhere else if it does not say, or not clearly."""
        with contextlib.suppress(BadSetting):
            return split_address(address)
        return self._address


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, also with `wallaroo://` before it; IPv6 in brackets."""
    host, colon, port = address.removeprefix("wallaroo://").rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise BadSetting(f"{address!r:.100} is no address: write host:port, as {DEFAULT_ADDRESS}")
    return host, int(port)


def _shown(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _unreachable(address: tuple[str, int], error: OSError) -> OSError:
    reason = error.strerror or str(error) or "it takes too long"
    return ConnectionError(f"nobody answers at {_shown(address)} ({reason})")


def _hurry(link: _Link) -> None:
    """End a session whose worker has not said OK in time."""
    if link.session.state is State.HANDSHAKE:
        link._end(TimeoutError("the worker does not answer HELLO"))


async def _ended(tasks: Iterable[asyncio.Task[None] | None]) -> None:
    """Cancel tasks and wait for their end; what they raise has been told elsewhere."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


__all__ = [
    "Backoff",
    "Chunk",
    "Connector",
    "Progress",
    "Single",
    "Source",
    "WorkerFailed",
    "split_address",
    "stream_id",
]
