"""The whole log against a model of it that is simple enough to be right.

Hypothesis tries sequences of everything a log can do, and of what can befall it: closing, and being
left behind as it is on disk. `PENSTOCK_MODEL_EXAMPLES=2000` looks for longer, at random.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock import limits
from penstock.errors import IndexOutOfRange, IndexTrimmed, PositionBackwards
from penstock.log import Batch, EmbeddedLog, ResetTo, StreamSettings, open_log, small_log
from tests.records import indexes, rows

SMALLEST = small_log(
    journal_bytes=limits.JOURNAL_BYTES_MIN,
    checkpoint_bytes=128 * limits.KIB,
    buffer_bytes=limits.MIB,
    record_bytes_max=8 * limits.KIB,
)
NAMES = ("a", "b", "c.d")
GROUPS = ("g", "h")
PRODUCERS = ("p", "q")
FIRST_TIME = 1_700_000_000_000_000

names = st.sampled_from(NAMES)
groups = st.sampled_from(GROUPS)
fractions = st.floats(0, 1)
sizes = st.sampled_from([0, 1, 7, 100, 1_000, 6_000])
stream_settings = st.builds(
    StreamSettings,
    segment_bytes=st.sampled_from([limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_DEFAULT]),
    compression=st.sampled_from(["lz4", "zstd", "none"]),
    retention_records=st.sampled_from([None, None, 20]),
)


class Partition:
    def __init__(self) -> None:
        self.earliest = 0
        self.records: list[dict[str, Any]] = []
        self.last_ids: dict[str, int] = {}
        self.positions: dict[str, int] = {}

    @property
    def end(self) -> int:
        return len(self.records)

    def place(self, fraction: float) -> int:
        """An index that exists, or the end."""
        return self.earliest + round(fraction * (self.end - self.earliest))

    def held_at(self, registered: set[str]) -> int:
        """Below this, nobody who is registered needs anything."""
        return min((self.positions.get(group, 0) for group in registered), default=self.end)


class Stream:
    def __init__(self, chosen: StreamSettings, partitions: int) -> None:
        self.settings = chosen
        self.partitions = [Partition() for _ in range(partitions)]
        self.registered: set[str] = set()
        self.members: set[str] = set()


class LogAndModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.top = Path(tempfile.mkdtemp(prefix="penstock-model-"))
        self.data = self.top / "0"
        self.streams: dict[str, Stream] = {}
        self.now = FIRST_TIME
        self.written = 0
        self.copies = 0
        self.log: EmbeddedLog = self.open()

    def open(self) -> EmbeddedLog:
        return open_log(self.data, SMALLEST, writer="inline", clock=lambda: self.now)

    def teardown(self) -> None:
        try:
            self.read_everything()
            self.close_and_open()
        finally:
            self.log.close()
            shutil.rmtree(self.top)

    def pick(self, data: st.DataObject) -> tuple[str, int, Partition]:
        """A partition that exists."""
        name = data.draw(st.sampled_from(sorted(self.streams)), label="stream")
        count = len(self.streams[name].partitions)
        number = data.draw(st.integers(0, count - 1), label="partition")
        return name, number, self.streams[name].partitions[number]

    # -- streams ---------------------------------------------------------------------------------

    @rule(name=names, partitions=st.integers(1, 3), chosen=stream_settings)
    def create(self, name: str, partitions: int, chosen: StreamSettings) -> None:
        if name not in self.streams:
            self.log.create_stream(name, partitions, chosen)
            self.streams[name] = Stream(chosen, partitions)

    @precondition(lambda self: len(self.streams) > 1)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.streams)))
        self.log.delete_stream(name)
        del self.streams[name]

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), more=st.integers(0, 2))
    def add_partitions(self, data: st.DataObject, more: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.streams)))
        stream = self.streams[name]
        self.log.add_partitions(name, len(stream.partitions) + more)
        stream.partitions.extend(Partition() for _ in range(more))

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), chosen=stream_settings)
    def change_settings(self, data: st.DataObject, chosen: StreamSettings) -> None:
        name = data.draw(st.sampled_from(sorted(self.streams)))
        self.log.change_settings(name, chosen)
        self.streams[name].settings = chosen

    # -- appending -------------------------------------------------------------------------------

    @precondition(lambda self: self.streams)
    @rule(
        data=st.data(),
        record_sizes=st.lists(sizes, min_size=1, max_size=12),
        columns=st.sets(st.sampled_from(["keys", "timestamps", "headers"])),
        producer=st.sampled_from([None, *PRODUCERS]),
        drop_resent=st.booleans(),
        spread=st.booleans(),
    )
    def append(
        self,
        data: st.DataObject,
        record_sizes: list[int],
        columns: set[str],
        producer: str | None,
        drop_resent: bool,
        spread: bool,
    ) -> None:
        places = [self.pick(data) for _ in (record_sizes if spread else [0])]
        if not spread:
            places *= len(record_sizes)
        records = [self.record(size, columns) for size in record_sizes]
        batch = Batch.of(
            [record["value"] for record in records],
            keys=[record["key"] for record in records] if "keys" in columns else None,
            timestamps=[record["time"] for record in records] if "timestamps" in columns else None,
            headers=[
                [(each["name"], each["value"]) for each in record["headers"]] for record in records
            ]
            if "headers" in columns
            else None,
        )
        ids = None
        if producer is not None:
            ids = data.draw(
                st.lists(st.integers(0, 30), min_size=len(records), max_size=len(records))
            )
        target = np.array([self.log.locate(name, number) for name, number, _ in places], np.uint32)
        appended = self.log.submit(
            target if spread else int(target[0]),
            batch,
            producer=producer,
            ids=ids,
            drop_resent=drop_resent and producer is not None,
        ).result(60)
        expected = self.take_up(
            [each for _, _, each in places], records, producer, ids, drop_resent
        )
        assert appended.indexes().tolist() == expected
        assert appended.count + appended.dropped == len(records)

    def record(self, size: int, columns: set[str]) -> dict[str, Any]:
        self.now += 1_000
        self.written += 1
        number = self.written
        return {
            "value": (b"%d:" % number).ljust(size, b"x")[:size],
            "key": b"k%d" % number if number % 3 and "keys" in columns else None,
            "time": self.now - (number % 7) * 1_500 if "timestamps" in columns else None,
            "headers": [{"name": "n", "value": b"%d" % number}] * (number % 3)
            if "headers" in columns
            else [],
        }

    def take_up(
        self,
        partitions: Sequence[Partition],
        records: list[dict[str, Any]],
        producer: str | None,
        ids: list[int] | None,
        drop_resent: bool,
    ) -> list[int]:
        given = []
        for row, (partition, record) in enumerate(zip(partitions, records, strict=True)):
            if producer is not None and ids is not None:
                last = partition.last_ids.get(producer)
                if drop_resent and last is not None and ids[row] <= last:
                    given.append(-1)
                    continue
                partition.last_ids[producer] = ids[row]
            given.append(partition.end)
            time = self.now if record["time"] is None else record["time"]
            partition.records.append({**record, "time": time})
        return given

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), count=st.integers(1, 40))
    def append_much(self, data: st.DataObject, count: int) -> None:
        """Enough to go around the ring, and to close segments without being asked."""
        name, number, partition = self.pick(data)
        for _ in range(2):
            records = [self.record(6_000, set()) for _ in range(count)]
            self.log.append(name, Batch.of([record["value"] for record in records]), number)
            self.take_up([partition] * count, records, None, None, False)

    # -- reading ---------------------------------------------------------------------------------

    @precondition(lambda self: self.streams)
    @rule(
        data=st.data(),
        fraction=fractions,
        max_records=st.sampled_from([1, 2, 10, 1_000]),
        max_bytes=st.sampled_from([1, 1_000, 50_000, 1_000_000]),
    )
    def read(self, data: st.DataObject, fraction: float, max_records: int, max_bytes: int) -> None:
        name, number, partition = self.pick(data)
        start = partition.place(fraction)
        found = self.log.read(name, number, start, max_records, max_bytes)
        count = len(indexes(found))
        assert count <= max_records
        assert (count > 0) == (start < partition.end)
        self.check_records(found, partition, start, start + count)

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), below=st.integers(1, 5))
    def read_below_the_earliest(self, data: st.DataObject, below: int) -> None:
        name, number, partition = self.pick(data)
        start = partition.earliest - below
        with pytest.raises(IndexTrimmed) as caught:
            self.log.read(name, number, start)
        assert caught.value.earliest == partition.earliest
        found = self.log.read(name, number, start, 3, below="earliest")
        self.check_records(
            found, partition, partition.earliest, min(partition.earliest + 3, partition.end)
        )

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def read_past_the_end(self, data: st.DataObject) -> None:
        name, number, partition = self.pick(data)
        with pytest.raises(IndexOutOfRange):
            self.log.read(name, number, partition.end + 1)

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), fraction=fractions, shift=st.sampled_from([-1, 0, 1]))
    def find_by_time(self, data: st.DataObject, fraction: float, shift: int) -> None:
        name, number, partition = self.pick(data)
        time = FIRST_TIME + round(fraction * (self.now - FIRST_TIME)) + shift
        assert self.log.index_at(name, number, time) == self.index_at(partition, time)

    def index_at(self, partition: Partition, time: int) -> int:
        late = (
            index
            for index in range(partition.earliest, partition.end)
            if partition.records[index]["time"] >= time
        )
        return next(late, partition.end)

    def check_records(self, found: Any, partition: Partition, start: int, end: int) -> None:
        for index, row in zip(range(start, end), rows(found), strict=True):
            expected = partition.records[index]
            assert row["index"] == index
            assert row["value"] == expected["value"]
            assert row["key"] == expected["key"]
            assert row["headers"] == expected["headers"]
            assert round(row["timestamp"].timestamp() * 1_000_000) == expected["time"]

    def read_everything(self) -> None:
        assert self.log.streams() == sorted(self.streams)
        for name, stream in self.streams.items():
            assert self.log.describe(name).settings == stream.settings
            for number, partition in enumerate(stream.partitions):
                at = partition.earliest
                while at < partition.end:
                    found = self.log.read(name, number, at)
                    count = len(indexes(found))
                    assert count > 0
                    self.check_records(found, partition, at, at + count)
                    at += count

    # -- groups ----------------------------------------------------------------------------------

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), group=groups, fraction=fractions)
    def save_position(self, data: st.DataObject, group: str, fraction: float) -> None:
        name, number, partition = self.pick(data)
        position = partition.place(fraction)
        before = partition.positions.get(group, 0)
        if position < before:
            with pytest.raises(PositionBackwards):
                self.log.save_positions(group, name, {number: position})
        else:
            self.log.save_positions(group, name, {number: position})
            partition.positions[group] = position
            self.streams[name].members.add(group)

    @precondition(lambda self: self.streams)
    @rule(
        data=st.data(),
        group=groups,
        kind=st.sampled_from(["earliest", "latest", "index", "timestamp", "shift"]),
        fraction=fractions,
        dry_run=st.booleans(),
    )
    def reset(
        self, data: st.DataObject, group: str, kind: Any, fraction: float, dry_run: bool
    ) -> None:
        name, number, partition = self.pick(data)
        before = partition.positions.get(group)
        value, after = {
            "earliest": (0, partition.earliest),
            "latest": (0, partition.end),
            "index": (partition.place(fraction), partition.place(fraction)),
            "timestamp": (self.now - 20_000, self.index_at(partition, self.now - 20_000)),
            "shift": (-3, max(partition.earliest, (before or partition.earliest) - 3)),
        }[kind]
        (move,) = self.log.reset(group, name, ResetTo(kind, value), [number], dry_run=dry_run)
        assert (move.partition, move.before, move.after) == (number, before, after)
        if not dry_run:
            partition.positions[group] = after
            self.streams[name].members.add(group)

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), group=groups)
    def register(self, data: st.DataObject, group: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.streams)))
        self.log.register_group(group, name)
        self.streams[name].registered.add(group)
        self.streams[name].members.add(group)

    @precondition(lambda self: any(stream.members for stream in self.streams.values()))
    @rule(data=st.data())
    def drop_group(self, data: st.DataObject) -> None:
        known = sorted(
            (name, group) for name, stream in self.streams.items() for group in stream.members
        )
        name, group = data.draw(st.sampled_from(known))
        self.log.drop_group(group, name)
        stream = self.streams[name]
        stream.members.discard(group)
        stream.registered.discard(group)
        for partition in stream.partitions:
            partition.positions.pop(group, None)

    # -- keeping house ---------------------------------------------------------------------------

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), fraction=fractions)
    def trim(self, data: st.DataObject, fraction: float) -> None:
        name, number, partition = self.pick(data)
        before = partition.place(fraction)
        earliest = self.log.trim(name, number, before)
        allowed = min(before, partition.held_at(self.streams[name].registered))
        assert partition.earliest <= earliest <= max(allowed, partition.earliest)
        partition.earliest = earliest

    @rule()
    def apply_retention(self) -> None:
        self.log.apply_retention()
        for name, stream in self.streams.items():
            for number, partition in enumerate(stream.partitions):
                earliest, _ = self.log.bounds(name, number)
                allowed = partition.earliest
                if stream.settings.retention_records is not None:
                    allowed = max(allowed, partition.end - stream.settings.retention_records)
                held = max(partition.held_at(stream.registered), partition.earliest)
                assert partition.earliest <= earliest <= min(allowed, held)
                partition.earliest = earliest

    @rule()
    def checkpoint(self) -> None:
        self.log.checkpoint()

    # -- what can befall it ----------------------------------------------------------------------

    @rule()
    def close_and_open(self) -> None:
        self.log.close()
        self.log = self.open()
        self.read_everything()

    @rule()
    def go_on_from_a_copy(self) -> None:
        """As after kill -9: what is on disk must do."""
        self.copies += 1
        copy = self.top / str(self.copies)
        shutil.copytree(self.data, copy)
        self.log.close()
        shutil.rmtree(self.data)
        self.data = copy
        self.log = self.open()
        self.read_everything()

    @invariant()
    def agree(self) -> None:
        assert self.log.failed is None
        for name, stream in self.streams.items():
            for number, partition in enumerate(stream.partitions):
                assert self.log.bounds(name, number) == (partition.earliest, partition.end)
                for producer in PRODUCERS:
                    last = partition.last_ids.get(producer)
                    assert self.log.last_id(producer, name, number) == last
                for group in GROUPS:
                    assert self.log.position(group, name, number) == partition.positions.get(group)


examples = int(os.environ.get("PENSTOCK_MODEL_EXAMPLES", "0"))

LogAndModel.TestCase.settings = settings(
    max_examples=examples or 90,
    stateful_step_count=60 if examples else 40,
    derandomize=not examples,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestTheLogAgreesWithItsModel = LogAndModel.TestCase
