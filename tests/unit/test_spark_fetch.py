"""What a task reads, without Spark: from segments and through Flight, with a hub in between."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from penstock import limits
from penstock.errors import DataLost, HubUnreachable
from penstock.log import Batch, StreamSettings
from penstock.spark import fetch
from penstock.spark.fetch import Wanted, forget, gathered, patiently, records
from penstock.spark.follow import Follower
from penstock.spark.offsets import LOST, Range
from penstock.spark.options import HubOptions, SourceOptions
from penstock.testing.hub import TestHub
from tests.records import indexes, numbered, values

ALONE = """
import importlib.abc, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"aiohttp", "crc32c", "msgspec", "structlog", "typer", "uvloop"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
import pyspark_penstock, penstock.spark.low, penstock.spark.reader, penstock.spark.stream
from penstock.spark.fetch import _find_directory
from penstock.spark.options import HubOptions
assert _find_directory(HubOptions("http://127.0.0.1:9", None, None, 0.0)) is None
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[TestHub]:
    with TestHub() as hub:
        yield hub


@pytest.fixture
def options(hub: TestHub) -> Iterator[HubOptions]:
    made = HubOptions(hub.url, None, None, 5.0)
    yield made
    forget(made)


def test_segments_and_flight_give_the_same_records(
    hub: TestHub, options: HubOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2 * limits.SPARK_DIRECT_RECORDS_MIN
    hub.log.create_stream("both")
    for start in range(0, count, 8_192):
        hub.log.append("both", Batch.of([b"%d" % i for i in range(start, start + 8_192)]))
        if start == 8_192:
            hub.log.checkpoint()  # the rest stays in the journal, as far as it likes
    wanted = Wanted(options, ("index", "value"), True)
    for start, end in ((0, count), (5, count - 7), (100, 200), (count - 1, count)):
        each = Range("both", 0, start, end)
        direct = list(records(wanted, each))
        with monkeypatch.context() as patched:
            patched.setattr(fetch, "_data_directory", lambda hub: None)
            remote = list(records(wanted, each))
        assert direct[0].schema.names == ["index", "value"]
        assert indexes(direct) == indexes(remote) == list(range(start, end))
        assert values(direct) == values(remote) == [b"%d" % i for i in range(start, end)]


def test_batches_are_gathered_to_a_size() -> None:
    def batch(rows: int, size: int) -> pa.RecordBatch:
        return pa.record_batch({"value": [b"x" * size] * rows})

    small = list(gathered(batch(1_000, 10) for _ in range(100)))
    assert [each.num_rows for each in small] == [65_000, 35_000]
    large = list(gathered(batch(10, limits.MIB) for _ in range(4)))
    assert [each.num_rows for each in large] == [10, 10, 10, 10]
    assert list(gathered([])) == []


def test_what_was_trimmed_while_a_task_waited_is_lost_or_skipped(
    hub: TestHub, options: HubOptions, caplog: pytest.LogCaptureFixture
) -> None:
    hub.log.create_stream("cut", settings=StreamSettings(segment_bytes=limits.SEGMENT_BYTES_MIN))
    for start in range(0, 60, 10):
        hub.log.append("cut", numbered(10, start))
        hub.log.checkpoint()
    earliest = hub.log.trim("cut", 0, 30)
    assert earliest > 5
    each = Range("cut", 0, 5, 60)
    with pytest.raises(DataLost, match=f"cut/0 records 5 to {earliest - 1} .*failOnDataLoss"):
        list(records(Wanted(options, ("index",), True), each))
    found = list(records(Wanted(options, ("index",), False), each))
    assert indexes(found) == list(range(earliest, 60))
    assert f"data lost: stream=cut partition=0 from=5 to={earliest}" in caplog.text
    gone = Range("gone", 0, 0, 10)
    with pytest.raises(DataLost, match="gone/0"):
        list(records(Wanted(options, ("index",), True), gone))
    assert list(records(Wanted(options, ("index",), False), gone)) == []


def test_a_gap_is_counted_once(hub: TestHub) -> None:
    hub.log.create_stream("gap", settings=StreamSettings(segment_bytes=limits.SEGMENT_BYTES_MIN))
    for start in range(0, 60, 10):
        hub.log.append("gap", numbered(10, start))
        hub.log.checkpoint()
    follower = Follower(
        SourceOptions.of(
            {
                "subscribe": "gap",
                "penstock.url": hub.url,
                "failOnDataLoss": "false",
                "startingOffsets": "earliest",
            },
            "stream",
        )
    )
    begin = follower.initial()
    earliest = hub.log.trim("gap", 0, 30)
    end = follower.latest(begin, 5, None)
    assert end == {"gap": {"0": earliest + 5}}
    follower = pickle.loads(pickle.dumps(follower))  # noqa: S301 - as Spark does
    assert follower.ranges(begin, end)[0] == [Range("gap", 0, earliest, earliest + 5)]
    last = follower.latest(end, None, None)
    follower.ranges(end, last)
    assert follower.report() == {"gap": {"0": 60}, LOST: {"gap": {"0": earliest}}}


def test_a_hub_that_never_answers_is_waited_for_and_named() -> None:
    nobody = HubOptions("http://127.0.0.1:9", None, None, 0.2)
    with pytest.raises(HubUnreachable, match=r"http://127.0.0.1:9 .*waited 0\.2 s"):
        patiently(nobody, lambda hub: hub.info())


def test_an_executor_needs_nothing_but_arrow_and_pyspark() -> None:
    subprocess.run([sys.executable, "-c", ALONE], check=True, timeout=60)
