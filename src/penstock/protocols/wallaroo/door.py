"""The Wallaroo door: connectors' sockets on one side, the log on the other.

Each connection has a decoder and a session, which know the protocol. Here bytes are read into the
decoder's buffer, what the session says is done, and acks go out once the journal has been synced:
the commit thread wakes the event loop once for all connections of a commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import socket
import struct
import termios
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import numpy as np
import structlog

from penstock import limits
from penstock.errors import (
    BadName,
    BadSetting,
    BatchTooLarge,
    Forbidden,
    LogBusy,
    PenstockError,
    StreamExists,
    UnknownStream,
)
from penstock.hub.hub import Door, is_exposed, is_loopback, split_address
from penstock.hub.users import EVERYBODY, User, require
from penstock.log import Batch, BinaryColumn
from penstock.protocols.names import Template, escape
from penstock.protocols.wallaroo import points
from penstock.protocols.wallaroo.points import Book, Entry
from penstock.protocols.wallaroo.wire import Decoder, Dialect, Notify, Role, encode
from penstock.protocols.wallaroo.worker import (
    Close,
    Effect,
    Introduce,
    Known,
    Mark,
    Note,
    Remember,
    Rules,
    Send,
    Session,
    State,
    Store,
    Taken,
    Welcome,
)

if TYPE_CHECKING:
    from penstock.config import WallarooSettings
    from penstock.hub.hub import Hub
    from penstock.log.receipt import Receipt

logger = structlog.get_logger("penstock.wallaroo")
_OWNER: Final = "wallaroo"
_FIELDS: Final = ("program", "instance", "stream")
_TICK_S: Final = 0.25
_PROCESSED_S: Final = 0.05
"""How often a group's positions are looked at, which costs a look into a dictionary each."""

_OLDER_S_MAX: Final = 1.0
"""How long a connector waits for its older connections that are still open."""

_ERROR_S_MAX: Final = 2.0
"""How long a peer has to read why it was refused."""

_REWIND_S_MAX: Final = 30.0
_BUG: Final = "this is a bug in Penstock; its log has the details"
_PER_US: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}


class Connection(asyncio.BufferedProtocol):
    """One connector."""

    def __init__(self, door: WallarooDoor) -> None:
        settings = door.settings
        self._door = door
        self.number = next(door.numbers)
        self.session = Session(door.rules, door.window_bytes())
        self.peer = ""
        self.producer = ""
        self.opened_at = time.time()
        self.stutter_s = 0.0
        """Debug: acks wait for so long."""
        self.is_lost = False
        self.was_active = False
        self._decoder = Decoder(
            Role.WORKER, literal=settings.literal, frame_bytes_max=settings.frame_bytes_max
        )
        self._transport: asyncio.Transport | None = None
        self._queue: deque[Any] = deque()
        """What was decoded and is not received yet."""
        self._held: deque[Store] = deque()
        """What waits for room in the log; nothing may overtake it."""
        self._asked: list[Introduce] = []
        self._task: asyncio.Task[None] | None = None
        self._out: list[bytes] = []
        self._since = time.monotonic()
        """When it last made progress: a HELLO, or a whole frame."""
        self._write_paused_at: float | None = None
        self._closing_at: float | None = None
        self._is_stuttering = False
        self._at_end = False

    # -- asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's is none by name
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        transport.set_write_buffer_limits(high=limits.WALLAROO_WRITE_BYTES_MAX)
        set_up(transport.get_extra_info("socket"))
        if not self._door.admit(self):
            self._door.reject("too-many-connections")
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._closing_at is not None:
            return self._door.discarded
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing_at is not None:
            return
        items = self._decoder.advance(nbytes)
        if items or not self._decoder.pending:
            self._since = time.monotonic()
        self._queue.extend(items)
        self.work()

    def eof_received(self) -> bool:
        """The connector will send no more; it may still wait for its acks."""
        self._at_end = True
        return self._closing_at is None and not self._is_idle()

    def pause_writing(self) -> None:
        self._write_paused_at = time.monotonic()
        self._read_or_not()

    def resume_writing(self) -> None:
        self._write_paused_at = None
        self.work()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._transport = None
        self._queue.clear()
        self._drop_held()
        if self._task is not None:
            self._task.cancel()
        self.session.end()
        self._door.left(self)

    # -- frames in ---------------------------------------------------------------------------------

    @property
    def is_blocked(self) -> bool:
        """Whether nothing more can be received now."""
        return bool(self._held) or self._task is not None or self._write_paused_at is not None

    def _is_idle(self) -> bool:
        return not self._queue and not self.is_blocked and self.session.is_settled

    def work(self) -> None:
        """Receive what was decoded, as far as that can be; then ack."""
        if self.is_lost:
            return
        try:
            while self._queue and not self.is_blocked:
                item = self._queue[0]
                if self._asked and not isinstance(item, Notify):
                    break
                self._queue.popleft()
                self.do(self.session.receive(item))
            if self._asked and self._task is None:
                asked, self._asked = self._asked, []
                self._start(self._door.introduce(self, asked))
        except Exception:
            logger.exception("a session failed", peer=self.peer)
            self.do(self.session.fail(_BUG, "internal"))
        self.ack()
        self._read_or_not()

    def do(self, effects: Iterable[Effect]) -> None:
        """Carry out what the session says."""
        for effect in effects:
            if isinstance(effect, Store):
                self._held.append(effect)
                self._submit()
            elif isinstance(effect, Send):
                dialect = self._decoder.dialect or Dialect.SPEC
                self._out.append(encode(effect.frame, dialect))
            elif isinstance(effect, Introduce):
                self._asked.append(effect)
            elif isinstance(effect, Remember):
                self._door.remember(self, effect.notes, effect.taken)
            elif isinstance(effect, Welcome):
                self._start(self._door.welcome(self, effect))
            else:
                self._close(effect)

    def _start(self, coroutine: Any) -> None:
        """Do something that takes time, and nothing else until it is done."""
        self._task = asyncio.get_running_loop().create_task(self._run(coroutine))

    async def _run(self, coroutine: Any) -> None:
        try:
            await coroutine
        except PenstockError as error:
            self.fail(error)
        except Exception:
            logger.exception("a session failed", peer=self.peer)
            self.do(self.session.fail(_BUG, "internal"))
        finally:
            self._task = None
        self.work()

    def fail(self, error: PenstockError) -> None:
        """End the session because of an error of the log's."""
        self.do(self.session.fail(str(error), error.code))
        self.flush()

    # -- to the log --------------------------------------------------------------------------------

    def _submit(self) -> None:
        """Hand over what is held, as far as there is room."""
        while self._held:
            store = self._held[0]
            try:
                if not self._submit_one(store):
                    return
            except BatchTooLarge as error:
                halves = halved(store)
                if halves is None:
                    self._drop_held()
                    self.fail(error)
                    return
                store.taken.waits += 1
                self._held[0] = halves[1]
                self._held.appendleft(halves[0])
            except PenstockError as error:
                self._drop_held()
                self.fail(error)
                return
            else:
                self._held.popleft()

    def _drop_held(self) -> None:
        """What is held will not be stored; it was never acked."""
        while self._held:
            self.session.lost(self._held.popleft().taken)

    def _submit_one(self, store: Store) -> bool:
        """False if there is no room yet; when there is, it is tried again."""
        door = self._door
        log, messages = door.log, store.messages
        batch = Batch(
            BinaryColumn(*messages.payloads),
            None if messages.keys is None else BinaryColumn(*messages.keys),
            door.timestamps(messages.times, messages.has_time),
        )
        targets, ids = store.targets, store.ids
        if store.keep is not None:
            batch = batch.filter(store.keep)
            ids = ids[store.keep]
            if not isinstance(targets, int):
                targets = targets[store.keep]
        try:
            receipt = log.submit(
                targets, batch, producer=self.producer, ids=ids, drop_resent=store.drop_resent
            )
        except LogBusy:
            if log.when_room(batch.nbytes, self._has_room):
                self._has_room()
            return False
        taken = store.taken
        receipt.on_done(lambda receipt: door.finished(self, taken, receipt))
        self.was_active = True
        return True

    def _has_room(self) -> None:
        """In another thread: there may be room."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._door.loop.call_soon_threadsafe(self._retry)

    def _retry(self) -> None:
        if not self.is_lost:
            self._submit()
            self.work()

    def stored(self, taken: Taken, receipt: Receipt) -> None:
        """A commit is over."""
        try:
            done = receipt.result(0)
        except PenstockError as error:
            if not self.is_lost:
                self.fail(error)
            self.session.lost(taken)
            return
        ends = None
        if self._door.processed:
            ends = {pid: first + count for pid, first, count in done.runs()}
        self.session.stored(taken, ends)

    # -- frames out --------------------------------------------------------------------------------

    def ack(self, *, force: bool = False) -> None:
        """Send what may be acked, unless the connector does not read."""
        if self.is_lost or self._closing_at is not None:
            return
        if self._write_paused_at is None and not self._is_stuttering:
            if self.stutter_s:
                self._is_stuttering = True
                self._door.loop.call_later(self.stutter_s, self._stuttered)
            else:
                self.do(self.session.acks(force=force))
        self.flush()
        if self._at_end and self._is_idle() and self._transport is not None:
            self._transport.close()

    def _stuttered(self) -> None:
        self._is_stuttering = False
        if not self.is_lost and self._write_paused_at is None and self._closing_at is None:
            self.do(self.session.acks())
            self.flush()

    def flush(self) -> None:
        if self._out and self._transport is not None:
            data = b"".join(self._out) if len(self._out) > 1 else self._out[0]
            self._out.clear()
            self._transport.write(data)

    def _read_or_not(self) -> None:
        """Read while what was read is taken."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        wanted = self._closing_at is not None or not self.is_blocked
        if wanted != transport.is_reading():
            with contextlib.suppress(RuntimeError):
                if wanted:
                    transport.resume_reading()
                else:
                    transport.pause_reading()

    def _close(self, close: Close) -> None:
        """Say no more, and let the peer read why: what it still sends is discarded."""
        if self._closing_at is not None or self._transport is None:
            return
        self.flush()
        self._closing_at = time.monotonic()
        self._queue.clear()
        if close.code:
            self._door.reject(close.code)
        logger.info("a session ended", peer=self.peer, producer=self.producer, reason=close.reason)
        if close.code and self._transport.can_write_eof():
            self._transport.write_eof()
            self._read_or_not()
        else:
            self._transport.close()

    def cut(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """The hub stops: take no more."""
        if self._transport is not None and not self._transport.is_closing():
            with contextlib.suppress(RuntimeError):
                self._transport.pause_reading()

    def close(self) -> None:
        """Close when what was to be sent is sent."""
        if self._transport is not None:
            self._transport.close()

    # -- time --------------------------------------------------------------------------------------

    def check_time(self, now: float) -> None:
        """Called several times a second."""
        if self._closing_at is not None:
            if now - self._closing_at > _ERROR_S_MAX:
                self.cut()
        elif self._write_paused_at is not None:
            if now - self._write_paused_at > limits.WALLAROO_WRITE_S_MAX:
                self._door.reject("too-slow")
                self.cut()
        elif self.session.state is State.CONNECTED:
            if now - self._since_opened(now) > self._door.hello_s_max:
                self.do(self.session.fail("No HELLO in time", "too-slow"))
                self.flush()
        elif self._decoder.pending and not self.is_blocked:
            if now - self._since > self._door.frame_s_max:
                self.do(self.session.fail("A frame took too long to arrive", "too-slow"))
                self.flush()
        elif self.session.was_refused:
            self.ack(force=True)

    def _since_opened(self, now: float) -> float:
        return now - (time.time() - self.opened_at)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is taken from it."""
        return self.is_lost or self._closing_at is not None

    @property
    def is_quiet(self) -> bool:
        """Whether nothing of it is on its way: neither to the disk, nor in the kernel."""
        if not self.session.is_settled:
            return False
        if self.is_over or self._transport is None:
            return True
        return not self._queue and not self._held and not self._unread()

    def _unread(self) -> int:
        """Bytes in the kernel's buffer."""
        assert self._transport is not None
        found = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError, ValueError):
            answer = fcntl.ioctl(found.fileno(), termios.FIONREAD, struct.pack("i", 0))
            return int(struct.unpack("i", answer)[0])
        return 0


class WallarooDoor(Door):
    """Connectors' connections, and what is remembered of their streams."""

    name = "wallaroo"

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.log = hub.log
        self.settings: WallarooSettings = hub.config.wallaroo
        self.rules = rules_of(self.settings)
        self.processed = self.settings.ack == "processed"
        self.hello_s_max = limits.WALLAROO_HELLO_S_MAX
        self.frame_s_max = limits.WALLAROO_FRAME_S_MAX
        self.numbers = itertools.count(1)
        self.discarded = memoryview(bytearray(64 * limits.KIB))
        """Where bytes go that nobody will read."""
        self.loop: asyncio.AbstractEventLoop
        self._template = Template(self.settings.streams, _FIELDS, needed=["stream"])
        self.by_number: dict[int, Connection] = {}
        self.by_producer: dict[str, set[Connection]] = {}
        """Also those that are gone, until all they sent is on disk."""
        self.book = Book()
        self._finished: deque[tuple[Connection, Taken, Receipt]] = deque()
        self._woken = False
        self._notes: dict[str, Entry] = {}
        self._noted: list[tuple[Connection, Taken]] = []
        self._writing_notes: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._active = 1
        self._server: asyncio.Server | None = None
        self._ticking: list[asyncio.Task[None]] = []
        self._address = ""
        self._stopping = False

    @property
    def address(self) -> str:
        return self._address

    @property
    def connections(self) -> int:
        return len(self.by_number)

    # -- listening ---------------------------------------------------------------------------------

    async def open(self) -> None:
        assert self.settings.listen is not None
        host, port = split_address(self.settings.listen)
        self.loop = asyncio.get_running_loop()
        for name in self.book.load(self.log.notes(_OWNER)):
            logger.error("a note cannot be read", name=name)
        context = self._hub.ssl_context()
        try:
            self._server = await self.loop.create_server(
                lambda: Connection(self),
                host,
                port,
                ssl=context,
                ssl_handshake_timeout=None if context is None else self.hello_s_max,
                backlog=1024,
            )
        except OSError as error:
            raise BadSetting(
                f"cannot listen on {host}:{port} ({error.strerror or error}): is another hub "
                "running? Stop it, or choose another port with wallaroo.listen"
            ) from None
        real = self._server.sockets[0].getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self._address = f"{'wallaroo+tls' if context else 'wallaroo'}://{shown}:{real}"
        self._ticking.append(self.loop.create_task(self._tick()))
        if self.processed:
            self._ticking.append(self.loop.create_task(self._follow_group()))

    async def close(self, seconds: float) -> None:
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for each in self.by_number.values():
            each.pause()
        deadline = time.monotonic() + seconds
        while not all(each.session.is_settled for each in self._all()):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.01)
        for each in list(self.by_number.values()):
            each.ack()
            each.close()
        await asyncio.sleep(0)
        while self.by_number and time.monotonic() < min(deadline, time.monotonic() + 1.0):
            await asyncio.sleep(0.01)
            for each in list(self.by_number.values()):
                each.cut()
        for task in self._ticking:
            task.cancel()

    def _all(self) -> list[Connection]:
        return [each for every in self.by_producer.values() for each in every]

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for one more."""
        if self._stopping or len(self.by_number) >= self.settings.connections_max:
            return False
        self.by_number[connection.number] = connection
        return True

    def left(self, connection: Connection) -> None:
        """A connection is gone."""
        self.by_number.pop(connection.number, None)
        self._count(connection)
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        """Forget one that is gone, once all that it sent is on disk."""
        if not connection.is_lost or not connection.session.is_settled:
            return
        found = self.by_producer.get(connection.producer)
        if found is None or connection not in found:
            return
        found.discard(connection)
        if not found:
            del self.by_producer[connection.producer]
        if self.processed and connection.session.dialect is Dialect.SHIPPED:
            for stream, marks in connection.session.leave():
                self.book.marks[connection.producer, stream] = marks

    def reject(self, code: str) -> None:
        self._hub.metrics.rejected(self.name, code)

    # -- time --------------------------------------------------------------------------------------

    def window_bytes(self) -> int:
        """What one session may have on its way."""
        free = max(0, self.log.settings.buffer_bytes - self.log.buffered_bytes)
        return min(self.settings.window_bytes, free // 2) // self._active

    async def _tick(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(_TICK_S)
            ticks += 1
            now = time.monotonic()
            every = list(self.by_number.values())
            if ticks % 4 == 0:
                self._active = max(1, sum(each.was_active for each in every))
            window = self.window_bytes()
            for each in every:
                if ticks % 4 == 0:
                    each.was_active = False
                    self._count(each)
                each.session.credits.set_window(window)
                try:
                    each.check_time(now)
                    each.ack()
                except Exception:
                    logger.exception("a connection could not be looked after", peer=each.peer)
                    each.cut()

    def _count(self, connection: Connection) -> None:
        for stream, records, nbytes in connection.session.counted():
            self._hub.metrics.appended(self.name, stream, records, nbytes)

    # -- acks --------------------------------------------------------------------------------------

    def finished(self, connection: Connection, taken: Taken, receipt: Receipt) -> None:
        """In the commit thread: wake the event loop once for all receipts of a commit."""
        self._finished.append((connection, taken, receipt))
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._woken = False
        touched: dict[Connection, None] = {}
        while self._finished:
            connection, taken, receipt = self._finished.popleft()
            connection.stored(taken, receipt)
            touched[connection] = None
        for each in touched:
            if each.is_lost:
                self._forget(each)
            else:
                each.ack()

    async def _follow_group(self) -> None:
        """With ack = "processed": see how far the group got."""
        group = self.settings.group
        assert group is not None
        while True:
            await asyncio.sleep(_PROCESSED_S)
            for each in list(self.by_number.values()):
                positions = {}
                for stream, target in each.session.waiting():
                    with contextlib.suppress(PenstockError):  # deleted meanwhile
                        number = self.log.partition_number(target)
                        positions[target] = self.log.position(group, stream, number) or 0
                if positions:
                    each.do(each.session.passed(positions))

    # -- notes -------------------------------------------------------------------------------------

    def remember(self, connection: Connection, notes: tuple[Note, ...], taken: Taken) -> None:
        """Make notes; those of all connections go to the disk together."""
        entries = self.book.of(connection.producer)
        for note in notes:
            entry = entries.get(note.stream)
            if entry is not None:
                name = points.note_name(connection.producer, note.stream)
                self._notes[name] = msgspec.structs.replace(
                    entry, kind=note.kind, ref=note.ref, over=note.over, rewound=False
                )
        self._noted.append((connection, taken))
        if self._writing_notes is None:
            self._writing_notes = self.loop.create_task(self._write_notes())

    async def _write_notes(self) -> None:
        while self._noted:
            notes, self._notes = self._notes, {}
            noted, self._noted = self._noted, []
            try:
                await self._put_notes(notes)
            except PenstockError as error:
                for connection, taken in noted:
                    connection.session.lost(taken)
                    connection.fail(error)
                continue
            for connection, taken in noted:
                connection.session.remembered(taken)
            for connection in {each for each, _ in noted}:
                if connection.is_lost:
                    self._forget(connection)
                else:
                    connection.ack()
        self._writing_notes = None

    async def _put_notes(self, notes: dict[str, Entry], *forget: str) -> None:
        """On disk, then in memory."""
        encoded: dict[str, bytes | None] = {
            name: points.encode_entry(entry) for name, entry in notes.items()
        }
        encoded.update(dict.fromkeys(forget))
        if encoded:
            await self._hub.run(self.log.put_notes, _OWNER, encoded)
        for name in forget:
            self.book.drop(name)
        for name, entry in notes.items():
            self.book.put(name, entry)

    # -- handshake ---------------------------------------------------------------------------------

    async def welcome(self, connection: Connection, effect: Welcome) -> None:
        """Tell a connector where its streams go on."""
        hello = effect.hello
        producer = points.producer(hello.program, hello.instance)
        if len(producer) > limits.PRODUCER_NAME_BYTES_MAX:
            raise BadName(
                f"program and instance take {len(producer)} characters as a producer's name: at "
                f"most {limits.PRODUCER_NAME_BYTES_MAX}; use shorter names"
            )
        connection.producer = producer
        self.by_producer.setdefault(producer, set()).add(connection)
        await self._older_are_quiet(connection)
        found = []
        if connection.session.dialect is not Dialect.SHIPPED:
            for stream, entry in self.book.of(producer).items():
                point = self.point_of(producer, entry)
                if point:
                    found.append((stream, point))
        connection.do(connection.session.welcome(tuple(found[: limits.WALLAROO_STREAMS_MAX])))

    def point_of(self, producer: str, entry: Entry) -> int | None:
        """Where a stream goes on."""
        return entry.point(self._last_id(producer, entry), processed=self.processed)

    def _last_id(self, producer: str, entry: Entry) -> int | None:
        with contextlib.suppress(PenstockError):  # it was deleted
            return self.log.last_id(producer, entry.stream, entry.partition)
        return None

    async def _older_are_quiet(self, connection: Connection) -> None:
        """Wait until what a connector sent over older connections is on disk.

        Those that are over are waited for in any case, those still open for a moment: the
        connector may have left them, and the kernel still have some of it.
        """
        deadline = time.monotonic() + _OLDER_S_MAX
        while True:
            older = [
                each
                for each in self.by_producer.get(connection.producer, ())
                if each.number < connection.number and not each.is_quiet
            ]
            if not any(each.is_over for each in older) and (
                not older or time.monotonic() > deadline
            ):
                return
            await asyncio.sleep(0.005)

    # -- introducing -------------------------------------------------------------------------------

    async def introduce(self, connection: Connection, asked: list[Introduce]) -> None:
        """Find or make streams, remember them, and tell the session."""
        await self._older_are_quiet(connection)
        async with self._changing:
            answers: list[tuple[Introduce, Known | None, PenstockError | None]] = []
            notes: dict[str, Entry] = {}
            forget: list[str] = []
            for each in asked:
                try:
                    known = await self._introduce(connection, each, notes, forget)
                except PenstockError as error:
                    answers.append((each, None, error))
                else:
                    answers.append((each, known, None))
            await self._put_notes(notes, *forget)
        for each, found, refused in answers:
            if found is not None:
                effects = connection.session.introduced(each.stream, found)
            else:
                later = refused is None or isinstance(refused, _InUse)
                effects = connection.session.refused(
                    each.stream, str(refused), ref=each.ref, later=later
                )
                if refused is not None:
                    self.reject(refused.code)
            connection.do(effects)

    async def _introduce(
        self, connection: Connection, asked: Introduce, notes: dict[str, Entry], forget: list[str]
    ) -> Known:
        producer = connection.producer
        hello = connection.session.hello
        assert hello is not None
        stream = self._template.name(
            {
                "program": hello.program.encode(),
                "instance": hello.instance.encode(),
                "stream": asked.name.encode(),
            }
        )
        require(self._user(), "write", stream)
        self._check_free(connection, asked.stream)
        other = self.book.id_of(producer, stream)
        if other is not None and other != asked.stream:
            self._check_free(connection, other, own=True)
            forget.append(points.note_name(producer, other))
        partitions = await self._find_stream(stream)
        name = points.note_name(producer, asked.stream)
        entry = notes.get(name) or self.book.of(producer).get(asked.stream)
        escaped = escape(asked.name.encode())
        if entry is None or entry.stream != stream or entry.partition >= partitions:
            if self.book.count >= limits.WALLAROO_NOTES_MAX:
                raise BadSetting(f"{self.book.count} streams are remembered: no more fit")
            partition = points.partition_of(producer, asked.stream, partitions)
            entry = Entry(escaped, stream, partition)
        last_id = self.log.last_id(producer, stream, entry.partition)
        current = entry.brought_up(last_id, processed=self.processed)
        if current != self.book.of(producer).get(asked.stream):
            notes[name] = current
        if self.processed:
            assert self.settings.group is not None
            await self._hub.run(self.log.register_group, self.settings.group, stream)
        return self._known(producer, asked.stream, current, last_id)

    def _known(self, producer: str, stream: int, entry: Entry, last_id: int | None) -> Known:
        ref = entry.point(last_id, processed=self.processed)
        rewound = entry.is_rewound(last_id)
        marks: tuple[Mark, ...] = self.book.marks.pop((producer, stream), ())
        if not self.processed or rewound:
            marks = ()
        elif not marks and last_id is not None and last_id != ref:
            end = self.log.bounds(entry.stream, entry.partition)[1]
            marks = (Mark(end, last_id, last_id),)
        return Known(
            entry.stream,
            self.log.locate(entry.stream, entry.partition),
            ref,
            last_id if self.processed and not rewound else ref,
            last_id,
            noted=entry.kind == "noted" and entry.over == last_id,
            rewound=rewound,
            marks=marks,
        )

    async def _find_stream(self, stream: str) -> int:
        """How many partitions it has; it is made if need be and allowed."""
        try:
            return len(self.log.all_bounds(stream))
        except UnknownStream:
            if not self.settings.create:
                raise
        require(self._user(), "admin", stream)
        try:
            await self._hub.run(self.log.create_stream, stream)
        except StreamExists:
            return len(self.log.all_bounds(stream))
        return 1

    def _check_free(self, connection: Connection, stream: int, *, own: bool = False) -> None:
        """Refuse a stream that another connection has open; the specification allows that."""
        shipped = connection.session.dialect is Dialect.SHIPPED
        for each in self.by_producer.get(connection.producer, ()):
            if each.is_lost or each is connection:
                if not (own and each is connection and each.session.is_open(stream)):
                    continue
            elif not (shipped or own) or not each.session.is_open(stream):
                continue
            raise _InUse(
                f"it is open as stream id {stream}"
                + (" of another connection" if each is not connection else "")
            )

    def _user(self) -> User:
        """Whose rights connectors have."""
        name = self.settings.user
        if name is None:
            return EVERYBODY
        for user in self._hub.users.all():
            if user.name == name:
                return user
        raise Forbidden(f"connectors act as user {name!r} (wallaroo.user), and there is none such")

    # -- what operators do -------------------------------------------------------------------------

    async def rewind(self, producer: str, stream: int, ref: int | None) -> Entry:
        """Have a stream sent again from after `ref` on, by this or the next session.

        The specification's connectors are told so with a NACK. Shipped ones know none: their
        connection is cut, and they hear it when they come back.
        """
        async with self._changing:
            entry = self.book.of(producer).get(stream)
            if entry is None:
                raise UnknownStream(
                    f"no connector {' '.join(points.names_of(producer))!r:.100} has a stream "
                    f"{stream}: see `penstock wallaroo streams`"
                )
            waits = []
            for each in list(self.by_producer.get(producer, ())):
                waits.append((each, each.session.taken_count))
                if not each.is_lost and each.session.may_nack(stream):
                    each.do(each.session.nack(stream, ref))
                    each.flush()
                elif not each.is_lost and each.session.is_open(stream):
                    each.cut()
            deadline = time.monotonic() + _REWIND_S_MAX
            while any(each.session.settled_count < count for each, count in waits):
                if time.monotonic() > deadline:
                    raise LogBusy("what the connector sent is not on disk yet: try again")
                await asyncio.sleep(0.005)
            self.book.marks.pop((producer, stream), None)
            rewound = msgspec.structs.replace(
                entry,
                kind="processed" if self.processed else "noted",
                ref=ref,
                over=self._last_id(producer, entry),
                rewound=True,
            )
            await self._put_notes({points.note_name(producer, stream): rewound})
            return rewound

    # -- times -------------------------------------------------------------------------------------

    def timestamps(self, times: Any, has_time: Any) -> Any:
        """Event times as the log has them; now, where there is none."""
        if times is None:
            return None
        unit = self.settings.event_time
        if unit == "ns":
            times = times // 1000
        else:
            most = (2**63 - 1) // _PER_US[unit]
            times = np.clip(times, -most, most) * _PER_US[unit]
        if not has_time.all():
            times = np.where(has_time, times, self.log.now())
        return times


class _InUse(PenstockError):
    """Somebody else has the stream: it may be free later."""

    code = "wallaroo-stream-in-use"


def rules_of(settings: WallarooSettings) -> Rules:
    """What sessions go by."""
    return Rules(
        version=settings.version.encode(),
        cookie=settings.cookie.encode(),
        ack=settings.ack,
        credits_max=settings.credits_max,
    )


def check(hub: Hub) -> None:
    """Refuse settings that contradict each other, or would let anybody in."""
    settings = hub.config.wallaroo
    assert settings.listen is not None
    host, _ = split_address(settings.listen)
    if settings.ack == "processed" and not settings.group:
        raise BadSetting('wallaroo.ack is "processed", which needs wallaroo.group: name the group')
    if settings.debug and not is_loopback(host):
        raise BadSetting("wallaroo.debug works only where wallaroo.listen is on this machine")
    lacking = []
    if hub.config.tls.certificate is None:
        lacking.append("TLS (set tls.certificate and tls.key)")
    if not settings.cookie:
        lacking.append("a cookie (set wallaroo.cookie)")
    if lacking and is_exposed(hub.config, settings.listen):
        raise BadSetting(
            f"listening on {settings.listen} would let others in without "
            f"{' and '.join(lacking)}. Set that up, listen on 127.0.0.1, or say --insecure if the "
            "network is trusted"
        )


def set_up(found: socket.socket | None) -> None:
    """Find out within half a minute that a peer is gone, and keep little for one that is slow."""
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    for level, option, value in (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_SNDBUF, limits.WALLAROO_WRITE_BYTES_MAX),
    ):
        found.setsockopt(level, option, value)


def halved(store: Store) -> tuple[Store, Store] | None:
    """The same in two parts; None if it is one record."""
    keep = store.keep
    rows = np.arange(len(store.messages)) if keep is None else np.flatnonzero(keep)
    if len(rows) < 2:
        return None
    first, second = (np.zeros(len(store.messages), np.bool_) for _ in range(2))
    first[rows[: len(rows) // 2]] = True
    second[rows[len(rows) // 2 :]] = True
    return replace(store, keep=first), replace(store, keep=second)
