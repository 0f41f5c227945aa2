from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql import datasource as ds
from pyspark.sql.datasource import Filter

from penstock.log import SCHEMA
from penstock.spark.filters import Conditions
from penstock.spark.offsets import Range

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARISONS: list[Any] = [
    ds.EqualTo, ds.EqualNullSafe, ds.LessThan, ds.LessThanOrEqual, ds.GreaterThan,
    ds.GreaterThanOrEqual,
]  # fmt: skip
VALUES = {
    "offset": st.integers(-3, 30),
    "partition": st.integers(-1, 3),
    "topic": st.sampled_from(["a", "b", ""]),
    "timestamp": st.integers(-2, 12).map(lambda n: EPOCH + timedelta(microseconds=n)),
}
TIMES = [0, 9, 3, 3, 7, 1, 10, 2, 5, 4] * 2
"""Not in order, as times in a stream need not be."""


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(sorted(VALUES)))
    if draw(st.booleans()):
        made = draw(st.sampled_from(COMPARISONS))((column,), draw(VALUES[column]))
    else:
        made = ds.In((column,), tuple(draw(st.lists(VALUES[column], min_size=1, max_size=3))))
    return ds.Not(made) if draw(st.booleans()) else made


def meets(each: Filter, row: dict[str, Any]) -> bool:
    if isinstance(each, ds.Not):
        return not meets(each.child, row)
    own: Any = row[each.attribute[0]]  # type: ignore[attr-defined]
    value: Any = each.value  # type: ignore[attr-defined]
    operators = {
        ds.LessThan: own.__lt__, ds.LessThanOrEqual: own.__le__, ds.GreaterThan: own.__gt__,
        ds.GreaterThanOrEqual: own.__ge__, ds.EqualTo: own.__eq__, ds.EqualNullSafe: own.__eq__,
    }  # fmt: skip
    return own in value if isinstance(each, ds.In) else bool(operators[type(each)](value))


@given(st.lists(filters(), max_size=4), st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 9))
def test_what_is_accepted_is_applied_exactly(
    given_filters: list[Filter], stream: str, partition: int, start: int
) -> None:
    rows: list[dict[str, Any]] = [
        {
            "index": start + i,
            "timestamp": EPOCH + timedelta(microseconds=TIMES[start + i]),
            "key": None,
            "value": b"",
            "headers": [],
        }
        for i in range(10)
    ]
    conditions = Conditions()
    assert list(conditions.accept(given_filters)) == []
    expected = [
        row["index"]
        for row in rows
        if all(
            meets(each, {"offset": row["index"], "partition": partition, "topic": stream, **row})
            for each in given_filters
        )
    ]
    found: list[int] = []
    if conditions.has(stream, partition):
        cut = conditions.cut(Range(stream, partition, start, start + 10))
        assert start <= cut.start <= cut.end
        assert cut.end <= start + 10 or not cut.records
        batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        if cut.records:
            batch = batch.slice(cut.start - start, cut.records)
            found = conditions.rows(batch).column("index").to_pylist()
    assert found == expected
    first = conditions.not_before_us
    if first is not None:
        assert all(TIMES[index] >= first for index in expected)


@pytest.mark.parametrize(
    "each",
    [
        ds.EqualTo(("key",), b"x"),
        ds.EqualTo(("value",), b"x"),
        ds.EqualTo(("offset",), None),
        ds.EqualTo(("offset",), True),
        ds.EqualTo(("offset",), 1.5),
        ds.EqualTo(("offset", "inner"), 1),
        ds.In(("offset",), (1, None)),
        ds.In(("offset",), ()),
        ds.IsNull(("offset",)),
        ds.IsNotNull(("key",)),
        ds.StringStartsWith(("topic",), "a"),
        ds.GreaterThan(("timestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001 - of another type
        ds.Not(ds.IsNull(("offset",))),
    ],
)
def test_the_rest_is_left_to_spark(each: Filter) -> None:
    conditions = Conditions()
    assert list(conditions.accept([each])) == [each]
    assert conditions.all == []


def test_that_a_column_is_never_null_need_not_be_checked() -> None:
    conditions = Conditions()
    assert list(conditions.accept([ds.IsNotNull(("offset",)), ds.IsNotNull(("Timestamp",))])) == []
    assert conditions.all == []
