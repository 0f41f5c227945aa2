"""Compaction of the archive's Parquet tables."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import BadSetting, PipelineError, TableForeign, TableInUse
from penstock.spark import compact as compaction
from penstock.spark.compact import compact
from penstock.spark.files import Lock
from penstock.spark.table import Table
from tests.unit.test_table import HUB, QUERY, Killed, Killer

ROWS = 100


def rows(partition: int, first: int, count: int = ROWS, size: int = 20) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([None] * count, pa.binary()),
            "value": [f"{partition}-{first + at}".encode().ljust(size) for at in range(count)],
            "partition": pa.array([partition] * count, pa.int32()),
            "offset": pa.array(range(first, first + count), pa.int64()),
        }
    )  # fmt: skip


def add(table: Table, batch: int, *, dates: int = 2, partitions: int = 2, size: int = 20) -> None:
    staged = table.begin(QUERY, batch)
    assert staged is not None
    for date in range(dates):
        directory = staged / f"date=2026-01-0{date + 1}"
        directory.mkdir(parents=True)
        for partition in range(partitions):
            first = (batch * dates + date) * ROWS
            pq.write_table(
                rows(partition, first, size=size), directory / f"part-{partition}.parquet"
            )
    table.commit(QUERY, batch, staged)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_LISTED_S", 0.01)


@pytest.fixture
def table(tmp_path: Path):
    table = Table(tmp_path, "orders")
    table.open(HUB)
    yield table
    table.close()


def content(table: Table) -> dict[int, list[int]]:
    """Offsets by partition, sorted."""
    found: dict[int, list[int]] = {}
    for file in table.path.glob("date=*/*.parquet"):
        part = pq.read_table(file, columns=["partition", "offset", "value"], partitioning=None)
        for partition, offset, value in zip(*(each.to_pylist() for each in part), strict=True):
            assert value.decode().strip() == f"{partition}-{offset}"
            found.setdefault(partition, []).append(offset)
    return {partition: sorted(each) for partition, each in found.items()}


def names(table: Table) -> list[str]:
    return sorted(str(each.relative_to(table.path)) for each in table.path.rglob("*.parquet"))


def test_small_files_become_one_for_each_date_with_the_same_rows(table: Table) -> None:
    for batch in range(5):
        add(table, batch)
    before = content(table)
    assert len(names(table)) == 20
    done = compact(table.root, "orders")
    assert content(table) == before
    assert len(names(table)) == 2
    assert done[:4] == ("orders", 2, 20, 2)
    assert done.rows == 20 * ROWS
    assert done.bytes_after < done.bytes_before


def test_rows_are_ordered_by_partition_and_offset(table: Table) -> None:
    for batch in range(5):
        add(table, batch)
    compact(table.root, "orders")
    for file in table.path.glob("date=*/*.parquet"):
        assert order(file) == sorted(order(file))
    add(table, 5)
    compact(table.root, "orders")
    for file in table.path.glob("date=*/*.parquet"):
        for partition in (0, 1):
            alone = [each for each in order(file) if each[0] == partition]
            assert alone == sorted(alone)


def order(file: Path) -> list[tuple[int, int]]:
    part = pq.read_table(file, partitioning=None)
    return list(zip(part["partition"].to_pylist(), part["offset"].to_pylist(), strict=True))


def test_what_is_compact_is_left_alone(table: Table) -> None:
    add(table, 0)
    compact(table.root, "orders")
    before = names(table)
    assert compact(table.root, "orders").dates == 0
    assert names(table) == before


def test_full_files_are_left_alone_and_the_target_is_kept(table: Table) -> None:
    noise = np.random.default_rng(1)
    staged = table.begin(QUERY, 0)
    assert staged is not None
    directory = staged / "date=2026-01-01"
    directory.mkdir(parents=True)
    for number, size in enumerate([900_000, 100_000, 300_000, 300_000, 600_000, 10_000]):
        part = rows(0, number * ROWS).set_column(
            1, "value", pa.array([noise.bytes(size // ROWS) for _ in range(ROWS)])
        )
        pq.write_table(part, directory / f"part-{number}.parquet", compression="none")
    table.commit(QUERY, 0, staged)
    full = names(table)[0]
    compact(table.root, "orders", 1024 * 1024)
    assert full in names(table)
    sizes = [each.stat().st_size for each in sorted(table.path.rglob("*.parquet"))]
    assert len(sizes) == 3
    assert max(sizes) < 1024 * 1024


def test_a_kill_at_any_step_leaves_each_row_once(tmp_path: Path) -> None:
    survive_kills(tmp_path, 8)


def test_so_it_does_where_directories_cannot_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "exchange", lambda _one, _other: False)
    survive_kills(tmp_path, 10)


def survive_kills(tmp_path: Path, steps_min: int) -> None:
    steps = 0
    for at in range(100):
        table = Table(tmp_path / str(at), "orders")
        table.open(HUB)
        for batch in range(3):
            add(table, batch)
        before = content(table)
        killed = False
        try:
            compact(table.root, "orders", step=Killer(at))
        except Killed:
            killed = True
        add(table, 3)  # the archive goes on
        for partition in before:
            before[partition] += range(6 * ROWS, 8 * ROWS)
        assert content(table) == before, f"killed at step {at}"
        compact(table.root, "orders")
        assert content(table) == before
        assert len(names(table)) == 2
        assert not table.compaction.exists()
        table.close()
        if not killed:
            break
        steps += 1
    assert steps >= steps_min


def test_files_that_come_while_it_works_stay(table: Table) -> None:
    add(table, 0)
    add(table, 1)

    def meanwhile(step: str) -> None:
        if step == "joined" and not list(table.path.rglob("00000002*.parquet")):
            add(table, 2)

    compact(table.root, "orders", step=meanwhile)
    assert content(table) == {partition: list(range(6 * ROWS)) for partition in (0, 1)}
    assert len(names(table)) == 4  # on the second date they came in time to be joined


def test_a_listing_meanwhile_shows_each_row_once(table: Table) -> None:
    for batch in range(10):
        add(table, batch, dates=1)
    seen: set[int] = set()
    ended = threading.Event()

    def look() -> None:
        date = table.path / "date=2026-01-01"
        while not ended.is_set():
            seen.add(len(list(date.iterdir())))

    watcher = threading.Thread(target=look)
    watcher.start()
    compact(table.root, "orders")
    ended.set()
    watcher.join()
    assert seen <= {20, 1}


def test_two_compactions_of_a_table_exclude_each_other(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.limits.TABLE_LOCK_S_MAX", 0.1)
    add(table, 0)
    with (
        Lock(table.internal / "compact.lock", ""),
        pytest.raises(TableInUse, match="another process compacts"),
    ):
        compact(table.root, "orders")


def test_the_codec_stays(table: Table) -> None:
    staged = table.begin(QUERY, 0)
    assert staged is not None
    directory = staged / "date=2026-01-01"
    directory.mkdir(parents=True)
    for number in range(2):
        pq.write_table(rows(0, number * ROWS), directory / f"{number}.parquet", compression="zstd")
    table.commit(QUERY, 0, staged)
    compact(table.root, "orders")
    (file,) = table.path.rglob("*.parquet")
    assert pq.read_metadata(file).row_group(0).column(0).compression == "ZSTD"


def test_what_is_no_archive_is_refused(tmp_path: Path, table: Table) -> None:
    with pytest.raises(TableForeign, match="no archive of clicks"):
        compact(tmp_path, "clicks")
    with pytest.raises(BadSetting, match="at least 1 MiB"):
        compact(tmp_path, "orders", 1000)


def test_files_with_other_columns_are_not_joined(table: Table) -> None:
    add(table, 0, dates=1)
    (table.path / "date=2026-01-01").mkdir(exist_ok=True)
    other = rows(0, 10_000).append_column("more", pa.array([1] * ROWS))
    pq.write_table(other, table.path / "date=2026-01-01" / "zzz.parquet")
    with pytest.raises(PipelineError, match="other columns"):
        compact(table.root, "orders")
