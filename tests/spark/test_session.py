from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import BadSetting
from penstock.spark.session import spark_session
from tests.spark.cluster import run_driver
from tests.spark.queries import finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_a_delta_table_is_written_by_a_stream_and_read_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, table = str(tmp_path / "in"), str(tmp_path / "table")
    spark.range(1000).write.parquet(source)
    query = (
        spark.readStream.schema("id long")
        .parquet(source)
        .writeStream.format("delta")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(table)
    )
    finish(query)
    assert spark.read.format("delta").load(table).count() == 1000


def test_workers_are_this_python(spark: SparkSession) -> None:
    """So they have its packages, and Arrow and pandas work without a warning."""

    def double(frames):
        for frame in frames:
            yield frame * 2

    doubled: Any = spark.range(10).mapInPandas(double, "id long").toPandas()
    assert doubled["id"].sum() == 90
    assert spark.range(10).toArrow().num_rows == 10


def test_each_batch_of_a_stream_is_seen(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[int] = []

    def count(rows: DataFrame, number: int) -> None:
        seen.append(rows.count())

    spark.range(10).write.parquet(str(tmp_path / "in"))
    rows = spark.readStream.schema("id long").parquet(str(tmp_path / "in"))
    finish(rows.writeStream.foreachBatch(count).trigger(availableNow=True).start())
    assert seen == [10]


def test_a_running_session_is_given_if_it_fits(spark: SparkSession) -> None:
    assert spark_session() is spark
    assert spark_session(master="local[2]", delta=True) is spark
    with pytest.raises(BadSetting, match=r"a session on local\[2\] runs"):
        spark_session(master="local[3]")


@pytest.mark.slow
def test_a_session_says_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    program = """
import os, sys
os.chdir(sys.argv[1])
os.dup2(1, 2)
from penstock.spark.session import spark_session
spark = spark_session()
spark.range(10).write.format("noop").mode("overwrite").save()
spark.stop()
"""
    said = [
        line
        for line in run_driver(program, str(tmp_path)).splitlines()
        if "incubator modules" not in line  # Java's own, about an option of Spark's launcher
    ]
    assert said == []
    assert list(tmp_path.iterdir()) == []
