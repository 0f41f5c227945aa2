"""Sending batches to the hub through one Flight call: to append them, or to stage them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import pyarrow as pa

from penstock import limits
from penstock.errors import BadBatch, HubUnreachable, LogClosed, RemoteError
from penstock.flight import wire
from penstock.flight.wire import Appended, Run

Begin = Callable[[Mapping[str, Any], pa.Schema], tuple[Any, Any, Any]]
_UNANSWERED_MAX = limits.FLIGHT_UNCONFIRMED_MAX


class _Put:
    """One call that sends batches. It begins with the first of them."""

    def __init__(self, begin: Begin, command: Mapping[str, Any]) -> None:
        self._begin = begin
        self._command = command
        self._writer: Any = None
        self._answers: Any = None
        self._told: Any = contextlib.nullcontext
        self._closed = False

    def _send(self, batch: pa.RecordBatch) -> None:
        if self._closed:
            raise LogClosed("this writer is closed: make a new one")
        if self._writer is None:
            self._open(batch.schema)
        with self._told():
            self._writer.write_batch(batch)

    def _open(self, schema: pa.Schema) -> None:
        self._writer, self._answers, self._told = self._begin(self._command, schema)

    def _answer(self) -> dict[str, Any]:
        """The hub's next answer, or the error it ended the call with."""
        with self._told():
            body = self._answers.read()
            if body is None:
                self._writer.close()  # raises why
        if body is None:
            raise HubUnreachable("the hub ended the call without an answer: send it again")
        told = wire.decode(body)
        if "error" in told:
            raise wire.from_body(told["error"])
        return told

    def _finish(self) -> None:
        if self._writer is not None and not self._closed:
            self._closed = True
            with self._told():
                self._writer.done_writing()
                self._writer.close()
        self._closed = True

    def _break(self) -> None:
        """End the call without looking at its outcome."""
        self._closed = True
        if self._writer is not None:
            with contextlib.suppress(pa.ArrowException, OSError):
                self._writer.close()


class Appender(_Put):
    """Appends batches without waiting for each. Leaving the context waits for all."""

    def __init__(
        self,
        begin: Begin,
        command: Mapping[str, Any],
        on_confirmed: Callable[[Appended], None] | None = None,
    ) -> None:
        super().__init__(begin, command)
        self._on_confirmed = on_confirmed
        self._unanswered = 0
        self.confirmed = Appended(0, 0, ())
        """What is on disk so far; its runs are those since the last `flush`."""

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Send a batch; waits only while many are not confirmed yet. All have the same columns."""
        for part in _parts(batch):
            self._send(part)
            self._unanswered += 1
            if self._unanswered >= _UNANSWERED_MAX:
                self._confirm()

    def flush(self) -> Appended:
        """Wait until all is on disk; returns what was stored since the last flush."""
        while self._unanswered:
            self._confirm()
        told, self.confirmed = self.confirmed, Appended(0, 0, ())
        return told

    def close(self) -> None:
        """Wait until all is on disk, and end the call."""
        if not self._closed:
            while self._unanswered:
                self._confirm()
            self._finish()

    def _confirm(self) -> None:
        told = self._answer()
        self._unanswered -= 1
        runs = tuple(Run(*each) for each in told["runs"])
        one = Appended(told["records"], told["dropped"], runs)
        before = self.confirmed
        self.confirmed = Appended(
            before.records + one.records, before.dropped + one.dropped, before.runs + one.runs
        )
        if self._on_confirmed is not None:
            self._on_confirmed(one)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._break()


class Stager(_Put):
    """Stages batches. Without `finish`, leaving the context cancels."""

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Send a batch with the columns of `wire.STAGED`."""
        for part in _parts(batch):
            self._send(part)

    def finish(self) -> str:
        """Wait until all is on disk; returns the name of the part, for `publish`."""
        if self._closed:
            raise LogClosed("this writer is closed: make a new one")
        if self._writer is None:
            self._open(wire.STAGED)
        with self._told():
            self._writer.write_metadata(wire.FINISH)
        told = self._answer()
        self._finish()
        if not isinstance(told.get("part"), str):
            raise RemoteError("the hub did not name the part: is it another version?")
        return str(told["part"])

    def cancel(self) -> None:
        """Forget what was sent."""
        if not self._closed:
            self._break()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


def _parts(batch: pa.RecordBatch | pa.Table) -> Iterator[pa.RecordBatch]:
    """The batch in parts of at most about `FLIGHT_PUT_BYTES`."""
    if not isinstance(batch, pa.RecordBatch | pa.Table):
        raise BadBatch(f"{type(batch).__name__} cannot be sent: give a RecordBatch or a Table")
    batches = batch.to_batches() if isinstance(batch, pa.Table) else [batch]
    for each in batches:
        count = -(-each.nbytes // limits.FLIGHT_PUT_BYTES)
        step = max(1, -(-each.num_rows // max(count, 1)))
        for start in range(0, each.num_rows, step):
            yield each.slice(start, step)
