"""Filters that Spark hands to a batch read, as far as they are applied exactly.

Spark does not look again at what was accepted. The columns concerned are never null, so a negated
condition is simply the opposite one. Whole partitions are left out by topic and partition, the
range of indexes is cut, and what is left is decided row by row, by Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource
from pyspark.sql.datasource import Filter

from penstock.spark.offsets import Range

_LOG_COLUMNS: Final = {"offset": "index", "timestamp": "timestamp"}
_NEVER_NULL: Final = ("value", "topic", "partition", "offset", "timestamp", "timestamptype")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INVERSE: Final = {"==": "!=", "<": ">=", "<=": ">", ">": "<=", ">=": "<", "in": "not in"}
_OPERATORS: Final[dict[type[Filter], str]] = {
    datasource.EqualTo: "==",
    datasource.EqualNullSafe: "==",
    datasource.LessThan: "<",
    datasource.LessThanOrEqual: "<=",
    datasource.GreaterThan: ">",
    datasource.GreaterThanOrEqual: ">=",
    datasource.In: "in",
}
_VALUES: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}
_ARRAYS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "in": lambda a, b: pc.is_in(a, value_set=pa.array(b, pa.int64())),
    "not in": lambda a, b: pc.invert(pc.is_in(a, value_set=pa.array(b, pa.int64()))),
}


class Condition(NamedTuple):
    """A column compared with a value, or with several; times are in microseconds."""

    column: str
    operator: str
    value: Any


class Conditions:
    """The conditions that every row has to meet."""

    def __init__(self) -> None:
        self.all: list[Condition] = []

    def accept(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Take what can be applied exactly; yields the rest, which Spark applies."""
        for each in filters:
            if isinstance(each, datasource.IsNotNull) and each.attribute[0].lower() in _NEVER_NULL:
                continue
            found = _condition(each)
            if found is None:
                yield each
            else:
                self.all.append(found)

    @property
    def log_columns(self) -> set[str]:
        """The columns of the log that `rows` looks at."""
        return {_LOG_COLUMNS[each.column] for each in self.all if each.column in _LOG_COLUMNS}

    @property
    def not_before_us(self) -> int | None:
        """Records from before this time are not wanted."""
        return max(
            (c.value for c in self.all if c.column == "timestamp" and c.operator in (">", ">=")),
            default=None,
        )

    def has(self, stream: str, partition: int) -> bool:
        """Whether a partition can have wanted rows."""
        own = {"topic": stream, "partition": partition}
        return all(
            _VALUES[each.operator](own[each.column], each.value)
            for each in self.all
            if each.column in own
        )

    def cut(self, each: Range) -> Range:
        """The part of a range that can have wanted rows; it may be empty."""
        start, end = each.start, each.end
        for condition in self.all:
            if condition.column != "offset":
                continue
            operator, value = condition.operator, condition.value
            if operator in ("==", "in"):
                wanted = [value] if operator == "==" else value
                start, end = max(start, min(wanted)), min(end, max(wanted) + 1)
            elif operator in (">", ">="):
                start = max(start, value + (operator == ">"))
            elif operator in ("<", "<="):
                end = min(end, value + (operator == "<="))
        return each._replace(start=start, end=max(start, end))

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch of the log that are wanted."""
        mask = None
        for each in self.all:
            if each.column in _LOG_COLUMNS:
                column = batch.column(_LOG_COLUMNS[each.column]).view(pa.int64())
                met = _ARRAYS[each.operator](column, each.value)
                mask = met if mask is None else pc.and_(mask, met)
        return batch if mask is None else batch.filter(mask)


def _condition(each: Filter) -> Condition | None:
    negated = isinstance(each, datasource.Not)
    inner = each.child if isinstance(each, datasource.Not) else each
    operator = _OPERATORS.get(type(inner))
    attribute: tuple[str, ...] = getattr(inner, "attribute", ())
    if operator is None or len(attribute) != 1:
        return None
    column = attribute[0].lower()
    given = inner.value  # type: ignore[attr-defined]
    values = [_value(column, one) for one in (given if operator == "in" else [given])]
    if not values or None in values:
        return None  # comparing with null is Spark's business
    return Condition(
        column,
        _INVERSE[operator] if negated else operator,
        values if operator == "in" else values[0],
    )


def _value(column: str, given: Any) -> int | str | None:
    """The value as it is compared; None if it is not of the column's type."""
    if column in ("offset", "partition") and isinstance(given, int) and not isinstance(given, bool):
        return given if -(2**63) <= given < 2**63 else None
    if column == "topic" and isinstance(given, str):
        return given
    if column == "timestamp" and isinstance(given, datetime) and given.tzinfo is not None:
        return (given - _EPOCH) // timedelta(microseconds=1)
    return None
