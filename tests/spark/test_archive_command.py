"""`penstock pipeline archive` and `compact` as a person runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock.flight.client import FlightClient
from penstock.log import Batch
from penstock.spark.archive import group_name
from penstock.spark.session import DELTA
from penstock.testing.hub import TestHub
from tests.spark.cluster import cluster, connect_server
from tests.spark.test_archive import dead, fill, numbers

pytestmark = pytest.mark.slow


def start(hub: TestHub, *words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "pipeline", *map(str, words)],
        env={**os.environ, "PENSTOCK_URL": hub.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_archive_and_compact_tell_scripts_what_they_did(
    hub: TestHub, new_stream: Callable[..., str], tmp_path: Path
) -> None:
    stream = new_stream(2)
    fill(hub, stream, 0, 100)
    words = ("archive", "--streams", stream, "--to", tmp_path, "--master", "local[2]", "--json")
    archive = start(hub, *words, "--batch-records", "50")
    out, err = archive.communicate(timeout=200)
    assert archive.returncode == 0, err
    *batches, summary = [json.loads(line) for line in out.splitlines()]
    assert [(each["event"], each["stream"], each["rows"]) for each in batches] == [
        ("batch", stream, 50),
        ("batch", stream, 50),
    ]
    assert batches[-1]["lag"] == 0
    assert (summary["event"], summary["rows"], summary["failed"]) == ("summary", 100, 0)
    compact = start(hub, "compact", tmp_path, "--json")
    out, err = compact.communicate(timeout=60)
    assert compact.returncode == 0, err
    (told,) = json.loads(out)
    assert (told["stream"], told["files_after"], told["rows"]) == (stream, 1, 100)
    assert numbers(tmp_path / stream) == list(range(100))
    (file,) = (tmp_path / stream).glob("date=*/*.parquet")
    assert pq.read_metadata(file).num_rows == 100


def test_an_interrupted_service_ends_well_after_its_batch(
    hub: TestHub, new_stream: Callable[..., str], tmp_path: Path
) -> None:
    stream = new_stream()
    fill(hub, stream, 0, 100)
    words = ("archive", "--streams", stream, "--to", tmp_path, "--master", "local[2]")
    archive = start(hub, *words, "--trigger", "processing 200ms")
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(f"{stream}/date=*/*.parquet")):
        assert archive.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    archive.send_signal(signal.SIGINT)
    _, err = archive.communicate(timeout=60)
    assert archive.returncode == 0, err
    assert "stopping after the batch that runs" in err
    assert "100 rows of 1 streams" in err
    assert "Exception" not in err
    assert numbers(tmp_path / stream) == list(range(100))


def test_a_stream_that_fails_ends_with_1_and_its_reason(
    hub: TestHub, new_stream: Callable[..., str], tmp_path: Path
) -> None:
    stream = new_stream()
    fill(hub, stream, 0, 10)
    (tmp_path / stream).mkdir()
    (tmp_path / stream / "mine.txt").touch()
    archive = start(hub, "archive", "--streams", stream, "--to", tmp_path)
    _, err = archive.communicate(timeout=120)
    assert archive.returncode == 1
    assert f"{stream} failed: {tmp_path}/{stream} has files in it that no archive wrote" in err


def test_what_is_mistyped_is_told_before_spark_starts(hub: TestHub, tmp_path: Path) -> None:
    words = ("archive", "--streams", "a", "--to", tmp_path)
    for more, said in (
        (("--trigger", "often"), "there is no trigger 'often'"),
        (("--batch-bytes", "lots"), "--batch-bytes is 'lots'"),
        (("--conf", "nonsense"), "write KEY=VALUE"),
    ):
        archive = start(hub, *words, *more)
        _, err = archive.communicate(timeout=60)
        assert archive.returncode == 2
        assert said in err


def test_the_archive_runs_through_spark_connect(
    hub: TestHub, new_stream: Callable[..., str], delta_jars: list[Path], tmp_path: Path
) -> None:
    stream = new_stream(2)
    fill(hub, stream, 0, 100)
    hub.log.append(stream, Batch.of([b"not JSON"]))
    settings = {**DELTA, "spark.jars": ",".join(map(str, delta_jars))}
    with connect_server(tmp_path, **settings) as address:
        for form in ("parquet", "delta"):
            to = tmp_path / form
            words = ("archive", "--streams", stream, "--to", to, "--remote", address, "--json")
            archive = start(hub, *words, "--format", form, "--parse", "json")
            out, err = archive.communicate(timeout=150)
            assert archive.returncode == 0, err
            summary = json.loads(out.splitlines()[-1])
            assert (summary["rows"], summary["streams"][0]["lag"]) == (101, 0)
            with FlightClient(hub.url) as client:
                assert sum(client.positions(group_name(str(to)), stream).values()) == 101
            files = (to / stream).glob("date=*/*.parquet")
            assert sum(pq.read_metadata(file).num_rows for file in files) == 100
    assert [value for value, _ in dead(hub, stream)] == [b"not JSON", b"not JSON"]


def test_the_archive_runs_on_a_cluster(
    hub: TestHub, new_stream: Callable[..., str], tmp_path: Path
) -> None:
    stream = new_stream(2)
    fill(hub, stream, 0, 1000, days=2)
    to = tmp_path / "tables"
    with cluster(tmp_path) as master:
        words = ("archive", "--streams", stream, "--to", to, "--master", master)
        archive = start(hub, *words, "--conf", "spark.executor.memory=512m")
        _, err = archive.communicate(timeout=200)
        assert archive.returncode == 0, err
    assert numbers(to / stream) == list(range(1000))
