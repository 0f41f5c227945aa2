"""The format `penstock`: what Spark finds when it is told `spark.read.format("penstock")`."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.errors import PenstockError
from penstock.spark.options import SourceOptions, refuse_foreign

if TYPE_CHECKING:
    from penstock.spark.low import LowLatencyReader


class PenstockSource(DataSource):
    """Streams of a Penstock hub, with the columns and options of Spark's Kafka source."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        refuse_foreign(options)

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        from penstock.spark.rows import COLUMNS, COLUMNS_WITH_HEADERS

        options = SourceOptions.of(self.options)
        return COLUMNS_WITH_HEADERS if options.headers else COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.reader import BatchReader, FilteringReader, filters_are_pushed

        options = SourceOptions.of(self.options, "batch")
        if options.push_filters and filters_are_pushed():
            return FilteringReader(options, schema)
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.spark.stream import RefusingReader, StreamReader

        try:
            options = SourceOptions.of(self.options, "stream")
            reader = StreamReader(options, schema)
        except PenstockError as error:
            return RefusingReader(error)
        if options.low_latency:
            raise PySparkNotImplementedError(
                errorClass="NOT_IMPLEMENTED", messageParameters={"feature": "streamReader"}
            )  # which makes Spark ask for the other one
        return reader

    def simpleStreamReader(self, schema: StructType) -> LowLatencyReader:
        from penstock.spark.low import LowLatencyReader

        return LowLatencyReader(SourceOptions.of(self.options, "stream"), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink import BatchSink

        return BatchSink(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.spark.sink import StreamSink

        return StreamSink(self.options, schema, overwrite)


DefaultSource = PenstockSource
"""The name under which Spark looks for it in `pyspark_penstock`."""
