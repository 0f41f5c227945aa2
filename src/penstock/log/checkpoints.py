"""Checkpoints, from the log's side: what the segment writer reports is recorded and made known.

A checkpoint is one transaction of the catalog: how far the journal is done, how long each segment
is, how far each producer got. Only then do readers look into the new part of the segments, and
only then is that part of the journal free.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path

from penstock import limits
from penstock.errors import DiskFull, LogBusy, PenstockError, StorageFailed
from penstock.log.catalog import Catalog, SegmentState
from penstock.log.committer import Committer
from penstock.log.disk import Disk
from penstock.log.ends import Ends
from penstock.log.link import InlineWriter, ProcessWriter, WriterLink
from penstock.log.producers import Producers
from penstock.log.settings import LogSettings
from penstock.log.streams import Streams
from penstock.log.writer import (
    AddPartition,
    Begin,
    Broken,
    Checkpoint,
    DiskHasRoom,
    DiskIsFull,
    FromWriter,
    Recorded,
    Sealed,
)


class Checkpoints:
    """Owns the tie to the segment writer, and how far it got."""

    link: WriterLink

    def __init__(
        self,
        data: Path,
        settings: LogSettings,
        catalog: Catalog,
        streams: Streams,
        ends: Ends,
        producers: Producers,
    ) -> None:
        self._data = data
        self._settings = settings
        self._catalog = catalog
        self._streams = streams
        self._ends = ends
        self._producers = producers
        self._changed = threading.Condition()
        self.lsn = catalog.get_int("checkpoint")
        """Everything in the journal below is in segments."""
        self.epoch = catalog.get_int("checkpoint_epoch")
        self._unrecorded: dict[int, SegmentState] = {}
        self._unrecorded_closed: dict[int, list[int]] = {}
        self._kicked = 0
        self._kick_bytes = 0
        self._committer: Committer

    def start(self, committer: Committer, disk: Disk, *, inline: bool, lock: int | None) -> None:
        """Start the segment writer."""
        self._committer = committer
        self._kicked = committer.committed
        self._kick_bytes = max(self._settings.checkpoint_bytes // 16, committer.journal.size // 512)
        if inline:
            self.link = InlineWriter(disk, self._snapshot, self._on_writer)
        else:
            self.link = ProcessWriter(self._snapshot, self._on_writer, lock)

    # -- the log tells ---------------------------------------------------------------------------

    def committed(self, lsn: int) -> None:
        """The journal has grown; the writer is told now and then."""
        if lsn - self._kicked >= self._kick_bytes:
            self._kicked = lsn
            self.link.advance(lsn)

    def hurry(self, lsn: int | None = None) -> None:
        """Ask for a checkpoint now."""
        self.link.advance(self._committer.committed if lsn is None else lsn, force=True)

    def wait(self) -> None:
        """Return when all that is committed now is in segments."""
        wanted = self._committer.committed
        deadline = time.monotonic() + limits.CLOSE_S_MAX
        while True:
            self.hurry(wanted)
            with self._changed:
                if self.lsn < wanted and self._committer.failed is None:
                    self._changed.wait(1.0)
            if self._committer.failed is not None:
                raise self._committer.failed
            if self.lsn >= wanted:
                return
            if (full := self._committer.disk_full) is not None:
                raise DiskFull(f"no space is left for a checkpoint ({full}): free some")
            if time.monotonic() > deadline:
                raise LogBusy("the checkpoint takes longer than a minute; it goes on by itself")

    # -- the segment writer says -----------------------------------------------------------------

    def _snapshot(self) -> tuple[Begin, Iterable[AddPartition], int]:
        # A new writer cuts the segments to what is recorded, so what is not has never been.
        self._unrecorded.clear()
        self._unrecorded_closed.clear()
        begin = Begin(str(self._data), self.lsn, self.epoch, self._settings.checkpoint_bytes)
        added = [partition.added() for partition in self._streams.partitions()]
        return begin, added, self._committer.committed

    def _on_writer(self, message: FromWriter) -> None:
        if isinstance(message, Checkpoint):
            self._record(message)
        elif isinstance(message, Sealed):
            if (partition := self._streams.by_pid(message.pid)) is not None:
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
        try:
            self._committer.sync_relaxed()
        except PenstockError as error:
            self._stop(error)
            return
        with self._ends.lock:
            producers = self._producers.take_dirty()
        alive = self._streams.by_pid
        states = [state for pid, state in self._unrecorded.items() if alive(pid) is not None]
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
        self._publish(states, checkpoint)
        self.link.send(Recorded(checkpoint.lsn))

    def _publish(self, states: list[SegmentState], checkpoint: Checkpoint) -> None:
        closed, self._unrecorded_closed = self._unrecorded_closed, {}
        self._unrecorded.clear()
        for state in states:
            if (partition := self._streams.by_pid(state.pid)) is not None:
                partition.segments.checkpointed(
                    state.segment,
                    state.segment_size,
                    state.segments_end,
                    closed.get(state.pid, []),
                )
        self.epoch = checkpoint.epoch
        with self._changed:
            self.lsn = checkpoint.lsn
            self._changed.notify_all()
        self._committer.free(checkpoint.lsn)

    def _stop(self, error: PenstockError) -> None:
        self._committer.stop(error)
        with self._changed:
            self._changed.notify_all()
