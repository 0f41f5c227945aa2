"""The archive's Parquet table: each batch in it once, wherever the process was killed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import BadSetting, PipelineError, TableForeign, TableInUse
from penstock.spark.files import Lock, exchange, read_json, write_json
from penstock.spark.table import Table, archived, claim

QUERY = "6f1c1b9e-0000-4000-8000-000000000000"
HUB = "hub-one"


class Killed(BaseException):
    """Nothing may catch it, as nothing catches a kill."""


class Killer:
    """Ends the process at the n-th step."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, name: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed(name)


def stage(staged: Path, batch: int) -> None:
    """What Spark leaves behind for a batch: two dates, and files that are no data."""
    for date in ("2026-01-01", "2026-01-02"):
        directory = staged / f"date={date}"
        directory.mkdir(parents=True)
        pq.write_table(
            pa.table({"partition": [0, 0], "offset": [2 * batch, 2 * batch + 1]}),
            directory / "part-00000-abc.c000.snappy.parquet",
        )
        (directory / ".part-00000-abc.c000.snappy.parquet.crc").write_bytes(b"crc")
    (staged / "_SUCCESS").touch()


def add(table: Table, batch: int) -> bool:
    staged = table.begin(QUERY, batch)
    if staged is None:
        return False
    stage(staged, batch)
    table.commit(QUERY, batch, staged)
    return True


def offsets(table: Table) -> list[int]:
    return sorted(
        offset
        for file in table.path.glob("date=*/*.parquet")
        for offset in pq.read_table(file)["offset"].to_pylist()
    )


@contextlib.contextmanager
def opened(root: Path, step: Killer | None = None):
    table = Table(root, "orders", step or Killer(1_000_000))
    table.open(HUB)
    try:
        yield table
    finally:
        table.close()


def test_a_batch_is_added_once_however_often_it_is_repeated(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        assert add(table, 0)
        assert not add(table, 0)
        assert add(table, 1)
        assert not add(table, 0)
        assert offsets(table) == [0, 0, 1, 1, 2, 2, 3, 3]
    with opened(tmp_path) as table:
        assert not add(table, 1)
        assert add(table, 2)


def test_the_table_holds_data_and_nothing_else(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        add(table, 0)
    found = sorted(str(each.relative_to(tmp_path / "orders")) for each in walk(table.path))
    assert found == [
        "date=2026-01-01/00000000-0000-6f1c1b9e.parquet",
        "date=2026-01-02/00000000-0001-6f1c1b9e.parquet",
    ]
    assert not list((table.internal / "staging").glob("*"))


def walk(path: Path) -> list[Path]:
    return [Path(top) / name for top, _, names in os.walk(path) for name in names]


def test_a_kill_at_any_step_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    steps = 0
    for at in range(100):
        root = tmp_path / str(at)
        with opened(root) as table:
            add(table, 0)
        killed = False
        try:
            with opened(root, Killer(at)) as table:
                add(table, 1)
        except Killed:
            killed = True
        with opened(root) as table:
            add(table, 1)
            add(table, 2)
            assert offsets(table) == sorted([*range(6), *range(6)]), f"killed at step {at}"
        if not killed:
            break
        steps += 1
    assert steps >= 5


def test_a_kill_of_the_one_that_finishes_a_killed_one_is_survived_too(tmp_path: Path) -> None:
    for first in range(8):
        for second in range(8):
            root = tmp_path / f"{first}-{second}"
            for at in (first, second):
                with contextlib.suppress(Killed), opened(root, Killer(at)) as table:
                    add(table, 0)
            with opened(root) as table:
                add(table, 0)
                assert offsets(table) == [0, 0, 1, 1]


def test_what_a_killed_writer_had_staged_is_dropped(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        staged = table.begin(QUERY, 0)
        assert staged is not None
        stage(staged, 7)
    with opened(tmp_path) as table:
        assert not staged.exists()
        add(table, 0)
        assert offsets(table) == [0, 0, 1, 1]


def test_files_that_tasks_of_a_killed_driver_write_later_do_not_count(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        first = table.begin(QUERY, 0)
        again = table.begin(QUERY, 0)
        assert first is not None
        assert again is not None
        stage(first, 7)
        stage(again, 0)
        table.commit(QUERY, 0, again)
        assert offsets(table) == [0, 0, 1, 1]


def test_a_batch_without_rows_adds_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        staged = table.begin(QUERY, 0)
        assert staged is not None
        assert table.commit(QUERY, 0, staged) == 0
        assert add(table, 1)


def test_a_query_that_begins_anew_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        add(table, 0)
        with pytest.raises(TableForeign, match=r"query other, which begins anew.*move .* away"):
            table.begin("other", 0)


def test_the_archive_of_another_hub_is_refused(tmp_path: Path) -> None:
    claim(tmp_path, HUB, "parquet")
    with pytest.raises(TableForeign, match="hub with the id hub-one, and this hub's id is hub-two"):
        claim(tmp_path, "hub-two", "parquet")
    with pytest.raises(TableForeign, match="say --format parquet"):
        claim(tmp_path, HUB, "delta")


def test_files_that_no_archive_wrote_are_refused(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "mine.parquet").touch()
    with pytest.raises(TableForeign, match="files in it that no archive wrote"), opened(tmp_path):
        pass


def test_only_one_process_archives_to_a_table(tmp_path: Path) -> None:
    with (
        opened(tmp_path),
        pytest.raises(TableInUse, match=r"another process archives to .*orders"),
        opened(tmp_path),
    ):
        pass
    with opened(tmp_path):
        pass


def test_a_state_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        add(table, 0)
    write_json(table.internal / "state.json", {"version": 9})
    with pytest.raises(PipelineError, match="has version 9"), opened(tmp_path):
        pass


def test_a_damaged_state_is_not_taken_for_none(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        add(table, 0)
    (table.internal / "state.json").write_bytes(b"{")
    with pytest.raises(PipelineError, match="not what an archive wrote"), opened(tmp_path):
        pass


def test_tables_are_listed_by_stream(tmp_path: Path) -> None:
    with pytest.raises(TableForeign, match="is no archive"):
        archived(str(tmp_path))
    with opened(tmp_path):
        found = archived(str(tmp_path))
        assert found[1:] == ("parquet", ["orders"])
        assert found.path("orders") == str(tmp_path / "orders")
        with pytest.raises(TableForeign, match=r"no archive of clicks .*, but of orders"):
            archived(str(tmp_path), ["clicks"])
    with pytest.raises(BadSetting, match="name the streams"):
        archived("s3://bucket/archive")
    assert archived("s3://bucket/archive", ["a"]).path("a") == "s3://bucket/archive/a"


def test_a_stream_with_the_name_of_the_inner_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="_penstock"):
        Table(tmp_path, "_penstock")


def test_a_lock_waits_as_long_as_it_is_told(tmp_path: Path) -> None:
    one, other = Lock(tmp_path / "lock", "one has it"), Lock(tmp_path / "lock", "one has it")
    one.take()
    with pytest.raises(TableInUse, match="one has it"):
        other.take(0.1)
    one.give_back()
    other.take()
    other.give_back()


def test_directories_change_names_at_once(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert exchange(tmp_path / "one", tmp_path / "other")
    assert [each.name for each in (tmp_path / "one").iterdir()] == ["other"]
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "one", tmp_path / "none")


def test_json_files_are_read_as_written(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none.json") is None
    write_json(tmp_path / "some.json", {"one": 1})
    assert read_json(tmp_path / "some.json") == {"one": 1}
