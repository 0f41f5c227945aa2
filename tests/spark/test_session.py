from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.queries import finish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
