"""What a session wants done. The driver carries it out, in order, and answers some of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.protocols.wallaroo.streams import Bools, Slots, U64s
from penstock.protocols.wallaroo.wire import Frame, Hello, Messages


class Taken:
    """Messages that were taken from the connector, until they may be acked."""

    __slots__ = ("count", "ids", "is_end", "is_passed", "slots", "stable", "waits")

    def __init__(self, count: int, slots: Slots, ids: U64s, stable: list[int | None]) -> None:
        self.count = count
        """How many credits they took."""
        self.slots = slots
        self.ids = ids
        """The last id of each slot."""
        self.stable = stable
        """With ack = "processed": the last stable id of each slot."""
        self.waits = 0
        """For so many answers of the driver's."""
        self.is_end = False
        """The end of a stream, which is acked in any case."""
        self.is_passed = False
        """Not new messages, but some that a group has passed."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a frame."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class Welcome:
    """Version and cookie are right: find the connector's points of reference, then `welcome`."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class Introduce:
    """Find or make a stream, then `introduced` or `refused`; until then only NOTIFYs may come."""

    stream: int
    name: str
    ref: int


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """Append messages to the log, then `stored`. Rows where `keep` is false are no records."""

    messages: Messages
    keep: Bools | None
    targets: int | NDArray[np.uint32]
    """The located partition of each row, or of all."""
    ids: U64s
    """What the log keeps as the producer's ids: the last stable one at each row."""
    drop_resent: bool
    taken: Taken


@dataclass(frozen=True, slots=True, eq=False)
class Remember:
    """Make notes, then `remembered`."""

    notes: tuple[Note, ...]
    taken: Taken


@dataclass(frozen=True, slots=True)
class Note:
    """Of a stream: its point of reference, and the log's last id. See `points.Entry`."""

    stream: int
    kind: Literal["stored", "noted", "processed"]
    ref: int | None = None
    over: int | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection, once what was to be sent is sent."""

    reason: str
    code: str = ""
    """Counts as a refusal under this code; empty if it is none."""


Effect: TypeAlias = Send | Welcome | Introduce | Store | Remember | Close
