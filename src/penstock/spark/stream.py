"""Reading streams as a stream: `spark.readStream.format("penstock")`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.errors import PenstockError
from penstock.spark.follow import Follower
from penstock.spark.offsets import tasks
from penstock.spark.options import SourceOptions
from penstock.spark.reader import Task, TaskReader


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches beside the driver, and reads them in tasks."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._follower = Follower(options)
        self._tasks = TaskReader(options, schema)

    def initialOffset(self) -> dict[str, Any]:
        return self._follower.initial()

    def prepareForTriggerAvailableNow(self) -> None:
        self._follower.pin()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if isinstance(limit, ReadMaxRows):
            # Spark knows no limit of both: the one of bytes comes from the options.
            return self._follower.latest(start, limit.max_rows, self._options.max_bytes)
        if isinstance(limit, ReadMaxBytes):
            return self._follower.latest(start, None, limit.max_bytes)
        return self._follower.latest(start, None, None)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._follower.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        found, extents = self._follower.ranges(start, end)
        return [Task(each) for each in tasks(found, extents, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        return self._tasks.read(partition.ranges)

    def commit(self, end: dict[str, Any]) -> None:
        self._follower.commit(end)

    def stop(self) -> None:
        """Nothing to do: the process ends with the query."""


class RefusingReader(DataSourceStreamReader):
    """Says what is wrong when it is used.

    An error while a stream reader is made is hidden behind one of Spark's own (an unbound name in
    its runner), so it is told at the first question instead.
    """

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error
