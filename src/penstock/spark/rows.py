"""Records of the log as the rows Spark's Kafka source would give, column by column.

Spark checks that the first batch of a task has exactly the Arrow schema it derives from its own,
so the target schema is made by Spark's own function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock import limits
from penstock.errors import BadSetting

HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
COLUMNS: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
COLUMNS_WITH_HEADERS: Final = StructType([*COLUMNS.fields, StructField("headers", HEADERS)])
CREATE_TIME: Final = 0
"""Kafka's code for a timestamp that tells when a record was made."""

_OF_THE_LOG: Final = {
    "key": "key",
    "value": "value",
    "offset": "index",
    "timestamp": "timestamp",
    "headers": "headers",
}


def check_schema(schema: StructType) -> None:
    """Refuse a given schema with columns that are not there, or of another type."""
    types = {field.name.lower(): field.dataType.simpleString() for field in COLUMNS_WITH_HEADERS}
    names = [field.name.lower() for field in schema]
    wrong = "" if names else "the schema has no column"
    for field, name in zip(schema, names, strict=True):
        given = field.dataType.simpleString()
        if name not in types:
            wrong = f"there is no column {field.name}"
        elif names.count(name) > 1:
            wrong = f"the schema has {field.name} twice"
        elif given.lower() != types[name]:
            wrong = f"{field.name} is {types[name]} and not {given}: read it so and cast it"
    if wrong:
        valid = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in COLUMNS_WITH_HEADERS)
        raise BadSetting(f"{wrong}; valid columns are {valid}")


class Rows:
    """Turns batches of the log into batches of a Spark schema."""

    def __init__(self, schema: StructType) -> None:
        check_schema(schema)
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._names = [field.name.lower() for field in schema]
        self._constants: dict[tuple[str, Any], pa.Array] = {}

    @property
    def log_columns(self) -> list[str]:
        """The columns of the log that are needed; never none, for something has to be counted."""
        found = [_OF_THE_LOG[name] for name in self._names if name in _OF_THE_LOG]
        return found or ["index"]

    def of(self, batch: pa.RecordBatch, stream: str, partition: int) -> pa.RecordBatch:
        """One batch of the log, which has at least `log_columns`, as rows."""
        return pa.RecordBatch.from_arrays(
            [
                self._column(name, field, batch, stream, partition)
                for name, field in zip(self._names, self._schema, strict=True)
            ],
            schema=self._schema,
        )

    def _column(
        self, name: str, field: pa.Field, batch: pa.RecordBatch, stream: str, partition: int
    ) -> pa.Array:
        if name == "topic":
            return self._constant(name, stream, field.type, batch.num_rows)
        if name == "partition":
            return self._constant(name, partition, field.type, batch.num_rows)
        if name == "timestamptype":
            return self._constant(name, CREATE_TIME, field.type, batch.num_rows)
        column = batch.column(_OF_THE_LOG[name])
        return headers_of(column, field.type) if name == "headers" else column

    def _constant(self, name: str, value: Any, kind: pa.DataType, rows: int) -> pa.Array:
        """A column that is the same in every row, made once and cut to length."""
        made = self._constants.get((name, value))
        if made is None or len(made) < rows:
            if len(self._constants) > _CONSTANTS_MAX:
                self._constants.clear()
            length = limits.SPARK_BATCH_RECORDS if rows > _SMALL_BATCH else rows
            made = pa.repeat(pa.scalar(value, kind), max(rows, length))
            self._constants[name, value] = made
        return made if len(made) == rows else made.slice(0, rows)


_CONSTANTS_MAX: Final = 64
_SMALL_BATCH: Final = 4_096


def headers_of(column: pa.ListArray, kind: pa.DataType) -> pa.Array:
    """The log's headers under Kafka's names; a record without any has null, as there."""
    offsets = column.offsets.to_numpy()
    lengths = np.diff(offsets)
    if not lengths.any():
        return pa.nulls(len(column), kind)
    names, values = column.values.flatten()
    entries = pa.StructArray.from_arrays([names, values], fields=_fields(kind.value_type))
    missing = np.packbits(lengths != 0, bitorder="little")
    return pa.Array.from_buffers(
        kind,
        len(column),
        [pa.py_buffer(missing), pa.py_buffer(np.ascontiguousarray(offsets))],
        children=[entries],
    )


def _fields(struct: pa.StructType) -> Sequence[pa.Field]:
    return [struct.field(i) for i in range(struct.num_fields)]
