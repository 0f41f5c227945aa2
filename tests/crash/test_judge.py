"""The crash tests' own tools: the judge sees every broken promise, the disk forgets as asked."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.log import SCHEMA
from penstock.testing import CheckFailed, Crashed, FakeClock, FakeDisk, Ledger, Loss, check_log

# -- the judge -------------------------------------------------------------------------------------


class Forger:
    """Just enough of a log to lie about what it holds."""

    def __init__(self) -> None:
        self.names = ["s"]
        self.earliest = 0
        self.values = [b"a", b"b", b"c", b"d", b"e"]
        self.indexes = [0, 1, 2, 3, 4]
        self.last = 3
        self.read_up_to: int | None = 4

    def streams(self) -> list[str]:
        return self.names

    def describe(self, _stream: str) -> Any:
        return SimpleNamespace(partitions=[SimpleNamespace(number=0)])

    def bounds(self, _stream: str, _partition: int) -> tuple[int, int]:
        return self.earliest, len(self.values)

    def read(self, _stream: str, _partition: int, start: int, max_records: int) -> Any:
        rows = slice(start, start + max_records)
        values = self.values[rows]
        count = len(values)
        columns = [self.indexes[rows], [7] * count, [None] * count, values, [[]] * count]
        arrays = [pa.array(each, field.type) for each, field in zip(columns, SCHEMA, strict=True)]
        return [pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)]

    def last_id(self, _producer: str, _stream: str, _partition: int) -> int | None:
        return self.last

    def position(self, _group: str, _stream: str, _partition: int) -> int | None:
        return self.read_up_to


def honest_ledger() -> Ledger:
    """a and b were confirmed, c and d came from a producer, e is of unknown fate."""
    ledger = Ledger()
    ledger.creating("s")
    ledger.created("s")
    ledger.confirmed(ledger.sending("s", 0, [b"a", b"b"], timestamps=[7, 7]), [0, 1])
    named = ledger.sending("s", 0, [b"c", b"d"], producer="p", ids=[2, 3])
    ledger.confirmed(named, [2, 3])
    ledger.sending("s", 0, [b"e"])
    ledger.refused(ledger.sending("s", 0, [b"x"]))
    ledger.saving("g", "s", 0, 4)
    ledger.saved("g", "s", 0)
    return ledger


def judge(change: Callable[[Forger, Ledger], object]) -> None:
    forger, ledger = Forger(), honest_ledger()
    change(forger, ledger)
    check_log(forger, ledger, records_per_read=2)  # type: ignore[arg-type]


def test_the_judge_is_content_with_an_honest_log() -> None:
    judge(lambda _forger, _ledger: None)


def save_beyond_the_end(log: Forger, ledger: Ledger) -> None:
    ledger.saving("g", "s", 0, 9)
    log.read_up_to = 9


@pytest.mark.parametrize(
    ("lie", "sentence"),
    [
        (lambda log, _: log.values.remove(b"b"), "is lost"),
        (lambda log, _: setattr(log, "values", [b"b", b"a", b"c", b"d", b"e"]), "and is at"),
        (lambda log, _: log.values.__setitem__(4, b"a"), "is also at"),
        (lambda log, _: log.values.__setitem__(4, b"z"), "was never sent"),
        (lambda log, _: log.values.__setitem__(4, b"x"), "is stored"),
        (lambda log, _: log.values.__setitem__(1, b"b\0"), "was never sent"),
        (lambda log, _: setattr(log, "indexes", [0, 1, 2, 4, 5]), "the record says it is"),
        (lambda log, _: setattr(log, "values", [b"a", b"b", b"d", b"c", b"e"]), "comes after"),
        (lambda log, _: setattr(log, "last", 4), "last id 4, last stored is 3"),
        (lambda log, _: setattr(log, "read_up_to", 3), "saved was 4"),
        (lambda log, _: setattr(log, "names", ["s", "t"]), "was never made"),
        (lambda log, _: setattr(log, "names", []), "is not there"),
        (lambda log, _: setattr(log, "earliest", 1), "it was trimmed to 0..0"),
        (lambda _, ledger: ledger.sending("s", 0, [b"e", b"f"]), "only 1 of 2"),
        (lambda _, ledger: ledger.deleted("s"), "was deleted, and is there"),
        (save_beyond_the_end, "ahead of the end"),
    ],
)
def test_the_judge_sees_what_is_wrong(
    lie: Callable[[Forger, Ledger], object], sentence: str
) -> None:
    with pytest.raises(CheckFailed, match=sentence):
        judge(lie)


def test_what_was_found_once_must_stay_and_what_was_not_must_never_appear() -> None:
    forger, ledger = Forger(), honest_ledger()
    ledger.sending("s", 0, [b"f"])
    report = check_log(forger, ledger)  # type: ignore[arg-type]
    assert (report.records, report.confirmed, report.adopted) == (5, 4, 1)
    forger.values[4] = b"f"
    with pytest.raises(CheckFailed) as failed:
        check_log(forger, ledger)  # type: ignore[arg-type]
    assert len(failed.value.problems) == 2


# -- the disk --------------------------------------------------------------------------------------

FILE = Path("d/file")


def disk_with_file() -> FakeDisk:
    disk = FakeDisk()
    disk.make_directory(FILE.parent)
    file = disk.open(FILE, create=True)
    file.write([b"old", b" text"], 0)
    file.sync()
    disk.sync_directory(FILE.parent)
    return disk


def test_only_what_was_synced_survives_a_power_cut() -> None:
    disk = disk_with_file()
    disk.open(FILE).write([b"new"], 0)
    assert disk.content(FILE) == b"new text"
    assert disk.after_crash(Loss.killed()).content(FILE) == b"new text"
    assert disk.after_crash(Loss.unsynced()).content(FILE) == b"old text"
    assert disk.after_crash(Loss.torn(1)).content(FILE) == b"nld text"
    after_kill = disk.after_crash(Loss.killed())
    assert after_kill.after_crash(Loss.unsynced()).content(FILE) == b"old text"
    after_kill.open(FILE).sync()
    assert after_kill.after_crash(Loss.unsynced()).content(FILE) == b"new text"


def test_names_need_a_sync_of_their_directory() -> None:
    disk = disk_with_file()
    other = FILE.with_name("other")
    disk.rename(FILE, other)
    assert disk.list(FILE.parent) == ["other"]
    assert disk.after_crash(Loss.unsynced()).list(FILE.parent) == ["file"]
    assert disk.after_crash(Loss.unsynced(names="kept")).list(FILE.parent) == ["other"]
    disk.sync_directory(FILE.parent)
    disk.remove(other)
    assert disk.after_crash(Loss.unsynced()).list(FILE.parent) == ["other"]


def test_a_disk_in_random_order_keeps_some_and_loses_some() -> None:
    disk = disk_with_file()
    disk.open(FILE).write([b"x" * 2_048], 0)
    kept = {disk.after_crash(Loss.mixed(seed)).content(FILE) for seed in range(40)}
    assert len(kept) > 5
    assert disk.after_crash(Loss.mixed(3)).fingerprint() == (
        disk.after_crash(Loss.mixed(3)).fingerprint()
    )


def test_what_a_failed_sync_did_not_write_no_later_sync_writes() -> None:
    disk = disk_with_file()
    file = disk.open(FILE)
    file.write([b"new"], 0)
    disk.fail("sync", "file")
    with pytest.raises(OSError, match="fails this sync"):
        file.sync()
    file.sync()
    assert disk.content(FILE) == b"new text"
    assert disk.after_crash(Loss.unsynced()).content(FILE) == b"old text"


def test_nothing_goes_on_after_a_crash() -> None:
    disk = disk_with_file()
    disk.crash_at(disk.operations + 1)
    with pytest.raises(Crashed):
        disk.open(FILE).write([b"new"], 0)
    for act in (lambda: disk.open(FILE), lambda: disk.list(FILE.parent), lambda: disk.remove(FILE)):
        with pytest.raises(Crashed):
            act()


def test_a_full_disk_takes_what_fits() -> None:
    disk = disk_with_file()
    disk.capacity = disk.used() + 2
    with pytest.raises(OSError, match="full") as full:
        disk.open(FILE).write([b"12345"], 8)
    assert full.value.errno == errno.ENOSPC
    assert disk.content(FILE) == b"old text12"
    disk.capacity, disk.full = None, "growth"
    disk.open(FILE).write([b"OLD"], 0)
    with pytest.raises(OSError, match="full"):
        disk.open(FILE.with_name("other"), create=True)


def test_the_catalog_is_what_the_last_commit_left() -> None:
    disk = disk_with_file()
    database = disk.connect(Path("d/catalog"))
    database.execute("BEGIN")
    database.execute("CREATE TABLE t (n INTEGER)")
    database.commit()
    database.execute("BEGIN")
    database.execute("INSERT INTO t VALUES (1)")
    again = disk.after_crash(Loss.unsynced()).connect(Path("d/catalog"))
    assert again.execute("SELECT count(*) FROM t").fetchone() == (0,)
    again.close()
    database.commit()
    again = disk.after_crash(Loss.unsynced()).connect(Path("d/catalog"))
    assert again.execute("SELECT count(*) FROM t").fetchone() == (1,)
    again.close()
    database.close()


def test_a_clock_moves_only_when_told() -> None:
    clock = FakeClock(5)
    assert (clock(), clock()) == (5, 5)
    assert clock.advance(1.5) == 1_500_005
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)
