"""A session with a driver that only notes what it is told."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from penstock.protocols.wallaroo.effects import Note, Taken
from penstock.protocols.wallaroo.wire import (
    Decoder,
    Dialect,
    Hello,
    Message,
    Messages,
    Notify,
    Role,
    encode,
)
from penstock.protocols.wallaroo.worker import (
    Close,
    Introduce,
    Known,
    Remember,
    Rules,
    Send,
    Session,
    Store,
    Welcome,
)

HELLO = Hello("0.0.1", b"", "prog", "inst")


class Row(NamedTuple):
    """A record as it was handed to the log."""

    target: int
    payload: bytes
    id: int
    drop_resent: bool


class Talk:
    """Feeds a session; `sent`, `rows` and `notes` are what it said. The log is the caller."""

    def __init__(
        self,
        dialect: Dialect,
        rules: Rules | None = None,
        *,
        known: dict[int, Known] | None = None,
        window_bytes: int = 12 * 1024 * 1024,
    ) -> None:
        self.dialect = dialect
        self.session = Session(rules or Rules(), window_bytes)
        self.known = known or {}
        self.sent: list[Any] = []
        self.rows: list[Row] = []
        self.notes: list[Note] = []
        self.closed: Close | None = None
        self.taken: deque[Taken] = deque()
        """What is on its way to the disk: `settle` has it arrive."""
        self.answers_introductions = True
        self.introducing: list[Introduce] = []

    def hello(self) -> Talk:
        decoder = Decoder(Role.WORKER, self.dialect)
        for item in decoder.receive(encode(HELLO, self.dialect)):
            self.do(self.session.receive(item))
        return self

    def open(self, *streams: int) -> Talk:
        for stream in streams:
            self.receive(Notify(stream, b"s%d" % stream))
        return self

    def receive(self, item: Any) -> list[Any]:
        """Returns the frames that were sent."""
        before = len(self.sent)
        if isinstance(item, Message):
            item = messages([item])
        self.do(self.session.receive(item))
        return self.sent[before:]

    def do(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                encode(effect.frame, self.dialect)  # it can be written
                self.sent.append(effect.frame)
            elif isinstance(effect, Welcome):
                self.do(self.session.welcome())
            elif isinstance(effect, Introduce):
                self.introducing.append(effect)
                if self.answers_introductions:
                    self.introduce()
            elif isinstance(effect, Store):
                self._store(effect)
            elif isinstance(effect, Remember):
                self.notes += effect.notes
                self.session.remembered(effect.taken)
            else:
                assert self.closed is None
                self.closed = effect

    def introduce(self) -> None:
        asked, self.introducing = self.introducing, []
        for each in asked:
            known = self.known.get(each.stream, Known(f"p.{each.name}", each.stream % 1000 + 100))
            self.do(self.session.introduced(each.stream, known))

    def _store(self, store: Store) -> None:
        rows = store.messages.rows()
        targets = [store.targets] * len(rows) if isinstance(store.targets, int) else store.targets
        keep = [True] * len(rows) if store.keep is None else store.keep
        assert any(keep), "nothing to store"
        for row, target, number, kept in zip(rows, targets, store.ids, keep, strict=True):
            if kept:
                self.rows.append(Row(int(target), row.payload, int(number), store.drop_resent))
        self.taken.append(store.taken)

    def settle(self, count: int | None = None) -> list[Any]:
        """The oldest appends (all of them) are on disk; returns the ACKs."""
        before = len(self.sent)
        for _ in range(len(self.taken) if count is None else min(count, len(self.taken))):
            self.session.stored(self.taken.popleft())
        self.do(self.session.acks())
        return self.sent[before:]


def messages(rows: list[Message]) -> Messages:
    return Messages.of(
        [row.stream for row in rows],
        [row.id for row in rows],
        [row.payload for row in rows],
        flags=[row.flags for row in rows],
        times=[row.time for row in rows],
        keys=[row.key for row in rows],
    )
