"""One connector's connection: bytes to the session, messages to the log, frames back.

What was decoded is received one by one, as far as that can be: while streams are looked up, while
the log is full, or while the connector does not take its acks, nothing more is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import structlog

from penstock import limits
from penstock.errors import BatchTooLarge, LogBusy, PenstockError
from penstock.log import Batch, BinaryColumn
from penstock.protocols.wallaroo.wire import Decoder, Dialect, Notify, Role, encode
from penstock.protocols.wallaroo.worker import (
    Close,
    Effect,
    Introduce,
    Remember,
    Send,
    Session,
    State,
    Store,
    Taken,
    Welcome,
)

if TYPE_CHECKING:
    from penstock.log.receipt import Receipt
    from penstock.protocols.wallaroo.door import WallarooDoor

logger = structlog.get_logger("penstock.wallaroo")
BUG: Final = "this is a bug in Penstock; its log has the details"
_ERROR_S_MAX: Final = 2.0
"""How long a peer has to read why it was refused."""


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
        self._made_at = self._since = time.monotonic()
        """The latter: when it last made progress, as with a whole frame."""
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
        assert self._transport is not None
        if self._transport.get_extra_info("ssl_object") is not None:
            return False  # TLS ends both ways at once
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
            self.do(self.session.fail(BUG, "internal"))
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
            self.do(self.session.fail(BUG, "internal"))
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
            if now - self._made_at > self._door.hello_s_max:
                self.do(self.session.fail("No HELLO in time", "too-slow"))
                self.flush()
        elif self._decoder.pending and not self.is_blocked:
            if now - self._since > self._door.frame_s_max:
                self.do(self.session.fail("A frame took too long to arrive", "too-slow"))
                self.flush()
        elif self.session.was_refused:
            self.ack(force=True)

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
