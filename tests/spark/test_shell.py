"""The shell: streams as views that show what is there now."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.log import Batch
from penstock.spark.shell import Listing, Shell
from penstock.spark.views import HubAddress, view_names


@pytest.fixture
def shell(spark, hub):
    shell = Shell(spark, HubAddress(hub.url))
    yield shell
    shell.close()


def test_a_view_shows_what_a_stream_holds_when_it_is_asked(shell, hub, new_stream):
    stream = new_stream(name="orders.eu")
    name = stream.replace(".", "_").replace("-", "_")
    names = shell.names
    hub.log.append(stream, Batch.of([b"one", b"two"]))
    count = f"SELECT count(*) AS c FROM {name}"
    assert names["sql"](count).first().c == 2
    hub.log.append(stream, Batch.of([b"three"]))
    assert names["sql"](count).first().c == 3
    names["sql"](f"CREATE OR REPLACE TEMPORARY VIEW mine AS SELECT * FROM `{stream}`")
    hub.log.append(stream, Batch.of([b"four"]))
    assert names["spark"].table("mine").count() == 4
    assert names["spark"].table(f"`{stream}`").count() == 4


def test_streams_are_listed_as_sql_names_them(shell, hub, new_stream):
    stream = new_stream(2, name="list.me")
    hub.log.append(stream, Batch.of([b"one"]))
    (row,) = [each for each in shell.streams() if each.stream == stream]
    assert (row.view, row.partitions, row.records) == (
        stream.replace(".", "_").replace("-", "_"), 2, 1,
    )  # fmt: skip
    assert stream in repr(shell.streams())
    assert "no streams yet" in repr(Listing())
    assert "streams at" in shell.banner


def test_frames_of_a_stream_take_options(shell, hub, new_stream):
    stream = new_stream()
    hub.log.append(stream, Batch.of([b"one", b"two"]))
    names = shell.names
    offsets = f'{{"{stream}": {{"0": 1}}}}'
    assert names["stream"](stream, startingOffsets=offsets).count() == 1
    assert names["follow"](stream).isStreaming


def test_a_session_is_left_as_it_was(spark, hub):
    shell = Shell(spark, HubAddress(hub.url))
    assert "sql" in vars(spark)
    shell.close()
    assert "sql" not in vars(spark)
    assert "table" not in vars(spark)


def test_a_name_that_could_mean_two_streams_means_none():
    assert view_names(["a.b", "a-b"]) == {"a.b": "a.b", "a-b": "a-b"}
    assert view_names(["a_b", "a-b"]) == {"a_b": "a_b", "a-b": "a-b"}
    assert view_names(["Orders", "orders", "x"]) == {"x": "x"}
    assert view_names(["a.b"]) == {"a.b": "a.b", "a_b": "a.b"}


@pytest.mark.slow
def test_the_command_runs_code_and_scripts(hub, new_stream):
    stream = new_stream(name="cli")
    hub.log.append(stream, Batch.of([b"one"]))
    script = (
        f"print(sql('SELECT CAST(value AS STRING) v FROM `{stream}`').first().v, F.lit(1))\n"
        "raise SystemExit(7)"
    )
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "shell", "--master", "local[1]", "--url", hub.url],
        input=script, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    assert done.stdout == "one Column<'1'>\n"
