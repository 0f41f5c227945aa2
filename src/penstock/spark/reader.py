"""Reading a stream, or some, as a batch: `spark.read.format("penstock")`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.errors import BadSetting
from penstock.spark.fetch import Wanted, data_lost, records, warn_lost
from penstock.spark.filters import Conditions
from penstock.spark.follow import Looked, at_time, look
from penstock.spark.offsets import Offsets, Range, ranges, resolve, tasks
from penstock.spark.options import SourceOptions
from penstock.spark.rows import Rows

_PUSHES_FILTERS: Final = "pyspark.sql.worker.data_source_pushdown_filters"


def filters_are_pushed() -> bool:
    """Whether Spark runs this process to push filters, which it does where its session allows it.

    Otherwise a reader that offers to take filters fails. Nothing else tells a reader.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHES_FILTERS in sys.modules or getattr(main, "name", None) == _PUSHES_FILTERS


class Task(InputPartition):
    """What one task of Spark reads."""

    def __init__(self, found: Sequence[Range]) -> None:
        super().__init__([tuple(each) for each in found])

    @property
    def ranges(self) -> list[Range]:
        return [Range(*each) for each in self.value]


class TaskReader:
    """Turns the ranges of a task into batches of Spark's columns."""

    def __init__(
        self, options: SourceOptions, schema: StructType, conditions: Conditions | None = None
    ) -> None:
        self._schema = schema
        self._conditions = conditions
        columns = dict.fromkeys(Rows(schema).log_columns)
        if conditions is not None:
            columns |= dict.fromkeys(sorted(conditions.log_columns))
        self._wanted = Wanted(options.hub, tuple(columns), options.fail_on_data_loss)

    def read(self, found: Iterable[Range]) -> Iterator[pa.RecordBatch]:
        rows = Rows(self._schema)
        for each in found:
            for batch in records(self._wanted, each):
                kept = batch if self._conditions is None else self._conditions.rows(batch)
                if kept.num_rows:
                    yield rows.of(kept, each.stream, each.partition)


class BatchReader(DataSourceReader):
    """Reads what there is between two offsets, or two times."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._conditions = Conditions()
        Rows(schema)  # refuses a wrong schema now and not in a task

    def partitions(self) -> list[InputPartition]:
        options = self._options
        extents = look(options.hub, options.streams)
        begin, end = self._begin(extents), self._end(extents)
        for stream, each in begin.items():
            for number, index in each.items():
                if index > end[stream][number]:
                    self._refuse_turned(stream, number, index, end[stream][number])
                    end[stream][number] = index
        found, losses = ranges(begin, end, extents)
        if losses and options.fail_on_data_loss:
            raise data_lost(losses)
        for loss in losses:
            warn_lost(loss)
        wanted = self._filtered(found, extents)
        return [Task(each) for each in tasks(wanted, extents, options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Task):  # Spark makes one up where there are none
            return iter(())
        return TaskReader(self._options, self._schema, self._conditions).read(partition.ranges)

    def _begin(self, extents: Looked) -> Offsets:
        options = self._options
        if options.starting_us is not None:
            return at_time(options.hub, extents, options.starting_us)
        return resolve(options.starting, extents, "startingOffsets")

    def _end(self, extents: Looked) -> Offsets:
        options = self._options
        if options.ending_us is not None:
            return at_time(options.hub, extents, options.ending_us)
        return resolve(options.ending, extents, "endingOffsets")

    def _refuse_turned(self, stream: str, number: int, begin: int, end: int) -> None:
        if isinstance(self._options.starting, dict) and isinstance(self._options.ending, dict):
            raise BadSetting(
                f"startingOffsets is {begin} for {stream}/{number}, after endingOffsets, {end}"
            )

    def _filtered(self, found: list[Range], extents: Looked) -> list[Range]:
        """The ranges without what no condition lets through."""
        conditions = self._conditions
        found = [each for each in found if conditions.has(each.stream, each.partition)]
        time = conditions.not_before_us
        if time is not None and found:
            there = {each.stream: extents[each.stream] for each in found}
            first = at_time(self._options.hub, there, time)
            found = [
                each._replace(start=max(each.start, first[each.stream][each.partition]))
                for each in found
            ]
        return [cut for each in found if (cut := conditions.cut(each)).records > 0]


class FilteringReader(BatchReader):
    """The same for sessions that push filters: Spark refuses to let others have `pushFilters`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._conditions.accept(filters)
