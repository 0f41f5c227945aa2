"""A real standalone cluster whose executors have pyarrow, but not Penstock."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.log import Batch
from tests.spark.cluster import bare_python, cluster, run_driver

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from penstock.spark.session import spark_session

master, url, stream, folder = sys.argv[1:]
spark = spark_session(master=master, conf={"spark.executor.memory": "512m"})
rows = (
    spark.readStream.format("penstock").option("penstock.url", url).option("subscribe", stream)
    .option("startingOffsets", "earliest").load()
)
query = (
    rows.selectExpr("value", "partition").writeStream.format("parquet")
    .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True)
    .start(folder + "/table")
)
query.awaitTermination()
print(spark.read.parquet(folder + "/table").distinct().count())
print(*spark.sparkContext.parallelize([0]).map(lambda _: sys.executable).collect())
"""


def test_executors_need_only_pyarrow_for_the_rest_is_shipped(hub, new_stream, tmp_path: Path):
    stream = new_stream(2)
    for partition in range(2):
        values = [b"%d-%d" % (partition, number) for number in range(1000)]
        hub.log.append(stream, Batch.of(values), partition)
    python = bare_python(tmp_path / "python", "numpy", "pyarrow")
    with cluster(tmp_path) as master:
        printed = run_driver(
            PROGRAM, master, hub.url, stream, str(tmp_path), PYSPARK_PYTHON=str(python)
        )
    assert printed.split() == ["2000", str(python)]
