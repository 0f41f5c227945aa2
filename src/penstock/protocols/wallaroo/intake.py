"""Taking messages: up to the first that breaks a rule, as columns, with what is to be done.

There are three ways, for speed: all of one stream without flags; several streams without flags;
and any mixture, which is sorted by stream first (`rows.py`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.protocols.wallaroo.effects import Effect, Note, Remember, Store, Taken
from penstock.protocols.wallaroo.rows import Rows, ends_if_rising, rising
from penstock.protocols.wallaroo.states import FAIL, MESSAGE_RULES, STORE, StreamState
from penstock.protocols.wallaroo.streams import Bools, Slots, Table, U64s
from penstock.protocols.wallaroo.wire import EVENT_TIME, Dialect, Messages

_NOTHING: Final[list[Note]] = []


class Intake(NamedTuple):
    """What came of some messages."""

    size: int
    """So many were taken, from the first on."""
    broken: bool
    """Whether the next one is of a stream that takes none."""
    taken: Taken | None
    effects: list[Effect]


class Taker:
    """Takes messages for one session."""

    def __init__(self, table: Table, dialect: Dialect, *, processed: bool) -> None:
        self._table = table
        self._dialect = dialect
        self._shipped = dialect is Dialect.SHIPPED
        self._processed = processed
        self._rules = MESSAGE_RULES[dialect]
        self.messages = 0
        """Records that were to be stored."""
        self.ignored = 0
        """Messages of streams that a NACK had reset."""
        self.repeated = 0
        """Messages that had been sent before."""

    def take(self, messages: Messages, slots: int | Slots, most: int) -> Intake:
        """Take messages, at most so many; `slots` are those of their streams, -1 for none."""
        count = len(messages)
        bad = self._first_bad(slots)
        cut = min(most, count if bad is None else bad)
        broken = cut == bad
        if cut == 0:
            return Intake(0, broken, None, [])
        flags = 0 if self._shipped else int(np.bitwise_or.reduce(messages.flags))
        if not flags & ~EVENT_TIME:
            if isinstance(slots, int) and self._table.states[slots] == StreamState.OPEN:
                return Intake(cut, broken, *self._take_one(messages, slots, cut))
            if not isinstance(slots, int) and self._are_open(slots[:cut]):
                found = self._take_plain(messages, slots, cut)
                if found is not None:
                    return Intake(cut, broken, *found)
        if isinstance(slots, int):
            slots = np.full(count, slots, np.intp)
        return self._take_any(messages, slots, cut, broken)

    def _first_bad(self, slots: int | Slots) -> int | None:
        """The first row whose stream is not there, or takes no messages."""
        if isinstance(slots, int):
            bad = slots < 0 or self._rules[self._table.states[slots]] == FAIL
            return 0 if bad else None
        rows = (slots < 0) | (self._rules[self._table.states][slots] == FAIL)
        return int(rows.argmax()) if rows.any() else None

    # -- three ways --------------------------------------------------------------------------------

    def _take_one(self, messages: Messages, slot: int, cut: int) -> tuple[Taken, list[Effect]]:
        """The usual case: all of one stream, without flags."""
        table = self._table
        ids = messages.ids[:cut]
        keep: Bools | None = None
        last = int(ids[-1])
        if self._shipped:
            known = table.optional("last", slot)
            seen = int(ids.max())
            if (known is not None and int(ids[0]) <= known) or not (ids[1:] > ids[:-1]).all():
                keep = rising(ids, known)
                last = seen if known is None else max(seen, known)
            earlier = table.optional("seen", slot)
            table.put("seen", slot, seen if earlier is None else max(seen, earlier))
        changed = np.array([slot])
        lasts = np.array([last], np.uint64)
        table.put("last", slot, last)
        taken = Taken(cut, changed, lasts, [last])
        stored = cut if keep is None else int(np.count_nonzero(keep))
        self.repeated += cut - stored
        if not stored:
            return taken, []
        table.put("stable", slot, last)
        notes = self._unnote(changed, lasts)
        table.put("logged", slot, last)
        offsets = messages.payloads.offsets
        table.records[slot] += stored
        if keep is None:
            table.bytes[slot] += int(offsets[cut])
        else:
            table.bytes[slot] += int(np.diff(offsets[: cut + 1])[keep].sum())
        target = int(table.targets[slot])
        return taken, self._store(messages, keep, cut, target, messages.ids, taken, notes)

    def _take_plain(
        self, messages: Messages, slots: Slots, cut: int
    ) -> tuple[Taken, list[Effect]] | None:
        """Several streams, none of them with flags. None if some were sent before."""
        table = self._table
        some = slots[:cut]
        if self._shipped:
            found = ends_if_rising(table, some, messages.ids[:cut])
            if found is None:
                return None
            changed, lasts = found
            table.last[changed] = lasts
            table.put_all("seen", changed, lasts)
        else:
            table.last[some] = messages.ids[:cut]  # of the rows of one slot the last one wins
            changed = np.flatnonzero(np.bincount(some, minlength=len(table)))
            lasts = table.last[changed]
        table.has_last[changed] = True
        table.put_all("stable", changed, lasts)
        notes = self._unnote(changed, lasts)
        table.put_all("logged", changed, lasts)
        self._count(messages, None, some, changed)
        taken = Taken(cut, changed, lasts, list(lasts.tolist()) if self._processed else [])
        targets = table.targets[slots]
        return taken, self._store(messages, None, cut, targets, messages.ids, taken, notes)

    def _are_open(self, slots: Slots) -> bool:
        return bool((self._rules[self._table.states][slots] == STORE).all())

    def _count(self, messages: Messages, keep: Bools | None, slots: Slots, changed: Slots) -> None:
        """Records and bytes by stream."""
        table = self._table
        sizes = np.diff(messages.payloads.offsets[: len(slots) + 1])
        if keep is not None:
            sizes, slots = sizes[keep], slots[keep]
        table.records[changed] += np.bincount(slots, minlength=len(table))[changed]
        total = np.bincount(slots, weights=sizes, minlength=len(table))
        table.bytes[changed] += total[changed].astype(np.int64)

    def _take_any(self, messages: Messages, slots: Slots, cut: int, broken: bool) -> Intake:
        """Any streams with any flags."""
        table = self._table
        rows = Rows(table, messages, slots, cut, self._dialect)
        late = rows.first_after_end()
        if late is not None:
            cut, broken = late, True
            rows = Rows(table, messages, slots, cut, self._dialect)
        rows.work_out()
        self.ignored += rows.ignored
        self.repeated += rows.repeated
        changed = rows.changed
        table.put_all("last", changed, rows.last)
        known = table.has_seen[changed]
        earlier = table.seen[changed]
        table.put_all("seen", changed, np.where(known, np.maximum(earlier, rows.seen), rows.seen))
        table.stable[changed] = rows.stable
        table.has_stable[changed] = rows.has_stable
        table.states[changed[rows.ended]] = StreamState.CLOSED
        taken = Taken(cut, changed, rows.last, rows.stables() if self._processed else [])
        recorded, logged = changed[rows.recorded], rows.logged[rows.recorded]
        notes = self._unnote(recorded, logged)
        table.put_all("logged", recorded, logged)
        if not self._processed:
            notes = notes + self._note(changed[rows.noted])
        if not rows.records:
            return Intake(cut, broken, taken, _remembering(notes, taken))
        keep = rows.keep
        self._count(messages, keep, slots, recorded)
        drop = self._drops(recorded)
        targets = table.targets[slots]
        effects = self._store(messages, keep, cut, targets, rows.column(), taken, notes, drop=drop)
        return Intake(cut, broken, taken, effects)

    # -- what follows ------------------------------------------------------------------------------

    def _store(
        self,
        messages: Messages,
        keep: Bools | None,
        cut: int,
        targets: int | NDArray[np.uint32],
        ids: U64s,
        taken: Taken,
        notes: list[Note],
        *,
        drop: bool | None = None,
    ) -> list[Effect]:
        """Have rows appended; those behind `cut` are not."""
        count = len(messages)
        if cut < count:
            every = np.zeros(count, np.bool_)
            every[:cut] = True if keep is None else keep[:cut]
            keep = every
        elif keep is not None and keep.all():
            keep = None
        self.messages += count if keep is None else int(np.count_nonzero(keep))
        if drop is None:
            drop = self._drops(taken.slots)
        taken.waits = 1
        store = Store(messages, keep, targets, ids, drop, taken)
        return [store, *_remembering(notes, taken)]

    def _drops(self, slots: Slots) -> bool:
        """Whether the log drops what it has: in the shipped dialect, unless it is asked for."""
        rewound = self._table.rewound
        if not self._shipped or not rewound[slots].any():
            return self._shipped
        rewound[slots] = False
        return False

    def _note(self, slots: Slots) -> list[Note]:
        """Boundaries whose ids no record carries yet."""
        table = self._table
        table.noted[slots] = True
        return [
            Note(
                table.streams[slot].id,
                "noted",
                table.optional("stable", slot),
                table.optional("logged", slot),
            )
            for slot in slots.tolist()
        ]

    def _unnote(self, slots: Slots, ids: U64s) -> list[Note]:
        """Records come: a note is void by itself, unless the log's last id stays the same."""
        table = self._table
        noted = table.noted[slots]
        if not noted.any():
            return _NOTHING
        slots, ids = slots[noted], ids[noted]
        table.noted[slots] = False
        same = table.has_logged[slots] & (table.logged[slots] == ids)
        return [Note(table.streams[slot].id, "stored") for slot in slots[same].tolist()]


def _remembering(notes: list[Note], taken: Taken) -> list[Effect]:
    if not notes:
        return []
    taken.waits += 1
    return [Remember(tuple(notes), taken)]
