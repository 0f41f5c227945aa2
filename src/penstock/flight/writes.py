"""Writing through Flight: batches appended with a confirmation each, or staged."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from numpy.typing import NDArray

from penstock import limits
from penstock.errors import (
    BadBatch,
    BadFormat,
    BatchTooLarge,
    LogClosed,
    LogError,
    PenstockError,
)
from penstock.flight import wire
from penstock.flight.requests import Append, Staging
from penstock.hub.users import User, require
from penstock.log import Batch, Receipt

if TYPE_CHECKING:
    from penstock.hub.hub import Hub

Ids = NDArray[np.uint64]
logger = structlog.get_logger("penstock.flight")


class Appending:
    """One call that appends. Confirmations are written by a thread of their own, in order.

    So the client may wait for each, or send on; and at most `FLIGHT_UNCONFIRMED_MAX` batches are
    on their way to the disk.
    """

    def __init__(self, hub: Hub, asked: Append, writer: Any, stopping: threading.Event) -> None:
        self._hub = hub
        self._asked = asked
        self._writer = writer
        self._stopping = stopping
        self._next_id = asked.first_id
        self._pending: queue.Queue[_Pending | None] = queue.Queue(limits.FLIGHT_UNCONFIRMED_MAX)
        self._failed: PenstockError | None = None
        if asked.first_id is not None and asked.producer is None:
            raise BadFormat("first_id needs a producer: whose ids are they?")
        if asked.partition is not None:
            hub.log.locate(asked.stream, asked.partition)
        else:
            hub.log.all_bounds(asked.stream)

    def run(self, reader: Any) -> None:
        """Append all batches; returns when all of them are confirmed."""
        confirming = threading.Thread(target=self._confirm_all, name="penstock-flight-confirm")
        confirming.start()
        try:
            while True:
                chunk = next_chunk(reader)
                if chunk is None:
                    break
                if self._failed is not None:
                    break
                if self._stopping.is_set():
                    raise LogClosed("the hub is stopping: send it again when it is back")
                if chunk.data is not None:
                    self._pending.put(self._take(chunk.data))
        finally:
            self._pending.put(None)
            confirming.join()
        if self._failed is not None:
            raise self._failed

    def _take(self, rows: pa.RecordBatch) -> _Pending:
        """Hand a batch to the log."""
        check_batch(rows)
        ids: Ids | None = None
        if "id" in rows.schema.names:
            if self._next_id is not None:
                raise BadFormat("first_id and a column of ids exclude each other: give one")
            ids = _ids(rows.column("id"))
            rows = rows.drop_columns(["id"])
        elif self._next_id is not None:
            if self._next_id + rows.num_rows > 2**64:
                raise BadFormat(f"ids from {self._next_id} on would exceed 64 bits")
            ids = np.arange(rows.num_rows, dtype=np.uint64) + np.uint64(self._next_id)
            self._next_id += rows.num_rows
        pending = _Pending()
        if rows.num_rows:
            self._submit(rows, ids, pending)
        return pending

    def _submit(self, rows: pa.RecordBatch, ids: Ids | None, pending: _Pending) -> None:
        log, asked = self._hub.log, self._asked
        try:
            batch = Batch.from_table(rows)
            if asked.partition is None:
                target = log.choose_partitions(asked.stream, batch, asked.producer)
            else:
                target = log.locate(asked.stream, asked.partition)
            receipt = log.submit(
                target,
                batch,
                producer=asked.producer,
                ids=ids,
                drop_resent=asked.producer is not None and asked.drop_resent,
                wait_for_room=True,
            )
        except BatchTooLarge:
            if rows.num_rows < 2:
                raise
            half = rows.num_rows // 2
            self._submit(rows.slice(0, half), None if ids is None else ids[:half], pending)
            self._submit(rows.slice(half), None if ids is None else ids[half:], pending)
        else:
            pending.receipts.append(receipt)
            pending.nbytes += batch.nbytes

    def _confirm_all(self) -> None:
        """Goes on to the end even if the client does not listen: what was taken is counted."""
        listening = True
        told: dict[str, Any] = {}
        while (pending := self._pending.get()) is not None:
            if self._failed is not None:
                continue
            try:
                told = self._outcome(pending)
            except PenstockError as error:
                self._failed = error
            except Exception:
                logger.exception("a batch was not confirmed")
                self._failed = LogError("this is a bug in Penstock; its log has the details")
            if self._failed is not None:
                told = {"error": wire.error_body(self._failed)}
            if listening:
                try:
                    self._writer.write(wire.encode(told))
                except (pa.ArrowException, OSError):
                    listening = False

    def _outcome(self, pending: _Pending) -> dict[str, Any]:
        log = self._hub.log
        done = [receipt.result() for receipt in pending.receipts]
        records = sum(each.count for each in done)
        self._hub.metrics.appended("flight", self._asked.stream, records, pending.nbytes)
        runs = [
            (log.partition_number(pid), first, count)
            for each in done
            for pid, first, count in each.runs()
        ]
        dropped = sum(each.dropped for each in done)
        return {"records": records, "dropped": dropped, "runs": runs}


class _Pending:
    """A batch on its way to the disk: usually one receipt, more if it had to be divided."""

    __slots__ = ("nbytes", "receipts")

    def __init__(self) -> None:
        self.receipts: list[Receipt] = []
        self.nbytes = 0


def stage(
    hub: Hub, asked: Staging, user: User, reader: Any, writer: Any, stopping: threading.Event
) -> None:
    """Stage all batches, and name the part. Until the client says so, it is not all."""
    staging = hub.log.stage(asked.writer, asked.epoch)
    with contextlib.ExitStack() as undo:
        undo.callback(staging.cancel)
        allowed: set[str] = set()
        while (chunk := next_chunk(reader)) is not None:
            if stopping.is_set():
                raise LogClosed("the hub is stopping: send it again when it is back")
            if chunk.data is not None:
                check_batch(chunk.data)
                _check_topics(chunk.data, user, allowed)
                staging.write(chunk.data)
            elif chunk.app_metadata is not None and chunk.app_metadata == wire.FINISH:
                part = staging.finish()
                undo.pop_all()
                # One that is gone will stage it again.
                with contextlib.suppress(pa.ArrowException, OSError):
                    writer.write(wire.encode({"part": part}))
                return


def _check_topics(batch: pa.RecordBatch, user: User, allowed: set[str]) -> None:
    """The user needs the right to write to every stream named."""
    if "topic" not in batch.schema.names:
        raise BadBatch(f"the columns are {batch.schema.names}: topic and value are needed")
    column = batch.column("topic")
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise BadBatch(f"the topics are {column.type}: they must be strings")
    for name in pc.unique(column).to_pylist():
        if name not in allowed:
            if name is None:
                raise BadBatch("a topic is null: every record needs one")
            require(user, "write", name)
            allowed.add(name)


def next_chunk(reader: Any) -> Any | None:
    """The next message; None at the end."""
    try:
        return reader.read_chunk()
    except StopIteration:
        return None
    except (pa.ArrowException, OSError) as error:
        raise BadFormat(f"a message is not an Arrow batch: {error}") from None


def check_batch(batch: pa.RecordBatch) -> None:
    """Raise unless what came over the network is whole, and not too large."""
    if len(set(batch.schema.names)) < len(batch.schema.names):
        raise BadBatch(f"the columns are {batch.schema.names}: a name stands there twice")
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise BadFormat(f"a batch is not valid Arrow: {error}") from None
    if batch.nbytes > limits.FLIGHT_BATCH_BYTES_MAX:
        raise BatchTooLarge(
            f"a batch of {batch.nbytes} bytes is too large: at most "
            f"{limits.FLIGHT_BATCH_BYTES_MAX}; send it in parts"
        )


def _ids(column: pa.Array) -> Ids:
    try:
        array = column.cast(pa.uint64())
    except pa.ArrowException:
        array = None
    if array is None or array.null_count:
        raise BadBatch("ids must be whole numbers from 0 to 2**64 - 1, one for each record")
    ids: Ids = array.to_numpy(zero_copy_only=False)
    return ids
