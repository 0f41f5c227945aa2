"""A connector and a worker without sockets: bytes go where and when a test says."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from penstock.protocols.wallaroo import worker
from penstock.protocols.wallaroo.chunk import Chunk
from penstock.protocols.wallaroo.connector import (
    Event,
    Failed,
    Finished,
    Reset,
    Session,
)
from penstock.protocols.wallaroo.points import Entry
from penstock.protocols.wallaroo.wire import (
    EPHEMERAL,
    UNSTABLE_REFERENCE,
    Decoder,
    Dialect,
    Hello,
    Notify,
    Role,
    encode,
)

HELLO = Hello("0.0.1", b"secret", "prog", "inst")


class Feed:
    """A source: ids in the order they are sent, and what the connector has of it."""

    def __init__(self, number: int, ids: list[int], flags: list[int]) -> None:
        self.number = number
        self.ids = ids
        self.flags = flags
        self.at = 0
        self.resets: list[int | None] = []
        self.finished = False
        self.ref: int | None = None

    def reset(self, position: int | None) -> None:
        self.resets.append(position)
        self.at = 0 if position is None else self.ids.index(position) + 1
        self.finished = False

    def chunk(self) -> Chunk:
        """All that is left."""
        ids = self.ids[self.at :]
        payloads = [b"%d:%d" % (self.number, each) for each in ids]
        return Chunk.of(payloads, ids, flags=self.flags[self.at :])

    @property
    def stable(self) -> list[int]:
        pairs = zip(self.ids, self.flags, strict=True)
        return [each for each, flags in pairs if not flags & (UNSTABLE_REFERENCE | EPHEMERAL)]


class Store:
    """The worker's memory, on disk and on the way there: a door and a log in a few lines."""

    def __init__(self) -> None:
        self.records: dict[int, list[int]] = {}
        self.entries: dict[int, Entry] = {}
        self.last: dict[int, int] = {}
        self.acked: dict[int, int] = {}
        self._pending: deque[tuple[worker.Session, Any]] = deque()

    def last_id(self, stream: int) -> int | None:
        return self.last.get(stream)

    def point(self, stream: int) -> int | None:
        entry = self.entries.get(stream)
        return None if entry is None else entry.point(self.last_id(stream), processed=False)

    def submit(self, session: worker.Session, effect: Any) -> None:
        self._pending.append((session, effect))

    def sync(self, count: int | None = None) -> None:
        """Bring some of what was handed over to the disk, in order."""
        for _ in range(len(self._pending) if count is None else min(count, len(self._pending))):
            session, effect = self._pending.popleft()
            if isinstance(effect, worker.Remember):
                for note in effect.notes:
                    entry = self.entries[note.stream]
                    self.entries[note.stream] = Entry(
                        entry.name, entry.stream, 0, note.kind, note.ref, note.over
                    )
                session.remembered(effect.taken)
            else:
                self._append(effect)
                session.stored(effect.taken)

    def crash(self) -> None:
        """What is not on disk is gone."""
        self._pending.clear()

    def _append(self, effect: worker.Store) -> None:
        messages = effect.messages
        keep = np.ones(len(messages), np.bool_) if effect.keep is None else effect.keep
        for row in np.flatnonzero(keep).tolist():
            stream, number = int(messages.streams[row]), int(messages.ids[row])
            producer_id = int(effect.ids[row])
            if effect.drop_resent and producer_id <= self.last.get(stream, -1):
                continue
            self.last[stream] = producer_id
            self.records.setdefault(stream, []).append(number)

    def known(self, stream: int) -> worker.Known:
        entry = self.entries.setdefault(stream, Entry("n", "s"))
        last_id = self.last_id(stream)
        entry = self.entries[stream] = entry.brought_up(last_id, processed=False)
        ref = entry.point(last_id, processed=False)
        noted = entry.kind == "noted" and entry.over == last_id
        return worker.Known("s", stream, ref, ref, last_id, noted=noted)


class Pair:
    """One session of each, and the bytes between them."""

    def __init__(
        self, dialect: Dialect, feeds: list[Feed], store: Store, credits_max: int = 1000
    ) -> None:
        self.dialect = dialect
        self.feeds = {feed.number: feed for feed in feeds}
        self.store = store
        self.connector = Session(HELLO, dialect)
        self.worker = worker.Session(worker.Rules(cookie=b"secret", credits_max=credits_max))
        self.refusals = 0
        self.events: list[Event] = []
        self.up = bytearray()
        self.down = bytearray()
        self.closed = False
        self._at_worker = Decoder(Role.WORKER, literal=dialect is Dialect.LITERAL)
        self._at_connector = Decoder(Role.CONNECTOR, dialect)
        self._asked: deque[Any] = deque()
        self._resets: deque[Reset] = deque()
        for feed in feeds:
            if not feed.finished:
                self.connector.add(feed.number, b"stream %d" % feed.number, feed.ref)
        self.up += self.connector.hello()

    # -- the connector's side --------------------------------------------------------------------

    def to_connector(self, count: int) -> None:
        data, self.down = bytes(self.down[:count]), self.down[count:]
        for item in self._at_connector.receive(data):
            for event in self.connector.receive(item):
                self.events.append(event)
                if isinstance(event, Reset):
                    self._resets.append(event)
                elif isinstance(event, Finished):
                    self.feeds[event.stream].finished = True
                else:
                    assert not isinstance(event, Failed), event

    def rewind(self) -> None:
        """Bring sources where they are wanted."""
        while self._resets:
            event = self._resets.popleft()
            self.feeds[event.stream].reset(event.position)
            self.connector.ready(event.stream, event.turn)

    def send(self, messages_max: int = 1000) -> None:
        """What the connector may send."""
        self.up += self.connector.notifies()
        for feed in self.feeds.values():
            if not self.connector.streams.get(feed.number):
                continue
            if feed.at < len(feed.ids):
                count, frames = self.connector.messages(
                    feed.number, feed.chunk(), messages_max=messages_max
                )
                self.up += frames
                feed.at += count
            elif (end := self.connector.end_of_stream(feed.number)) is not None:
                self.up += end
                if self.connector.finished(feed.number):
                    feed.finished = True
        assert self.connector.credits >= 0

    # -- the worker's side -----------------------------------------------------------------------

    def to_worker(self, count: int) -> None:
        data, self.up = bytes(self.up[:count]), self.up[count:]
        for item in self._at_worker.receive(data):
            if self.worker.is_introducing and not isinstance(item, Notify):
                self.introduce()
            self._do(self.worker.receive(item))
        self.introduce()
        self.ack()

    def introduce(self) -> None:
        while self._asked:
            asked = self._asked.popleft()
            if self.refusals:
                self.refusals -= 1
                self._do(self.worker.refused(asked.stream, "busy", ref=asked.ref, later=True))
            else:
                known = self.store.known(asked.stream)
                self._do(self.worker.introduced(asked.stream, known))

    def ack(self, *, force: bool = False) -> None:
        self._do(self.worker.acks(force=force))

    def nack(self, stream: int, ref: int | None) -> bool:
        if not self.worker.may_nack(stream):
            return False
        self._do(self.worker.nack(stream, ref))
        return True

    def _do(self, effects: list[worker.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, worker.Send):
                self.down += encode(effect.frame, self.dialect)
            elif isinstance(effect, worker.Welcome):
                points = [
                    (stream, point)
                    for stream in self.store.entries
                    if (point := self.store.point(stream))
                ]
                self._do(self.worker.welcome(tuple(points)))
            elif isinstance(effect, worker.Introduce):
                self._asked.append(effect)
            else:
                assert not isinstance(effect, worker.Close), effect
                self.store.submit(self.worker, effect)

    # -- both ------------------------------------------------------------------------------------

    def drain(self, rounds: int = 5_000) -> None:
        """Let everything flow until all is finished."""
        for _ in range(rounds):
            if all(feed.finished for feed in self.feeds.values()):
                return
            self.turn()
        raise AssertionError(
            f"it stands still: {self.connector.credits} credits, {self.connector.streams}"
        )

    def turn(self) -> None:
        """Everything moves once."""
        self.to_worker(len(self.up))
        self.store.sync()
        self.ack(force=self.worker.was_refused)
        self.to_connector(len(self.down))
        self.rewind()
        self.send()
