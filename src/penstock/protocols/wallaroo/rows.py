"""Rows of messages sorted by stream: which are records, and what the last of each stream is."""

from __future__ import annotations

import numpy as np

from penstock.protocols.wallaroo.states import StreamState
from penstock.protocols.wallaroo.streams import Bools, Slots, Table, U64s
from penstock.protocols.wallaroo.wire import (
    BOUNDARY,
    EOS,
    EPHEMERAL,
    UNSTABLE_REFERENCE,
    Dialect,
    Messages,
)

_NOT_STABLE = EPHEMERAL | UNSTABLE_REFERENCE


def rising(ids: U64s, last: int | None) -> Bools:
    """Which ids are above all before them and above `last`."""
    new = np.ones(len(ids), np.bool_)
    new[1:] = ids[1:] > np.maximum.accumulate(ids)[:-1]
    if last is not None:
        new &= ids > np.uint64(last)
    return new


def ends_if_rising(table: Table, slots: Slots, ids: U64s) -> tuple[Slots, U64s] | None:
    """Streams and their last ids, if all ids are above those before them in their streams."""
    order = np.argsort(slots.astype(np.uint16), kind="stable")
    by_stream = slots[order]
    ids = ids[order]
    last = np.ones(len(ids), np.bool_)
    np.not_equal(by_stream[1:], by_stream[:-1], out=last[:-1])
    if not (last[:-1] | (ids[1:] > ids[:-1])).all():
        return None
    ends = np.flatnonzero(last)
    heads = by_stream[ends]
    firsts = ids[np.concatenate(([0], ends[:-1] + 1))]
    if (table.has_last[heads] & (firsts <= table.last[heads])).any():
        return None
    return heads, ids[ends]


class Rows:
    """Rows of messages sorted by stream: what the last of each stream is, and which are records."""

    def __init__(
        self, table: Table, messages: Messages, slots: Slots, cut: int, dialect: Dialect
    ) -> None:
        self._table = table
        self._dialect = dialect
        self._count = cut
        self._all = len(messages)
        self._flags = messages.flags[:cut]
        self._order = np.argsort(slots[:cut].astype(np.uint16), kind="stable")
        self._slots = slots[:cut][self._order]
        self._ids = messages.ids[:cut][self._order]
        first = np.ones(cut, np.bool_)
        first[1:] = self._slots[1:] != self._slots[:-1]
        self._starts = np.flatnonzero(first)
        self._ends = np.append(self._starts[1:], cut) - 1
        self._begin: Slots = np.repeat(self._starts, self._ends - self._starts + 1)
        """Where the stream of each row begins."""
        self._open = table.states[self._slots] == StreamState.OPEN
        self._has_flags = dialect is not Dialect.SHIPPED
        self._sorted_flags = self._flags[self._order] if self._has_flags else self._flags

    def first_after_end(self) -> int | None:
        """The first row of a stream that an earlier row has closed."""
        if not self._has_flags:
            return None
        closing = ((self._sorted_flags & EOS) != 0) & self._open
        if not closing.any():
            return None
        before = np.cumsum(closing) - closing
        late = before > before[self._begin]
        return int(self._order[late].min()) if late.any() else None

    def work_out(self) -> None:
        """Fill the columns by stream (`changed` and those beside it) and by row (`keep`)."""
        table, ids, slots = self._table, self._ids, self._slots
        heads = slots[self._starts]
        alive = self._open[self._starts]
        record = self._open.copy()
        self.repeated = 0
        if self._dialect is Dialect.SHIPPED:
            column, filled = ids, np.arange(len(ids))
            new = self._new_rows(heads)
            if new is not None:
                record &= new
                self.repeated = int((~new).sum())
            top = np.maximum.reduceat(ids, self._starts)
            known = table.has_last[heads]
            last = np.where(known, np.maximum(top, table.last[heads]), top)
            stable, has_stable = last, np.ones(len(heads), np.bool_)
            ended = np.zeros(len(heads), np.bool_)
            after = ended
        else:
            flags = self._sorted_flags
            record &= (flags & BOUNDARY) == 0
            is_stable = self._open & ((flags & _NOT_STABLE) == 0)
            filled = self._latest(is_stable)
            has = filled >= self._begin
            column = np.where(has, ids[np.maximum(filled, 0)], table.stable[slots])
            top = last = ids[self._ends]
            stable = column[self._ends]
            has_stable = has[self._ends] | table.has_stable[heads]
            ended = np.bitwise_or.reduceat(flags, self._starts) & EOS != 0
            latest_record = self._latest(record)[self._ends]
            after = has[self._ends] & (filled[self._ends] > latest_record)
        self.ignored = int((~self._open).sum())
        records = self._latest(record)[self._ends]
        recorded = records >= self._starts
        self.records = int(record.sum())
        self.changed = heads[alive]
        self.last, self.seen = last[alive], top[alive]
        self.stable, self.has_stable = stable[alive], has_stable[alive]
        self.recorded = recorded[alive]
        self.logged = column[np.maximum(records, 0)][alive]
        self.noted = after[alive]
        self.ended = ended[alive]
        keep = np.zeros(self._all, np.bool_)
        keep[self._order[record]] = True
        self.keep = keep
        self._column = column

    def stables(self) -> list[int | None]:
        """The last stable id of each changed stream."""
        pairs = zip(self.stable.tolist(), self.has_stable.tolist(), strict=True)
        return [number if there else None for number, there in pairs]

    def column(self) -> U64s:
        """What the log keeps as ids, in the order of the messages."""
        found = np.zeros(self._all, np.uint64)
        found[self._order] = self._column
        return found

    def _latest(self, rows: Bools) -> Slots:
        """At each row, the place of the latest of `rows`, also of an earlier stream."""
        places = np.where(rows, np.arange(len(rows)), -1)
        return np.maximum.accumulate(places)

    def _new_rows(self, heads: Slots) -> Bools | None:
        """Shipped: rows whose id is above all before; None if all are."""
        ids, table = self._ids, self._table
        up = np.ones(len(ids), np.bool_)
        up[1:] = ids[1:] > ids[:-1]
        up[self._starts] = ~table.has_last[heads] | (ids[self._starts] > table.last[heads])
        if up.all():
            return None
        new = np.empty(len(ids), np.bool_)
        for slot, start, end in zip(
            heads.tolist(), self._starts.tolist(), self._ends.tolist(), strict=True
        ):
            new[start : end + 1] = rising(ids[start : end + 1], table.optional("last", slot))
        return new
