from __future__ import annotations

import json
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.errors import BadSetting
from penstock.spark.offsets import (
    EARLIEST,
    FIRST,
    LATEST,
    Offsets,
    Range,
    admit,
    from_spark,
    is_moving,
    parse_offsets,
    ranges,
    resolve,
    share,
    split,
    survey,
    tasks,
    to_spark,
)


class Extent(NamedTuple):
    earliest: int
    end: int
    bytes: int = 0


Found = dict[str, dict[int, Extent]]
partitions = st.sampled_from([("a", 0), ("a", 1), ("a", 10), ("b", 0), ("c.d", 3)])


@st.composite
def extents(draw: st.DrawFn) -> Found:
    found: Found = {}
    for stream, number in draw(st.sets(partitions, min_size=1)):
        earliest = draw(st.integers(0, 1_000))
        count = draw(st.integers(0, 1_000))
        nbytes = count * draw(st.integers(0, 300))
        found.setdefault(stream, {})[number] = Extent(earliest, earliest + count, nbytes)
    return found


@st.composite
def offsets(draw: st.DrawFn) -> Offsets:
    found: Offsets = {}
    for stream, number in draw(st.sets(partitions)):
        found.setdefault(stream, {})[number] = draw(st.integers(0, 2_000))
    return found


def total(found: list[Range]) -> int:
    return sum(each.records for each in found)


# -- text ------------------------------------------------------------------------------------------


@given(offsets())
def test_offsets_come_back_from_sparks_json_with_one_spelling(there: Offsets) -> None:
    stored = json.dumps(to_spark(there))
    assert from_spark(json.loads(stored)) == there
    turned = {s: dict(reversed(p.items())) for s, p in reversed(there.items())}
    assert json.dumps(to_spark(turned)) == stored


def test_partitions_are_sorted_as_numbers() -> None:
    assert list(to_spark({"a": {10: 1, 2: 1}})["a"]) == ["2", "10"]


def test_what_stands_beside_the_streams_is_no_stream() -> None:
    assert from_spark({"a": {"0": 4}, FIRST: {"a": {"0": 1}}}) == {"a": {0: 4}}


def test_offsets_of_a_user() -> None:
    assert parse_offsets('{"a":{"0":23,"1":-2}}', "startingOffsets") == {"a": {0: 23, 1: EARLIEST}}


@pytest.mark.parametrize(
    "text",
    ["first", "[]", "{}", '{"a": {}}', '{"a": 3}', '{"a": {"x": 3}}', '{"a": {"0": -3}}',
     '{"a": {"0": true}}', '{"a": {"0": 1.5}}', '{"a": {"-1": 3}}'],
)  # fmt: skip
def test_other_offsets_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadSetting, match="startingOffsets has to be earliest, latest, or like"):
        parse_offsets(text, "startingOffsets")


# -- where to begin --------------------------------------------------------------------------------

THERE: Found = {"a": {0: Extent(2, 9), 1: Extent(0, 4)}}


def test_words_and_numbers_stand_for_indexes() -> None:
    assert resolve(EARLIEST, THERE, "x") == {"a": {0: 2, 1: 0}}
    assert resolve(LATEST, THERE, "x") == {"a": {0: 9, 1: 4}}
    assert resolve({"a": {0: LATEST, 1: 3}}, THERE, "x") == {"a": {0: 9, 1: 3}}


def test_given_offsets_have_to_name_what_is_read() -> None:
    with pytest.raises(BadSetting, match=r"missing: a/1; not read: a/7"):
        resolve({"a": {0: 3, 7: 1}}, THERE, "startingOffsets")
    with pytest.raises(BadSetting, match=r"is 10 for a/0, past its end: it ends at 9"):
        resolve({"a": {0: 10, 1: 1}}, THERE, "startingOffsets")


def test_only_latest_moves() -> None:
    assert is_moving(LATEST)
    assert is_moving({"a": {0: 4, 1: LATEST}})
    assert not is_moving(EARLIEST)
    assert not is_moving({"a": {0: 4}})


# -- admission -------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=20), st.integers(1, 10**12))
def test_a_share_is_in_proportion_and_never_more_than_the_limit(
    amounts: list[int], limit: int
) -> None:
    parts = share(amounts, limit)
    assert sum(parts) == min(limit, sum(amounts))
    for part, amount in zip(parts, amounts, strict=True):
        assert 0 <= part <= amount
        assert abs(part - amount * min(1, limit / max(1, sum(amounts)))) <= 1 + amount / 10**9


@given(
    extents(),
    offsets(),
    st.none() | st.integers(1, 500),
    st.none() | st.integers(1, 50_000),
)
def test_a_query_reads_each_record_there_is_once_and_comes_to_an_end(
    there: Found, start: Offsets, max_records: int | None, max_bytes: int | None
) -> None:
    begins, _ = survey(start, there)
    expected = {
        (stream, number, index)
        for stream, each in begins.items()
        for number, begin in each.items()
        for index in range(begin, there[stream][number].end)
    }
    seen: set[tuple[str, int, int]] = set()
    for _ in range(20_000):
        end = admit(start, there, None, max_records, max_bytes)
        if to_spark(end) == to_spark(start):
            break
        found, _ = ranges(start, end, there)
        if max_records is not None:
            assert total(found) <= max_records
        for each in found:
            for index in range(each.start, each.end):
                assert (each.stream, each.partition, index) not in seen
                seen.add((each.stream, each.partition, index))
        start = end
    else:
        pytest.fail("it never ends")
    assert seen == expected


@given(extents(), offsets(), extents(), st.none() | st.integers(1, 500))
def test_with_a_target_a_query_ends_and_never_passes_it(
    there: Found, start: Offsets, before: Found, max_records: int | None
) -> None:
    target = resolve(LATEST, before, "x")
    for _ in range(20_000):
        end = admit(start, there, target, max_records)
        if to_spark(end) == to_spark(start):
            break
        for stream, number, begin, stop in ranges(start, end, there)[0]:
            assert begin < stop <= target[stream][number]
        start = end
    else:
        pytest.fail("it never ends")


def test_a_limit_of_bytes_goes_by_the_average_record() -> None:
    there = {"a": {0: Extent(0, 1_000, 100_000), 1: Extent(0, 100, 1_000)}}
    end = admit({"a": {0: 0, 1: 0}}, there, None, None, 10_100)
    assert end == {"a": {0: 100, 1: 10}}
    assert admit({"a": {0: 0, 1: 0}}, there, None, None, 1) == {"a": {0: 1, 1: 0}}


def test_new_partitions_join_from_their_beginning() -> None:
    there = {"a": {0: Extent(0, 5), 1: Extent(0, 3)}, "b": {0: Extent(0, 2)}}
    end = admit({"a": {0: 5}}, there)
    assert end == {"a": {0: 5, 1: 3}, "b": {0: 2}}
    assert ranges({"a": {0: 5}}, end, there) == ([Range("a", 1, 0, 3), Range("b", 0, 0, 2)], [])


# -- losses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "there", "said"),
    [
        ({"a": {0: 3}}, {"a": {0: Extent(7, 9)}}, "a/0 records 3 to 6 (dropped by retention)"),
        ({"a": {0: 3}}, {}, "a/0 from 3 (the stream was deleted)"),
        ({"a": {0: 3}}, {"a": {0: Extent(0, 2)}}, "a/0 from 3 (it now ends at 2: it was made anew"),
        ({}, {"a": {0: Extent(4, 9)}}, "a/0 records 0 to 3 (dropped by retention)"),
    ],
)
def test_losses_are_named(start: Offsets, there: Found, said: str) -> None:
    _, losses = survey(start, there)
    assert len(losses) == 1
    assert str(losses[0]).startswith(said)


def test_a_repeated_batch_names_what_it_can_no_longer_read() -> None:
    there = {"a": {0: Extent(7, 9)}, "b": {0: Extent(0, 2)}}
    found, losses = ranges(
        {"a": {0: 3}, "c": {0: 0}}, {"a": {0: 8}, "b": {0: 5}, "c": {0: 2}}, there
    )
    assert found == [Range("a", 0, 7, 8), Range("b", 0, 0, 2)]
    assert [(loss.stream, loss.start, loss.end) for loss in losses] == [
        ("a", 3, 7), ("b", 2, 5), ("c", 0, 2)
    ]  # fmt: skip


def test_a_stream_that_was_made_anew_is_read_from_its_beginning() -> None:
    there = {"a": {0: Extent(1, 4)}}
    end = admit({"a": {0: 100}}, there)
    assert end == {"a": {0: 4}}
    assert ranges({"a": {0: 100}}, end, there)[0] == [Range("a", 0, 1, 4)]


# -- tasks -----------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**6)), max_size=8),
    st.integers(1, 50),
)
def test_cut_ranges_cover_the_same_records(spans: list[tuple[int, int]], at_least: int) -> None:
    found = [Range("a", i, start, start + count) for i, (start, count) in enumerate(spans)]
    pieces = split(found, at_least)
    assert len(pieces) >= min(at_least, total(found))
    assert len(pieces) <= max(at_least, len(found))
    for whole in found:
        own = [piece for piece in pieces if piece.partition == whole.partition]
        assert own[0].start == whole.start
        assert own[-1].end == whole.end
        assert all(piece.records > 0 for piece in own)
        assert all(one.end == two.start for one, two in pairwise(own))
        assert max(p.records for p in own) - min(p.records for p in own) <= 1


def test_small_ranges_share_a_task_and_large_ones_do_not() -> None:
    there = {"a": {n: Extent(0, 10**6, 10**8) for n in range(4)}}
    small = [Range("a", n, 0, 100) for n in range(3)]
    large = Range("a", 3, 0, limits.SPARK_BATCH_RECORDS)
    assert tasks([*small, large], there) == [small, [large]]
    assert tasks(small, there, min_partitions=1) == [[each] for each in small]
    heavy = {"a": {n: Extent(0, 100, 100 * limits.MIB) for n in range(4)}}
    assert tasks(small, heavy) == [[each] for each in small]
