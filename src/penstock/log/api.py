"""The log as everything above it sees it.

`Log` is an interface: the embedded log of this package is one, a Kafka log can be another, and one
contract suite (`tests/contract/`) holds for all.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Self

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock import limits
from penstock.errors import LogBusy
from penstock.log.batch import Batch
from penstock.log.receipt import Appended, Receipt
from penstock.log.settings import StreamSettings
from penstock.log.waiters import future_waker

Below = Literal["error", "earliest"]


class PartitionInfo(msgspec.Struct, frozen=True):
    """A partition: its records are `earliest` to `end`, the latter not included."""

    number: int
    earliest: int
    end: int
    segments: int
    bytes: int


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream and its partitions; `created_at` in microseconds since 1970."""

    name: str
    settings: StreamSettings
    created_at: int
    partitions: list[PartitionInfo]


class Lag(msgspec.Struct, frozen=True):
    """Where a group stands in one partition; `seconds`: how old its next unread record is."""

    group: str
    stream: str
    partition: int
    position: int
    end: int
    records: int
    seconds: float
    registered: bool
    stale: bool


class Move(msgspec.Struct, frozen=True):
    """What a reset does, or would do, to one position."""

    partition: int
    before: int | None
    after: int


class ResetTo(msgspec.Struct, frozen=True):
    """Where to reset a position to. Indexes out of range are moved to the nearest that exists."""

    kind: Literal["earliest", "latest", "index", "timestamp", "shift"]
    value: int = 0

    @classmethod
    def earliest(cls) -> ResetTo:
        return cls("earliest")

    @classmethod
    def latest(cls) -> ResetTo:
        return cls("latest")

    @classmethod
    def index(cls, index: int) -> ResetTo:
        return cls("index", index)

    @classmethod
    def timestamp(cls, microseconds: int) -> ResetTo:
        """The first record at or after this time."""
        return cls("timestamp", microseconds)

    @classmethod
    def shift(cls, records: int) -> ResetTo:
        """So many records on, or back if negative."""
        return cls("shift", records)


class Dropped(msgspec.Struct, frozen=True):
    """What retention removed from one partition, or what held it back."""

    stream: str
    partition: int
    records: int
    earliest: int
    held_by: str | None = None


class Published(msgspec.Struct, frozen=True):
    """What a publication did; `already`: nothing, that epoch or a later one was published."""

    records: int
    already: bool


class Stage(ABC):
    """Records on their way to be staged. Give it batches, then `finish` or `cancel`.

    A batch has the columns `topic` and `value` and, if wished, `partition` (null: chosen by the
    key), `key`, `timestamp` (null: now) and `headers`.
    """

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None: ...

    @abstractmethod
    def finish(self) -> str:
        """Returns the name of the part, to be published with; it is on disk by then."""

    @abstractmethod
    def cancel(self) -> None: ...


class Log(ABC):
    """Streams of records, durable and in order. All methods may be called from any thread.

    Methods that can wait for the disk block; from a coroutine use `append_async` and
    `wait_async`, and run the others in a thread.
    """

    # -- streams ---------------------------------------------------------------------------------

    @abstractmethod
    def create_stream(
        self, name: str, partitions: int = 1, settings: StreamSettings | None = None
    ) -> StreamInfo: ...

    @abstractmethod
    def streams(self) -> list[str]:
        """The names of all streams, sorted."""

    @abstractmethod
    def describe(self, stream: str) -> StreamInfo: ...

    @abstractmethod
    def change_settings(self, stream: str, settings: StreamSettings) -> StreamInfo: ...

    @abstractmethod
    def add_partitions(self, stream: str, total: int) -> StreamInfo:
        """Raise the number of partitions to `total`. It can never be lowered."""

    @abstractmethod
    def delete_stream(self, stream: str) -> None: ...

    @abstractmethod
    def locate(self, stream: str, partition: int) -> int:
        """A number for this partition, to use in `submit` when one batch spans several."""

    # -- appending -------------------------------------------------------------------------------

    @abstractmethod
    def submit(
        self,
        target: int | NDArray[np.uint32],
        batch: Batch,
        *,
        producer: str | None = None,
        ids: Sequence[int] | NDArray[np.uint64] | None = None,
        drop_resent: bool = False,
        wait_for_room: bool = False,
    ) -> Receipt:
        """Hand over a batch. `target` is a located partition, or one for each record.

        Never waits for the disk; raises `LogBusy` when the buffer is full, unless told to wait
        for room. With a producer and ids, the last id is stored with the records, and with
        `drop_resent` records at or below the last id stored are left out.
        """

    @abstractmethod
    def when_room(self, nbytes: int, callback: Callable[[], None]) -> bool:
        """True if a batch of `nbytes` fits now; else `callback` is called when to ask again."""

    @abstractmethod
    def choose_partitions(
        self, stream: str, batch: Batch, producer: str | None = None
    ) -> int | NDArray[np.uint32]:
        """The target for a batch by its keys: as Kafka's Java client would choose.

        Records without a key go together to one partition: a new one for each call, or always
        the same for one producer, so that what it sends again is recognised.
        """

    def append(
        self,
        stream: str,
        batch: Batch,
        partition: int | None = None,
        *,
        producer: str | None = None,
        ids: Sequence[int] | NDArray[np.uint64] | None = None,
        drop_resent: bool = False,
    ) -> Appended:
        """Append a batch, wait until it is on disk, and return where it went.

        Without a partition the records' keys choose it.
        """
        target = self._target(stream, batch, partition, producer)
        return self.submit(
            target,
            batch,
            producer=producer,
            ids=ids,
            drop_resent=drop_resent,
            wait_for_room=True,
        ).result()

    async def append_async(
        self,
        stream: str,
        batch: Batch,
        partition: int | None = None,
        *,
        producer: str | None = None,
        ids: Sequence[int] | NDArray[np.uint64] | None = None,
        drop_resent: bool = False,
    ) -> Appended:
        """Like `append`, for a coroutine."""
        target = self._target(stream, batch, partition, producer)
        while True:
            try:
                receipt = self.submit(
                    target, batch, producer=producer, ids=ids, drop_resent=drop_resent
                )
            except LogBusy:
                room = asyncio.get_running_loop().create_future()
                if not self.when_room(batch.nbytes, future_waker(room)):
                    await room
            else:
                return await receipt

    def _target(
        self, stream: str, batch: Batch, partition: int | None, producer: str | None
    ) -> int | NDArray[np.uint32]:
        if partition is None:
            return self.choose_partitions(stream, batch, producer)
        return self.locate(stream, partition)

    @abstractmethod
    def last_id(self, producer: str, stream: str, partition: int) -> int | None:
        """The id of the producer's last record on disk in this partition."""

    # -- publishing ------------------------------------------------------------------------------

    @abstractmethod
    def stage(self, writer: str, epoch: int) -> Stage:
        """Begin to stage records of an epoch; several may be staged side by side."""

    @abstractmethod
    def publish(self, writer: str, epoch: int, parts: Sequence[str]) -> Published:
        """Append all records of these parts, in order; readers see all of them, or none.

        Epochs of a writer rise. One that was published before is not published again.
        """

    @abstractmethod
    def discard(self, writer: str, epoch: int) -> None:
        """Remove what is staged for an epoch and not published."""

    # -- reading ---------------------------------------------------------------------------------

    @abstractmethod
    def bounds(self, stream: str, partition: int) -> tuple[int, int]:
        """The earliest index, and the one after the last."""

    @abstractmethod
    def read(
        self,
        stream: str,
        partition: int,
        start: int,
        max_records: int = 65_536,
        max_bytes: int = 8 * limits.MIB,
        *,
        below: Below = "error",
        wait_seconds: float = 0.0,
    ) -> list[pa.RecordBatch]:
        """Records from `start` on, as Arrow batches (`penstock.log.schema.SCHEMA`).

        At least one record if there is any. At the end: none, or what comes within
        `wait_seconds`. Below the earliest index: `IndexTrimmed`, or from the earliest on.
        """

    @abstractmethod
    def wait(self, stream: str, partition: int, index: int, seconds: float) -> int:
        """Wait until record `index` exists; returns the end, which may still be `index`."""

    @abstractmethod
    async def wait_async(self, stream: str, partition: int, index: int, seconds: float) -> int:
        """Like `wait`, for a coroutine."""

    @abstractmethod
    def index_at(self, stream: str, partition: int, timestamp: int) -> int:
        """The first index whose timestamp is at or after this; the end if there is none."""

    # -- groups ----------------------------------------------------------------------------------

    @abstractmethod
    def register_group(self, group: str, stream: str) -> None:
        """From now on nothing of `stream` that `group` has not read is dropped."""

    @abstractmethod
    def drop_group(self, group: str, stream: str | None = None) -> None:
        """Forget a group: on one stream, or altogether."""

    @abstractmethod
    def position(self, group: str, stream: str, partition: int) -> int | None:
        """The next index the group will read; None if it never saved one."""

    @abstractmethod
    def save_positions(self, group: str, stream: str, positions: Mapping[int, int]) -> None:
        """Save the next index to read of some partitions; on disk when this returns.

        Never backwards (`PositionBackwards`): that is what `reset` is for.
        """

    @abstractmethod
    def lags(self, group: str | None = None, stream: str | None = None) -> list[Lag]: ...

    @abstractmethod
    def reset(
        self,
        group: str,
        stream: str,
        to: ResetTo,
        partitions: Sequence[int] | None = None,
        *,
        dry_run: bool = False,
    ) -> list[Move]:
        """Move positions anywhere; a dry run only says what would move."""

    # -- notes -----------------------------------------------------------------------------------

    @abstractmethod
    def notes(self, owner: str) -> dict[str, bytes]:
        """What a door remembers by name: small things that are no records."""

    @abstractmethod
    def put_notes(self, owner: str, notes: Mapping[str, bytes | None]) -> None:
        """Remember these, all or none; None forgets. On disk when this returns."""

    # -- keeping house ---------------------------------------------------------------------------

    @abstractmethod
    def trim(self, stream: str, partition: int, before: int) -> int:
        """Drop whole segments of records below `before`; returns the earliest index left."""

    @abstractmethod
    def apply_retention(self) -> list[Dropped]:
        """Drop what the streams' settings say; also done regularly by itself."""

    @abstractmethod
    def checkpoint(self) -> None:
        """Put everything committed into segments; returns when that is on disk."""

    @abstractmethod
    def close(self) -> None:
        """Commit what was handed over, and end. A closed log can be opened again at once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
