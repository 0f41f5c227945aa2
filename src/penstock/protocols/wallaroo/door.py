"""The Wallaroo door: connectors' sockets on one side, the log on the other.

Each connection has a decoder and a session, which know the protocol. Here bytes are read into the
decoder's buffer, what the session says is done, and acks go out once the journal has been synced:
the commit thread wakes the event loop once for all connections of a commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import structlog
from prometheus_client.core import Metric

from penstock import limits
from penstock.errors import (
    BadName,
    BadSetting,
    Forbidden,
    LogBusy,
    PenstockError,
    StorageError,
    StreamExists,
    UnknownStream,
)
from penstock.hub.hub import Door, is_exposed, is_loopback, split_address
from penstock.hub.users import EVERYBODY, User, require
from penstock.hub.wallaroo import metrics_of
from penstock.protocols.names import Template, escape
from penstock.protocols.wallaroo import points
from penstock.protocols.wallaroo.connection import BUG, Connection
from penstock.protocols.wallaroo.points import Book, Entry
from penstock.protocols.wallaroo.wire import Dialect
from penstock.protocols.wallaroo.worker import (
    Introduce,
    Known,
    Mark,
    Note,
    Rules,
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

_CLOSE_S_MAX: Final = 1.0
"""How long peers have to take their last acks when the hub stops."""

_REWIND_S_MAX: Final = 30.0
_PER_US: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}


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
        self._counts = (0, 0, 0)
        """Of sessions that are gone."""

    @property
    def address(self) -> str:
        return self._address

    @property
    def connections(self) -> int:
        return len(self.by_number)

    def metrics(self) -> Iterable[Metric]:
        return metrics_of(self)

    def counts(self) -> list[int]:
        """Messages stored, ignored and repeated, of all sessions there ever were."""
        every = [each.session.counts for each in list(self.by_number.values())]
        return [sum(each) for each in zip(self._counts, *every, strict=True)]

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
        cut_at = time.monotonic() + _CLOSE_S_MAX
        while self.by_number:
            await asyncio.sleep(0.01)
            if time.monotonic() > cut_at:
                break
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
        if self.by_number.pop(connection.number, None) is not None:
            more = connection.session.counts
            self._counts = (
                self._counts[0] + more[0],
                self._counts[1] + more[1],
                self._counts[2] + more[2],
            )
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
                try:
                    self._tell_positions(each, group)
                except Exception:
                    logger.exception("a group could not be followed", peer=each.peer)
                    each.cut()

    def _tell_positions(self, connection: Connection, group: str) -> None:
        positions = {}
        for stream, target in connection.session.waiting():
            with contextlib.suppress(PenstockError):  # deleted meanwhile
                number = self.log.partition_number(target)
                positions[target] = self.log.position(group, stream, number) or 0
        if positions:
            connection.do(connection.session.passed(positions))

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
            except Exception as error:
                if not isinstance(error, PenstockError):
                    logger.exception("notes could not be made")
                    error = StorageError(BUG)
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
