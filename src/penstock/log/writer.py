"""The segment writer: turns committed journal frames into the segments of each partition.

It takes a *stretch* of the journal at a time, splits it by partition, and appends each
partition's records to its growing segment in large batches. A checkpoint syncs the segments and
says so; only when the log has recorded it is that part of the journal free.

The writer remembers nothing the catalog does not know. Killed at any moment and started again
from the last checkpoint, it cuts each segment it touches to the size recorded there and writes
the same records once more.
"""

from __future__ import annotations

import errno
import itertools
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock import limits
from penstock.errors import SegmentDamaged, StorageFailed
from penstock.log import frame as fr
from penstock.log.catalog import SegmentState
from penstock.log.disk import Disk, File
from penstock.log.journal import Journal
from penstock.log.schema import record_batch
from penstock.log.sealing import seal
from penstock.log.segment import (
    GROWING,
    INDEX,
    SEALED,
    Encoder,
    cut_points,
    parse_name,
    segment_name,
    stream_head,
)

# -- what the log tells the writer -----------------------------------------------------------------


class Begin(msgspec.Struct, tag=True):
    """The first message."""

    data: str
    checkpoint: int
    epoch: int
    checkpoint_bytes: int


class AddPartition(msgspec.Struct, tag=True):
    """A partition, and how far its segments go."""

    pid: int
    stream: str
    number: int
    segment: int
    size: int
    end: int
    segment_bytes: int
    compression: str
    fresh: bool = False
    """Its directory was made just now, so there is nothing to clean up."""


class ChangePartition(msgspec.Struct, tag=True):
    """Its stream has new settings."""

    pid: int
    segment_bytes: int
    compression: str


class DropPartitions(msgspec.Struct, tag=True):
    """Their stream was deleted: skip their records."""

    pids: list[int]


class Advance(msgspec.Struct, tag=True):
    """The journal is committed up to here; `force` asks for a checkpoint now."""

    committed: int
    force: bool = False


class Recorded(msgspec.Struct, tag=True):
    """The checkpoint at `lsn` is in the catalog: what it closed may be sealed."""

    lsn: int


class Roll(msgspec.Struct, tag=True):
    """Begin a new segment, so that the current one can be dropped."""

    pid: int


class Stop(msgspec.Struct, tag=True):
    """Exit; what was not checkpointed is written again next time."""


ToWriter = (
    Begin | AddPartition | ChangePartition | DropPartitions | Advance | Recorded | Roll | Stop
)

# -- what the writer tells the log -----------------------------------------------------------------


class Checkpoint(msgspec.Struct, tag=True):
    """Everything below `lsn` is in segments, and they are on disk."""

    lsn: int
    epoch: int
    segments: list[SegmentState]
    rolled: list[tuple[int, int]]
    """(pid, base) of segments that got no more records since the last checkpoint."""


class Sealed(msgspec.Struct, tag=True):
    """A segment has got its final file, beside the one it grew in."""

    pid: int
    base: int


class DiskIsFull(msgspec.Struct, tag=True):
    """Nothing can be written for now; the writer tries again by itself."""

    message: str


class DiskHasRoom(msgspec.Struct, tag=True):
    """It was full, and is no more."""


class LetGo(msgspec.Struct, tag=True):
    """These partitions will not be touched any more: their files can be removed."""

    pids: list[int]


class Broken(msgspec.Struct, tag=True):
    """A sync failed or confirmed data does not check: the log must stop."""

    message: str


FromWriter = Checkpoint | Sealed | DiskIsFull | DiskHasRoom | LetGo | Broken


def partition_directory(data: Path, stream: str, number: int) -> Path:
    """Where a partition's segments are."""
    return data / "streams" / stream / str(number)


class _Partition:
    """A partition's growing segment."""

    __slots__ = (
        "base", "compression", "directory", "end", "number", "path", "prepared", "rolling",
        "segment_bytes", "size", "stream",
    )  # fmt: skip

    def __init__(self, data: Path, add: AddPartition) -> None:
        self.stream = add.stream
        self.number = add.number
        self.directory = partition_directory(data, add.stream, add.number)
        self.begin(add.segment)
        self.size = add.size
        self.end = add.end
        self.segment_bytes = add.segment_bytes
        self.compression = add.compression
        self.prepared = add.fresh
        self.rolling = False

    def begin(self, base: int) -> None:
        """The growing segment is the one that begins with index `base`."""
        self.base = base
        self.path = self.directory / segment_name(base, GROWING)


class _Piece(NamedTuple):
    """Rows of one partition in a stretch."""

    pid: int
    base: int
    columns: list[Any]


class SegmentWriter:
    """Works when told to: `advance` writes and checkpoints, `seal_one` seals."""

    def __init__(self, disk: Disk, begin: Begin) -> None:
        self._disk = disk
        self._data = Path(begin.data)
        self._journal = Journal(disk, self._data / "journal", writable=False)
        self._lsn = begin.checkpoint
        self._epoch = begin.epoch
        self._checkpointed = begin.checkpoint
        self._recorded = begin.checkpoint
        self._checkpoint_bytes = begin.checkpoint_bytes
        self._partitions: dict[int, _Partition] = {}
        self._files: OrderedDict[Path, File] = OrderedDict()
        self._dirty: set[int] = set()
        self._unsynced: dict[Path, None] = {}
        self._new_names: dict[Path, None] = {}
        self._rolled: list[tuple[int, int]] = []
        self._unrecorded: list[tuple[int, int, int]] = []
        self._to_seal: list[tuple[int, int]] = []
        self._unlooked: dict[int, int] = {}
        """Partitions to search for segments below the one that grew when they were added."""
        self._busy_partitions = 1
        self._encoder = Encoder()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._journal.close()

    # -- partitions ------------------------------------------------------------------------------

    def obey(self, message: ToWriter) -> None:
        """Do what the log says, but for `Advance`: that gives checkpoints back."""
        if isinstance(message, AddPartition):
            self.add(message)
        elif isinstance(message, ChangePartition):
            self.change(message)
        elif isinstance(message, DropPartitions):
            self.drop(message.pids)
        elif isinstance(message, Roll):
            self.roll(message.pid)
        elif isinstance(message, Recorded):
            self.recorded(message.lsn)

    def add(self, message: AddPartition) -> None:
        if message.pid not in self._partitions:
            self._partitions[message.pid] = _Partition(self._data, message)
            if message.segment:
                self._unlooked[message.pid] = message.segment

    def change(self, message: ChangePartition) -> None:
        if (partition := self._partitions.get(message.pid)) is not None:
            partition.segment_bytes = message.segment_bytes
            partition.compression = message.compression

    def drop(self, pids: list[int]) -> None:
        for pid in pids:
            partition = self._partitions.pop(pid, None)
            self._dirty.discard(pid)
            if partition is not None:
                for path in [path for path in self._files if path.parent == partition.directory]:
                    self._files.pop(path).close()
                for noted in (self._unsynced, self._new_names):
                    for path in [p for p in noted if partition.directory in (p, p.parent)]:
                        del noted[path]

    def roll(self, pid: int) -> None:
        if (partition := self._partitions.get(pid)) is not None and partition.size:
            partition.rolling = True

    # -- the journal -----------------------------------------------------------------------------

    def advance(self, committed: int, force: bool) -> Iterator[Checkpoint]:
        """Write what is worth writing up to `committed`; gives each checkpoint when it is made."""
        while self._lsn < committed:
            wanted = self._stretch_bytes()
            if committed - self._lsn < wanted and not force:
                break
            self._write_stretch(min(committed, self._lsn + wanted))
            if self._lsn - self._checkpointed >= self._checkpoint_bytes:
                yield self._checkpoint()
        if force:
            for pid, partition in self._partitions.items():
                if partition.rolling:
                    self._close_segment(pid, partition)
            if self._lsn > self._recorded or self._dirty:
                # Also one that is made and not recorded: the catalog may have had no room for it.
                yield self._checkpoint()

    def _stretch_bytes(self) -> int:
        """More for more partitions, so that each gets a batch that is worth a write."""
        wanted = self._busy_partitions * limits.STRETCH_BYTES_PER_PARTITION
        least = min(limits.STRETCH_BYTES_MIN, self._checkpoint_bytes)
        most = min(limits.STRETCH_BYTES_MAX, self._journal.size // 4)
        return max(least, min(wanted, most))

    def _write_stretch(self, stop: int) -> None:
        frames = []
        lsn = self._lsn
        for frame, body in self._journal.frames(lsn, stop):
            lsn = frame.lsn + frame.length
            if not frame.flags & fr.PAD:
                frames.append((frame, body))
            self._epoch = frame.epoch
        if lsn < stop:
            raise self._journal.damaged(lsn, "it was committed, and is not whole any more")
        pieces = list(_split(frames))
        self._busy_partitions = max(1, len(pieces))
        for piece in pieces:
            if piece.pid in self._partitions:
                self._append(piece.pid, self._partitions[piece.pid], piece)
        self._lsn = lsn

    # -- segments --------------------------------------------------------------------------------

    def _append(self, pid: int, partition: _Partition, piece: _Piece) -> None:
        columns, base = piece.columns, piece.base
        rows = len(columns[0])
        if base + rows <= partition.end:
            return
        if base < partition.end:
            columns = [column.slice(partition.end - base) for column in columns]
            base = partition.end
        if base > partition.end:
            raise SegmentDamaged(
                f"the journal goes on with record {base} where {partition.path} needs "
                f"{partition.end}: restore the data directory from a backup"
            )
        if not partition.prepared:
            self._prepare(partition)
        batch = record_batch(base, columns)
        cuts = cut_points(batch, limits.SEGMENT_BATCH_BYTES)
        parts: list[Any] = []
        length = 0
        for begin, end in itertools.pairwise(cuts):
            full = partition.size + length >= partition.segment_bytes
            if (full or partition.rolling) and partition.size + length > 0:
                self._write(partition, parts, length, base + begin)
                parts, length = [], 0
                self._close_segment(pid, partition)
            if partition.size + length == 0:
                head = stream_head(partition.stream, partition.number)
                parts.append(head)
                length += len(head)
                self._new_names[partition.directory] = None
            encoded, size = self._encoder.encode(batch.slice(begin, end - begin))
            parts.extend(encoded)
            length += size
        self._write(partition, parts, length, base + batch.num_rows)
        self._dirty.add(pid)

    def _write(self, partition: _Partition, parts: list[Any], length: int, end: int) -> None:
        """Write records up to `end`. If it fails, the partition is as it was: try again later."""
        if not length:
            return
        path = partition.path
        file = self._open(path)
        self._unsynced[path] = None
        file.write(parts, partition.size)
        if length >= limits.WRITEBACK_BYTES_MIN:
            file.start_writeback(partition.size, length)
        partition.size += length
        partition.end = end

    def _close_segment(self, pid: int, partition: _Partition) -> None:
        """No more records for this segment; the next begins with the next record."""
        path = partition.path
        file = self._open(path)
        if file.size() > partition.size:  # a write that failed left something behind
            file.truncate(partition.size)
            self._unsynced[path] = None
        self._rolled.append((pid, partition.base))
        partition.begin(partition.end)
        partition.size = 0
        partition.rolling = False
        self._dirty.add(pid)

    def _prepare(self, partition: _Partition) -> None:
        """Bring the files to what the last checkpoint says: what is beyond was never synced."""
        for name in self._disk.list(partition.directory):
            parsed = parse_name(name)
            if parsed is not None and parsed[0] > partition.base:
                self._disk.remove(partition.directory / name)
        path = partition.path
        if partition.size == 0:
            self._disk.remove(path)
        else:
            size = self._disk.file_size(path) if self._disk.exists(path) else 0
            if size < partition.size:
                raise SegmentDamaged(
                    f"{path} has {size} bytes, the last checkpoint says {partition.size}: "
                    "restore the data directory from a backup"
                )
            if size > partition.size:
                self._open(path).truncate(partition.size)
                self._unsynced[path] = None
        partition.prepared = True

    def _open(self, path: Path) -> File:
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        if len(self._files) >= limits.OPEN_SEGMENTS_MAX:
            self._files.popitem(last=False)[1].close()
        file = self._disk.open(path, create=True)
        self._files[path] = file
        return file

    def _checkpoint(self) -> Checkpoint:
        try:
            self._disk.sync_paths(list(self._unsynced), list(self._new_names))
        except OSError as error:
            # Never retried: after a failed sync the kernel may have forgotten what was not written.
            raise StorageFailed(f"syncing segments failed: {error}") from error
        self._unsynced.clear()
        self._new_names.clear()
        segments = [
            SegmentState(pid, partition.base, partition.size, partition.end)
            for pid in sorted(self._dirty)
            for partition in (self._partitions[pid],)
        ]
        self._dirty.clear()
        rolled, self._rolled = self._rolled, []
        self._unrecorded.extend((self._lsn, pid, base) for pid, base in rolled)
        self._checkpointed = self._lsn
        return Checkpoint(self._lsn, self._epoch, segments, rolled)

    # -- sealing ---------------------------------------------------------------------------------

    def recorded(self, lsn: int) -> None:
        """Segments closed by the checkpoint at `lsn` will not be written again: seal them."""
        self._recorded = max(self._recorded, lsn)
        ready = [(pid, base) for at, pid, base in self._unrecorded if at <= lsn]
        self._unrecorded = [entry for entry in self._unrecorded if entry[0] > lsn]
        self._to_seal.extend(ready)

    def find_unsealed(self) -> None:
        """Queue the segments an earlier writer closed and did not come to seal."""
        while self._unlooked:
            pid, base = self._unlooked.popitem()
            if (partition := self._partitions.get(pid)) is None:
                continue
            for parsed in map(parse_name, self._disk.list(partition.directory)):
                if parsed and parsed[1] == GROWING and parsed[0] < base:
                    self._to_seal.append((pid, parsed[0]))

    def seal_one(self) -> Sealed | None:
        """Seal one closed segment; None when there is none. Safe beside `advance`."""
        while self._to_seal:
            pid, base = self._to_seal.pop(0)
            partition = self._partitions.get(pid)
            if partition is None:
                continue
            path = partition.directory / segment_name(base, GROWING)
            try:
                if self._disk.exists(path.with_suffix(SEALED)):
                    # One who was killed renamed it; the old file goes only when that is on disk.
                    self._disk.sync_directory(path.parent)
                else:
                    seal(
                        self._disk, path, partition.stream, partition.number, partition.compression
                    )
            except FileNotFoundError:
                continue  # dropped by retention, or with its stream
            except SegmentDamaged:
                # It stays as it is, and reads stop there; the log goes on.
                self._disk.remove(path.with_suffix(".tmp"))
                continue
            except OSError as error:
                self._disk.remove(path.with_suffix(".tmp"))
                if error.errno != errno.ENOSPC:
                    raise
                self._to_seal.append((pid, base))
                return None
            return Sealed(pid, base)
        return None


def _split(frames: list[tuple[fr.Frame, memoryview]]) -> Iterator[_Piece]:
    """The rows of each partition, in order."""
    if all(len(frame.pids) == 1 for frame, _ in frames):
        yield from _split_plain(frames)
    else:
        yield from _split_mixed(frames)


def _split_plain(frames: list[tuple[fr.Frame, memoryview]]) -> Iterator[_Piece]:
    by_pid: dict[int, list[tuple[fr.Frame, memoryview]]] = {}
    for frame, body in frames:
        by_pid.setdefault(int(frame.pids[0]), []).append((frame, body))
    for pid, own in by_pid.items():
        _check_dense([frame for frame, _ in own])
        columns = [fr.body_columns(frame, body) for frame, body in own]
        yield _Piece(pid, int(own[0][0].bases[0]), _concatenated(columns))


def _split_mixed(frames: list[tuple[fr.Frame, memoryview]]) -> Iterator[_Piece]:
    """Sort all rows by partition: 65 ns a row, however many partitions there are."""
    columns = _concatenated([fr.body_columns(frame, body) for frame, body in frames])
    _check_dense([frame for frame, _ in frames])
    runs = np.concatenate([frame.pids for frame, _ in frames])
    bases = np.concatenate([frame.bases for frame, _ in frames])
    pids, first_run = np.unique(runs, return_index=True)
    narrow = np.uint16 if len(pids) <= 0xFFFF else np.uint32
    place = np.zeros(int(pids[-1]) + 1, narrow)
    place[pids] = np.arange(len(pids), dtype=narrow)
    keys = []
    for frame, body in frames:
        own = place[frame.pids]
        slots = fr.body_slots(frame, body)
        keys.append(np.repeat(own, frame.rows) if slots is None else own[slots])
    key = np.concatenate(keys)
    order = pa.array(np.argsort(key, kind="stable"))
    frames.clear()  # their memory is needed for the copies
    for number, column in enumerate(columns):
        columns[number] = pc.take(column, order, boundscheck=False)
        del column
    at = 0
    for pid, base, count in zip(
        pids.tolist(), bases[first_run].tolist(), np.bincount(key).tolist(), strict=True
    ):
        yield _Piece(pid, base, [column.slice(at, count) for column in columns])
        at += count


def _check_dense(frames: list[fr.Frame]) -> None:
    """Each run must begin where the one before it, of the same partition, ended."""
    pids = np.concatenate([frame.pids for frame in frames])
    bases = np.concatenate([frame.bases for frame in frames])
    counts = np.concatenate([frame.counts for frame in frames])
    order = np.argsort(pids, kind="stable")
    pids, bases, counts = pids[order], bases[order], counts[order]
    same = pids[1:] == pids[:-1]
    if (same & (bases[1:] != bases[:-1] + counts[:-1])).any():
        raise SegmentDamaged(
            "the journal's frames do not follow each other: restore the data directory from a "
            "backup"
        )


def _concatenated(columns: list[list[Any]]) -> list[Any]:
    if len(columns) == 1:
        return columns[0]
    return [pa.concat_arrays(list(same)) for same in zip(*columns, strict=True)]


def remove_segment(disk: Disk, directory: Path, base: int) -> None:
    """Remove a segment in whatever form it is in."""
    for suffix in (GROWING, SEALED, INDEX, ".tmp"):
        disk.remove(directory / segment_name(base, suffix))
