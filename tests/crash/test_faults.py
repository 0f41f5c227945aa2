"""A disk that fails, fills up, hangs or forgets bits: what the log does, and what it never does."""

from __future__ import annotations

import copy
import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import (
    DiskFull,
    JournalDamaged,
    LogBusy,
    PenstockError,
    StorageError,
    StorageFailed,
)
from penstock.log import Batch, EmbeddedLog
from penstock.log import frame as fr
from penstock.log.journal import SUPERBLOCK
from penstock.log.writer import Roll
from penstock.testing import FakeDisk, Ledger, Loss, check_log
from penstock.testing.fake_disk import Kind
from tests.crash.workload import (
    DATA,
    Client,
    _quiet_crashes,
    _small_limits,
    go_on,
    open_small,
    opened,
    run,
)

__all__ = ["_quiet_crashes", "_small_limits"]

JOURNAL = DATA / "journal"
MARK = DATA / "mark"


def filled(client: Client, log: EmbeddedLog) -> None:
    """Two streams with sealed and growing segments, and records in the journal only."""
    client.create(log, "a", 2)
    client.create(log, "b", 1)
    for _ in range(4):
        client.append(log, "a", 0, count=3, size=900)
    client.append(log, "a", [0, 1, 1, 0], producer="p")
    log.checkpoint()
    client.append(log, "a", 1, producer="p")
    client.append(log, "a", [1, 0, 1], size=200)
    client.append(log, "b", 0, count=2, producer="q")


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "pattern"), [("write", "journal"), ("sync", "journal"), ("write", "mark")]
)
def test_an_error_of_the_journal_stops_the_log_and_keeps_all_confirmed(
    kind: Kind, pattern: str
) -> None:
    for code in (errno.EIO, errno.ENOSPC) if kind == "sync" else (errno.EIO,):
        for number in (1, 2, 5):
            disk, ledger = FakeDisk(), Ledger()
            client = Client(ledger, "one")
            with opened(disk) as log:
                filled(client, log)
                disk.fail(kind, pattern, number=number, code=code)
                for _ in range(number - 1):
                    client.append(log, "a", 0)
                for _ in range(2):  # also the next one: nothing is tried again
                    with pytest.raises(StorageFailed):
                        client.append(log, "a", 0)
                assert isinstance(log.failed, StorageFailed)
                assert log.read("b", 0, 0)
            for loss in (Loss.killed(), Loss.unsynced(), Loss.mixed(number)):
                after, kept = disk.after_crash(loss), copy.deepcopy(ledger)
                with opened(after) as log:
                    check_log(log, kept)
                go_on(after, kept, "two")
                with opened(after) as log:
                    check_log(log, kept)


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("write", "*.arrows"), ("sync", "*.arrows"), ("create", "*.arrows"),
        ("sync_directory", "0"), ("commit", "catalog.sqlite"), ("write", "*.tmp"),
        ("sync", "*.tmp"), ("rename", "*.arrow"),
    ],
)  # fmt: skip
def test_an_error_of_segments_or_catalog_stops_the_log_and_keeps_all_confirmed(
    kind: Kind, pattern: str
) -> None:
    for number in (1, 2):
        disk, ledger = FakeDisk(), Ledger()
        client = Client(ledger, "one")
        with opened(disk) as log:
            filled(client, log)
            disk.fail(kind, pattern, number=number)
            with pytest.raises(StorageFailed):
                append_and_checkpoint(client, log)
            with pytest.raises(StorageFailed):
                client.append(log, "a", 0)
            assert log.read("b", 0, 0)
        for loss in (Loss.killed(), Loss.unsynced(), Loss.mixed(number)):
            after, kept = disk.after_crash(loss), copy.deepcopy(ledger)
            with opened(after) as log:
                check_log(log, kept)
            go_on(after, kept, "two")
            with opened(after) as log:
                check_log(log, kept)


def append_and_checkpoint(client: Client, log: EmbeddedLog) -> None:
    """Go on until every kind of file was written."""
    for _ in range(20):
        client.append(log, "a", 0, count=3, size=900)
        log.checkpoint()


def test_an_error_while_saving_a_position_is_told_and_the_old_position_stays() -> None:
    disk, ledger = FakeDisk(), Ledger()
    client = Client(ledger, "one")
    with opened(disk) as log:
        filled(client, log)
        client.save(log, "g", "b", 0)
        client.append(log, "b", 0)
        disk.fail("commit", "catalog.sqlite")
        with pytest.raises(StorageFailed):
            client.save(log, "g", "b", 0)
        check_log(log, ledger)
    with opened(disk) as log:
        check_log(log, ledger)


# -- a full disk -----------------------------------------------------------------------------------


def refused(client: Client, act: Callable[[], None]) -> None:
    """`act` is refused because the disk is full, and what it sent is stored nowhere."""
    with pytest.raises(DiskFull):
        act()
    for attempt in client.ledger.attempts:
        if attempt.state == "unknown":
            client.ledger.refused(attempt)


def fill_the_ring(client: Client, log: EmbeddedLog) -> None:
    """Append until the log refuses."""
    for _ in range(100):
        client.append(log, "a", 0, count=3, size=900)


@pytest.mark.parametrize("crash", [False, True])
def test_appends_are_refused_when_no_journal_byte_can_be_written_and_resume_after(
    crash: bool,
) -> None:
    disk, ledger = FakeDisk(), Ledger()
    client = Client(ledger, "one")
    with opened(disk) as log:
        filled(client, log)
        for _ in range(2):
            disk.full = "all"
            for _ in range(2):
                refused(client, lambda: client.append(log, "a", 0))
                refused(client, lambda: client.append(log, "a", [1, 0], producer="p"))
            check_log(log, ledger)
            disk.full = "no"
            client.append(log, "a", 0)
            client.append(log, "a", [1, 0], producer="p")
            check_log(log, ledger)
        if crash:
            disk = disk.after_crash(Loss.unsynced())
    with opened(disk) as log:
        check_log(log, ledger)


def test_what_was_refused_stays_refused_when_the_log_is_opened_again() -> None:
    disk, ledger = FakeDisk(), Ledger()
    client = Client(ledger, "one")
    with opened(disk) as log:
        filled(client, log)
        # One group that goes around the end of the ring: only its first frame is written.
        with log._committer._changed:
            waits = [client.hand_over(log, "a", 0), client.hand_over(log, "a", 1, size=900)]
            disk.fail("write", "journal", number=2, code=errno.ENOSPC)
        for wait in waits:
            refused(client, wait)
        assert [*log._journal.frames(log.committed_lsn)]
        check_log(log, ledger)
    with opened(disk) as log:
        check_log(log, ledger)


def test_the_first_append_needs_no_room_beside_the_journal() -> None:
    disk, ledger = FakeDisk(), Ledger()
    client = Client(ledger, "one")
    with opened(disk) as log:
        client.create(log, "a", 1)
        disk.full = "growth"
        client.append(log, "a", 0)
        check_log(log, ledger)
    disk.full = "no"
    with opened(disk.after_crash(Loss.unsynced())) as log:
        check_log(log, ledger)


def test_appends_go_on_until_the_ring_is_full_when_segments_cannot_grow() -> None:
    disk, ledger = FakeDisk(), Ledger()
    client = Client(ledger, "one")
    with opened(disk) as log:
        filled(client, log)
        for _ in range(2):
            disk.full = "growth"
            refused(client, lambda: fill_the_ring(client, log))
            refused(client, lambda: client.append(log, "a", 0, count=3, size=900))
            with pytest.raises(DiskFull):
                log.checkpoint()
            check_log(log, ledger)
            disk.full = "no"
            client.append(log, "a", 0, count=3, size=900)
            log.checkpoint()
            check_log(log, ledger)
    with opened(disk.after_crash(Loss.unsynced())) as log:
        check_log(log, ledger)


def test_appends_resume_when_only_the_catalog_had_no_room() -> None:
    disk, ledger = FakeDisk(), Ledger()
    client = Client(ledger, "one")
    with opened(disk) as log:
        filled(client, log)
        for _ in range(50):
            disk.fail("commit", "catalog.sqlite", code=errno.ENOSPC)
        with pytest.raises(DiskFull):
            log.checkpoint()
        refused(client, lambda: fill_the_ring(client, log))
        check_log(log, ledger)
        disk.mend()
        client.append(log, "a", 0, count=3, size=900)
        log.checkpoint()
        check_log(log, ledger)
    with opened(disk) as log:
        check_log(log, ledger)


def test_what_a_full_disk_left_behind_a_segment_is_cut_when_the_segment_is_closed() -> None:
    disk, ledger = FakeDisk(), Ledger()
    client = Client(ledger, "one")
    with opened(disk) as log:
        client.create(log, "a", 1)
        client.append(log, "a", 0)
        log.checkpoint()
        client.append(log, "a", 0, count=2, size=900)
        disk.fail("write", "*.arrows", code=errno.ENOSPC)  # half of it is written
        with pytest.raises(DiskFull):
            log.checkpoint()
        log._checkpoints.link.send(Roll(log.locate("a", 0)))
        log.checkpoint()
        check_log(log, ledger)
    with opened(disk.after_crash(Loss.unsynced())) as log:
        check_log(log, ledger)


def test_a_checkpoint_succeeds_once_the_catalog_has_room_again() -> None:
    disk, ledger = FakeDisk(), Ledger()
    client = Client(ledger, "one")
    with opened(disk) as log:
        filled(client, log)
        disk.fail("commit", "catalog.sqlite", code=errno.ENOSPC)
        with pytest.raises(DiskFull):
            log.checkpoint()
        log.checkpoint()
        assert log.checkpoint_lsn == log.committed_lsn
        check_log(log, ledger)


@pytest.mark.slow
@pytest.mark.parametrize("spare", [0, 100, 1_000, 3_000, 5_000, 9_000])
def test_a_disk_of_limited_size_loses_nothing_confirmed(spare: int) -> None:
    disk, ledger = FakeDisk(), Ledger()
    client = Client(ledger, "one")
    with opened(disk) as log:
        filled(client, log)
        disk.capacity = disk.used() + spare
        refused(client, lambda: fill_the_ring(client, log))
        check_log(log, ledger)
    disk.capacity = None
    for loss in (Loss.killed(), Loss.unsynced(), Loss.mixed(spare)):
        after, kept = disk.after_crash(loss), copy.deepcopy(ledger)
        with opened(after) as log:
            check_log(log, kept)
        go_on(after, kept, "two")
        with opened(after) as log:
            check_log(log, kept)


# -- a disk that hangs -----------------------------------------------------------------------------


def test_appenders_wait_for_a_stalled_sync_and_memory_stays_bounded() -> None:
    disk, ledger = FakeDisk(), Ledger()
    client = Client(ledger, "one")
    with opened(disk) as log:
        client.create(log, "a", 1)
        stall = disk.stall_syncs("journal")
        batch = Batch.of([b"x" * 1_000])
        target = log.locate("a", 0)
        first = log.submit(target, batch)
        assert stall.entered.wait(10)
        receipts = [first]
        with pytest.raises(LogBusy):
            receipts.extend(log.submit(target, batch) for _ in range(10_000))
        assert log.buffered_bytes <= log.settings.buffer_bytes
        waiting = threading.Thread(target=lambda: log.append("a", batch, 0))
        waiting.start()
        room = threading.Event()
        assert not log.when_room(batch.nbytes, room.set)
        assert not any(receipt.done for receipt in receipts)
        assert log.bounds("a", 0) == (0, 0)
        stall.release()
        waiting.join(10)
        assert room.wait(10)
        assert [receipt.result(10).first_index for receipt in receipts] == [*range(len(receipts))]
        assert log.bounds("a", 0) == (0, len(receipts) + 1)


# -- flipped bits ----------------------------------------------------------------------------------


def test_a_flipped_bit_in_the_journal_is_never_read_as_data_and_never_cuts_confirmed_records() -> (
    None
):
    disk, ledger = FakeDisk(), Ledger()
    with opened(disk) as log:
        filled(Client(ledger, "one"), log)
        start, stop = log.checkpoint_lsn, log.committed_lsn
        image = disk.after_crash(Loss.nothing())
    padding = harmless_bytes(image, start, stop)
    assert stop - start > 1_000
    damaged = 0
    for byte in range(SUPERBLOCK + start, SUPERBLOCK + stop):
        flipped = image.after_crash(Loss.nothing())
        flipped.flip(JOURNAL, 8 * byte + byte % 8)
        if byte in padding:
            with opened(flipped) as log:
                check_log(log, copy.deepcopy(ledger))
        else:
            with pytest.raises(JournalDamaged):
                open_small(flipped)
            damaged += 1
    assert damaged > 1_000


def test_a_flipped_bit_in_an_earlier_group_is_seen_without_the_mark_too() -> None:
    disk, ledger = FakeDisk(), Ledger()
    with opened(disk) as log:
        filled(Client(ledger, "one"), log)
        frames = [frame for frame, _ in log._journal.frames(log.checkpoint_lsn)]
        image = disk.after_crash(Loss.unsynced())  # takes the mark, which is never synced
    assert len(frames) == 3
    for byte in range(SUPERBLOCK + frames[0].lsn, SUPERBLOCK + frames[-1].lsn, 7):
        flipped = image.after_crash(Loss.nothing())
        flipped.flip(JOURNAL, 8 * byte + byte % 8)
        if byte in harmless_bytes(image, frames[0].lsn, frames[-1].lsn):
            continue
        with pytest.raises(JournalDamaged):
            open_small(flipped)


def test_a_flipped_bit_in_the_ring_is_noticed_by_readers_and_writer_of_an_open_log() -> None:
    disk, ledger = FakeDisk(), Ledger()
    with opened(disk) as log:
        filled(Client(ledger, "one"), log)
        (frame, _), *_ = log._journal.frames(log.checkpoint_lsn)
        disk.flip(JOURNAL, 8 * (SUPERBLOCK + frame.lsn + frame.head_length + 5))
        start = int(frame.bases[0])
        with pytest.raises(JournalDamaged):
            log.read("a", 1, start)
        with pytest.raises(StorageFailed, match="not whole any more"):
            log.checkpoint()
        assert log.read("b", 0, 0)


def harmless_bytes(disk: FakeDisk, start: int, stop: int) -> set[int]:
    """Places in the journal file between a frame's body and its end, where only zeros are."""
    found: set[int] = set()
    data = disk.content(JOURNAL)
    lsn = start
    while lsn < stop:
        at = SUPERBLOCK + lsn
        frame = fr.parse_head(data[at : at + 4_096], lsn)
        assert frame is not None
        found.update(range(at + frame.head_length + frame.body_length, at + frame.length))
        lsn += frame.length
    return found


def test_a_flipped_bit_in_the_journals_first_bytes_is_refused_or_harmless() -> None:
    disk, ledger = FakeDisk(), Ledger()
    with opened(disk) as log:
        filled(Client(ledger, "one"), log)
        image = disk.after_crash(Loss.nothing())
    for bit in range(8 * 48):
        flipped = image.after_crash(Loss.nothing())
        flipped.flip(JOURNAL, bit)
        if bit < 8 * 36:
            with pytest.raises(JournalDamaged):
                open_small(flipped)
        else:
            with opened(flipped) as log:
                check_log(log, copy.deepcopy(ledger))


def test_a_flipped_bit_in_the_mark_costs_nothing() -> None:
    disk, ledger = FakeDisk(), Ledger()
    with opened(disk) as log:
        filled(Client(ledger, "one"), log)
        image = disk.after_crash(Loss.nothing())
    for bit in range(8 * 12):
        flipped = image.after_crash(Loss.nothing())
        flipped.flip(MARK, bit)
        with opened(flipped) as log:
            check_log(log, copy.deepcopy(ledger))


def segment_files(disk: FakeDisk) -> list[Path]:
    directory = DATA / "streams" / "a" / "0"
    return [directory / name for name in sorted(disk.list(directory))]


def expected(log: EmbeddedLog) -> list[tuple[int, bytes]]:
    return [pair for index in range(log.bounds("a", 0)[1]) for pair in read_one(log, index)]


def read_one(log: EmbeddedLog, index: int) -> list[tuple[int, bytes]]:
    return [
        (row["index"], row["value"])
        for batch in log.read("a", 0, index, max_records=1)
        for row in batch.to_pylist()
    ]


@pytest.mark.slow
def test_a_flipped_bit_in_a_segment_gives_the_right_records_or_an_error() -> None:
    disk, ledger = FakeDisk(), Ledger()
    with opened(disk) as log:
        filled(Client(ledger, "one"), log)
        log.checkpoint()
        right = expected(log)
        image = disk.after_crash(Loss.nothing())
    files = segment_files(image)
    assert {path.suffix for path in files} == {".arrows", ".arrow", ".index"}
    errors = 0
    for path in files:
        for byte in range(0, image.file_size(path), 19):
            flipped = image.after_crash(Loss.nothing())
            flipped.flip(path, 8 * byte + byte % 8)
            errors += reads_right_or_fails(flipped, right)
    assert errors > 100


def reads_right_or_fails(disk: FakeDisk, right: list[tuple[int, bytes]]) -> bool:
    """Read from several places to the end; True if any of it failed, loudly.

    A read gives what is whole in front of the damage; the next one, at the damage, says so.
    """
    failed = False
    log = open_small(disk)
    try:
        for start in (0, len(right) // 2, len(right) - 1):
            at = start
            try:
                while at < len(right):
                    rows = [row for batch in log.read("a", 0, at) for row in batch.to_pylist()]
                    assert rows
                    got = [(row["index"], row["value"]) for row in rows]
                    assert got == right[at : at + len(got)]
                    at += len(got)
            except PenstockError:
                failed = True
    finally:
        log.close()
    return failed


def test_a_damaged_segment_is_not_sealed_and_not_removed() -> None:
    disk, ledger = FakeDisk(), Ledger()
    client = Client(ledger, "one")
    with opened(disk) as log:
        client.create(log, "a", 1)
        # The crash comes when segments are closed and recorded, and none is sealed yet.
        disk.on_operation = lambda _: kept.append(disk.after_crash(Loss.nothing()))
        kept: list[FakeDisk] = []
        for _ in range(4):
            client.append(log, "a", 0, count=3, size=900)
        log.checkpoint()
    before = next(
        image
        for image in kept
        if not any(path.suffix == ".arrow" for path in segment_files(image))
        and any(path.suffix == ".tmp" for path in segment_files(image))
    )
    first = DATA / "streams" / "a" / "0" / f"{0:020d}.arrows"
    size = before.file_size(first)
    for byte in range(0, size, 23):
        flipped = before.after_crash(Loss.nothing())
        flipped.flip(first, 8 * byte + 3)
        damaged = flipped.content(first)
        with opened(flipped) as log:
            log.checkpoint()
            client2 = Client(Ledger(), "two")
            client2.append(log, "a", 0)  # damage in one old segment stops nobody else
            log.checkpoint()
            try:
                log.read("a", 0, 0)
            except StorageError:
                assert flipped.content(first) == damaged, f"byte {byte}"


def test_the_workload_itself_leaves_what_it_confirmed() -> None:
    disk, ledger = FakeDisk(), Ledger()
    run(disk, ledger)
    with opened(disk) as log:
        report = check_log(log, ledger, records_per_read=3)
    assert report.confirmed > 40
    assert report.adopted == 0
