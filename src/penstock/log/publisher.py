"""Publishing what was staged: all of an epoch becomes visible at once, and once.

    note in the catalog what is to be done   from here on it will be done, whatever crashes
    hold the ends of the partitions          readers stay where they are
    append part by part                      as a producer, so that doing it again adds nothing
    note that it is done, release the ends   readers see all of it

A crash or a full disk in between leaves the note. Opening the log finishes what is noted before
anybody can read; so does the next publication, and the keeper's next round.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import limits
from penstock.errors import (
    BadBatch,
    LogClosed,
    PenstockError,
    RecordTooLarge,
    StagedMissing,
    TooMany,
    UnknownPartition,
    UnknownStream,
)
from penstock.log.api import Published, Stage
from penstock.log.batch import Batch
from penstock.log.catalog import Catalog, PublicationRow
from penstock.log.ends import Ends, Pids
from penstock.log.partitioner import partitions_of
from penstock.log.producers import RESERVED, Sequenced
from penstock.log.receipt import Receipt
from penstock.log.staging import Part, Staging, record_columns, topics_of
from penstock.log.streams import Streams

PRODUCER: Final = (RESERVED + "publish").encode()
_EPOCH_MAX: Final = 2**62
_OUTSTANDING: Final = 16
"""Appends of one publication on their way to the disk; the buffer's size bounds their bytes."""

Submit = Callable[[Pids, Batch, Sequenced], Receipt]


class Unfinished(msgspec.Struct, frozen=True):
    """All that finishing a publication needs."""

    parts: list[str]
    pids: dict[str, list[int]]
    """The partitions each stream had: keys go to the same ones whenever it is finished."""
    first_id: int


class Publisher:
    """Stages and publishes for a log. Threads may share it."""

    def __init__(
        self,
        catalog: Catalog,
        staging: Staging,
        streams: Streams,
        ends: Ends,
        *,
        submit: Submit,
        synced: Callable[[], None],
        released: Callable[[Pids], None],
        clock: Callable[[], int],
        batch_bytes: int,
        record_bytes_max: int,
    ) -> None:
        """`synced` returns once all that was confirmed is on disk; `released` wakes readers."""
        self._catalog = catalog
        self._staging = staging
        self._streams = streams
        self._ends = ends
        self._submit = submit
        self._synced = synced
        self._released = released
        self._clock = clock
        self._batch_bytes = batch_bytes
        self._record_bytes_max = record_bytes_max
        self._turn = threading.Condition()
        self._busy: set[int] = set()
        self._writers_busy: set[str] = set()
        self._closed = False
        self._failed: dict[str, set[int]] = {}
        """Writers whose publication is noted, begun and not finished, and what it holds."""
        self._last: dict[str, PublicationRow] = {}
        self._next_id = catalog.get_int("publish_id")
        for row in catalog.publications():
            self._last[row.writer] = row

    def close(self) -> None:
        """Let nobody wait for a turn any more."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()

    # -- staging ---------------------------------------------------------------------------------

    def stage(self, writer: str, epoch: int) -> Stage:
        _check_epoch(epoch)
        return self._staging.begin(writer, epoch, self._batch_bytes, self._check)

    def _check(self, batch: pa.RecordBatch) -> None:
        """Raise if these records could not be appended."""
        records = record_columns(batch)
        if records.largest > self._record_bytes_max:
            raise RecordTooLarge(
                f"a record of {records.largest} bytes is too large: at most "
                f"{self._record_bytes_max} (record_bytes_max)"
            )
        topics, which = topics_of(batch)
        wished = batch.column("partition")
        numbers = wished.fill_null(0).to_numpy()
        for code, topic in enumerate(topics):
            count = len(self._streams.get(topic).partitions)
            own = numbers[which == code]
            if own.min() < 0 or own.max() >= count:
                wrong = int(own.min() if own.min() < 0 else own.max())
                raise UnknownPartition(
                    f"stream {topic!r} has no partition {wrong}: it has 0 to {count - 1}"
                )

    def discard(self, writer: str, epoch: int) -> None:
        with self._writer_turn(writer):
            row = self._last.get(writer)
            if row is None or row.unfinished is None or row.epoch != epoch:
                self._staging.remove(writer, lambda part: part.epoch == epoch)

    def tidy(self) -> None:
        """Finish what a full disk interrupted, remove what was staged long ago."""
        for writer in list(self._failed):
            with contextlib.suppress(PenstockError), self._writer_turn(writer):
                self._finish_interrupted(writer)
        with self._turn:
            keep = {*self._failed, *self._writers_busy}
        self._staging.remove_old(self._clock() - int(limits.STAGED_S_MAX * 1e6), keep)

    # -- publishing ------------------------------------------------------------------------------

    def publish(self, writer: str, epoch: int, parts: Sequence[str]) -> Published:
        _check_epoch(epoch)
        if len(parts) > limits.PUBLISHED_PARTS_MAX:
            raise TooMany(f"{len(parts)} parts: at most {limits.PUBLISHED_PARTS_MAX}")
        with self._writer_turn(writer):
            self._finish_interrupted(writer)
            row = self._last.get(writer)
            if row is not None and row.epoch >= epoch:
                done = row.epoch
                self._staging.remove(writer, lambda part: part.epoch <= done)
                return Published(0, already=True)
            found = self._parts(writer, epoch, parts)
            pids = self._pids(writer, found)
            rows = sum(part.rows for part in found)
            with self._partitions_turn(pids):
                self._begin(writer, epoch, [part.name for part in found], pids, rows)
                self._finish(writer)
            return Published(rows, already=False)

    def recover(self) -> int:
        """Finish what a crash interrupted; returns how many publications that were."""
        interrupted = [row.writer for row in self._last.values() if row.unfinished is not None]
        for writer in interrupted:
            self._finish(writer)
        return len(interrupted)

    def _finish_interrupted(self, writer: str) -> None:
        if self._failed.pop(writer, None) is not None:
            self._finish(writer)

    def _parts(self, writer: str, epoch: int, names: Sequence[str]) -> list[Part]:
        staged = {part.name: part for part in self._staging.parts(writer)}
        found = []
        for name in names:
            part = staged.get(name)
            if part is None or part.epoch != epoch:
                raise StagedMissing(
                    f"{name!r:.200} is not staged for epoch {epoch} of {writer!r:.200}: write the "
                    "epoch again, then publish that"
                )
            found.append(part)
        if len({part.name for part in found}) < len(found):
            raise BadBatch("a part is named twice")
        return found

    def _pids(self, writer: str, parts: list[Part]) -> dict[str, list[int]]:
        """The partitions of every stream that the parts go to. Reads, and so checks, the parts."""
        topics: set[str] = set()
        for part in parts:
            for batch in self._staging.read(writer, part):
                topics.update(topics_of(batch)[0])
        return {topic: self._streams.get(topic).pids for topic in sorted(topics)}

    def _begin(
        self, writer: str, epoch: int, parts: list[str], pids: dict[str, list[int]], rows: int
    ) -> None:
        self._forget_old()
        with self._turn:
            first_id, self._next_id = self._next_id + 1, self._next_id + rows
            next_id = self._next_id
        note = msgspec.json.encode(Unfinished(parts, pids, first_id))
        row = PublicationRow(writer, epoch, self._clock(), note)
        self._catalog.begin_publication(row, next_id)
        self._last[writer] = row
        self._ends.hold(_flat(pids))

    def _finish(self, writer: str) -> None:
        """Do what was noted. What fails stays noted, and keeps its partitions held."""
        row = self._last[writer]
        assert row.unfinished is not None
        work = msgspec.json.decode(row.unfinished, type=Unfinished)
        pids = _flat(work.pids)
        try:
            self._append(writer, work)
            self._synced()
            self._catalog.end_publication(writer)
        except BaseException:
            self._failed[writer] = set(pids)
            raise
        self._last[writer] = row._replace(unfinished=None)
        self._ends.release(pids)
        self._released(np.array(pids, np.uint32))
        done = row.epoch
        self._staging.remove(writer, lambda part: part.epoch <= done)

    def _append(self, writer: str, work: Unfinished) -> None:
        receipts: deque[Receipt] = deque()
        next_id = work.first_id
        for name in work.parts:
            part = Part.parse(name)
            assert part is not None
            keyless = part.crc
            for batch in self._staging.read(writer, part):
                ids = np.arange(next_id, next_id + batch.num_rows, dtype=np.uint64)
                next_id += batch.num_rows
                keyless += 1
                targets, alive = self._targets(batch, work.pids, keyless)
                if not alive.all():  # of streams deleted meanwhile
                    batch = batch.filter(pa.array(alive))
                    targets, ids = targets[alive], ids[alive]
                if len(ids):
                    sequence = Sequenced(PRODUCER, ids, drop_resent=True)
                    receipts.append(self._submit(targets, record_columns(batch), sequence))
                while len(receipts) > _OUTSTANDING:
                    _settled(receipts.popleft())
        while receipts:
            _settled(receipts.popleft())

    def _targets(
        self, batch: pa.RecordBatch, pids: dict[str, list[int]], keyless: int
    ) -> tuple[Pids, NDArray[np.bool_]]:
        """Where each row goes, and whether that is still there."""
        topics, which = topics_of(batch)
        wished = batch.column("partition")
        chosen: Pids = np.zeros(batch.num_rows, np.uint32)
        for code, topic in enumerate(topics):
            own = np.array(pids[topic], np.uint32)
            if len(topics) == 1 and len(own) == 1:
                chosen[:] = own[0]
                continue
            rows = np.flatnonzero(which == code)
            numbers = wished.take(pa.array(rows))
            if numbers.null_count:
                keys = batch.column("key").take(pa.array(rows)).to_pylist()
                by_key = pa.array(partitions_of(keys, len(own), keyless % len(own)), pa.int32())
                numbers = pc.coalesce(numbers, by_key)
            chosen[rows] = own[numbers.to_numpy()]
        return chosen, self._ends.alive[chosen]

    def _forget_old(self) -> None:
        """Make room for one more writer."""
        if len(self._last) < limits.PUBLICATIONS_MAX:
            return
        before = self._clock() - int(limits.PUBLICATION_KEPT_S * 1e6)
        old = [row for row in self._last.values() if row.at < before and row.unfinished is None]
        if not old:
            raise TooMany(
                f"{len(self._last)} writers published within the last days, at most "
                f"{limits.PUBLICATIONS_MAX}: give writers names that stay"
            )
        self._catalog.forget_publications(row.writer for row in old)
        for row in old:
            del self._last[row.writer]

    # -- turns -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _writer_turn(self, writer: str) -> Iterator[None]:
        """One publication of a writer at a time."""
        with self._turn:
            while writer in self._writers_busy:
                self._wait()
            self._writers_busy.add(writer)
        try:
            yield
        finally:
            with self._turn:
                self._writers_busy.discard(writer)
                self._turn.notify_all()

    @contextlib.contextmanager
    def _partitions_turn(self, pids: dict[str, list[int]]) -> Iterator[None]:
        """One publication in a partition at a time, since an end is held for one only."""
        wanted = set(_flat(pids))
        while True:
            self._finish_failed(wanted)
            with self._turn:
                while wanted & self._busy:
                    self._wait()
                if not any(self._ends.held(pid) is not None for pid in wanted):
                    self._busy |= wanted
                    break
        try:
            yield
        finally:
            with self._turn:
                self._busy -= wanted
                self._turn.notify_all()

    def _finish_failed(self, wanted: set[int]) -> None:
        """Finish what could not be finished when it was tried, and holds partitions."""
        for writer, pids in list(self._failed.items()):
            if wanted & pids:
                with self._writer_turn(writer):
                    self._finish_interrupted(writer)

    def _wait(self) -> None:
        if self._closed:
            raise LogClosed("the log is closed: open it again")
        self._turn.wait()


def _check_epoch(epoch: int) -> None:
    if not 0 <= epoch <= _EPOCH_MAX:
        raise BadBatch(f"epoch {epoch} is out of range: it must be from 0 to {_EPOCH_MAX}")


def _flat(pids: dict[str, list[int]]) -> list[int]:
    return [pid for own in pids.values() for pid in own]


def _settled(receipt: Receipt) -> None:
    with contextlib.suppress(UnknownStream):  # deleted meanwhile: its records with it
        receipt.result()
