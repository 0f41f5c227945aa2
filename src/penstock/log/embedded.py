"""The embedded log: journal, segments and catalog in one data directory, owned by one process.

<data>/LOCK             who owns it
<data>/catalog.sqlite   streams, checkpoints, positions, producers
<data>/journal          the ring
<data>/mark             how far it was confirmed
<data>/streams/<stream>/<partition>/<base index>.arrows | .arrow | .index
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock import limits
from penstock.errors import (
    BadBatch,
    BatchTooLarge,
    DiskFull,
    IndexOutOfRange,
    IndexTrimmed,
    LogBusy,
    LogClosed,
    PenstockError,
    RecordTooLarge,
    StorageError,
    StorageFailed,
    StreamExists,
    TooMany,
    UnknownPartition,
    UnknownStream,
)
from penstock.log import frame as fr
from penstock.log.api import (
    Below,
    Dropped,
    Lag,
    Log,
    Move,
    PartitionInfo,
    ResetTo,
    StreamInfo,
)
from penstock.log.batch import Batch
from penstock.log.catalog import Catalog, SegmentState, StreamRow
from penstock.log.committer import Committer, Pending, Staged
from penstock.log.disk import Disk, Lock, RealDisk
from penstock.log.ends import Ends
from penstock.log.groups import Groups
from penstock.log.journal import Journal, Mark, create_journal
from penstock.log.link import InlineWriter, ProcessWriter, WriterLink
from penstock.log.names import check_stream_name, clash_key
from penstock.log.partitioner import partitions_of
from penstock.log.producers import Producers, sequenced
from penstock.log.receipt import Receipt
from penstock.log.recovery import Recovered, recover
from penstock.log.retention import SegmentFacts, decide
from penstock.log.segments import SegmentCache, Segments
from penstock.log.settings import LogSettings, StreamSettings
from penstock.log.tail import Tail
from penstock.log.waiters import Waiters, future_waker
from penstock.log.writer import (
    AddPartition,
    Begin,
    Broken,
    ChangePartition,
    Checkpoint,
    DiskHasRoom,
    DiskIsFull,
    FromWriter,
    Recorded,
    Roll,
    Sealed,
    partition_directory,
)

WriterKind = Literal["process", "inline"]


def now_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def open_log(
    data: str | Path,
    settings: LogSettings | None = None,
    *,
    writer: WriterKind = "process",
    disk: Disk | None = None,
    clock: Callable[[], int] = now_us,
) -> EmbeddedLog:
    """Open the log in a data directory, which is made if need be."""
    return EmbeddedLog(
        Path(data),
        (settings or LogSettings()).check(),
        writer=writer,
        disk=disk or RealDisk(),
        clock=clock,
    )


class _Partition:
    __slots__ = ("earliest", "number", "pid", "segments", "stream")

    def __init__(
        self, pid: int, stream: _Stream, number: int, earliest: int, segments: Segments
    ) -> None:
        self.pid = pid
        self.stream = stream
        self.number = number
        self.earliest = earliest
        self.segments = segments

    def added(self) -> AddPartition:
        """What the segment writer must know of it."""
        settings = self.stream.settings
        return AddPartition(
            self.pid, self.stream.name, self.number, self.segments.segment, self.segments.size,
            self.segments.end, settings.segment_bytes, settings.compression,
        )  # fmt: skip


class _Stream:
    __slots__ = ("created_at", "id", "name", "next_keyless", "partitions", "settings")

    def __init__(self, row: StreamRow) -> None:
        self.id = row.id
        self.name = row.name
        self.settings = row.settings
        self.created_at = row.created_at
        self.partitions: list[_Partition] = []
        self.next_keyless = itertools.count()


class EmbeddedLog(Log):
    """The default log. Open it with `open_log`."""

    def __init__(
        self,
        data: Path,
        settings: LogSettings,
        *,
        writer: WriterKind,
        disk: Disk,
        clock: Callable[[], int],
    ) -> None:
        self.data = data
        self.settings = settings
        self._disk = disk
        self._clock = clock
        self._closed = False
        self._changing = threading.RLock()
        self._checkpoints = threading.Condition()
        self._unrecorded: dict[int, SegmentState] = {}
        self._unrecorded_closed: dict[int, list[int]] = {}
        self._streams: dict[str, _Stream] = {}
        self._partitions: dict[int, _Partition] = {}
        self._waiters = Waiters()
        with contextlib.ExitStack() as undo:
            disk.make_directory(data)
            disk.make_directory(data / "streams")
            self._lock: Lock = disk.lock(data / "LOCK")
            undo.callback(self._lock.release)
            self._catalog = Catalog(disk, data / "catalog.sqlite")
            undo.callback(self._catalog.close)
            self._journal = self._open_journal()
            undo.callback(self._journal.close)
            self._mark = Mark(disk, data / "mark")
            undo.callback(self._mark.close)
            self._ends = Ends()
            self._segment_cache = SegmentCache(disk)
            self._load_streams()
            self._producers = Producers(self._catalog.producers())
            self._checkpointed = self._catalog.get_int("checkpoint")
            self._checkpoint_epoch = self._catalog.get_int("checkpoint_epoch")
            self.recovered: Recovered = recover(
                self._journal,
                self._mark,
                self._ends,
                self._producers,
                self._checkpointed,
                self._checkpoint_epoch,
                self._catalog.epoch_since(),
            )
            if self.recovered.frames:
                # A killed owner may have written and not synced them. They are about to be read.
                self._journal.sync()
            epoch = self._catalog.new_epoch(self.recovered.lsn)
            self._groups = Groups(self._catalog, clock, settings.group_stale_seconds)
            self._journal.reserved = self.recovered.lsn
            self._tail = Tail(self._journal, self._ends, lambda: self._checkpointed)
            self._kick_bytes = max(settings.checkpoint_bytes // 16, self._journal.size // 512)
            self._kicked = self.recovered.lsn
            self._committer = Committer(
                self._journal,
                self._mark,
                self._ends,
                self._producers,
                lsn=self.recovered.lsn,
                epoch=epoch,
                freed=self._checkpointed,
                settings=settings,
                clock=clock,
                on_commit=self._on_commit,
                on_ring_full=self._on_ring_full,
                new_epoch=self._catalog.new_epoch,
                publish=self._publish,
            )
            undo.callback(self._committer.close)
            self._link: WriterLink
            if writer == "inline":
                self._link = InlineWriter(disk, self._snapshot, self._on_writer)
            else:
                self._link = ProcessWriter(self._snapshot, self._on_writer, self._lock.descriptor)
            undo.pop_all()
        self._committer.start()
        self._stop_keeping = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="penstock-keeper", daemon=True)
        self._keeper.start()

    def _open_journal(self) -> Journal:
        path = self.data / "journal"
        new = self._catalog.get_int("epoch") == 0
        if new and self._disk.list(self.data / "streams"):
            raise StorageError(
                f"{self.data} has streams, but its catalog.sqlite is missing or empty: put it "
                "back from where it was moved, or restore the data directory from a backup"
            )
        if new and not self._disk.exists(path):
            create_journal(self._disk, path, self.settings.journal_bytes)
        return Journal(self._disk, path)

    def _load_streams(self) -> None:
        by_id = {row.id: _Stream(row) for row in self._catalog.streams()}
        for row in self._catalog.partitions():
            stream = by_id[row.stream]
            self._add_partition(
                stream, row.pid, row.number, row.earliest, row.segment, row.segment_size,
                row.segments_end,
            )  # fmt: skip
        self._streams = {stream.name: stream for stream in by_id.values()}

    def _add_partition(
        self,
        stream: _Stream,
        pid: int,
        number: int,
        earliest: int = 0,
        segment: int = 0,
        size: int = 0,
        end: int = 0,
    ) -> _Partition:
        directory = partition_directory(self.data, stream.name, number)
        segments = Segments(
            self._segment_cache, directory, earliest=earliest, segment=segment, size=size, end=end
        )
        partition = _Partition(pid, stream, number, earliest, segments)
        self._ends.add(pid, end)
        self._partitions[pid] = partition
        stream.partitions.append(partition)
        return partition

    # -- streams ---------------------------------------------------------------------------------

    def create_stream(
        self, name: str, partitions: int = 1, settings: StreamSettings | None = None
    ) -> StreamInfo:
        check_stream_name(name)
        settings = (settings or StreamSettings()).check()
        with self._changing:
            self._check_open()
            self._check_counts(partitions, partitions, new=True)
            for other in self._streams:
                if clash_key(other) == clash_key(name):
                    raise StreamExists(
                        f"stream {name!r} exists already"
                        if other == name
                        else f"stream {name!r} cannot be made beside {other!r}: as in Kafka, two "
                        "names that differ only in '.' and '_' cannot both exist"
                    )
            self._disk.remove_tree(self.data / "streams" / name)
            for number in range(partitions):
                self._disk.make_directory(partition_directory(self.data, name, number))
            created = self._clock()
            stream_id, pids = self._catalog.create_stream(name, settings, partitions, created)
            stream = _Stream(StreamRow(stream_id, name, settings, created))
            for number, pid in enumerate(pids):
                self._link.send(self._add_partition(stream, pid, number).added())
            self._streams = {**self._streams, name: stream}
        return self.describe(name)

    def streams(self) -> list[str]:
        return sorted(self._streams)

    def describe(self, stream: str) -> StreamInfo:
        found = self._stream(stream)
        return StreamInfo(
            found.name,
            found.settings,
            found.created_at,
            [self._describe_partition(partition) for partition in found.partitions],
        )

    def _describe_partition(self, partition: _Partition) -> PartitionInfo:
        sizes = partition.segments.sizes()
        return PartitionInfo(
            partition.number,
            partition.earliest,
            int(self._ends.end[partition.pid]),
            len(sizes),
            sum(size for _, size in sizes),
        )

    def change_settings(self, stream: str, settings: StreamSettings) -> StreamInfo:
        settings.check()
        with self._changing:
            self._check_open()
            found = self._stream(stream)
            self._catalog.change_settings(found.id, settings)
            found.settings = settings
            for partition in found.partitions:
                self._link.send(
                    ChangePartition(partition.pid, settings.segment_bytes, settings.compression)
                )
        return self.describe(stream)

    def add_partitions(self, stream: str, total: int) -> StreamInfo:
        with self._changing:
            self._check_open()
            found = self._stream(stream)
            have = len(found.partitions)
            if total < have:
                raise TooMany(
                    f"stream {stream!r} has {have} partitions and cannot have fewer ({total}): "
                    "records would be lost; make a new stream instead"
                )
            self._check_counts(total, total - have, new=False)
            for number in range(have, total):
                self._disk.make_directory(partition_directory(self.data, stream, number))
            pids = self._catalog.add_partitions(found.id, range(have, total))
            for number, pid in enumerate(pids, have):
                self._link.send(self._add_partition(found, pid, number).added())
        return self.describe(stream)

    def delete_stream(self, stream: str) -> None:
        with self._changing:
            self._check_open()
            found = self._stream(stream)
            pids = [partition.pid for partition in found.partitions]
            for pid in pids:
                self._ends.drop(pid)
            self._catalog.delete_stream(found.id, pids)
            self._streams = {k: v for k, v in self._streams.items() if k != stream}
            for partition in found.partitions:
                del self._partitions[partition.pid]
                self._segment_cache.forget(partition.segments.directory)
            self._groups.forget_stream(found.id, set(pids))
            with self._ends.lock:
                self._producers.forget(set(pids))
            self._link.drop(pids)
            self._waiters.wake([np.array(pids, np.uint32)])
            self._disk.remove_tree(self.data / "streams" / stream)

    def locate(self, stream: str, partition: int) -> int:
        return self._partition(stream, partition).pid

    def _stream(self, name: str) -> _Stream:
        self._check_open()
        stream = self._streams.get(name)
        if stream is None:
            names = self.streams()
            shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            raise UnknownStream(
                f"there is no stream {name!r:.300}; streams are: {shown or 'none yet'}"
            )
        return stream

    def _partition(self, stream: str, number: int) -> _Partition:
        found = self._stream(stream)
        if not 0 <= number < len(found.partitions):
            raise UnknownPartition(
                f"stream {stream!r} has no partition {number}: it has 0 to "
                f"{len(found.partitions) - 1}"
            )
        return found.partitions[number]

    def _check_counts(self, per_stream: int, added: int, *, new: bool) -> None:
        if not 1 <= per_stream <= limits.PARTITIONS_PER_STREAM_MAX:
            raise TooMany(
                f"{per_stream} partitions: a stream has 1 to {limits.PARTITIONS_PER_STREAM_MAX}"
            )
        if len(self._partitions) + added > limits.PARTITIONS_MAX:
            raise TooMany(
                f"there are {len(self._partitions)} partitions, at most {limits.PARTITIONS_MAX}: "
                "delete streams that are no longer used"
            )
        if new and len(self._streams) >= limits.STREAMS_MAX:
            raise TooMany(
                f"there are {len(self._streams)} streams, at most {limits.STREAMS_MAX}: "
                "delete some that are no longer used"
            )

    # -- appending -------------------------------------------------------------------------------

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
        if batch.count == 0:
            raise BadBatch("a batch without records cannot be appended")
        if batch.largest > self.settings.record_bytes_max:
            raise RecordTooLarge(
                f"a record of {batch.largest} bytes is too large: at most "
                f"{self.settings.record_bytes_max} (record_bytes_max); split it, or raise the limit"
            )
        sequence = sequenced(producer, ids, batch.count, drop_resent)
        if sequence is not None:
            self._producers.check_room()
        pending = Pending(batch, self._checked_target(target, batch), sequence)
        named = 0 if sequence is None else len(sequence.name)
        length = fr.frame_length(pending.body, len(pending.pids), named)
        if length > self._journal.group_bytes_max:
            raise BatchTooLarge(
                f"a batch of {length} bytes is too large: at most {self._journal.group_bytes_max} "
                "go into one commit; append it in parts"
            )
        if wait_for_room:
            return self._committer.submit_waiting(pending)
        return self._committer.submit(pending)

    def _checked_target(
        self, target: int | NDArray[np.uint32], batch: Batch
    ) -> int | NDArray[np.uint32]:
        alive = self._ends.alive
        if isinstance(target, int):
            if not 0 <= target < len(alive) or not alive[target]:
                raise UnknownStream("the stream of this partition was deleted")
            return target
        if target.shape != (batch.count,):
            raise BadBatch(f"{target.size} partitions for {batch.count} records")
        if int(target.max()) >= len(alive) or not alive[target].all():
            raise UnknownStream("the stream of one of these partitions was deleted")
        return target.astype(np.uint32, copy=False)

    def when_room(self, nbytes: int, callback: Callable[[], None]) -> bool:
        return self._committer.when_room(nbytes, callback)

    def choose_partitions(self, stream: str, batch: Batch) -> int | NDArray[np.uint32]:
        found = self._stream(stream)
        count = len(found.partitions)
        if count == 1:
            return found.partitions[0].pid
        keyless = next(found.next_keyless) % count
        if batch.keys is None:
            return found.partitions[keyless].pid
        numbers = partitions_of(batch.key_array().to_pylist(), count, keyless)
        pids = np.array([partition.pid for partition in found.partitions], np.uint32)
        chosen: NDArray[np.uint32] = pids[np.array(numbers)]
        return chosen

    def last_id(self, producer: str, stream: str, partition: int) -> int | None:
        return self._producers.last_id(producer.encode(), self._partition(stream, partition).pid)

    @property
    def buffered_bytes(self) -> int:
        """Records handed over and not yet on disk."""
        return self._committer.buffered

    # -- reading ---------------------------------------------------------------------------------

    def bounds(self, stream: str, partition: int) -> tuple[int, int]:
        found = self._partition(stream, partition)
        return found.earliest, int(self._ends.end[found.pid])

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
        found = self._partition(stream, partition)
        max_records = min(max_records, limits.READ_RECORDS_MAX)
        max_bytes = max(1, min(max_bytes, limits.READ_BYTES_MAX))
        end = int(self._ends.end[found.pid])
        if start > end:
            raise IndexOutOfRange(
                f"record {start} of {stream}/{partition} does not exist: the end is {end}"
            )
        if start < found.earliest:
            if below == "error":
                raise self._trimmed(found, start)
            start = found.earliest
        if start == end and wait_seconds > 0:
            end = self.wait(stream, partition, start, wait_seconds)
        try:
            return self._read(found, start, end, max_records, max_bytes)
        except PenstockError:
            if start < found.earliest:  # retention was faster
                raise self._trimmed(found, start) from None
            self._check_open()
            raise

    def _read(
        self, partition: _Partition, start: int, end: int, max_records: int, max_bytes: int
    ) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        while start < end and max_records > 0 and max_bytes > 0:
            if start < partition.segments.end:
                got, size = partition.segments.read(start, max_records, max_bytes)
            else:
                tail = self._tail.read(partition.pid, start, end, max_records, max_bytes)
                if tail is None:
                    continue  # it has just been put into a segment
                got, size = tail
            assert got[0].column(0)[0].as_py() == start, "a read must not skip or repeat"
            rows = sum([batch.num_rows for batch in got])
            start += rows
            max_records -= rows
            max_bytes -= size
            found.extend(got)
        return _merged(found)

    def _trimmed(self, partition: _Partition, start: int) -> IndexTrimmed:
        return IndexTrimmed(
            f"record {start} of {partition.stream.name}/{partition.number} was dropped by "
            f"retention: the earliest is {partition.earliest}; read from there, or reset the group",
            earliest=partition.earliest,
        )

    def wait(self, stream: str, partition: int, index: int, seconds: float) -> int:
        found = self._partition(stream, partition)
        came = threading.Event()
        deadline = time.monotonic() + min(seconds, limits.FOLLOW_S_MAX)
        while True:
            came.clear()
            self._waiters.add(found.pid, came.set)
            end = int(self._ends.end[found.pid])
            left = deadline - time.monotonic()
            if end > index or left <= 0 or self._closed:
                self._waiters.remove(found.pid, came.set)
                self._check_open()
                return end
            if not came.wait(left):
                self._waiters.remove(found.pid, came.set)
            self._partition(stream, partition)

    async def wait_async(self, stream: str, partition: int, index: int, seconds: float) -> int:
        found = self._partition(stream, partition)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(seconds, limits.FOLLOW_S_MAX)
        while True:
            came: asyncio.Future[None] = loop.create_future()
            wake = future_waker(came)
            self._waiters.add(found.pid, wake)
            try:
                end = int(self._ends.end[found.pid])
                left = deadline - loop.time()
                if end > index or left <= 0 or self._closed:
                    self._check_open()
                    return end
                await asyncio.wait([came], timeout=left)
            finally:
                self._waiters.remove(found.pid, wake)
            self._partition(stream, partition)

    def index_at(self, stream: str, partition: int, timestamp: int) -> int:
        found = self._partition(stream, partition)
        end = int(self._ends.end[found.pid])
        while True:
            in_segments = found.segments.end
            at = found.segments.first_at_or_after(found.earliest, timestamp)
            if at is None:
                at = self._tail.first_at_or_after(
                    found.pid, max(in_segments, found.earliest), timestamp
                )
            if at is not None or found.segments.end == in_segments:
                return end if at is None else at

    # -- groups ----------------------------------------------------------------------------------

    def register_group(self, group: str, stream: str) -> None:
        with self._changing:
            self._check_open()
            self._groups.register(group, self._stream(stream).id)

    def drop_group(self, group: str, stream: str | None = None) -> None:
        with self._changing:
            self._check_open()
            if stream is not None:
                targets = [self._stream(stream)]
            else:
                ids = set(self._groups.streams_of(group))
                targets = [each for each in self._streams.values() if each.id in ids]
                if not targets:
                    raise self._groups.unknown(group)
            for target in targets:
                self._groups.drop(group, target.id, [each.pid for each in target.partitions])

    def position(self, group: str, stream: str, partition: int) -> int | None:
        return self._groups.position(group, self._partition(stream, partition).pid)

    def save_positions(self, group: str, stream: str, positions: Mapping[int, int]) -> None:
        self._check_open()
        moves = {}
        for number, position in positions.items():
            partition = self._partition(stream, number)
            end = int(self._ends.end[partition.pid])
            if not 0 <= position <= end:
                raise IndexOutOfRange(
                    f"position {position} of {stream}/{number} does not exist: it must be from 0 "
                    f"to the end, {end}"
                )
            moves[partition.pid] = position
        self._groups.save(group, self._stream(stream).id, moves, backwards=False)

    def lags(self, group: str | None = None, stream: str | None = None) -> list[Lag]:
        streams = list(self._streams.values()) if stream is None else [self._stream(stream)]
        found = [
            self._lag(name, each, partition)
            for each in sorted(streams, key=lambda each: each.name)
            for name in self._groups.members(each.id)
            if group in (None, name)
            for partition in each.partitions
        ]
        if group is not None and not found:
            raise self._groups.unknown(group)
        return found

    def _lag(self, group: str, stream: _Stream, partition: _Partition) -> Lag:
        end = int(self._ends.end[partition.pid])
        position = self._groups.position(group, partition.pid) or 0
        next_read = max(position, partition.earliest)
        seconds = 0.0
        if next_read < end:
            with contextlib.suppress(PenstockError):  # damaged there: reading it says so
                batch = self._read(partition, next_read, end, 1, 1)[0]
                age = self._clock() - batch.column(1).view(pa.int64())[0].as_py()
                seconds = max(age / 1_000_000, 0.0)
        return Lag(
            group, stream.name, partition.number, position, end, end - next_read, seconds,
            self._groups.is_registered(group, stream.id), self._groups.is_stale(group, stream.id),
        )  # fmt: skip

    def reset(
        self,
        group: str,
        stream: str,
        to: ResetTo,
        partitions: Sequence[int] | None = None,
        *,
        dry_run: bool = False,
    ) -> list[Move]:
        self._check_open()
        found = self._stream(stream)
        numbers = range(len(found.partitions)) if partitions is None else partitions
        moves = []
        by_pid = {}
        for number in numbers:
            partition = self._partition(stream, number)
            before = self._groups.position(group, partition.pid)
            after = self._reset_target(partition, before, to)
            moves.append(Move(number, before, after))
            by_pid[partition.pid] = after
        if not dry_run:
            self._groups.save(group, found.id, by_pid, backwards=True)
        return moves

    def _reset_target(self, partition: _Partition, before: int | None, to: ResetTo) -> int:
        earliest, end = partition.earliest, int(self._ends.end[partition.pid])
        if to.kind == "earliest":
            return earliest
        if to.kind == "latest":
            return end
        if to.kind == "timestamp":
            return self.index_at(partition.stream.name, partition.number, to.value)
        wished = to.value if to.kind == "index" else (before or earliest) + to.value
        return min(max(wished, earliest), end)

    # -- keeping house ---------------------------------------------------------------------------

    def trim(self, stream: str, partition: int, before: int) -> int:
        with self._changing:
            self._check_open()
            found = self._partition(stream, partition)
            holder = self._groups.holder(found.stream.id, found.pid)
            if holder is not None:
                before = min(before, holder[0])
            self._drop_segments(found, found.segments.below(before))
            return found.earliest

    def apply_retention(self) -> list[Dropped]:
        dropped = []
        for stream in list(self._streams.values()):
            for partition in list(stream.partitions):
                with self._changing:
                    if self._closed or stream.name not in self._streams:
                        break
                    if (outcome := self._retain(partition)) is not None:
                        dropped.append(outcome)
        return dropped

    def _retain(self, partition: _Partition) -> Dropped | None:
        settings, segments = partition.stream.settings, partition.segments
        if not (
            settings.retention_read
            or settings.retention_seconds is not None
            or settings.retention_bytes is not None
            or settings.retention_records is not None
        ):
            return None
        sizes = segments.sizes()
        if not sizes:
            return None
        ends = [*(base for base, _ in sizes[1:]), segments.end]
        facts = [
            SegmentFacts(base, end, size, base == segments.segment)
            for (base, size), end in zip(sizes, ends, strict=True)
        ]
        decision = decide(
            settings,
            facts,
            int(self._ends.end[partition.pid]),
            self._clock(),
            segments.max_time,
            self._groups.holder(partition.stream.id, partition.pid),
        )
        before = partition.earliest
        self._drop_segments(partition, decision.drop)
        if decision.roll:
            self._link.send(Roll(partition.pid))
            self._link.advance(self._committer.committed, force=True)
        if not decision.drop and decision.held_by is None:
            return None
        return Dropped(
            partition.stream.name,
            partition.number,
            partition.earliest - before,
            partition.earliest,
            decision.held_by,
        )

    def _drop_segments(self, partition: _Partition, bases: list[int]) -> None:
        if not bases:
            return
        segments = partition.segments
        left = [base for base in segments.bases() if base > bases[-1]]
        earliest = max(left[0] if left else segments.segment, partition.earliest)
        self._catalog.set_earliest(partition.pid, earliest)
        partition.earliest = earliest
        segments.drop(bases, earliest)

    def checkpoint(self) -> None:
        wanted = self._committer.committed
        deadline = time.monotonic() + limits.CLOSE_S_MAX
        while True:
            self._link.advance(wanted, force=True)
            with self._checkpoints:
                if self._checkpointed < wanted and self._committer.failed is None:
                    self._checkpoints.wait(1.0)
            if self._committer.failed is not None:
                raise self._committer.failed
            if self._checkpointed >= wanted:
                return
            if (full := self._committer.disk_full) is not None:
                raise DiskFull(f"no space is left for a checkpoint ({full}): free some")
            if time.monotonic() > deadline:
                raise LogBusy("the checkpoint takes longer than a minute; it goes on by itself")

    def close(self) -> None:
        with self._changing:
            if self._closed:
                return
            self._closed = True
        self._stop_keeping.set()
        self._keeper.join()
        self._waiters.wake_all()
        self._committer.drain()
        with contextlib.suppress(PenstockError):  # what is not in segments is in the journal
            self.checkpoint()
        self._committer.close()
        self._link.close()
        self._catalog.close()
        self._mark.close()
        self._journal.close()
        self._lock.release()

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed("the log is closed: open it again")

    @property
    def failed(self) -> PenstockError | None:
        """Why the log has stopped; None while it works."""
        return self._committer.failed

    @property
    def writer_pid(self) -> int | None:
        """The segment writer's process id."""
        return self._link.pid

    @property
    def committed_lsn(self) -> int:
        return self._committer.committed

    @property
    def checkpoint_lsn(self) -> int:
        return self._checkpointed

    # -- the commit thread calls -----------------------------------------------------------------

    def _publish(self, staged: list[Staged]) -> None:
        self._waiters.wake([each.pending.pids for each in staged])

    def _on_commit(self, lsn: int) -> None:
        if lsn - self._kicked >= self._kick_bytes:
            self._kicked = lsn
            self._link.advance(lsn)

    def _on_ring_full(self, lsn: int) -> None:
        self._link.advance(lsn, force=True)

    # -- the segment writer says -----------------------------------------------------------------

    def _snapshot(self) -> tuple[Begin, Iterable[AddPartition], int]:
        begin = Begin(
            str(self.data),
            self._checkpointed,
            self._checkpoint_epoch,
            self.settings.checkpoint_bytes,
        )
        added = [partition.added() for partition in list(self._partitions.values())]
        return begin, added, self._committer.committed

    def _on_writer(self, message: FromWriter) -> None:
        if isinstance(message, Checkpoint):
            self._record(message)
        elif isinstance(message, Sealed):
            partition = self._partitions.get(message.pid)
            if partition is not None:
                partition.segments.sealed(message.base)
        elif isinstance(message, DiskIsFull):
            self._committer.set_disk_full(message.message)
        elif isinstance(message, DiskHasRoom):
            self._committer.set_disk_full(None)
        elif isinstance(message, Broken):
            self._stop(StorageFailed(f"{message.message}. The log has stopped; start it again"))

    def _record(self, checkpoint: Checkpoint) -> None:
        """Put a checkpoint into the catalog, then let readers and the journal know."""
        if self._committer.failed is not None:
            return  # stopped: what could not be recorded before is in the journal only
        for state in checkpoint.segments:
            self._unrecorded[state.pid] = state
        for pid, base in checkpoint.rolled:
            self._unrecorded_closed.setdefault(pid, []).append(base)
        self._committer.sync_relaxed()
        with self._ends.lock:
            producers = self._producers.take_dirty()
        states = [state for pid, state in self._unrecorded.items() if pid in self._partitions]
        try:
            self._catalog.checkpoint(checkpoint.lsn, checkpoint.epoch, states, producers)
        except DiskFull as error:
            with self._ends.lock:
                self._producers.put_back(producers)
            self._committer.set_disk_full(str(error))
            return
        except PenstockError as error:
            self._stop(error)
            return
        if self._unrecorded and self._committer.disk_full is not None:
            self._committer.set_disk_full(None)
        closed, self._unrecorded_closed = self._unrecorded_closed, {}
        self._unrecorded.clear()
        for state in states:
            partition = self._partitions.get(state.pid)
            if partition is not None:
                partition.segments.checkpointed(
                    state.segment,
                    state.segment_size,
                    state.segments_end,
                    closed.get(state.pid, []),
                )
        self._checkpoint_epoch = checkpoint.epoch
        with self._checkpoints:
            self._checkpointed = checkpoint.lsn
            self._checkpoints.notify_all()
        self._committer.free(checkpoint.lsn)
        self._link.send(Recorded(checkpoint.lsn))

    def _stop(self, error: PenstockError) -> None:
        self._committer.stop(error)
        with self._checkpoints:
            self._checkpoints.notify_all()

    # -- the keeper ------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Retention now and then, and a checkpoint when the last one is too long ago."""
        every = self.settings.retention_check_seconds
        tick = min(every or 60.0, self.settings.checkpoint_seconds, 60.0)
        checked = time.monotonic()
        moved, moved_at = self._checkpointed, time.monotonic()
        while not self._stop_keeping.wait(tick):
            if every and time.monotonic() - checked >= every:
                with contextlib.suppress(PenstockError):
                    self.apply_retention()
                checked = time.monotonic()
            if self._checkpointed != moved or self._committer.committed == moved:
                moved, moved_at = self._checkpointed, time.monotonic()
            elif time.monotonic() - moved_at >= self.settings.checkpoint_seconds:
                self._link.advance(self._committer.committed, force=True)
                moved_at = time.monotonic()


_MERGE_ABOVE = 8


def _merged(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Many small batches as one: single records appended one by one come as a batch each."""
    if len(batches) <= _MERGE_ABOVE or sum(len(batch) for batch in batches) > 64 * len(batches):
        return batches
    return [pa.concat_batches(batches)]
