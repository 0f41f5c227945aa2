"""The streams of a session: as columns, so that a run of messages is judged at once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock import limits
from penstock.protocols.wallaroo.states import StreamState

Bools: TypeAlias = NDArray[np.bool_]
U64s: TypeAlias = NDArray[np.uint64]
Slots: TypeAlias = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Mark:
    """Records below `end` of a partition hold all up to message `id`."""

    end: int
    id: int
    stable: int | None


@dataclass(frozen=True, slots=True)
class Known:
    """What the driver knows of a stream that was introduced."""

    stream: str
    target: int
    ref: int | None = None
    """The point of reference to go on after; None: from the beginning."""
    last: int | None = None
    """Shipped: ids up to this were stored, and are not stored again."""
    logged: int | None = None
    """The log's last id for this connector."""
    noted: bool = False
    """Whether `ref` stands in a note, as long as `logged` does not change."""
    rewound: bool = False
    """Whether ids up to `logged` may be stored again."""
    marks: tuple[Mark, ...] = ()
    """With ack = "processed": what was stored and not yet acked."""


@dataclass(slots=True)
class Stream:
    """A stream of a session, besides what stands in columns."""

    id: int
    name: str
    slot: int
    stream: str = ""
    depth: int = 0
    """NACKs that were sent and not yet answered by a NOTIFY."""
    marks: deque[Mark] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream of a session, for people."""

    id: int
    name: str
    stream: str
    state: str
    last: int | None
    last_stable: int | None
    acked: int | None
    nacks: int


_COLUMNS: Final[dict[str, Any]] = {
    "ids": np.uint64,
    "states": np.uint8,
    "targets": np.uint32,
    "last": np.uint64,
    "has_last": np.bool_,
    "stable": np.uint64,
    "has_stable": np.bool_,
    "logged": np.uint64,
    "has_logged": np.bool_,
    "noted": np.bool_,
    "rewound": np.bool_,
    "seen": np.uint64,
    "has_seen": np.bool_,
    "passed": np.uint64,
    "has_passed": np.bool_,
    "acked": np.uint64,
    "has_acked": np.bool_,
    "dirty": np.bool_,
    "records": np.int64,
    "bytes": np.int64,
}


class Table:
    """The streams of a session as columns, a row (slot) each, and the way from ids to slots."""

    ids: U64s
    states: NDArray[np.uint8]
    targets: NDArray[np.uint32]
    last: U64s
    has_last: Bools
    stable: U64s
    has_stable: Bools
    logged: U64s
    has_logged: Bools
    noted: Bools
    rewound: Bools
    seen: U64s
    has_seen: Bools
    passed: U64s
    has_passed: Bools
    acked: U64s
    has_acked: Bools
    dirty: Bools
    records: NDArray[np.int64]
    bytes: NDArray[np.int64]

    def __init__(self) -> None:
        for name, kind in _COLUMNS.items():
            setattr(self, name, np.zeros(8, kind))
        self.streams: list[Stream] = []
        self._slots: dict[int, int] = {}
        self._sorted: U64s = np.zeros(0, np.uint64)
        self._order: Slots = np.zeros(0, np.intp)

    def __len__(self) -> int:
        return len(self.streams)

    def get(self, stream: int) -> Stream | None:
        slot = self._slots.get(stream)
        return None if slot is None else self.streams[slot]

    def add(self, stream: int, name: str) -> Stream:
        slot = len(self.streams)
        if slot == len(self.ids):
            for column, kind in _COLUMNS.items():
                grown = np.zeros(2 * slot, kind)
                grown[:slot] = getattr(self, column)
                setattr(self, column, grown)
        self.ids[slot] = stream
        found = Stream(stream, name, slot)
        self.streams.append(found)
        self._slots[stream] = slot
        return found

    def state(self, stream: Stream) -> StreamState:
        return StreamState(int(self.states[stream.slot]))

    def find(self, streams: U64s) -> int | Slots:
        """The slot of all, if they are of one stream; else of each. -1: there is none such."""
        first = int(streams[0])
        if int(streams[-1]) == first and (streams == streams[0]).all():
            return self._slots.get(first, -1)
        count = len(self.streams)
        if not count:
            return np.full(len(streams), -1, np.intp)
        if len(self._sorted) != count:
            self._order = np.argsort(self.ids[:count], kind="stable")
            self._sorted = self.ids[:count][self._order]
        at = np.searchsorted(self._sorted, streams)
        np.minimum(at, count - 1, out=at)
        found: Slots = self._order[at]
        unknown = self._sorted[at] != streams
        if unknown.any():
            found[unknown] = -1
        return found

    def optional(self, column: str, slot: int) -> int | None:
        """A value that may not be there."""
        return int(getattr(self, column)[slot]) if getattr(self, f"has_{column}")[slot] else None

    def put(self, column: str, slot: int, value: int | None) -> None:
        """Set such a value."""
        getattr(self, column)[slot] = value or 0
        getattr(self, f"has_{column}")[slot] = value is not None

    def put_all(self, column: str, slots: Slots, values: U64s) -> None:
        """Set such values of several slots."""
        getattr(self, column)[slots] = values
        getattr(self, f"has_{column}")[slots] = True

    def open(self, stream: Stream, known: Known) -> None:
        """Open a stream."""
        slot = stream.slot
        stream.stream = known.stream
        stream.marks = deque(known.marks)
        self.targets[slot] = known.target
        self.put("stable", slot, known.ref)
        self.put("passed", slot, known.ref)
        self.put("last", slot, known.last)
        self.put("logged", slot, known.logged)
        self.noted[slot] = known.noted
        self.rewound[slot] = known.rewound
        self.put("seen", slot, None)
        self.put("acked", slot, None)
        self.states[slot] = StreamState.OPEN

    def views(self) -> list[StreamView]:
        """All streams, for people."""
        return [
            StreamView(
                each.id,
                each.name,
                each.stream,
                self.state(each).name.lower(),
                self.optional("last", each.slot),
                self.optional("stable", each.slot),
                self.optional("acked", each.slot),
                each.depth,
            )
            for each in self.streams
        ]

    def counted(self) -> list[tuple[str, int, int]]:
        """Stream, records and bytes since the last call."""
        found = []
        for slot in np.flatnonzero(self.records[: len(self.streams)]).tolist():
            found.append(
                (self.streams[slot].stream, int(self.records[slot]), int(self.bytes[slot]))
            )
            self.records[slot] = self.bytes[slot] = 0
        return found


def add_mark(marks: deque[Mark], mark: Mark) -> None:
    """Keep a mark; of very many, every second: acks become coarser, and stay right."""
    if len(marks) >= limits.WALLAROO_MARKS_MAX:
        kept = list(marks)[1::2]
        marks.clear()
        marks.extend(kept)
    marks.append(mark)
