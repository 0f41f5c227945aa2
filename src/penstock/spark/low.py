"""Reading streams with little delay: `option("latency", "low")`.

The records are read beside the driver and handed to Spark with the plan of the batch, which saves
the start of a Python task: about 60 ms a batch. So it is for streams that do not need many cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock import limits
from penstock.spark.follow import Follower
from penstock.spark.options import SourceOptions
from penstock.spark.reader import TaskReader


class LowLatencyReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads beside the driver, a bounded amount at a time."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._follower = Follower(options)
        self._tasks = TaskReader(options, schema)
        self._max_records = min(
            options.max_offsets or limits.SPARK_LOW_RECORDS_MAX, limits.SPARK_LOW_RECORDS_MAX
        )
        self._max_bytes = min(
            options.max_bytes or limits.SPARK_LOW_BYTES_MAX, limits.SPARK_LOW_BYTES_MAX
        )

    def initialOffset(self) -> dict[str, Any]:
        return self._follower.initial()

    def prepareForTriggerAvailableNow(self) -> None:
        self._follower.pin()

    def read(self, start: dict[str, Any]) -> tuple[Iterator[pa.RecordBatch], dict[str, Any]]:
        end = self._follower.latest(start, self._max_records, self._max_bytes)
        if end == start:
            return iter([]), start
        # A list's iterator: Spark copies it, which a generator does not allow.
        return iter(list(self._between(start, end))), end

    def readBetweenOffsets(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        return self._between(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        self._follower.commit(end)

    def _between(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        return self._tasks.read(self._follower.ranges(start, end)[0])
