"""Judges of a log: was everything kept that it confirmed, and nothing else?

A `Ledger` is told what was tried and what was confirmed; `check_log` compares it with what the log
gives back. It shares no code with the log and trusts nothing the log says about itself.

    ledger = Ledger()
    attempt = ledger.sending("orders", 0, [b"a", b"b"])
    ledger.confirmed(attempt, log.append("orders", Batch.of([b"a", b"b"]), 0).indexes())
    ...                                                     # crash, open again
    check_log(log, ledger)

Each value must be sent once only (or again under the same producer id), so that it can be told
apart from all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.log import Log

Place = tuple[str, int]
"""Stream and partition."""

Headers = Sequence[tuple[str, bytes]]


class CheckFailed(AssertionError):
    """The log broke its promise. `problems` says how, one sentence each."""

    def __init__(self, problems: Sequence[str]) -> None:
        shown = "\n  ".join(problems[:20])
        more = f"\n  and {len(problems) - 20} more" if len(problems) > 20 else ""
        super().__init__(f"the log broke its promise:\n  {shown}{more}")
        self.problems = list(problems)


class Record(NamedTuple):
    """One record of an attempt. What is None was not given, and is not compared."""

    partition: int
    value: bytes
    key: bytes | None = None
    timestamp: int | None = None
    headers: Headers = ()
    id: int | None = None


class Attempt:
    """One batch that was, or would have been, appended."""

    def __init__(
        self, stream: str, records: list[Record], producer: str | None, drop_resent: bool
    ) -> None:
        self.stream = stream
        self.records = records
        self.producer = producer
        self.drop_resent = drop_resent
        self.state: Literal["unknown", "confirmed", "refused"] = "unknown"
        self.indexes: list[int] = [-1] * len(records)
        """Where each record is; -1: nowhere, or stored by an earlier attempt."""

    def __repr__(self) -> str:
        first = self.records[0].value[:24]
        return f"<{self.state} batch of {len(self.records)} to {self.stream}, first {first!r}>"


class Report(NamedTuple):
    """What `check_log` saw."""

    records: int
    confirmed: int
    """Records that had been confirmed before, and are there."""
    adopted: int
    """Records that had not been confirmed, and were found whole: they count from now on."""


class Ledger:
    """All that was tried and all that was confirmed."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self._streams: dict[str, Literal["creating", "there", "deleting", "gone"]] = {}
        self._trims: dict[Place, tuple[int, int]] = {}
        self._positions: dict[tuple[str, str, int], tuple[int | None, int]] = {}

    def fingerprint(self) -> str:
        """The same for ledgers that ask the same of a log."""
        attempts = [(each.state, each.indexes, each.records) for each in self.attempts]
        return repr((attempts, self._streams, self._trims, self._positions))

    # -- streams ---------------------------------------------------------------------------------

    def creating(self, stream: str) -> None:
        """A stream is about to be made."""
        self._streams[stream] = "creating"

    def created(self, stream: str) -> None:
        self._streams[stream] = "there"

    def deleting(self, stream: str) -> None:
        """A stream is about to be deleted: from now on it may be there or not."""
        self._streams[stream] = "deleting"

    def deleted(self, stream: str) -> None:
        """A stream is gone, and all its records with it."""
        self._streams[stream] = "gone"
        self.attempts = [each for each in self.attempts if each.stream != stream]
        self._trims = {place: v for place, v in self._trims.items() if place[0] != stream}
        self._positions = {key: v for key, v in self._positions.items() if key[1] != stream}

    # -- appends ---------------------------------------------------------------------------------

    def sending(
        self,
        stream: str,
        partitions: int | Sequence[int],
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
        producer: str | None = None,
        ids: Sequence[int] | None = None,
        drop_resent: bool = False,
    ) -> Attempt:
        """A batch is about to be appended; say so before it is handed over."""
        count = len(values)
        places = [partitions] * count if isinstance(partitions, int) else list(partitions)
        records = [
            Record(
                places[row],
                values[row],
                None if keys is None else keys[row],
                None if timestamps is None else timestamps[row],
                () if headers is None else headers[row],
                None if ids is None else ids[row],
            )
            for row in range(count)
        ]
        attempt = Attempt(stream, records, producer, drop_resent)
        self.attempts.append(attempt)
        return attempt

    def confirmed(self, attempt: Attempt, indexes: Iterable[int]) -> None:
        """The log gave these indexes; -1 for a record it had before."""
        attempt.state = "confirmed"
        attempt.indexes = [int(index) for index in indexes]

    def refused(self, attempt: Attempt) -> None:
        """The log said that it stored nothing of it."""
        attempt.state = "refused"

    # -- positions and trims ---------------------------------------------------------------------

    def saving(self, group: str, stream: str, partition: int, position: int) -> None:
        """A position is about to be saved."""
        before, _ = self._positions.get((group, stream, partition), (None, 0))
        self._positions[group, stream, partition] = before, position

    def saved(self, group: str, stream: str, partition: int) -> None:
        """The position told to `saving` is saved."""
        _, position = self._positions[group, stream, partition]
        self._positions[group, stream, partition] = position, position

    def trimming(self, stream: str, partition: int, before: int) -> None:
        """Records below `before` may go from now on."""
        least, most = self._trims.get((stream, partition), (0, 0))
        self._trims[stream, partition] = least, max(most, before)

    def trimmed(self, stream: str, partition: int, earliest: int) -> None:
        """Records below `earliest` are gone for good."""
        _, most = self._trims.get((stream, partition), (0, 0))
        self._trims[stream, partition] = earliest, max(most, earliest)


def check_log(log: Log, ledger: Ledger, *, records_per_read: int = 65_536) -> Report:
    """Prove that `log` holds what `ledger` says, or raise `CheckFailed`.

    Every confirmed record is there once, at its index, in order; indexes are dense; every record
    was sent, and is as it was sent; batches are whole; producers' last ids and groups' positions
    are never ahead of the records. A batch whose fate was unknown is settled by this: if it was
    found it must be there from now on, else it must never appear.
    """
    return _Check(log, ledger, records_per_read).run()


class _Check:
    def __init__(self, log: Log, ledger: Ledger, records_per_read: int) -> None:
        self._log = log
        self._ledger = ledger
        self._per_read = records_per_read
        self._problems: list[str] = []
        self._found: dict[bytes, tuple[Place, int]] = {}
        self._last: dict[tuple[str, Place], int] = {}
        self._bounds: dict[Place, tuple[int, int]] = {}
        self._adopted = 0
        self._confirmed = 0
        self._records = 0

    def run(self) -> Report:
        self._check_streams()
        sent = {
            record.value: (attempt, record)
            for attempt in self._ledger.attempts
            for record in attempt.records
        }
        for stream in self._log.streams():
            for partition in self._log.describe(stream).partitions:
                self._read((stream, partition.number), sent)
        known: set[bytes] = set()
        for attempt in self._ledger.attempts:
            if attempt.stream in self._streams_there():
                self._check_attempt(attempt, known)
            known.update(record.value for record in attempt.records)
        self._check_producers()
        self._check_positions()
        if self._problems:
            raise CheckFailed(self._problems)
        return Report(self._records, self._confirmed, self._adopted)

    def _wrong(self, problem: str) -> None:
        self._problems.append(problem)

    def _streams_there(self) -> set[str]:
        return {place[0] for place in self._bounds}

    def _check_streams(self) -> None:
        there = set(self._log.streams())
        for stream, state in list(self._ledger._streams.items()):
            if state == "there" and stream not in there:
                self._wrong(f"stream {stream} was made, and is not there")
            elif state == "gone" and stream in there:
                self._wrong(f"stream {stream} was deleted, and is there")
            elif state in ("creating", "deleting"):
                if stream in there:
                    self._ledger.created(stream)
                else:
                    self._ledger.deleted(stream)
        for stream in there - self._ledger._streams.keys():
            self._wrong(f"stream {stream} was never made")

    # -- records ---------------------------------------------------------------------------------

    def _read(self, place: Place, sent: dict[bytes, tuple[Attempt, Record]]) -> None:
        earliest, end = self._log.bounds(*place)
        self._bounds[place] = earliest, end
        least, most = self._ledger._trims.get(place, (0, 0))
        if not least <= earliest <= most:
            self._wrong(f"{place} begins at {earliest}: it was trimmed to {least}..{most}")
        index = earliest
        try:
            while index < end:
                batches = self._log.read(*place, index, max_records=self._per_read)
                if not batches:
                    self._wrong(f"{place} gives nothing at {index}, its end is {end}")
                    return
                for batch in batches:
                    for row in _rows(batch):
                        self._take(place, index, row, sent)
                        index += 1
        except PenstockError as error:
            self._wrong(f"{place} cannot be read at {index}: {error}")

    def _take(
        self,
        place: Place,
        index: int,
        row: tuple[int, bytes, bytes | None, int, Headers],
        sent: dict[bytes, tuple[Attempt, Record]],
    ) -> None:
        given, value, key, timestamp, headers = row
        self._records += 1
        where = f"{place[0]}/{place[1]} index {index}"
        if given != index:
            self._wrong(f"{where}: the record says it is {given}")
        if value in self._found:
            self._wrong(f"{where}: {value[:40]!r} is also at {self._found[value]}")
        self._found[value] = place, index
        origin = sent.get(value)
        if origin is None:
            self._wrong(f"{where}: {value[:40]!r} was never sent")
            return
        attempt, record = origin
        if (attempt.stream, record.partition) != place:
            self._wrong(f"{where}: {value[:40]!r} was sent to {attempt.stream}/{record.partition}")
        if key != record.key or list(headers) != list(record.headers):
            self._wrong(f"{where}: key or headers of {value[:40]!r} are not as sent")
        if record.timestamp is not None and timestamp != record.timestamp:
            self._wrong(f"{where}: the timestamp is {timestamp}, sent was {record.timestamp}")
        if attempt.producer is not None and record.id is not None:
            before = self._last.get((attempt.producer, place))
            if before is not None and record.id <= before:
                self._wrong(f"{where}: id {record.id} of {attempt.producer} comes after {before}")
            self._last[attempt.producer, place] = record.id

    def _check_attempt(self, attempt: Attempt, known: set[bytes]) -> None:
        """`known` are the values of earlier attempts."""
        if attempt.state == "confirmed":
            for record, index in zip(attempt.records, attempt.indexes, strict=True):
                self._check_confirmed(attempt, record, index)
            return
        own = [
            row
            for row, record in enumerate(attempt.records)
            if not (attempt.drop_resent and record.value in known)
            and not self._is_trimmed(attempt, record)
        ]
        found = [row for row in own if attempt.records[row].value in self._found]
        if attempt.state == "refused":
            if found:
                self._wrong(f"{attempt} is stored")
            return
        if found and len(found) < len(own):
            self._wrong(f"{attempt}: only {len(found)} of {len(own)} records are stored")
            return
        attempt.state = "confirmed" if found else "refused"
        self._adopted += len(found)
        ends: dict[int, int] = {}
        for row in found:
            record = attempt.records[row]
            index = self._found[record.value][1]
            if ends.setdefault(record.partition, index) != index:
                self._wrong(f"{attempt}: its records do not lie side by side")
            ends[record.partition] = index + 1
            attempt.indexes[row] = index

    def _is_trimmed(self, attempt: Attempt, record: Record) -> bool:
        """Whether the record may be missing because it was trimmed."""
        place = attempt.stream, record.partition
        return record.value not in self._found and self._bounds.get(place, (0, 0))[0] > 0

    def _check_confirmed(self, attempt: Attempt, record: Record, index: int) -> None:
        place = attempt.stream, record.partition
        found = self._found.get(record.value)
        if index < 0:  # stored by an earlier attempt, which is checked itself, or dropped for good
            return
        if index < self._bounds.get(place, (0, 0))[0]:
            return
        if found is None:
            self._wrong(
                f"{attempt}: {record.value[:40]!r} was confirmed at {place} {index}, and is lost"
            )
        elif found != (place, index):
            self._wrong(f"{attempt}: confirmed at {place} {index}, and is at {found}")
        else:
            self._confirmed += 1

    # -- how far producers and groups got --------------------------------------------------------

    def _check_producers(self) -> None:
        tried: dict[tuple[str, Place], set[int]] = {}
        for attempt in self._ledger.attempts:
            if attempt.producer is None:
                continue
            for record in attempt.records:
                place = attempt.stream, record.partition
                if record.id is not None:
                    tried.setdefault((attempt.producer, place), set()).add(record.id)
        for (producer, place), ids in tried.items():
            if place not in self._bounds:
                continue
            said = self._log.last_id(producer, *place)
            stored = self._last.get((producer, place))
            trimmed = self._bounds[place][0] > 0
            if stored is not None:
                if said != stored:
                    self._wrong(f"{producer} at {place}: last id {said}, last stored is {stored}")
            elif said is not None and not (trimmed and said in ids):
                self._wrong(f"{producer} at {place}: last id {said}, and no such record is stored")

    def _check_positions(self) -> None:
        for key, (least, most) in list(self._ledger._positions.items()):
            group, stream, partition = key
            bounds = self._bounds.get((stream, partition))
            if bounds is None:
                continue
            said = self._log.position(group, stream, partition)
            if said not in (least, most):
                self._wrong(f"{key} is at {said}; saved was {least}, then perhaps {most}")
            elif said is not None and said > bounds[1]:
                self._wrong(f"{key} is at {said}, ahead of the end {bounds[1]}")
            elif said is not None:
                self._ledger._positions[key] = said, said
            else:
                del self._ledger._positions[key]


def _rows(batch: Any) -> Iterable[tuple[int, bytes, bytes | None, int, Headers]]:
    """Index, value, key, timestamp and headers of each record of an Arrow batch."""
    headers = [
        [(each["name"], each["value"]) for each in row or ()]
        for row in batch.column("headers").to_pylist()
    ]
    return zip(
        batch.column("index").to_pylist(),
        batch.column("value").to_pylist(),
        batch.column("key").to_pylist(),
        batch.column("timestamp").view(pa.int64()).to_pylist(),
        headers,
        strict=True,
    )
