from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.errors import BadBatch, BatchTooLarge, TooMany
from penstock.log import Batch, BinaryColumn, HeaderColumn
from penstock.log import frame as fr
from penstock.log.schema import HEADERS, TIMESTAMP, record_batch
from tests.unit.columns import arrow_rows, batch_of, expected_rows, record_lists


def stored(batch: Batch) -> list[tuple[Any, ...]]:
    """(time, key, value, headers) of each record, as the journal would give them back."""
    body = fr.Body(batch, None)
    parts = fr.frame_parts(
        body, 0, 0, 1, 0, np.array([1], np.uint32), np.array([batch.count], np.uint32),
        np.zeros(1, np.int64), np.zeros(1, np.int64), None, b"",
    )  # fmt: skip
    whole = b"".join(bytes(part) for part in parts)
    frame = fr.parse_head(whole, 0)
    assert frame is not None
    data = whole[frame.head_length :]
    assert fr.body_is_whole(frame, data)
    return arrow_rows(fr.body_columns(frame, data))


def values_of(batch: Batch) -> list[bytes]:
    return [value for _, _, value, _ in stored(batch)]


def offsets(*numbers: int) -> Any:
    return np.array(numbers, np.int32)


AB = BinaryColumn(offsets(0, 1, 2), b"ab")

# -- what is taken -------------------------------------------------------------------------------


@given(record_lists())
def test_lists_become_columns(lists: dict[str, Any]) -> None:
    batch = batch_of(lists)
    assert len(batch) == batch.count == len(lists["values"])
    assert stored(batch) == expected_rows(lists, 0)
    sizes = [
        len(value) + len(key or b"") + sum(len(h["name"].encode()) + len(h["value"]) for h in heads)
        for _, key, value, heads in expected_rows(lists, 0)
    ]
    assert batch.largest == max(sizes)
    assert batch.nbytes >= sum(sizes)


@given(record_lists(), st.data())
def test_filtering_keeps_the_chosen_records(lists: dict[str, Any], data: st.DataObject) -> None:
    count = len(lists["values"])
    keep = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    batch = batch_of(lists).filter(np.array(keep))
    assert batch.count == sum(keep)
    if batch.count:
        kept = [row for row, kept in zip(expected_rows(lists, 0), keep, strict=True) if kept]
        assert stored(batch) == kept


@given(record_lists(), st.integers(0, 12), st.integers(1, 12))
def test_slices_of_arrow_arrays_are_taken_as_they_look(
    lists: dict[str, Any], start: int, length: int
) -> None:
    count = len(lists["values"])
    start = min(start, count - 1)
    whole = record_batch(0, [
        pa.array(lists["timestamps"] or [0] * count, pa.int64()).view(TIMESTAMP),
        pa.array(lists["keys"] or [None] * count, pa.binary()),
        pa.array(lists["values"], pa.binary()),
        pa.array(
            [heads for *_, heads in expected_rows(lists, 0)],
            HEADERS,
        ),
    ])  # fmt: skip
    part = whole.slice(start, length)
    assert stored(Batch.from_table(part)) == expected_rows(lists, 0)[start : start + length]


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary(2)],
    ids=str,
)
def test_binary_and_string_arrays_of_any_kind_are_taken(kind: pa.DataType) -> None:
    array = pa.array([b"aa", b"bb", b"cc", b"dd"], pa.binary()).cast(kind)
    assert values_of(Batch.from_arrow(array)) == [b"aa", b"bb", b"cc", b"dd"]
    assert values_of(Batch.from_arrow(array.slice(1, 2))) == [b"bb", b"cc"]


def test_keys_with_nulls_in_a_slice_keep_their_places() -> None:
    keys = pa.array([None, b"a", None, b"b", b"c", None, None, b"d", None, b"e"], pa.binary())
    values = pa.array([b"v"] * 10, pa.binary())
    for start in range(10):
        batch = Batch.from_arrow(values.slice(start), keys=keys.slice(start))
        assert [key for _, key, _, _ in stored(batch)] == keys.to_pylist()[start:]


def test_a_table_of_several_chunks_is_taken() -> None:
    table = pa.concat_tables([pa.table({"value": [b"a"]}), pa.table({"value": [b"b", b"c"]})])
    assert values_of(Batch.from_table(table)) == [b"a", b"b", b"c"]


def test_timestamps_of_other_units_become_microseconds() -> None:
    stamps = pa.array([1, 2], pa.timestamp("ms", tz="UTC"))
    batch = Batch.from_arrow(pa.array([b"a", b"b"]), timestamps=stamps)
    assert [time for time, *_ in stored(batch)] == [1_000, 2_000]


def test_missing_headers_are_no_headers() -> None:
    headers = pa.array([[{"name": "n", "value": b"v"}], None, []], HEADERS)
    batch = Batch.from_arrow(pa.array([b"a", b"b", b"c"]), headers=headers)
    assert [heads for *_, heads in stored(batch)] == [[{"name": "n", "value": b"v"}], [], []]


def test_columns_of_a_decoder_are_taken_without_a_copy() -> None:
    batch = Batch(
        AB,
        BinaryColumn(offsets(0, 0, 1), b"k", b"\x02"),
        np.array([5, 6]),
        HeaderColumn(
            offsets(0, 0, 1), BinaryColumn(offsets(0, 1), b"n"), BinaryColumn(offsets(0, 0), b"")
        ),
    )
    assert stored(batch) == [
        (5, None, b"a", []),
        (6, b"k", b"b", [{"name": "n", "value": b""}]),
    ]


def test_a_validity_bitmap_may_be_longer_than_needed() -> None:
    batch = Batch(AB, BinaryColumn(offsets(0, 0, 1), b"k", b"\x02" + bytes(63)))
    assert [key for _, key, _, _ in stored(batch)] == [None, b"k"]


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        BinaryColumn(offsets(), b""),
        BinaryColumn(offsets(1, 2), b"ab"),
        BinaryColumn(offsets(0, 1), b"ab"),
        BinaryColumn(offsets(0, 3), b"ab"),
        BinaryColumn(offsets(0, 2, 1, 2), b"ab"),
        BinaryColumn(offsets(0, -1, 2), b"ab"),
    ],
    ids=["none", "not from 0", "too short", "too long", "falling", "negative"],
)
def test_bad_offsets_are_refused(values: BinaryColumn) -> None:
    with pytest.raises(BadBatch, match="offsets"):
        Batch(values)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Batch(BinaryColumn(np.array([0, 1, 2], np.int64), b"ab")),
        lambda: Batch(BinaryColumn(np.array([0, 1, 2], np.uint8), b"ab")),
        lambda: Batch(AB, BinaryColumn(np.array([0, 0, 0], np.int64), b"")),
        lambda: Batch(AB, timestamps=np.array([1.0, 2.0])),
        lambda: Batch(AB, timestamps=np.array([1, 2], np.int32)),
        lambda: Batch(
            AB,
            headers=HeaderColumn(
                np.array([0, 0, 0], np.int64),
                BinaryColumn(offsets(0), b""),
                BinaryColumn(offsets(0), b""),
            ),
        ),
    ],
    ids=["values", "bytes", "keys", "floats", "short times", "headers"],
)
def test_columns_of_the_wrong_type_are_refused(make: Any) -> None:
    with pytest.raises(BadBatch, match=r"int32|int64"):
        make()


def test_columns_of_different_lengths_are_refused() -> None:
    one = BinaryColumn(offsets(0, 1), b"k")
    with pytest.raises(BadBatch, match="1 keys for 2 records"):
        Batch(AB, one)
    with pytest.raises(BadBatch, match="1 timestamps for 2"):
        Batch(AB, timestamps=np.array([1]))
    with pytest.raises(BadBatch, match="1 header lists for 2"):
        Batch(AB, headers=HeaderColumn(offsets(0, 1), one, one))
    with pytest.raises(BadBatch, match="header value"):
        Batch(AB, headers=HeaderColumn(offsets(0, 1, 1), one, AB))
    with pytest.raises(BadBatch, match="bitmap is too short"):
        Batch(AB, BinaryColumn(offsets(0, 0, 0), b"", b""))
    with pytest.raises(BadBatch, match="2 keys for 1 values"):
        Batch.of([b"a"], keys=[None, None])


def test_header_offsets_must_fit_the_headers() -> None:
    one = BinaryColumn(offsets(0, 1), b"k")
    for bad in (offsets(0, 0, 0), offsets(0, 2, 1), offsets(1, 1, 1)):
        with pytest.raises(BadBatch, match="header offsets"):
            Batch(AB, headers=HeaderColumn(bad, one, one))


def test_values_cannot_be_null() -> None:
    with pytest.raises(BadBatch, match="use an empty value"):
        Batch.of([b"a", None])  # type: ignore[list-item]


def test_timestamps_cannot_be_null() -> None:
    with pytest.raises(BadBatch, match="leave the column out"):
        Batch.of([b"a", b"b"], timestamps=[1, None])  # type: ignore[list-item]


def test_headers_have_names_and_values() -> None:
    nulls = pa.array(
        [[{"name": None, "value": b"v"}]],
        pa.list_(pa.struct([("name", pa.utf8()), ("value", pa.binary())])),
    )
    with pytest.raises(BadBatch):
        Batch.from_arrow(pa.array([b"a"]), headers=nulls)


@pytest.mark.parametrize(
    "arguments",
    [
        {"values": ["text"], "keys": [1]},
        {"values": [1]},
        {"values": [b"v"], "timestamps": ["soon"]},
        {"values": [b"v"], "timestamps": [2**63]},
        {"values": [b"v"], "headers": [[("n", "no bytes", 3)]]},
        {"values": [b"v"], "headers": [[(1, b"v")]]},
        {"values": 5},
    ],
    ids=str,
)
def test_wrong_types_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(BadBatch):
        Batch.of(arguments.pop("values"), **arguments)


def test_arrow_columns_of_other_types_are_refused() -> None:
    with pytest.raises(BadBatch, match="must be binary or string"):
        Batch.from_arrow(pa.array([1, 2]))
    with pytest.raises(BadBatch, match="cannot be appended"):
        Batch.from_arrow(pa.array([b"a"]), headers=pa.array([1]))
    with pytest.raises(BadBatch, match="cannot be appended"):
        Batch.from_arrow(pa.array([b"a"]), timestamps=pa.array([1], pa.timestamp("ns")))


def test_a_table_names_its_columns() -> None:
    with pytest.raises(BadBatch, match="needed is value"):
        Batch.from_table(pa.table({"key": [b"k"]}))
    with pytest.raises(BadBatch, match="allowed are"):
        Batch.from_table(pa.table({"value": [b"v"], "topic": ["t"]}))


def test_a_batch_has_at_most_so_many_records() -> None:
    most = limits.BATCH_RECORDS_MAX
    assert Batch(BinaryColumn(np.zeros(most + 1, np.int32), b"")).count == most
    with pytest.raises(BatchTooLarge, match=f"at most {most}; append it in parts"):
        Batch(BinaryColumn(np.zeros(most + 2, np.int32), b""))


def test_a_record_has_at_most_so_many_headers() -> None:
    most = limits.RECORD_HEADERS_MAX
    Batch.of([b"v"], headers=[[("n", b"")] * most])
    with pytest.raises(TooMany, match=f"at most {most}"):
        Batch.of([b"v"], headers=[[("n", b"")] * (most + 1)])
