from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.errors import FormatUnknown
from penstock.log import StreamSettings
from penstock.log.catalog import Catalog, PartitionRow, SegmentState
from penstock.log.disk import RealDisk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalog.sqlite"


@pytest.fixture
def catalog(path: Path) -> Iterator[Catalog]:
    catalog = Catalog(RealDisk(), path)
    yield catalog
    catalog.close()


def reopened(catalog: Catalog, path: Path) -> Catalog:
    catalog.close()
    return Catalog(RealDisk(), path)


def test_a_new_catalog_is_empty_and_whole(catalog: Catalog) -> None:
    assert catalog.streams() == []
    assert catalog.partitions() == []
    assert catalog.producers() == {}
    assert catalog.get_int("epoch") == catalog.get_int("checkpoint") == 0
    assert catalog.problems() == []


def test_ids_are_never_used_again(catalog: Catalog, path: Path) -> None:
    stream, pids = catalog.create_stream("a", StreamSettings(), 2, 1)
    catalog.delete_stream(stream, pids)
    catalog = reopened(catalog, path)
    again, more = catalog.create_stream("a", StreamSettings(), 2, 1)
    assert again > stream
    assert min(more) > max(pids)
    assert min(catalog.add_partitions(again, range(2, 4))) > max(more)
    catalog.close()


def test_a_checkpoint_is_stored_as_one(catalog: Catalog, path: Path) -> None:
    stream, (one, two) = catalog.create_stream("a", StreamSettings(retention_records=5), 2, 99)
    last = {(b"p", one): 2**64 - 1, (b"q", two): 0}
    catalog.checkpoint(640, 3, [SegmentState(two, 10, 500, 20)], last)
    catalog.set_earliest(two, 10)
    catalog = reopened(catalog, path)
    assert catalog.get_int("checkpoint") == 640
    assert catalog.get_int("checkpoint_epoch") == 3
    assert catalog.producers() == last
    assert catalog.partitions() == [
        PartitionRow(one, stream, 0, 0, 0, 0, 0),
        PartitionRow(two, stream, 1, 10, 10, 500, 20),
    ]
    (row,) = catalog.streams()
    assert (row.name, row.settings, row.created_at) == (
        "a",
        StreamSettings(retention_records=5),
        99,
    )
    catalog.close()


def test_deleting_a_stream_forgets_all_of_it(catalog: Catalog) -> None:
    stream, (pid,) = catalog.create_stream("a", StreamSettings(), 1, 1)
    other, (kept,) = catalog.create_stream("b", StreamSettings(), 1, 1)
    for each, number in ((stream, pid), (other, kept)):
        catalog.put_group("g", each, True, 5)
        catalog.save_positions("g", each, [(number, 3)], 6)
    catalog.checkpoint(64, 1, [], {(b"p", pid): 1, (b"p", kept): 2})
    catalog.delete_stream(stream, [pid])
    assert [row.stream for row in catalog.groups()] == [other]
    assert [row.pid for row in catalog.positions()] == [kept]
    assert catalog.producers() == {(b"p", kept): 2}
    assert [row.pid for row in catalog.partitions()] == [kept]


def test_saving_a_position_keeps_the_registration(catalog: Catalog) -> None:
    catalog.put_group("g", 1, True, 5)
    catalog.save_positions("g", 1, [(1, 3)], 9)
    (row,) = catalog.groups()
    assert (row.registered, row.seen_at) == (True, 9)
    catalog.drop_group("g", 1, [1])
    assert catalog.groups() == []
    assert catalog.positions() == []


def test_work_that_fails_changes_nothing(catalog: Catalog) -> None:
    def work(db: object) -> None:
        db.execute("UPDATE meta SET value = '7' WHERE name = 'epoch'")  # type: ignore[attr-defined]
        raise KeyError("no")

    with pytest.raises(KeyError):
        catalog.write(work)
    assert catalog.get_int("epoch") == 0


def test_saves_from_many_threads_are_all_stored(catalog: Catalog) -> None:
    begin = threading.Barrier(8)

    def save(group: int) -> None:
        begin.wait()
        for position in range(20):
            catalog.save_positions(f"g{group}", 1, [(1, position)], position)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(save, range(8)))
    assert {(row.group, row.position) for row in catalog.positions()} == {
        (f"g{group}", 19) for group in range(8)
    }


def test_another_format_is_refused(catalog: Catalog, path: Path) -> None:
    catalog.write(lambda db: db.execute("UPDATE meta SET value = '2' WHERE name = 'format'"))
    with pytest.raises(FormatUnknown, match="data format 2, this Penstock reads format 1"):
        reopened(catalog, path)
