"""A declarative project as it is written: it runs, goes on, and builds itself anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.log import Batch
from penstock.spark.sink import SinkOptions
from penstock.testing.hub import TestHub
from tests.records import rows


@pytest.fixture
def own_hub():
    """A hub that has only the streams of this test."""
    with TestHub() as hub:
        yield hub


def penstock(hub, *words, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "pipeline", *map(str, words)],
        env={**os.environ, "PENSTOCK_URL": hub.url}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done


def sent(hub):
    """What came back, in order: the value of each record of orders.out."""
    return [json.loads(each["value"]) for each in rows(hub.log.read("orders.out", 0, 0))]


def files_of(table: Path) -> list[str]:
    """The files a table consists of now: those its own log names."""
    log, spark = table / "_delta_log", table / "_spark_metadata"
    if log.exists():
        alive: dict[str, bool] = {}
        for version in sorted(log.glob("*.json")):
            for action in map(json.loads, version.read_text().splitlines()):
                if "add" in action:
                    alive[action["add"]["path"]] = True
                elif "remove" in action:
                    alive[action["remove"]["path"]] = False
        return [str(table / name) for name, there in alive.items() if there]
    if spark.exists():
        return [
            json.loads(line)["path"].removeprefix("file://")
            for batch in spark.iterdir()
            if batch.name.split(".")[0].isdigit()
            for line in batch.read_text().splitlines()[1:]
        ]
    return [str(each) for each in table.glob("*.parquet")]


def table(path: Path) -> list[dict[str, Any]]:
    return [row for file in files_of(path) for row in pq.ParquetFile(file).read().to_pylist()]


def test_the_sink_knows_a_checkpoint_however_spark_spells_it():
    """Declarative pipelines spell it `file:/x` in the first run and `file:///x` in the next."""
    spellings = ("file:/a/b", "file:///a/b", "/a/b")
    found = {SinkOptions.of({"checkpointLocation": each}).checkpoint for each in spellings}
    assert found == {"/a/b"}
    remote = "s3a://bucket/a"
    assert SinkOptions.of({"checkpointLocation": remote}).checkpoint == remote


@pytest.mark.slow
@pytest.mark.timeout(1200)  # four runs of spark-pipelines, each with two JVMs
@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_a_project_runs_twice_and_builds_itself_anew(own_hub, delta_jars, tmp_path, form):
    home = tmp_path / "sales"
    penstock(own_hub, "init", home, "--stream", "orders", "--format", form)
    own_hub.log.append("orders", Batch.of([b"one", b"two"], keys=[b"k", None]))

    dry = penstock(own_hub, "run", home, "--dry-run")
    assert "no mistakes found" in dry.stderr
    assert not (home / "tables" / "orders").exists()

    first = penstock(own_hub, "run", home)
    assert "orders: completed" in first.stderr
    assert "all flows completed" in first.stderr
    assert first.stdout == ""
    assert [each["value"] for each in table(home / "tables" / "orders")] == ["one", "two"]
    assert [each["value"] for each in sent(own_hub)] == ["one", "two"]

    own_hub.log.append("orders", Batch.of([b"three"]))
    penstock(own_hub, "run", home)
    found = table(home / "tables" / "orders")
    assert sorted(each["value"] for each in found) == ["one", "three", "two"]
    assert [each["value"] for each in sent(own_hub)] == ["one", "two", "three"]
    hours = table(home / "tables" / "orders_by_hour")
    assert sum(each["records"] for each in hours) == 3
    assert own_hub.log.position("sales", "orders", 0) == 3

    again = penstock(own_hub, "run", home, "--full-refresh-all", "--json")
    assert set(json.loads(again.stdout)["flows"].values()) == {"COMPLETED"}
    found = table(home / "tables" / "orders")
    assert sorted(each["value"] for each in found) == ["one", "three", "two"]
    assert sorted(each["offset"] for each in sent(own_hub)) == [0, 0, 1, 1, 2, 2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_mistake_in_a_project_is_shown_and_ends_with_1(own_hub, tmp_path):
    home = tmp_path / "sales"
    penstock(own_hub, "init", home, "--stream", "orders")
    report = home / "transformations" / "report.py"
    report.write_text(report.read_text().replace('"timestamp"', '"time"'))
    done = penstock(own_hub, "run", home, "--dry-run", code=1)
    assert "orders_by_hour: unresolved" in done.stderr
    assert "name `time` cannot be resolved" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in (home / "run.log").read_text()
