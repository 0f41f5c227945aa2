"""The embedded log: journal, segments and catalog in one data directory, owned by one process.

<data>/LOCK             who owns it
<data>/catalog.sqlite   streams, checkpoints, positions, producers
<data>/journal          the ring
<data>/mark             how far it was confirmed
<data>/staging/<writer>/ what is written and not yet published
<data>/streams/<stream>/<partition>/<base index>.arrows | .arrow | .index
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock import limits
from penstock.errors import (
    BadBatch,
    BatchTooLarge,
    IndexOutOfRange,
    IndexTrimmed,
    LogClosed,
    PenstockError,
    RecordTooLarge,
    StorageError,
    TooMany,
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
    Published,
    ResetTo,
    Stage,
    StreamInfo,
)
from penstock.log.batch import Batch
from penstock.log.catalog import Catalog, StreamRow
from penstock.log.checkpoints import Checkpoints
from penstock.log.committer import Committer, Pending, Staged
from penstock.log.disk import Disk, Lock, RealDisk
from penstock.log.ends import Ends
from penstock.log.groups import Groups
from penstock.log.journal import Journal, Mark, create_journal
from penstock.log.keeper import Keeper
from penstock.log.names import check_stream_name
from penstock.log.notes import Notes
from penstock.log.partitioner import partition_of, partitions_of
from penstock.log.producers import Producers, Sequenced, sequenced
from penstock.log.publisher import Publisher
from penstock.log.receipt import Receipt
from penstock.log.recovery import Recovered, recover
from penstock.log.segments import SegmentCache
from penstock.log.settings import LogSettings, StreamSettings
from penstock.log.staging import Staging
from penstock.log.stats import LogStats
from penstock.log.streams import Partition, Stream, Streams
from penstock.log.tail import Tail
from penstock.log.waiters import Waiters
from penstock.log.writer import (
    ChangePartition,
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
        self._waiters = Waiters()
        with contextlib.ExitStack() as undo:
            self._lock: Lock = self._take_directory()
            undo.callback(self._lock.release)
            self._catalog = Catalog(disk, data / "catalog.sqlite")
            undo.callback(self._catalog.close)
            self._journal = self._open_journal()
            undo.callback(self._journal.close)
            self._mark = Mark(disk, data / "mark")
            undo.callback(self._mark.close)
            self._ends = Ends()
            cache = SegmentCache(disk)
            self._streams = Streams(data, cache, self._ends, self._catalog)
            self._producers = Producers(self._catalog.producers())
            self._checkpoints = Checkpoints(
                data, settings, self._catalog, self._streams, self._ends, self._producers
            )
            self.recovered: Recovered = recover(
                self._journal,
                self._mark,
                self._ends,
                self._producers,
                self._checkpoints.lsn,
                self._checkpoints.epoch,
                self._catalog.epoch_since(),
            )
            if self.recovered.frames:
                # A killed owner may have written and not synced them. They are about to be read.
                self._journal.sync()
            epoch = self._catalog.new_epoch(self.recovered.lsn)
            self._groups = Groups(self._catalog, clock, settings.group_stale_seconds)
            self._notes = Notes(self._catalog)
            self._journal.reserved = self.recovered.lsn
            self._tail = Tail(self._journal, self._ends, lambda: self._checkpoints.lsn)
            self._committer = Committer(
                self._journal,
                self._mark,
                self._ends,
                self._producers,
                lsn=self.recovered.lsn,
                epoch=epoch,
                freed=self._checkpoints.lsn,
                settings=settings,
                clock=clock,
                on_commit=self._checkpoints.committed,
                on_ring_full=self._checkpoints.hurry,
                new_epoch=self._catalog.new_epoch,
                publish=self._publish,
            )
            undo.callback(self._committer.close)
            self._checkpoints.start(
                self._committer, disk, inline=writer == "inline", lock=self._lock.descriptor
            )
            undo.pop_all()
        self._committer.start()
        self._publisher = self._make_publisher(clock)
        self._keeper = Keeper(
            settings, self._catalog, self._streams, self._groups, self._ends, self._checkpoints,
            self._committer, self._publisher, self._changing, clock,
        )  # fmt: skip

    def _make_publisher(self, clock: Callable[[], int]) -> Publisher:
        """Finish what was being published when the log was last used, before anybody reads."""
        settings = self.settings
        publisher = Publisher(
            self._catalog,
            Staging(self._disk, self.data / "staging", settings.staging_bytes, clock),
            self._streams,
            self._ends,
            submit=self._submit_published,
            synced=self._committer.sync_relaxed,
            released=lambda pids: self._waiters.wake([pids]),
            clock=clock,
            batch_bytes=min(limits.STAGED_BATCH_BYTES, self._journal.group_bytes_max // 2),
            record_bytes_max=settings.record_bytes_max,
        )
        try:
            publisher.recover()
        except BaseException:
            self._end()
            raise
        return publisher

    def _take_directory(self) -> Lock:
        try:
            self._disk.make_directory(self.data)
            self._disk.make_directory(self.data / "streams")
            return self._disk.lock(self.data / "LOCK")
        except (PermissionError, NotADirectoryError, FileExistsError) as error:
            raise StorageError(
                f"{self.data} cannot be used as data directory ({error.strerror}): make it "
                "writable for this user, or choose another"
            ) from error

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

    # -- streams ---------------------------------------------------------------------------------

    def create_stream(
        self, name: str, partitions: int = 1, settings: StreamSettings | None = None
    ) -> StreamInfo:
        check_stream_name(name)
        settings = (settings or StreamSettings()).check()
        with self._changing:
            self._check_open()
            self._streams.check_new(name, partitions)
            self._disk.remove_tree(self._streams.directory(name))
            for number in range(partitions):
                self._disk.make_directory(partition_directory(self.data, name, number))
            created = self._clock()
            stream_id, pids = self._catalog.create_stream(name, settings, partitions, created)
            for partition in self._streams.add(StreamRow(stream_id, name, settings, created), pids):
                self._checkpoints.link.send(partition.added(fresh=True))
        return self.describe(name)

    def streams(self) -> list[str]:
        return [stream.name for stream in self._streams.all()]

    def describe(self, stream: str) -> StreamInfo:
        found = self._stream(stream)
        return StreamInfo(
            found.name,
            found.settings,
            found.created_at,
            [self._describe_partition(partition) for partition in found.partitions],
        )

    def _describe_partition(self, partition: Partition) -> PartitionInfo:
        sizes = partition.segments.sizes()
        return PartitionInfo(
            partition.number,
            partition.earliest,
            self._ends.visible(partition.pid),
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
                self._checkpoints.link.send(
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
            self._streams.check_partitions(total, total - have)
            for number in range(have, total):
                self._disk.make_directory(partition_directory(self.data, stream, number))
            pids = self._catalog.add_partitions(found.id, range(have, total))
            for partition in self._streams.add_partitions(found, pids):
                self._checkpoints.link.send(partition.added(fresh=True))
        return self.describe(stream)

    def delete_stream(self, stream: str) -> None:
        with self._changing:
            self._check_open()
            found = self._stream(stream)
            pids = found.pids
            for pid in pids:
                self._ends.drop(pid)
            self._catalog.delete_stream(found.id, pids)
            self._streams.remove(found)
            self._groups.forget_stream(found.id, set(pids))
            with self._ends.lock:
                self._producers.forget(set(pids))
            self._checkpoints.link.drop(pids)
            self._waiters.wake([np.array(pids, np.uint32)])
            self._disk.remove_tree(self._streams.directory(stream))

    def locate(self, stream: str, partition: int) -> int:
        return self._partition(stream, partition).pid

    def _stream(self, name: str) -> Stream:
        self._check_open()
        return self._streams.get(name)

    def _partition(self, stream: str, number: int) -> Partition:
        self._check_open()
        return self._streams.partition(stream, number)

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
        return self._hand_over(target, batch, sequence, wait_for_room)

    def _submit_published(self, target: NDArray[np.uint32], batch: Batch, by: Sequenced) -> Receipt:
        return self._hand_over(target, batch, by, wait_for_room=True)

    def _hand_over(
        self,
        target: int | NDArray[np.uint32],
        batch: Batch,
        sequence: Sequenced | None,
        wait_for_room: bool,
    ) -> Receipt:
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

    def choose_partitions(
        self, stream: str, batch: Batch, producer: str | None = None
    ) -> int | NDArray[np.uint32]:
        found = self._stream(stream)
        count = len(found.partitions)
        if count == 1:
            return found.partitions[0].pid
        if producer is None:
            keyless = next(found.next_keyless) % count
        else:
            keyless = partition_of(producer.encode(), count)
        if batch.keys is None:
            return found.partitions[keyless].pid
        numbers = partitions_of(batch.key_array().to_pylist(), count, keyless)
        pids = np.array([partition.pid for partition in found.partitions], np.uint32)
        chosen: NDArray[np.uint32] = pids[np.array(numbers)]
        return chosen

    def last_id(self, producer: str, stream: str, partition: int) -> int | None:
        return self._producers.last_id(producer.encode(), self._partition(stream, partition).pid)

    # -- publishing ------------------------------------------------------------------------------

    def stage(self, writer: str, epoch: int) -> Stage:
        self._check_open()
        return self._publisher.stage(writer, epoch)

    def publish(self, writer: str, epoch: int, parts: Sequence[str]) -> Published:
        self._check_open()
        return self._publisher.publish(writer, epoch, parts)

    def discard(self, writer: str, epoch: int) -> None:
        self._check_open()
        self._publisher.discard(writer, epoch)

    @property
    def buffered_bytes(self) -> int:
        """Records handed over and not yet on disk."""
        return self._committer.buffered

    # -- reading ---------------------------------------------------------------------------------

    def partition_number(self, located: int) -> int:
        """The number, within its stream, of a located partition."""
        partition = self._streams.by_pid(located)
        if partition is None:
            raise UnknownStream("the stream of this partition was deleted")
        return partition.number

    def now(self) -> int:
        """The log's clock, in microseconds."""
        return self._clock()

    def all_bounds(self, stream: str) -> list[tuple[int, int]]:
        """The bounds of every partition."""
        return self.snapshot([stream])[stream]

    def snapshot(self, streams: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
        """The bounds of every partition of some streams, at one moment: no publication is cut."""
        found = [(name, list(self._stream(name).partitions)) for name in streams]
        ends = iter(self._ends.visible_all([each.pid for _, own in found for each in own]))
        return {name: [(each.earliest, next(ends)) for each in own] for name, own in found}

    def bounds(self, stream: str, partition: int) -> tuple[int, int]:
        found = self._partition(stream, partition)
        return found.earliest, self._ends.visible(found.pid)

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
        end = self._ends.visible(found.pid)
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
        self, partition: Partition, start: int, end: int, max_records: int, max_bytes: int
    ) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        max_records = min(max_records, end - start)  # segments may be ahead of a held end
        while start < end and max_records > 0 and max_bytes > 0:
            try:
                if start < partition.segments.end:
                    got, size = partition.segments.read(start, max_records, max_bytes)
                else:
                    tail = self._tail.read(partition.pid, start, end, max_records, max_bytes)
                    if tail is None:
                        continue  # it has just been put into a segment
                    got, size = tail
            except StorageError:
                if found:
                    break  # give what is before the damage; the next read meets it first
                raise
            assert got[0].column(0)[0].as_py() == start, "a read must not skip or repeat"
            rows = sum([batch.num_rows for batch in got])
            start += rows
            max_records -= rows
            max_bytes -= size
            found.extend(got)
        return _merged(found)

    def _trimmed(self, partition: Partition, start: int) -> IndexTrimmed:
        return IndexTrimmed(
            f"record {start} of {partition.stream.name}/{partition.number} was dropped by "
            f"retention: the earliest is {partition.earliest}; read from there, or reset the group",
            earliest=partition.earliest,
        )

    def wait(self, stream: str, partition: int, index: int, seconds: float) -> int:
        found = self._partition(stream, partition)
        self._waiters.wait(found.pid, lambda: self._is_over(found, index), seconds)
        return self._end_of(found)

    async def wait_async(self, stream: str, partition: int, index: int, seconds: float) -> int:
        found = self._partition(stream, partition)
        await self._waiters.wait_async(found.pid, lambda: self._is_over(found, index), seconds)
        return self._end_of(found)

    def _end_of(self, partition: Partition) -> int:
        self._check_open()
        if not self._ends.alive[partition.pid]:
            raise UnknownStream(f"stream {partition.stream.name!r} was deleted meanwhile")
        return self._ends.visible(partition.pid)

    def _is_over(self, partition: Partition, index: int) -> bool:
        """Whether waiting for record `index` makes no sense any more."""
        ends = self._ends
        return self._closed or ends.visible(partition.pid) > index or not ends.alive[partition.pid]

    def index_at(self, stream: str, partition: int, timestamp: int) -> int:
        found = self._partition(stream, partition)
        end = self._ends.visible(found.pid)
        while True:
            in_segments = found.segments.end
            at = found.segments.first_at_or_after(found.earliest, timestamp)
            if at is None:
                at = self._tail.first_at_or_after(
                    found.pid, max(in_segments, found.earliest), timestamp
                )
            if at is not None or found.segments.end == in_segments:
                return end if at is None else min(at, end)

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
                targets = [each for each in self._streams.all() if each.id in ids]
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
            end = self._ends.visible(partition.pid)
            if not 0 <= position <= end:
                raise IndexOutOfRange(
                    f"position {position} of {stream}/{number} does not exist: it must be from 0 "
                    f"to the end, {end}"
                )
            moves[partition.pid] = position
        self._groups.save(group, self._stream(stream).id, moves, backwards=False)

    def lags(self, group: str | None = None, stream: str | None = None) -> list[Lag]:
        streams = self._streams.all() if stream is None else [self._stream(stream)]
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

    def _lag(self, group: str, stream: Stream, partition: Partition) -> Lag:
        end = self._ends.visible(partition.pid)
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

    def _reset_target(self, partition: Partition, before: int | None, to: ResetTo) -> int:
        earliest, end = partition.earliest, self._ends.visible(partition.pid)
        if to.kind == "earliest":
            return earliest
        if to.kind == "latest":
            return end
        if to.kind == "timestamp":
            return self.index_at(partition.stream.name, partition.number, to.value)
        wished = to.value if to.kind == "index" else (before or earliest) + to.value
        return min(max(wished, earliest), end)

    # -- notes -----------------------------------------------------------------------------------

    def notes(self, owner: str) -> dict[str, bytes]:
        self._check_open()
        return self._notes.get(owner)

    def put_notes(self, owner: str, notes: Mapping[str, bytes | None]) -> None:
        self._check_open()
        self._notes.put(owner, notes)

    # -- keeping house ---------------------------------------------------------------------------

    def trim(self, stream: str, partition: int, before: int) -> int:
        return self._keeper.trim(self._partition(stream, partition), before)

    def apply_retention(self) -> list[Dropped]:
        self._check_open()
        return self._keeper.apply_retention()

    def checkpoint(self) -> None:
        self._checkpoints.wait()

    def close(self) -> None:
        with self._changing:
            if self._closed:
                return
            self._closed = True
        self._keeper.stop()
        self._publisher.close()
        self._waiters.wake_all()
        self._end()

    def _end(self) -> None:
        self._committer.drain()
        with contextlib.suppress(PenstockError):  # what is not in segments is in the journal
            self.checkpoint()
        self._committer.close()
        self._checkpoints.link.close()
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
    def stats(self) -> LogStats:
        """What the commit thread counts."""
        return self._committer.stats

    @property
    def writer_restarts(self) -> int:
        """How often the segment writer died."""
        return self._checkpoints.link.restarts

    @property
    def writer_pid(self) -> int | None:
        """The segment writer's process id."""
        return self._checkpoints.link.pid

    @property
    def committed_lsn(self) -> int:
        return self._committer.committed

    @property
    def checkpoint_lsn(self) -> int:
        return self._checkpoints.lsn

    # -- the commit thread calls -----------------------------------------------------------------

    def _publish(self, staged: list[Staged]) -> None:
        self._waiters.wake([each.pending.pids for each in staged])


_MERGE_ABOVE = 8


def _merged(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Many small batches as one: single records appended one by one come as a batch each."""
    if len(batches) <= _MERGE_ABOVE or sum(len(batch) for batch in batches) > 64 * len(batches):
        return batches
    return [pa.concat_batches(batches)]
