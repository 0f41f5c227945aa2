"""Sessions through Spark Connect: a server in this process, and one of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.log import Batch
from penstock.spark.session import DELTA
from tests.spark.cluster import connect_server, run_driver

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from penstock.spark.session import spark_session

remote, url, stream, folder = sys.argv[1:]
spark = spark_session(remote=remote, delta=True)
assert spark_session(remote=remote) is spark
assert "connect" in type(spark).__module__, type(spark)
rows = spark.read.format("penstock").option("penstock.url", url).option("subscribe", stream)
rows.load().select("value").write.format("delta").save(folder + "/table")
print(spark.read.format("delta").load(folder + "/table").count())
spark.stop()
"""


@pytest.fixture
def stream(hub, new_stream, delta_jars):
    name = new_stream()
    hub.log.append(name, Batch.of([b"x"] * 1000))
    return name


def test_a_connect_session_in_this_process_has_everything(hub, stream, tmp_path: Path):
    assert run_driver(PROGRAM, "local[2]", hub.url, stream, str(tmp_path)).split() == ["1000"]


def test_a_server_of_its_own_finds_the_source_by_itself(hub, stream, delta_jars, tmp_path: Path):
    files = ",".join(map(str, delta_jars))
    with connect_server(tmp_path, **DELTA, **{"spark.jars": files}) as address:
        assert run_driver(PROGRAM, address, hub.url, stream, str(tmp_path)).split() == ["1000"]


def test_a_server_without_delta_is_told_apart(tmp_path: Path):
    program = """
import sys
from penstock.errors import BadSetting
from penstock.spark.session import spark_session
try:
    spark_session(remote=sys.argv[1], delta=True)
except BadSetting as error:
    print(error)
"""
    with connect_server(tmp_path) as address:
        printed = run_driver(program, address)
    assert DELTA["spark.sql.extensions"] in printed
    assert "delta-storage" in printed
