"""The archive on real Spark: streams into tables, each record once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.parquet as pq
import pytest

from penstock.errors import BadSetting, QueryFailed, UnknownStream
from penstock.flight.client import FlightClient
from penstock.log import Batch
from penstock.spark.archive import Archive, archive, chosen, group_name
from penstock.spark.batches import BatchWriter
from penstock.spark.compact import compact, compact_delta
from penstock.spark.progress import Summary
from penstock.spark.triggers import Trigger
from penstock.testing.hub import TestHub

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NewStream = Callable[..., str]
DAY_US = 86_400_000_000
FIRST_DAY_US = 20_454 * DAY_US  # 2026-01-01


@pytest.fixture
def run(spark: SparkSession, hub: TestHub, tmp_path: Path) -> Callable[..., Summary]:
    """Archive what is there to the test's directory."""

    def run(streams: str | list[str], **more: Any) -> Summary:
        with archive(spark, streams=streams, to=tmp_path, url=hub.url, **more) as running:
            return running.wait(240)

    return run


def fill(hub: TestHub, stream: str, start: int, count: int, *, days: int = 1) -> None:
    """Records that tell their own number, spread over days."""
    numbers = range(start, start + count)
    hub.log.append(
        stream,
        Batch.of(
            [json.dumps({"n": n, "name": f"name {n}"}).encode() for n in numbers],
            keys=[str(n).encode() for n in numbers],
            timestamps=[FIRST_DAY_US + n * days * DAY_US // (start + count) for n in numbers],
        ),
    )


def numbers(table: Path) -> list[int]:
    found = [
        json.loads(value)["n"]
        for file in table.glob("date=*/*.parquet")
        for value in pq.read_table(file, columns=["value"], partitioning=None)["value"].to_pylist()
    ]
    return sorted(found)


def test_records_are_archived_by_date_and_a_second_run_goes_on(
    hub: TestHub, run: Callable[..., Summary], new_stream: NewStream, tmp_path: Path
) -> None:
    stream = new_stream(2)
    fill(hub, stream, 0, 1000, days=3)
    done = run([stream])
    assert (done.rows, done.streams[0].lag, done.streams[0].state) == (1000, 0, "done")
    assert numbers(tmp_path / stream) == list(range(1000))
    fill(hub, stream, 1000, 500)
    assert run([stream]).rows == 500
    assert run([stream]).rows == 0
    assert numbers(tmp_path / stream) == list(range(1500))
    dates = sorted(each.name for each in (tmp_path / stream).iterdir())
    assert dates == ["date=2026-01-01", "date=2026-01-02", "date=2026-01-03"]


def test_the_table_has_all_of_a_record_and_any_reader_reads_it(
    hub: TestHub, run: Callable[..., Summary], new_stream: NewStream, tmp_path: Path
) -> None:
    stream = new_stream(2)
    hub.log.append(
        stream,
        Batch.of(
            [b"one", b"two"],
            keys=[b"k", None],
            timestamps=[FIRST_DAY_US, FIRST_DAY_US + 5],
            headers=[[("kind", b"x")], []],
        ),
        partition=1,
    )
    run([stream])
    found = duckdb.sql(
        f'select key, value, partition, "offset", epoch_us(timestamp), headers, date::varchar '
        f"from read_parquet('{tmp_path}/{stream}/**/*.parquet', hive_partitioning=true) "
        "order by all"
    )
    assert found is not None
    assert sorted(found.fetchall(), key=lambda row: row[3]) == [
        (b"k", b"one", 1, 0, FIRST_DAY_US, [{"key": "kind", "value": b"x"}], "2026-01-01"),
        (None, b"two", 1, 1, FIRST_DAY_US + 5, None, "2026-01-01"),
    ]


def test_the_group_shows_how_far_the_archive_is(
    hub: TestHub, run: Callable[..., Summary], new_stream: NewStream, tmp_path: Path
) -> None:
    stream = new_stream()
    fill(hub, stream, 0, 10)
    run([stream])
    with FlightClient(hub.url) as client:
        assert client.positions(group_name(str(tmp_path)), stream) == {0: 10}


def test_a_repeated_batch_is_there_once(
    hub: TestHub, run: Callable[..., Summary], new_stream: NewStream, tmp_path: Path
) -> None:
    stream = new_stream()
    fill(hub, stream, 0, 100)
    run([stream], batch_records=50)
    commits = tmp_path / "_penstock" / stream / "checkpoint" / "commits"
    (commits / "1").unlink()
    fill(hub, stream, 100, 100)
    run([stream])
    assert numbers(tmp_path / stream) == list(range(200))


def test_a_batch_that_fails_at_the_end_is_there_once_afterwards(
    hub: TestHub,
    run: Callable[..., Summary],
    new_stream: NewStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = new_stream()
    fill(hub, stream, 0, 100)
    call = BatchWriter.__call__

    def failing(self: BatchWriter, batch: Any, number: int) -> None:
        call(self, batch, number)
        raise RuntimeError("killed after the batch")

    with monkeypatch.context() as patched:
        patched.setattr(BatchWriter, "__call__", failing)
        with pytest.raises(QueryFailed, match=stream):
            run([stream])
    assert numbers(tmp_path / stream) == list(range(100))
    run([stream])
    assert numbers(tmp_path / stream) == list(range(100))


def test_many_streams_take_turns_and_a_pattern_finds_them(
    hub: TestHub,
    run: Callable[..., Summary],
    new_stream: NewStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.limits.ARCHIVE_QUERIES_MAX", 2)
    streams = [new_stream(name="turn-") for _ in range(3)]
    for number, stream in enumerate(streams):
        fill(hub, stream, 0, 10 + number)
    assert run("turn-.*").rows == 10 + 11 + 12
    for number, stream in enumerate(streams):
        assert len(numbers(tmp_path / stream)) == 10 + number


def test_a_service_with_more_streams_than_queries_lets_them_take_turns(
    spark: SparkSession,
    hub: TestHub,
    new_stream: NewStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.limits.ARCHIVE_QUERIES_MAX", 1)
    first = new_stream(name="shift-one")
    fill(hub, first, 0, 10)
    running = archive(
        spark, streams="shift-.*", to=tmp_path, trigger="processing 200ms", url=hub.url
    )
    with running:
        until(running, lambda: rows(running, first) == 10)
        second = new_stream(name="shift-two")
        fill(hub, second, 0, 5)
        until(running, lambda: rows(running, second) == 5)
        fill(hub, first, 10, 10)
        until(running, lambda: rows(running, first) == 20)
    assert numbers(tmp_path / first) == list(range(20))
    assert numbers(tmp_path / second) == list(range(5))


def test_a_service_goes_on_takes_in_new_streams_and_stops_after_its_batch(
    spark: SparkSession, hub: TestHub, new_stream: NewStream, tmp_path: Path
) -> None:
    first = new_stream(name="service-one")
    fill(hub, first, 0, 10)
    running = archive(
        spark, streams="service-.*", to=tmp_path, trigger="processing 200ms", url=hub.url
    )
    with running:
        until(running, lambda: rows(running, first) == 10)
        fill(hub, first, 10, 10)
        second = new_stream(name="service-two")
        fill(hub, second, 0, 5)
        until(running, lambda: rows(running, first) == 20 and rows(running, second) == 5)
    assert not running.active
    assert {each.state for each in running.wait().streams} == {"stopped"}
    assert numbers(tmp_path / first) == list(range(20))
    assert numbers(tmp_path / second) == list(range(5))


def rows(running: Archive, stream: str) -> int:
    return running.board.of(stream).rows


def until(running: Archive, condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert running.active, (running.progress, running.wait())
        assert time.monotonic() < deadline, running.progress
        time.sleep(0.1)


def test_it_stops_between_two_batches(
    spark: SparkSession, hub: TestHub, new_stream: NewStream, tmp_path: Path
) -> None:
    stream = new_stream()
    fill(hub, stream, 0, 1000)
    running = archive(spark, streams=[stream], to=tmp_path, url=hub.url, batch_records=20)
    until(running, lambda: rows(running, stream) > 0)
    running.stop()
    done = running.wait(60)
    assert done.streams[0].state == "stopped"
    there = numbers(tmp_path / stream)
    assert 0 < len(there) < 1000
    assert there == list(range(len(there)))
    with archive(spark, streams=[stream], to=tmp_path, url=hub.url) as again:
        again.wait(60)
    assert numbers(tmp_path / stream) == list(range(1000))


def test_compaction_beside_a_running_archive_keeps_each_record_once(
    spark: SparkSession, hub: TestHub, new_stream: NewStream, tmp_path: Path
) -> None:
    stream = new_stream(2)
    running = archive(spark, streams=[stream], to=tmp_path, trigger="processing 100ms", url=hub.url)
    ended = threading.Event()
    errors: list[BaseException] = []

    def compacting() -> None:
        try:
            while not ended.is_set():
                compact(tmp_path, stream)
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    with running:
        until(running, lambda: (tmp_path / "_penstock" / stream).exists())
        beside = threading.Thread(target=compacting)
        beside.start()
        for step in range(10):
            fill(hub, stream, step * 100, 100, days=2)
            until(running, lambda: rows(running, stream) > step * 100)  # noqa: B023
        until(running, lambda: rows(running, stream) == 1000)
        ended.set()
        beside.join()
    assert not errors
    compact(tmp_path, stream)
    assert numbers(tmp_path / stream) == list(range(1000))
    assert len(list((tmp_path / stream).glob("date=*/*.parquet"))) <= 2


def test_compaction_leaves_rows_as_they_are_for_spark(
    hub: TestHub,
    spark: SparkSession,
    run: Callable[..., Summary],
    new_stream: NewStream,
    tmp_path: Path,
) -> None:
    stream = new_stream(2)
    fill(hub, stream, 0, 100, days=2)
    in_2300_us = 10_413_792_000_000_000  # more nanoseconds than 64 bits hold
    hub.log.append(stream, Batch.of([b"{}"], timestamps=[in_2300_us], headers=[[("kind", b"x")]]))
    run([stream], batch_records=30)

    def content() -> list[Any]:
        table = spark.read.parquet(str(tmp_path / stream))
        return table.orderBy("partition", "offset").collect()

    before, schema = content(), spark.read.parquet(str(tmp_path / stream)).schema
    assert compact(tmp_path, stream).dates == 2
    assert content() == before
    assert spark.read.parquet(str(tmp_path / stream)).schema == schema
    assert len(before) == 101
    assert schema["timestamp"].dataType.simpleString() == "timestamp"


# -- parsing ---------------------------------------------------------------------------------------

BAD = {
    b'{"n": "x"}': "n is not bigint",
    b"": "the value is empty",
    b"{": "the value is not JSON",
    b"[1]": "the value is not a JSON object",
    b'{"name": "\xff"}': "the value is not UTF-8",
    b'{"n": 1} more': "something follows the JSON object",
}


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_values_are_parsed_and_dead_letters_tell_why(
    hub: TestHub,
    spark: SparkSession,
    run: Callable[..., Summary],
    new_stream: NewStream,
    tmp_path: Path,
    form: str,
) -> None:
    stream = new_stream()
    fill(hub, stream, 0, 10)
    hub.log.append(stream, Batch.of(list(BAD), headers=[[("kind", b"x")]] * len(BAD)))
    done = run([stream], parse="json", schema="n BIGINT, name STRING", format=form)
    assert done.streams[0].schema == "n bigint, name string"
    assert (done.rows, done.streams[0].dead) == (10 + len(BAD), len(BAD))
    table = spark.read.format(form).load(str(tmp_path / stream))
    found = table.select("value.*").orderBy("n").collect()
    assert [tuple(row) for row in found] == [(n, f"name {n}") for n in range(10)]
    letters = dead(hub, stream)
    assert {value: headers["penstock.reason"] for value, headers in letters} == {
        value: reason.encode() for value, reason in BAD.items()
    }
    value, headers = letters[0]
    assert headers == {
        "kind": b"x",
        "penstock.reason": BAD[value].encode(),
        "penstock.stream": stream.encode(),
        "penstock.partition": b"0",
        "penstock.offset": b"10",
    }


def dead(hub: TestHub, stream: str) -> list[tuple[bytes, dict[str, bytes]]]:
    with FlightClient(hub.url) as client:
        ((bounds,),) = client.look([f"{stream}.dlq"]).values()
        return [
            (row["value"], {each["name"]: each["value"] for each in row["headers"]})
            for batch in client.read(f"{stream}.dlq", 0, 0, bounds.end)
            for row in batch.to_pylist()
        ]


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_dead_letters_of_a_repeated_batch_are_there_once(
    hub: TestHub,
    run: Callable[..., Summary],
    new_stream: NewStream,
    tmp_path: Path,
    form: str,
) -> None:
    stream = new_stream()
    fill(hub, stream, 0, 10)
    hub.log.append(stream, Batch.of([b"bad", b"worse"]))
    run([stream], parse="json", format=form)
    commits = tmp_path / "_penstock" / stream / "checkpoint" / "commits"
    (commits / "0").unlink()
    run([stream], parse="json", format=form)
    assert [value for value, _ in dead(hub, stream)] == [b"bad", b"worse"]


def test_the_schema_is_inferred_once_and_pinned(
    hub: TestHub, run: Callable[..., Summary], new_stream: NewStream, tmp_path: Path
) -> None:
    stream = new_stream()
    fill(hub, stream, 0, 3)
    run([stream], parse="json")
    pinned = json.loads((tmp_path / "_penstock" / stream / "schema.json").read_text())
    assert pinned["ddl"] == "n bigint, name string"
    hub.log.append(stream, Batch.of([b'{"n": 3, "name": "x", "more": 1}']))
    assert run([stream], parse="json").streams[0].schema == "n bigint, name string"
    with pytest.raises(QueryFailed, match="a table's schema stays as it is"):
        run([stream], parse="json", schema="n INT")


def test_a_schema_that_is_given_is_used(
    hub: TestHub, run: Callable[..., Summary], new_stream: NewStream, tmp_path: Path
) -> None:
    stream = new_stream()
    fill(hub, stream, 0, 3)
    file = tmp_path / "schema.ddl"
    file.write_text("n INT\n")
    assert run([stream], parse="json", schema=str(file)).streams[0].schema == "n int"
    (file,) = (tmp_path / stream).glob("date=*/*.parquet")
    part = pq.read_table(file, partitioning=None)
    assert sorted(part["value"].to_pylist(), key=str) == [{"n": n} for n in range(3)]


# -- delta -----------------------------------------------------------------------------------------


def test_delta_holds_each_record_once_when_batches_are_repeated(
    hub: TestHub,
    spark: SparkSession,
    run: Callable[..., Summary],
    new_stream: NewStream,
    tmp_path: Path,
) -> None:
    stream = new_stream(2)
    fill(hub, stream, 0, 100, days=2)
    run([stream], format="delta")
    commits = tmp_path / "_penstock" / stream / "checkpoint" / "commits"
    (commits / "0").unlink()
    fill(hub, stream, 100, 100)
    run([stream], format="delta")
    table = spark.read.format("delta").load(str(tmp_path / stream))
    found = sorted(json.loads(row.value)["n"] for row in table.select("value").collect())
    assert found == list(range(200))


def test_delta_tables_are_compacted_by_delta(
    hub: TestHub,
    spark: SparkSession,
    run: Callable[..., Summary],
    new_stream: NewStream,
    tmp_path: Path,
) -> None:
    stream = new_stream()
    fill(hub, stream, 0, 60)
    run([stream], format="delta", batch_records=20)
    path = str(tmp_path / stream)
    done = compact_delta(spark, path, stream)
    assert done[:4] == (stream, 1, 3, 1)
    table = spark.read.format("delta").load(path)
    assert sorted(row.offset for row in table.collect()) == list(range(60))


# -- what is refused -------------------------------------------------------------------------------


def test_a_checkpoint_that_was_removed_does_not_double_the_table(
    hub: TestHub, run: Callable[..., Summary], new_stream: NewStream, tmp_path: Path
) -> None:
    stream = new_stream()
    fill(hub, stream, 0, 10)
    run([stream])
    (tmp_path / "_penstock" / stream / "checkpoint").rename(tmp_path / "gone")
    with pytest.raises(QueryFailed, match=r"its rows would be there twice.*move"):
        run([stream])
    assert numbers(tmp_path / stream) == list(range(10))


def test_an_archive_of_another_hub_is_refused(
    hub: TestHub, run: Callable[..., Summary], new_stream: NewStream, tmp_path: Path
) -> None:
    stream = new_stream()
    fill(hub, stream, 0, 10)
    run([stream])
    with pytest.raises(QueryFailed, match="say --format parquet"):
        run([stream], format="delta")
    file = tmp_path / "_penstock" / "archive.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "hub": "another"}))
    with pytest.raises(QueryFailed, match="is the archive of the hub with the id another"):
        run([stream])


def test_what_makes_no_sense_is_refused_at_once(run: Callable[..., Summary]) -> None:
    for said, more in (
        ("there is no format 'orc': it is parquet or delta", {"format": "orc"}),
        ("there is no trigger 'often': write available-now", {"trigger": "often"}),
        ("only as json", {"parse": "xml"}),
        ("only with parse='json'", {"schema": "n INT"}),
        ("cannot be read", {"parse": "json", "schema": "n NONSENSE"}),
    ):
        with pytest.raises(BadSetting, match=said):
            run(["none"], **more)
    with pytest.raises(UnknownStream):
        run(["no-such-stream"])


def test_streams_are_names_or_a_pattern() -> None:
    assert chosen("orders") == (("orders",), None)
    assert chosen("orders.eu, clicks") == (("orders.eu", "clicks"), None)
    assert chosen("orders.*") == ((), "orders.*")
    assert chosen(["a", "b", "a"]) == (("a", "b"), None)
    for nothing in ("", " ,"):
        with pytest.raises(BadSetting):
            chosen(nothing)
    with pytest.raises(BadSetting, match="regular expression"):
        chosen("orders(")


def test_triggers_are_written_as_people_say_them() -> None:
    assert Trigger.of("available-now").interval_s is None
    assert Trigger.of("availableNow").interval_s is None
    assert Trigger.of("processing 10s").interval_s == 10
    assert Trigger.of("250 ms").interval_s == 0.25
    assert Trigger.of("2m").interval_s == 120
