"""kill -9 of the driver, of Python workers and of the hub while Spark works: nothing lost, nothing
twice."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from penstock.flight.client import FlightClient
from penstock.testing.served import ServedHub
from tests.spark.cluster import connect_server
from tests.spark.killing import Program

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(900)]

PARTITIONS = 2
RECORDS = 150_000
ROUNDS = 3


@pytest.fixture(name="served")
def _served(tmp_path: Path) -> Iterator[ServedHub]:
    hub = ServedHub(tmp_path / "data")
    hub.start()
    yield hub
    hub.end(signal.SIGKILL)


def fill(hub: ServedHub, stream: str) -> list[list[bytes]]:
    """The values of each partition."""
    with FlightClient(hub.url) as client:
        client.create_stream(stream, PARTITIONS)
        expected = []
        for number in range(PARTITIONS):
            values = [b"%d/%d" % (number, each) for each in range(RECORDS // PARTITIONS)]
            client.append(stream, pa.record_batch({"value": pa.array(values)}), number)
            expected.append(values)
    return expected


def disturb(start: Callable[[], Program], hub: ServedHub, told: Callable[[str], bool]) -> None:
    """Kill everything in turn, each a few times, each in the middle of the work."""
    pick = random.Random(5)
    kills = {"driver": 0, "worker": 0, "hub": 0}
    while min(kills.values()) < ROUNDS:
        with start() as program:
            for victim in ("worker", "hub"):
                if not program.wait_for(told):
                    break
                threading.Event().wait(pick.random() * 0.3)
                if victim == "worker":
                    kills["worker"] += program.kill_worker()
                else:
                    hub.end(signal.SIGKILL)
                    hub.start()
                    kills["hub"] += 1
            else:
                program.wait_for(told)
                threading.Event().wait(pick.random() * 0.3)
                program.kill()
                kills["driver"] += 1
            if program.process.poll() == 0:
                raise AssertionError(f"it was done before enough was killed: {kills}")


def test_a_copy_holds_everything_once_whatever_is_killed(served: ServedHub, tmp_path: Path) -> None:
    expected = fill(served, "in")
    with FlightClient(served.url) as client:
        client.create_stream("out", PARTITIONS)
    checkpoint, log = str(tmp_path / "checkpoint"), tmp_path / "driver.log"

    def start(how: str = "on") -> Program:
        arguments = ["-m", "tests.spark.copy_child", served.url, "in", "out", checkpoint, how]
        return Program(arguments, log)

    disturb(start, served, lambda line: line.startswith("batch"))
    with start("once") as program:
        assert program.end() == 0, log.read_text()[-5_000:]
    check_copy(served, expected)


def test_a_copy_through_connect_holds_everything_once_when_the_client_is_killed(
    served: ServedHub, tmp_path: Path
) -> None:
    expected = fill(served, "in")
    with FlightClient(served.url) as client:
        client.create_stream("out", PARTITIONS)
    log = tmp_path / "driver.log"
    with connect_server(tmp_path) as address:

        def start(how: str) -> Program:
            arguments = [served.url, "in", "out", str(tmp_path / "checkpoint"), how, address]
            return Program(["-m", "tests.spark.copy_child", *arguments], log)

        for _ in range(ROUNDS):
            with start("on") as program:
                assert program.wait_for(lambda line: line.startswith("batch"))
                program.kill()
        with start("once") as program:
            assert program.end() == 0, log.read_text()[-5_000:]
    check_copy(served, expected)


def check_copy(served: ServedHub, expected: list[list[bytes]]) -> None:
    with FlightClient(served.url) as client:
        for number, values in enumerate(expected):
            end = client.look(["out"])["out"][number].end
            assert end == len(values)
            found = [
                value
                for batch in client.read("out", number, 0, end, ["value"])
                for value in batch.column("value").to_pylist()
            ]
            assert found == values
        assert client.positions("copy", "in") == {
            number: len(values) for number, values in enumerate(expected)
        }


def test_an_archive_holds_everything_once_whatever_is_killed(
    served: ServedHub, tmp_path: Path
) -> None:
    expected = fill(served, "in")
    tables, log = tmp_path / "tables", tmp_path / "driver.log"

    def start(trigger: str = "processing 0s") -> Program:
        arguments = [
            "-m", "penstock.cli", "pipeline", "archive", "--url", served.url, "--streams", "in",
            "--to", str(tables), "--trigger", trigger, "--master", "local[2,8]", "--json",
            "--batch-records", "5000",
        ]  # fmt: skip
        return Program(arguments, log)

    disturb(start, served, lambda line: '"batch"' in line)
    with start("available-now") as program:
        assert program.end() == 0, log.read_text()[-5_000:]
    found = ds.dataset(tables / "in", format="parquet", partitioning="hive").to_table(
        columns=["partition", "offset", "value"]
    )
    rows = found.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    assert len(rows) == RECORDS
    for number, values in enumerate(expected):
        assert [row["value"] for row in rows if row["partition"] == number] == values
