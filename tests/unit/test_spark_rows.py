from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import BadSetting
from penstock.log import SCHEMA
from penstock.spark.rows import COLUMNS, COLUMNS_WITH_HEADERS, Rows


def records(*headers: list[tuple[str, bytes]]) -> pa.RecordBatch:
    made: list[dict[str, Any]] = [
        {
            "index": 7 + i,
            "timestamp": datetime(2026, 1, 1, 0, 0, i, tzinfo=UTC),
            "key": None if i % 2 else b"k%d" % i,
            "value": b"v%d" % i,
            "headers": [{"name": name, "value": value} for name, value in each],
        }
        for i, each in enumerate(headers)
    ]
    return pa.RecordBatch.from_pylist(made, schema=SCHEMA)


def test_rows_have_exactly_the_schema_spark_asks_for() -> None:
    for schema in (COLUMNS, COLUMNS_WITH_HEADERS):
        batch = Rows(schema).of(records([], [("a", b"1")]), "orders", 3)
        batch.validate(full=True)
        assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))


def test_columns_are_those_of_kafkas_source() -> None:
    found = Rows(COLUMNS).of(records([], []), "orders", 3).to_pylist()
    assert found[1] == {
        "key": None,
        "value": b"v1",
        "topic": "orders",
        "partition": 3,
        "offset": 8,
        "timestamp": datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
        "timestampType": 0,
    }


def test_a_smaller_schema_gives_only_its_columns_in_its_order() -> None:
    schema = StructType(
        [StructField("Offset", LongType(), False), StructField("topic", StringType())]
    )
    rows = Rows(schema)
    assert rows.log_columns == ["index"]
    batch = rows.of(records([], []), "orders", 0)
    assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    assert batch.to_pylist() == [{"Offset": 7, "topic": "orders"}, {"Offset": 8, "topic": "orders"}]


def test_something_is_read_even_if_only_constants_are_asked_for() -> None:
    rows = Rows(StructType([StructField("topic", StringType())]))
    assert rows.log_columns == ["index"]
    assert rows.of(records([], [], []), "a", 0).to_pylist() == [{"topic": "a"}] * 3


def test_constants_are_right_after_larger_and_smaller_batches_and_other_streams() -> None:
    rows = Rows(COLUMNS)
    for count, stream in ((2, "a"), (5, "a"), (1, "a"), (3, "b"), (4, "a")):
        batch = rows.of(records(*[[] for _ in range(count)]), stream, count)
        assert batch.column("topic").to_pylist() == [stream] * count
        assert batch.column("partition").to_pylist() == [count] * count


def test_headers_are_kept_and_none_are_null() -> None:
    given = records([], [("a", b"1"), ("b", b"")], [("c", b"3")], [])
    rows = Rows(StructType([COLUMNS_WITH_HEADERS["headers"]]))
    expected = [
        None,
        [{"key": "a", "value": b"1"}, {"key": "b", "value": b""}],
        [{"key": "c", "value": b"3"}],
        None,
    ]
    assert rows.of(given, "a", 0).column(0).to_pylist() == expected
    for start in range(4):
        for end in range(start, 4):
            part = rows.of(given.slice(start, end - start), "a", 0)
            part.validate(full=True)
            assert part.column(0).to_pylist() == expected[start:end]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (
            StructField("val", BinaryType()),
            "there is no column val; valid columns are key binary, ",
        ),
        (
            StructField("value", StringType()),
            "value is binary and not string: read it so and cast it",
        ),
        (StructField("offset", TimestampType()), "offset is bigint and not timestamp"),
    ],
)
def test_other_schemas_are_refused_with_the_valid_columns(field: StructField, said: str) -> None:
    with pytest.raises(BadSetting, match=said) as raised:
        Rows(StructType([field]))
    assert "timestampType int, headers array<struct<key:string,value:binary>>" in str(raised.value)


def test_a_column_twice_and_no_column_are_refused() -> None:
    with pytest.raises(BadSetting, match="twice"):
        Rows(StructType([StructField("offset", LongType()), StructField("OFFSET", LongType())]))
    with pytest.raises(BadSetting, match="no column"):
        Rows(StructType([]))
