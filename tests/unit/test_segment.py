from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import SegmentDamaged, SegmentMissing
from penstock.log.disk import RealDisk
from penstock.log.schema import HEADERS, TIMESTAMP, record_batch
from penstock.log.sealing import seal
from penstock.log.segment import (
    GROWING,
    INDEX,
    SEALED,
    SegmentFile,
    cut_points,
    encode_batch,
    parse_name,
    segment_name,
    stream_head,
    take_within,
)
from tests.records import indexes, rows
from tests.unit.columns import expected_rows, record_lists

DISK = RealDisk()


def arrow_batch(lists: dict[str, Any], base: int) -> pa.RecordBatch:
    count = len(lists["values"])
    columns = [list(each) for each in zip(*expected_rows(lists, 0), strict=True)]
    assert len(columns[0]) == count
    return record_batch(
        base,
        [
            pa.array(columns[0], pa.int64()).view(TIMESTAMP),
            pa.array(columns[1], pa.binary()),
            pa.array(columns[2], pa.binary()),
            pa.array(columns[3], HEADERS),
        ],
    )


def plain(values: list[bytes], base: int = 0) -> pa.RecordBatch:
    return arrow_batch(
        {"values": values, "keys": None, "timestamps": list(range(len(values))), "headers": None},
        base,
    )


def written(directory: Path, batches: list[pa.RecordBatch], base: int) -> Path:
    path = directory / segment_name(base, GROWING)
    parts = [stream_head("s", 0)]
    for batch in batches:
        encoded, length = encode_batch(batch)
        assert sum(len(part) for part in encoded) == length
        parts.extend(bytes(part) for part in encoded)
    path.write_bytes(b"".join(parts))
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


@contextlib.contextmanager
def opened(path: Path, size: int | None = None) -> Iterator[SegmentFile]:
    file = SegmentFile(DISK, path, size)
    try:
        yield file
    finally:
        file.close()


def all_rows(path: Path, size: int | None = None) -> list[dict[str, Any]]:
    with opened(path, size) as file:
        return rows(file.batches())


def read(file: SegmentFile, start: int, records: int, size: int) -> list[pa.RecordBatch]:
    found, _ = file.read(start, records, size)
    return found


def sealed_copy(path: Path, compression: str = "lz4") -> Path:
    seal(DISK, path, "s", 0, compression)
    return path.with_suffix(SEALED)


# -- names ---------------------------------------------------------------------------------------


@given(st.integers(0, 10**20 - 1), st.sampled_from([GROWING, SEALED]))
def test_a_name_tells_the_first_index_and_the_form(base: int, suffix: str) -> None:
    assert parse_name(segment_name(base, suffix)) == (base, suffix)


@pytest.mark.parametrize(
    "name", ["", "1.arrow", segment_name(1, INDEX), segment_name(1, ".tmp"), "x" * 20 + ".arrow"]
)
def test_other_files_are_not_taken_for_segments(name: str) -> None:
    assert parse_name(name) is None


# -- round trips ---------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    every=st.lists(record_lists(6), min_size=1, max_size=4),
    base=st.integers(0, 10**12),
    compression=st.sampled_from(["lz4", "zstd", "none"]),
)
def test_what_is_written_is_read_growing_and_sealed(
    tmp_path_factory: pytest.TempPathFactory,
    every: list[dict[str, Any]],
    base: int,
    compression: str,
) -> None:
    at = base
    batches = []
    expected = []
    for lists in every:
        batches.append(arrow_batch(lists, at))
        expected.extend(batches[-1].to_pylist())
        at += len(lists["values"])
    growing = written(tmp_path_factory.mktemp("segment"), batches, base)
    size = growing.stat().st_size
    assert all_rows(growing) == all_rows(growing, size) == expected
    for path in (growing, sealed_copy(growing, compression)):
        with opened(path) as file:
            assert file.next_index == at
            assert [entry.rows for entry in file.entries][-1] > 0
            stamps = [
                time for batch in batches for time in batch.column(1).view(pa.int64()).to_pylist()
            ]
            assert file.max_time() == max(stamps)
            for start in range(base, at):
                found = read(file, start, 2, 10**6)
                assert rows(found) == expected[start - base : start - base + 2]
            for time in sorted({*stamps, min(stamps) - 1, max(stamps) + 1}):
                late = [base + n for n, each in enumerate(stamps) if each >= time]
                assert file.first_at_or_after(time, base) == (late[0] if late else None)


def test_a_sealed_segment_without_its_index_reads_the_same(directory: Path) -> None:
    path = written(directory, [plain([b"a" * 500] * 50, start) for start in (0, 50)], 0)
    sealed = sealed_copy(path)
    assert sealed.with_suffix(INDEX).exists()
    before = all_rows(sealed)
    sealed.with_suffix(INDEX).unlink()
    assert all_rows(sealed) == before == all_rows(path)


def test_data_that_compresses_is_compressed(directory: Path) -> None:
    path = written(directory, [plain([b"a" * 1_000] * 100)], 0)
    assert sealed_copy(path).stat().st_size < path.stat().st_size / 5


def test_data_that_does_not_compress_is_left_as_it_is(directory: Path) -> None:
    noise = np.random.default_rng(1).bytes(100_000)
    values = [noise[at : at + 1_000] for at in range(0, 100_000, 1_000)]
    path = written(directory, [plain(values)], 0)
    assert sealed_copy(path).stat().st_size > 100_000
    assert [row["value"] for row in all_rows(path.with_suffix(SEALED))] == values


@given(
    sizes=st.lists(st.sampled_from([0, 1, 100, 5_000]), min_size=1, max_size=40),
    bytes_max=st.integers(1, 30_000),
)
def test_cutting_gives_pieces_of_about_the_size_asked_for(sizes: list[int], bytes_max: int) -> None:
    batch = plain([bytes(size) for size in sizes])
    cuts = cut_points(batch, bytes_max)
    assert cuts[0] == 0
    assert cuts[-1] == batch.num_rows
    assert cuts == sorted(set(cuts))
    for begin, end in itertools.pairwise(cuts):
        piece = batch.slice(begin, end - begin)
        assert end - begin == 1 or piece.nbytes <= 2 * bytes_max + 5_100


@given(
    sizes=st.lists(st.sampled_from([0, 1, 100, 5_000]), min_size=1, max_size=40),
    start=st.integers(0, 39),
    records_max=st.integers(1, 50),
    bytes_max=st.integers(0, 30_000),
)
def test_taking_what_fits_takes_at_least_one(
    sizes: list[int], start: int, records_max: int, bytes_max: int
) -> None:
    whole = plain([bytes(size) for size in sizes])
    batch = whole.slice(min(start, whole.num_rows - 1))
    taken = take_within(batch, records_max, bytes_max)
    assert 1 <= taken.num_rows <= min(records_max, batch.num_rows)
    assert taken.equals(batch.slice(0, taken.num_rows))
    assert taken.num_rows == 1 or taken.nbytes <= bytes_max + 5_100


# -- damage --------------------------------------------------------------------------------------


@pytest.fixture
def three(directory: Path) -> Path:
    """A small growing segment of three batches."""
    batches = [
        arrow_batch(
            {
                "values": [b"v%d" % start, b"w"],
                "keys": [None, b"k"],
                "timestamps": [start, start + 1],
                "headers": [[("h", b"1")], []],
            },
            start,
        )
        for start in (0, 2, 4)
    ]
    return written(directory, batches, 0)


def reads_alike_or_fails(path: Path, expected: list[dict[str, Any]], size: int | None) -> None:
    """Reading in steps gives what was written, or an error; never anything else."""
    try:
        with opened(path, size) as file:
            for start in (3, 0):
                found = rows(read(file, start, 10, 10**6))
                assert found
                assert found == expected[start : start + len(found)]
    except (SegmentDamaged, SegmentMissing):
        return


@pytest.mark.parametrize("form", ["growing", "sealed", "sealed without index"])
def test_no_bit_flip_goes_unnoticed(three: Path, form: str) -> None:
    expected = all_rows(three)
    path, size = three, three.stat().st_size
    if form != "growing":
        path = sealed_copy(three)
        if form == "sealed without index":
            path.with_suffix(INDEX).unlink()
    whole = path.read_bytes()
    limit = size if form == "growing" else None
    rng = np.random.default_rng(7)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        reads_alike_or_fails(path, expected, limit)


def test_no_bit_flip_in_an_index_goes_unnoticed(three: Path) -> None:
    expected = all_rows(three)
    path = sealed_copy(three)
    index = path.with_suffix(INDEX)
    whole = index.read_bytes()
    for bit in range(0, len(whole) * 8, 3):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        index.write_bytes(damaged)
        assert all_rows(path) == expected


def test_a_growing_file_cut_anywhere_reads_as_a_prefix(three: Path) -> None:
    whole = three.read_bytes()
    expected = all_rows(three)
    lengths = set()
    for size in range(len(whole) + 1):
        three.write_bytes(whole[:size])
        found = all_rows(three)
        assert found == expected[: len(found)]
        lengths.add(len(found))
    assert lengths == {0, 2, 4, 6}


def test_a_growing_file_shorter_than_recorded_is_damaged(three: Path) -> None:
    size = three.stat().st_size
    with three.open("r+b") as file:
        file.truncate(size - 1)
    with pytest.raises(SegmentDamaged, match=r"past the end|shorter|no batch"):
        all_rows(three, size)


def test_what_is_behind_the_recorded_size_is_not_read(three: Path) -> None:
    with opened(three) as file:
        third = file.entries[2].offset
    assert len(all_rows(three, third)) == 4


def test_a_growing_file_is_followed_as_it_grows(three: Path) -> None:
    whole = three.read_bytes()
    with opened(three) as file:
        ends = [entry.offset + entry.length for entry in file.entries]
    three.write_bytes(b"")
    with opened(three) as file:
        for number, end in enumerate(ends):
            three.write_bytes(whole[: end - 1])
            file.extend(None)
            assert len(file.entries) == number
            three.write_bytes(whole[:end])
            file.extend(end)
            assert len(file.entries) == number + 1
            assert indexes(read(file, 2 * number, 10, 10**6)) == [2 * number, 2 * number + 1]


def test_a_file_of_another_kind_is_refused(directory: Path) -> None:
    path = directory / segment_name(0, GROWING)
    path.write_bytes(pa.schema([("a", pa.int64())]).serialize().to_pybytes())
    with pytest.raises(SegmentDamaged, match="not one of Penstock's"):
        SegmentFile(DISK, path)
    path.write_bytes(b"something else entirely")
    with pytest.raises(SegmentDamaged, match="does not begin with an Arrow schema"):
        SegmentFile(DISK, path, 23)


def test_records_before_the_file_are_missing(three: Path) -> None:
    path = three.rename(three.with_name(segment_name(0, GROWING)))
    with opened(path) as file, pytest.raises(SegmentMissing, match="put it back"):
        read(file, -1, 1, 1)


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_a_damaged_segment_is_not_sealed(three: Path, batch: int) -> None:
    with opened(three) as file:
        at = file.entries[batch].offset
    whole = bytearray(three.read_bytes())
    whole[at] ^= 1
    three.write_bytes(whole)
    with pytest.raises(SegmentDamaged):
        sealed_copy(three)
    assert not three.with_suffix(SEALED).exists()
