"""The Flight door: what goes in comes out, exactly; and every way to ask wrongly has its error."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from penstock import errors, limits
from penstock.errors import (
    BadBatch,
    BadFormat,
    BadName,
    BadSetting,
    DiskFull,
    HubUnreachable,
    IndexOutOfRange,
    IndexTrimmed,
    PenstockError,
    RecordTooLarge,
    StreamExists,
    TooMany,
    UnknownPartition,
    UnknownStream,
)
from penstock.flight import wire
from penstock.flight.client import Appended, Bounds, FlightClient
from penstock.flight.wire import Run
from penstock.hub.hub import data_id
from penstock.log import SCHEMA, Batch, Receipt, StreamSettings
from penstock.log.receipt import fulfil
from penstock.testing.hub import TestHub
from tests.hub.conftest import config
from tests.records import numbered, padded, rows, values


@pytest.fixture
def client(hub: TestHub) -> Iterator[FlightClient]:
    with FlightClient(hub.url) as client:
        yield client


@pytest.fixture(scope="module")
def shared_client(shared: TestHub) -> Iterator[FlightClient]:
    shared.log.create_stream("given", 2)
    shared.log.append("given", numbered(100), 0)
    with FlightClient(shared.flight_url) as client:
        yield client


def batch(*found: bytes, **columns: Any) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(found, pa.binary()), **columns})


def raw(hub: TestHub) -> flight.FlightClient:
    """pyarrow's own client, as anybody has it."""
    return flight.FlightClient(hub.flight_url)


def code_of(error: flight.FlightError) -> str:
    return str(json.loads(error.extra_info)["code"])


# -- reading ---------------------------------------------------------------------------------------


def test_what_the_log_has_is_read_as_it_is(hub: TestHub, client: FlightClient) -> None:
    hub.log.create_stream("s")
    hub.log.append(
        "s",
        Batch.of(
            [b"one", b"", b"three"],
            keys=[b"k", None, b""],
            timestamps=[1, 2, 3],
            headers=[None, [("h", b"1")], []],
        ),
    )
    hub.log.checkpoint()
    hub.log.append("s", Batch.of([b"four"], timestamps=[4]))
    assert rows(client.read("s", 0, 0, 4)) == rows(hub.log.read("s", 0, 0))


@pytest.mark.parametrize("checkpointed", [True, False])
def test_every_range_is_exact(hub: TestHub, client: FlightClient, checkpointed: bool) -> None:
    hub.log.create_stream("s", settings=StreamSettings(segment_bytes=limits.SEGMENT_BYTES_MIN))
    for start in range(0, 300, 50):
        hub.log.append("s", numbered(50, start))
        if checkpointed:
            hub.log.checkpoint()
    chooser = random.Random(1)
    for _ in range(40):
        start = chooser.randrange(300)
        end = chooser.randrange(start, 301)
        got = list(client.read("s", 0, start, end))
        assert values(got) == [padded(number) for number in range(start, end)]


def test_only_the_columns_asked_for_come_in_their_order(
    shared: TestHub, shared_client: FlightClient
) -> None:
    (got,) = shared_client.read("given", 0, 5, 7, ["value", "index"])
    assert got.schema.names == ["value", "index"]
    assert got.to_pylist() == [{"value": padded(n), "index": n} for n in (5, 6)]
    assert sum(each.num_rows for each in shared_client.read("given", 0, 0, 100, [])) == 100


def test_many_small_batches_come_in_few_messages(hub: TestHub, client: FlightClient) -> None:
    hub.log.create_stream("s")
    for number in range(200):
        hub.log.append("s", numbered(5, 5 * number, 100))
    assert len(list(client.read("s", 0, 0, 1_000))) < 10


def test_large_reads_come_in_messages_that_are_not_too_large(
    hub: TestHub, client: FlightClient
) -> None:
    hub.log.create_stream("s")
    for number in range(20):
        hub.log.append("s", numbered(250, 250 * number))
    got = list(client.read("s", 0, 0, 5_000))
    assert values(got) == [padded(number) for number in range(5_000)]
    assert max(each.nbytes for each in got) <= 2 * limits.FLIGHT_MESSAGE_BYTES


def test_an_empty_range_has_nothing(shared_client: FlightClient) -> None:
    assert list(shared_client.read("given", 0, 7, 7)) == []
    assert list(shared_client.read("given", 1, 0, 0)) == []


@pytest.mark.parametrize(
    ("asked", "kind", "text"),
    [
        (("none", 0, 0, 1), UnknownStream, "streams are: given"),
        (("given", 2, 0, 1), UnknownPartition, "2"),
        (("given", 0, 0, 101), IndexOutOfRange, "there are 0 to 100"),
        (("given", 0, 9, 8), IndexOutOfRange, "records 9 to 8"),
        (("given", 0, 0, 1, ["offset"]), BadFormat, "index, timestamp, key, value, headers"),
        (("given", 0, 0, 1, ["key", "key"]), BadFormat, "at most once"),
    ],
)
def test_what_cannot_be_read_is_told(
    shared_client: FlightClient, asked: Any, kind: type[PenstockError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        list(shared_client.read(*asked))


def test_what_retention_dropped_is_told_with_the_earliest(
    hub: TestHub, client: FlightClient
) -> None:
    hub.log.create_stream("s", settings=StreamSettings(segment_bytes=limits.SEGMENT_BYTES_MIN))
    for start in range(0, 100, 20):
        hub.log.append("s", numbered(20, start))
        hub.log.checkpoint()
    earliest = hub.log.trim("s", 0, 50)
    assert earliest > 0
    with pytest.raises(IndexTrimmed) as caught:
        list(client.read("s", 0, 0, 100))
    assert caught.value.earliest == earliest
    assert client.look(["s"])["s"][0][:2] == (earliest, 100)
    got = list(client.read("s", 0, earliest, 100))
    assert values(got) == [padded(number) for number in range(earliest, 100)]


def test_a_read_that_is_left_frees_its_call(hub: TestHub, client: FlightClient) -> None:
    hub.log.create_stream("s")
    for number in range(40):
        hub.log.append("s", numbered(250, 250 * number))
    reading = client.read("s", 0, 0, 10_000)
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    _nobody_calls(hub)


def _nobody_calls(hub: TestHub) -> None:
    deadline = time.monotonic() + 20
    while hub.hub.doors[1].connections:
        assert time.monotonic() < deadline, "calls are still under way"
        time.sleep(0.01)


# -- what there is ---------------------------------------------------------------------------------


def test_streams_are_listed_with_an_endpoint_for_each_partition(
    shared: TestHub, shared_client: FlightClient
) -> None:
    found = list(raw(shared).list_flights())
    assert [each.descriptor.path for each in found] == [[b"given"]]
    assert found[0].total_records == 100
    assert len(found[0].endpoints) == 2
    assert list(raw(shared).list_flights(b"gi*")) != []
    assert list(raw(shared).list_flights(b"orders*")) == []


def test_any_flight_client_reads_a_stream_by_its_name(
    shared: TestHub, shared_client: FlightClient
) -> None:
    client = raw(shared)
    by_path = flight.FlightDescriptor.for_path("given")
    info = client.get_flight_info(by_path)
    assert info.schema == SCHEMA
    tables = [client.do_get(each.ticket).read_all() for each in info.endpoints]
    assert pa.concat_tables(tables)["value"].to_pylist() == [padded(n) for n in range(100)]
    assert info.total_bytes == pytest.approx(tables[0].nbytes, rel=0.2)
    one = client.get_flight_info(flight.FlightDescriptor.for_path("given", "1"))
    assert (one.total_records, len(one.endpoints)) == (0, 1)
    command = b'{"stream":"given","partition":0,"from":5,"columns":["value"]}'
    some = client.get_flight_info(flight.FlightDescriptor.for_command(command))
    assert (some.total_records, some.schema.names) == (95, ["value"])
    assert client.get_schema(by_path).schema == SCHEMA


def test_a_look_tells_the_bounds_and_about_the_size(hub: TestHub, client: FlightClient) -> None:
    hub.log.create_stream("a.one", 2)
    hub.log.create_stream("b")
    hub.log.append("a.one", numbered(300), 1)
    size = sum(each.nbytes for each in hub.log.read("a.one", 1, 0))
    found = client.look()
    assert list(found) == ["a.one", "b"]
    assert found["a.one"][0] == found["b"][0] == Bounds(0, 0, 0)
    assert found["a.one"][1][:2] == (0, 300)
    assert found["a.one"][1].bytes == pytest.approx(size, rel=0.1)
    assert list(client.look(pattern=r"a\..*")) == ["a.one"]
    assert list(client.look(pattern=r"a")) == []
    assert list(client.look(["b"])) == ["b"]
    assert client.streams() == ["a.one", "b"]
    with pytest.raises(UnknownStream, match=r"streams are: a\.one, b"):
        client.look(["c"])
    with pytest.raises(BadSetting, match="regular expression"):
        client.look(pattern="(")


def later(action: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(0.1, action)
    timer.start()
    return timer


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_look_waits_for_more_than_is_known(
    hub: TestHub, client: FlightClient, partitions: int
) -> None:
    hub.log.create_stream("s", partitions)
    hub.log.append("s", numbered(5), 0)
    known = {"s": [5] + [0] * (partitions - 1)}
    began = time.monotonic()
    assert client.look(["s"], known=known, wait_seconds=0.2)["s"][0].end == 5
    assert 0.2 <= time.monotonic() - began < 2
    timer = later(lambda: hub.log.append("s", numbered(1), partitions - 1))
    began = time.monotonic()
    found = client.look(["s"], known=known, wait_seconds=20)
    assert sum(each.end for each in found["s"]) == 6
    assert 0.05 <= time.monotonic() - began < 5
    timer.join()
    began = time.monotonic()
    client.look(["s"], known=known, wait_seconds=20)
    assert time.monotonic() - began < 5


def test_a_look_wakes_for_new_partitions_and_streams(hub: TestHub, client: FlightClient) -> None:
    hub.log.create_stream("a")
    timer = later(lambda: hub.log.add_partitions("a", 2))
    assert len(client.look(["a"], known={"a": [0]}, wait_seconds=20)["a"]) == 2
    timer.join()
    timer = later(lambda: hub.log.create_stream("ab"))
    found = client.look(pattern="a.*", known={"a": [0, 0]}, wait_seconds=20)
    assert list(found) == ["a", "ab"]
    timer.join()


def test_a_look_that_waits_hardly_uses_the_processor(hub: TestHub, client: FlightClient) -> None:
    hub.log.create_stream("s", 4)
    before = time.process_time()
    client.look(["s"], known={"s": [0] * 4}, wait_seconds=2.0)
    assert time.process_time() - before < 0.4


def test_indexes_by_time(hub: TestHub, client: FlightClient) -> None:
    hub.log.create_stream("s", 2)
    hub.log.append("s", Batch.of([b"a", b"b"], timestamps=[10, 20]), 0)
    assert client.index_at("s", 15) == [1, 0]
    assert client.index_at("s", 0) == [0, 0]
    assert client.index_at("s", 21) == [2, 0]


def test_positions_are_saved_and_never_go_back(hub: TestHub, client: FlightClient) -> None:
    hub.log.create_stream("s", 2)
    hub.log.append("s", numbered(10), 0)
    assert client.positions("g", "s") == {}
    client.save_positions("g", {"s": {0: 7}})
    client.save_positions("g", {"s": {0: 3, 1: 0}})
    assert client.positions("g", "s") == {0: 7, 1: 0}
    assert hub.log.position("g", "s", 0) == 7
    with pytest.raises(IndexOutOfRange):
        client.save_positions("g", {"s": {0: 11}})
    with pytest.raises(UnknownStream):
        client.save_positions("g", {"t": {0: 0}})
    with pytest.raises(UnknownPartition):
        client.save_positions("g", {"s": {5: 0}})


def test_streams_are_made(client: FlightClient) -> None:
    client.create_stream("s", 3)
    assert len(client.look(["s"])["s"]) == 3
    with pytest.raises(StreamExists):
        client.create_stream("s")
    with pytest.raises(BadName):
        client.create_stream("a b")
    with pytest.raises(TooMany):
        client.create_stream("t", 0)


def test_the_data_directory_has_an_id_that_stays(tmp_path: Path) -> None:
    seen = set()
    for _ in range(2):
        with TestHub(tmp_path / "data") as hub, FlightClient(hub.url) as client:
            told = client.info()
            assert told.data == str((tmp_path / "data").resolve())
            assert told.data_id == data_id(tmp_path / "data")
            seen.add(told.data_id)
    assert len(seen) == 1
    with TestHub() as other, FlightClient(other.url) as client:
        assert client.info().data_id not in seen


# -- appending -------------------------------------------------------------------------------------


def test_an_append_is_stored_when_it_returns(hub: TestHub, client: FlightClient) -> None:
    client.create_stream("s")
    done = client.append(
        "s",
        batch(
            b"one",
            b"two",
            key=pa.array([b"k", None], pa.binary()),
            timestamp=pa.array([1, 2], pa.timestamp("us", tz="UTC")),
            headers=pa.array([[{"name": "h", "value": b"1"}], []], wire.HEADERS),
        ),
    )
    assert done == Appended(2, 0, (Run(0, 0, 2),))
    assert rows(hub.log.read("s", 0, 0)) == rows(client.read("s", 0, 0, 2))
    assert hub.log.read("s", 0, 0)[0].to_pylist()[0]["headers"] == [{"name": "h", "value": b"1"}]


def test_keys_choose_the_partition(hub: TestHub, client: FlightClient) -> None:
    client.create_stream("s", 4)
    keys = [b"key %d" % number for number in range(100)]
    done = client.append("s", batch(*keys, key=pa.array(keys, pa.binary())))
    assert sum(run.records for run in done.runs) == 100
    assert len(done.runs) == 4
    hub.log.create_stream("t", 4)
    hub.log.append("t", Batch.of(keys, keys=keys))
    for number in range(4):
        assert values(hub.log.read("s", number, 0)) == values(hub.log.read("t", number, 0))


def test_batches_are_confirmed_one_by_one_in_order(hub: TestHub, client: FlightClient) -> None:
    client.create_stream("s")
    confirmed: list[Appended] = []
    with client.appender("s", 0, on_confirmed=confirmed.append) as appender:
        for number in range(200):
            appender.write(batch(b"%d" % number))
    assert [each.runs[0].first for each in confirmed] == list(range(200))
    assert values(hub.log.read("s", 0, 0)) == [b"%d" % number for number in range(200)]


def test_what_is_too_large_for_one_commit_is_stored_in_parts(
    hub: TestHub, client: FlightClient
) -> None:
    client.create_stream("s")
    found = [padded(number) for number in range(5_000)]
    done = client.append("s", batch(*found), 0)
    assert (done.records, done.dropped) == (5_000, 0)
    assert values(client.read("s", 0, 0, 5_000)) == found


def test_what_a_producer_sends_again_is_dropped(hub: TestHub, client: FlightClient) -> None:
    client.create_stream("s")
    assert client.append("s", batch(b"a", b"b"), producer="p", first_id=0).records == 2
    again = client.append("s", batch(b"b", b"c"), producer="p", ids=[1, 2])
    assert (again.records, again.dropped) == (1, 1)
    assert client.append("s", batch(b"c"), producer="p", ids=[2]) == Appended(0, 1, ())
    with client.appender("s", producer="p", first_id=2) as appender:
        appender.write(batch(b"c", b"d"))
        appender.write(batch(b"e"))
        assert appender.flush()[:2] == (2, 1)
    assert values(hub.log.read("s", 0, 0)) == [b"a", b"b", b"c", b"d", b"e"]
    assert hub.log.last_id("p", "s", 0) == 4
    kept = client.append("s", batch(b"e"), producer="p", ids=[4], drop_resent=False)
    assert kept.records == 1


@pytest.mark.parametrize(
    ("columns", "more", "kind", "text"),
    [
        ({"val": pa.array([b"v"])}, {}, BadBatch, "needed is value"),
        ({"value": pa.array([b"v"]), "x": pa.array([1])}, {}, BadBatch, "allowed are"),
        ({"value": pa.array([1.5])}, {}, BadBatch, "binary or string"),
        ({"value": pa.array([None], pa.binary())}, {}, BadBatch, "cannot be null"),
        ({"value": pa.array([b"x" * 600_000])}, {}, RecordTooLarge, "too large"),
        ({"value": pa.array([b"v"])}, {"partition": 9}, UnknownPartition, "9"),
        ({"value": pa.array([b"v"])}, {"first_id": 3}, BadFormat, "needs a producer"),
        ({"value": pa.array([b"v"])}, {"producer": "p\0", "first_id": 1}, BadName, "producer"),
        ({"value": pa.array([b"v"])}, {"ids": [1]}, PenstockError, "producer"),
        (
            {"value": pa.array([b"v"])},
            {"producer": "p", "first_id": 1, "ids": [1]},
            BadFormat,
            "exclude each other",
        ),
    ],
)
def test_what_cannot_be_appended_is_told_and_not_stored(
    hub: TestHub,
    client: FlightClient,
    columns: Any,
    more: Any,
    kind: type[PenstockError],
    text: str,
) -> None:
    client.create_stream("s")
    with pytest.raises(kind, match=text):
        client.append("s", pa.record_batch(columns), **more)
    with pytest.raises(UnknownStream):
        client.append("t", batch(b"v"))
    assert hub.log.bounds("s", 0) == (0, 0)
    _nobody_calls(hub)


def test_who_waits_for_a_confirmation_is_told_what_went_wrong(
    hub: TestHub, client: FlightClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_stream("s")

    def full(*_: object, **__: object) -> Receipt:
        receipt = Receipt()
        threading.Timer(0.1, fulfil, [[(receipt, DiskFull("no space left"))]]).start()
        return receipt

    monkeypatch.setattr(hub.log, "submit", full)
    with pytest.raises(DiskFull, match="no space left"):
        client.append("s", batch(b"v"))
    monkeypatch.undo()
    assert client.append("s", batch(b"v")).records == 1


def test_a_client_that_goes_away_loses_only_what_was_not_sent(
    hub: TestHub, client: FlightClient
) -> None:
    client.create_stream("s")
    appender = client.appender("s")
    appender.write(batch(b"a"))
    appender.flush()
    appender.write(batch(b"b"))
    del appender
    _nobody_calls(hub)
    assert values(hub.log.read("s", 0, 0))[0] == b"a"


# -- staging ---------------------------------------------------------------------------------------


def staged(topic: str, *found: bytes, partition: int | None = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"topic": topic, "partition": partition, "value": value} for value in found],
        schema=wire.STAGED,
    )


def test_what_is_staged_is_seen_once_it_is_published(hub: TestHub, client: FlightClient) -> None:
    client.create_stream("s")
    parts = []
    for number in range(2):
        with client.stage("w", 7) as stager:
            stager.write(staged("s", b"%d" % number))
            stager.write(staged("s", b"more"))
            parts.append(stager.finish())
    assert hub.log.bounds("s", 0) == (0, 0)
    assert client.publish("w", 7, parts) == (4, False)
    assert client.publish("w", 7, parts) == (0, True)
    assert values(hub.log.read("s", 0, 0)) == [b"0", b"more", b"1", b"more"]


def test_what_is_not_finished_is_not_staged(hub: TestHub, client: FlightClient) -> None:
    client.create_stream("s")
    with client.stage("w", 0) as stager:
        stager.write(staged("s", b"v"))
    left = client.stage("w", 0)
    left.write(staged("s", b"v"))
    del left
    _nobody_calls(hub)
    assert [path for path in hub.data.rglob("*.arrows") if "staging" in str(path)] == []
    with client.stage("w", 0) as stager:
        stager.write(staged("s", b"v"))
        part = stager.finish()
    client.discard("w", 0)
    with pytest.raises(PenstockError):
        client.publish("w", 0, [part])
    assert hub.log.bounds("s", 0) == (0, 0)


@pytest.mark.parametrize(
    "columns",
    [
        {"value": pa.array([b"v"])},
        {"topic": pa.array([None], pa.utf8()), "value": pa.array([b"v"])},
        {"topic": pa.array([1]), "value": pa.array([b"v"])},
    ],
)
def test_what_cannot_be_staged_is_told(client: FlightClient, columns: Any) -> None:
    client.create_stream("s")
    stager = client.stage("w", 0)
    stager.write(pa.record_batch(columns))
    with pytest.raises(BadBatch, match="topic"):
        stager.finish()


# -- asking wrongly --------------------------------------------------------------------------------

TICKETS = [
    b"",
    b"garbage",
    b"\xff\xfe\x00",
    b"[]",
    b"null",
    b"{}",
    b'{"stream":5}',
    b'{"stream":"given","partition":"0"}',
    b'{"stream":"given","partition":99999999999999999999999999}',
    b'{"stream":"given","from":-1}',
    b'{"stream":"given","from":1e300}',
    b'{"stream":"given","to":18446744073709551616}',
    b'{"stream":"given","columns":"value"}',
    b'{"stream":"given","columns":[null]}',
    b'{"stream":"given","more":1}',
    b'{"stream":"..","partition":-1}',
    b'{"stream":"given","partition":-1}',
    b"[" * 100_000,
    b'{"stream":"' + b"x" * 100_000 + b'"}',
]


@pytest.mark.parametrize("ticket", TICKETS, ids=lambda each: repr(each[:30]))
def test_bad_tickets_get_an_error(
    shared: TestHub, shared_client: FlightClient, ticket: bytes
) -> None:
    with pytest.raises(flight.FlightError) as caught:
        raw(shared).do_get(flight.Ticket(ticket)).read_all()
    assert code_of(caught.value) in ("bad-format", "unknown-stream", "unknown-partition")
    with pytest.raises(flight.FlightError) as caught:
        raw(shared).get_flight_info(flight.FlightDescriptor.for_command(ticket))
    assert code_of(caught.value) in ("bad-format", "unknown-stream", "unknown-partition")


@pytest.mark.parametrize("path", [[], [""], ["a", "b"], ["a", "0", "0"], ["a", "-1"]])
def test_bad_paths_get_an_error(shared: TestHub, path: Any) -> None:
    with pytest.raises(flight.FlightError) as caught:
        raw(shared).get_flight_info(flight.FlightDescriptor.for_path(*path))
    assert code_of(caught.value) in ("bad-format", "unknown-stream")


def test_random_tickets_descriptors_and_bodies_get_an_error_or_an_answer(
    shared: TestHub, shared_client: FlightClient
) -> None:
    chooser = random.Random(int(os.environ.get("PENSTOCK_FUZZ_SEED", "5")))
    client = raw(shared)
    good = [
        b'{"stream":"given","partition":0,"from":0,"to":5,"columns":["key"]}',
        b'{"streams":["given"],"known":{"given":[100,0]},"wait":0.0}',
        b'{"group":"g","positions":{"given":{"0":3}}}',
        b'{"writer":"w","epoch":0,"parts":["x"]}',
    ]
    codes = {
        each.code
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, PenstockError)
    }
    names = [name.type for name in client.list_actions()]
    sample = batch(b"v")

    def put(given: bytes) -> None:
        described = flight.FlightDescriptor.for_command(given)
        writer, _ = client.do_put(described, sample.schema)
        writer.write_batch(sample)
        writer.close()

    calls: list[Callable[[bytes], object]] = [
        put,
        lambda given: client.do_get(flight.Ticket(given)).read_all(),
        lambda given: list(client.do_action(flight.Action(chooser.choice(names), given))),
        lambda given: client.get_flight_info(flight.FlightDescriptor.for_command(given)),
    ]
    seen = set()
    for _ in range(300):
        body = bytearray(chooser.choice(good))
        for _ in range(chooser.randrange(4)):
            at = chooser.randrange(len(body))
            body[at : at + chooser.randrange(3)] = chooser.randbytes(chooser.randrange(3))
        try:
            chooser.choice(calls)(bytes(body))
        except flight.FlightError as error:
            seen.add(code_of(error))
    assert seen <= codes
    assert shared_client.look(["given"])["given"][0].end >= 100


def test_unknown_actions_are_told_with_those_there_are(shared: TestHub) -> None:
    with pytest.raises(flight.FlightError, match="actions are: info, look"):
        list(raw(shared).do_action(flight.Action("nonsense", b"")))
    assert len(raw(shared).list_actions()) == 8


def test_bodies_have_a_limit(shared: TestHub) -> None:
    large = b" " * (limits.FLIGHT_BODY_BYTES_MAX + 1)
    for call in (
        lambda: list(raw(shared).do_action(flight.Action("info", large))),
        lambda: raw(shared).do_get(flight.Ticket(large)).read_all(),
    ):
        with pytest.raises(flight.FlightError) as caught:
            call()
        assert code_of(caught.value) == "batch-too-large"


def test_bytes_that_are_no_flight_disturb_nobody(shared: TestHub) -> None:
    host, port = shared.flight_url.removeprefix("grpc://").split(":")
    for given in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 1_000, os.urandom(10_000)):
        with socket.create_connection((host, int(port)), timeout=30) as peer:
            peer.sendall(given)
    with FlightClient(shared.url) as client:
        assert client.info().version


# -- any client ------------------------------------------------------------------------------------


def test_the_client_needs_nothing_but_arrow() -> None:
    heavy = ["aiohttp", "argon2", "crc32c", "msgspec", "prometheus_client", "structlog", "typer"]
    code = f"""
import sys
for name in {heavy!r}:
    sys.modules[name] = None
import penstock.flight.client
assert not any(name.startswith("penstock.log") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_example_of_the_documentation_works(
    hub: TestHub, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "flight.md").read_text(encoding="utf-8")
    hub.log.create_stream("orders", 2)
    snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        code = snippet.replace("grpc://127.0.0.1:7471", hub.flight_url)
        exec(code.replace("http://127.0.0.1:7470", hub.url), {})
    assert sum(end for _, end in hub.log.all_bounds("orders")) > 0
    assert "two" in capsys.readouterr().out


# -- the address -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["nonsense", "ftp://x", "grpc://host", "http://", "http://h:port", "grpc://h:99999999"]
)
def test_addresses_that_are_none_are_told(url: str) -> None:
    with pytest.raises(BadSetting, match="no hub's address"):
        FlightClient(url)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_no_hub_is_told(scheme: str) -> None:
    with pytest.raises(HubUnreachable, match="penstock serve"):
        FlightClient(f"{scheme}://127.0.0.1:9").info()


def test_a_hub_without_the_door_is_told(start: Callable[..., TestHub]) -> None:
    hub = start(config(flight={"enabled": False}))
    assert [door.name for door in hub.hub.doors] == ["http"]
    with pytest.raises(HubUnreachable, match=r"flight\.enabled"):
        FlightClient(hub.url)


def test_the_environment_fills_what_is_not_given(
    shared: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", shared.url)
    with FlightClient() as client:
        assert client.address == shared.flight_url


def test_the_port_of_another_leaves_the_door_closed_and_says_why(
    shared: TestHub, start: Callable[..., TestHub], capsys: pytest.CaptureFixture[str]
) -> None:
    taken = shared.flight_url.removeprefix("grpc://")
    hub = start(config(flight={"listen": taken}))
    assert [door.name for door in hub.hub.doors] == ["http"]
    assert "choose another port with flight.listen" in capsys.readouterr().out


def test_a_door_for_others_needs_tls_and_users(start: Callable[..., TestHub]) -> None:
    with pytest.raises(BadSetting, match="without TLS"):
        start(config(flight={"listen": "0.0.0.0:0"}))
    hub = start(config(flight={"listen": "0.0.0.0:0"}, hub={"insecure": True}))
    with FlightClient(hub.url) as client:
        assert client.address.startswith("grpc://127.0.0.1:")
        assert client.info().version
