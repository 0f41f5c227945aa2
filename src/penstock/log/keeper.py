"""Keeping house: retention now and then, and a checkpoint when the last is too long ago."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.log.api import Dropped
from penstock.log.catalog import Catalog
from penstock.log.checkpoints import Checkpoints
from penstock.log.committer import Committer
from penstock.log.ends import Ends
from penstock.log.groups import Groups
from penstock.log.publisher import Publisher
from penstock.log.retention import SegmentFacts, decide
from penstock.log.settings import LogSettings
from penstock.log.streams import Partition, Streams
from penstock.log.writer import Roll


class Keeper:
    """Drops segments. `changing` is the log's lock for changes of streams."""

    def __init__(
        self,
        settings: LogSettings,
        catalog: Catalog,
        streams: Streams,
        groups: Groups,
        ends: Ends,
        checkpoints: Checkpoints,
        committer: Committer,
        publisher: Publisher,
        changing: threading.RLock,
        clock: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._streams = streams
        self._groups = groups
        self._ends = ends
        self._checkpoints = checkpoints
        self._committer = committer
        self._publisher = publisher
        self._changing = changing
        self._clock = clock
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        every = self._settings.retention_check_seconds
        patience = self._settings.checkpoint_seconds
        tick = min(every or 60.0, patience, 60.0)
        checked = time.monotonic()
        moved, moved_at = self._checkpoints.lsn, time.monotonic()
        while not self._stopping.wait(tick):
            if every and time.monotonic() - checked >= every:
                with contextlib.suppress(PenstockError, OSError):  # a read there says it too
                    self.apply_retention()
                    self._publisher.tidy()
                checked = time.monotonic()
            if self._checkpoints.lsn != moved or self._committer.committed == moved:
                moved, moved_at = self._checkpoints.lsn, time.monotonic()
            elif time.monotonic() - moved_at >= patience:
                self._checkpoints.hurry()
                moved_at = time.monotonic()

    def trim(self, partition: Partition, before: int) -> int:
        """Drop whole segments below `before`, as far as groups allow; returns the earliest left."""
        with self._changing:
            holder = self._holder(partition)
            if holder is not None:
                before = min(before, holder[0])
            self._drop(partition, partition.segments.below(before))
            return partition.earliest

    def apply_retention(self) -> list[Dropped]:
        """Drop what the streams' settings say."""
        dropped = []
        for stream in self._streams.all():
            for partition in list(stream.partitions):
                with self._changing:
                    if self._stopping.is_set() or stream.name not in self._streams:
                        break
                    if (outcome := self._retain(partition)) is not None:
                        dropped.append(outcome)
        return dropped

    def _retain(self, partition: Partition) -> Dropped | None:
        settings, segments = partition.stream.settings, partition.segments
        if not settings.has_retention:
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
            self._ends.visible(partition.pid),
            self._clock(),
            segments.max_time,
            self._holder(partition),
        )
        before = partition.earliest
        self._drop(partition, decision.drop)
        if decision.roll:
            self._checkpoints.link.send(Roll(partition.pid))
            self._checkpoints.hurry()
        if not decision.drop and decision.held_by is None:
            return None
        return Dropped(
            partition.stream.name,
            partition.number,
            partition.earliest - before,
            partition.earliest,
            decision.held_by,
        )

    def _holder(self, partition: Partition) -> tuple[int, str] | None:
        """Up to where anything may be dropped, and on whose account; None: everything may."""
        holder = self._groups.holder(partition.stream.id, partition.pid)
        held = self._ends.held(partition.pid)
        if held is not None and (holder is None or held < holder[0]):
            return held, "a publication"
        return holder

    def _drop(self, partition: Partition, bases: list[int]) -> None:
        if not bases:
            return
        segments = partition.segments
        left = [base for base in segments.bases() if base > bases[-1]]
        earliest = max(left[0] if left else segments.segment, partition.earliest)
        self._catalog.set_earliest(partition.pid, earliest)
        partition.earliest = earliest
        segments.drop(bases, earliest)
