from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import limits
from penstock.errors import JournalDamaged
from penstock.log import Batch, EmbeddedLog, open_log, small_log
from penstock.log import frame as fr
from penstock.log.disk import RealDisk
from penstock.log.journal import SUPERBLOCK, Journal, Mark, create_journal
from tests.records import padded, read_all

DISK = RealDisk()
SIZE = 1 * limits.MIB


def frame(lsn: int, size: int, *, group: int | None = None, epoch: int = 1) -> list[Any]:
    return fr.frame_parts(
        fr.Body(Batch.of([bytes([lsn // 64 % 251]) * size]), None),
        lsn, lsn if group is None else group, epoch, 0, np.array([1], np.uint32),
        np.array([1], np.uint32), np.zeros(1, np.int64), np.full(1, -1, np.int64), None, b"",
    )  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_journal(DISK, tmp_path / "journal", SIZE)
    return tmp_path / "journal"


def put(journal: Journal, lsn: int, size: int, *, epoch: int = 1, group: int | None = None) -> int:
    """Write one frame, with a pad before it if it must wrap; returns the lsn behind it."""
    parts = frame(lsn, size, epoch=epoch, group=group)
    length = sum([len(part) for part in parts])
    room = journal.room_at(lsn)
    if length > room:
        pad = fr.pad_frame(lsn, lsn, epoch, room)
        journal.write(lsn, [pad], len(pad))
        return put(journal, lsn + room, size, epoch=epoch, group=group)
    journal.write(lsn, parts, length)
    return lsn + length


def test_a_new_journal_is_written_to_its_full_size_and_empty(path: Path) -> None:
    assert path.stat().st_size == SUPERBLOCK + SIZE
    journal = Journal(DISK, path)
    assert journal.size == SIZE
    assert list(journal.frames(0)) == []
    assert journal.read_head(0) is None
    journal.check_nothing_follows(0, 0)


def test_frames_follow_each_other_around_the_ring(path: Path) -> None:
    journal = Journal(DISK, path)
    lsn = begin = 0
    for _ in range(100):
        before, lsn = lsn, put(journal, lsn, 30_000)
        if lsn - begin > SIZE - 70_000:
            begin = next(f.lsn + f.length for f, _ in journal.frames(begin))
        assert [f.lsn for f, _ in journal.frames(begin) if not f.flags & fr.PAD][-1] >= before
    assert lsn > 2 * SIZE
    found = list(journal.frames(begin))
    assert found[0][0].lsn == begin
    assert any(f.flags & fr.PAD for f, _ in found)
    for (one, _), (two, _) in itertools.pairwise(found):
        assert one.lsn + one.length == two.lsn
    assert found[-1][0].lsn + found[-1][0].length == lsn


def test_frames_are_given_up_to_where_one_asks(path: Path) -> None:
    journal = Journal(DISK, path)
    stop = put(journal, put(journal, 0, 100), 100)
    put(journal, stop, 100)
    assert len(list(journal.frames(0))) == 3
    assert len(list(journal.frames(0, stop))) == 2


def test_frames_larger_than_a_window_are_found(path: Path) -> None:
    journal = Journal(DISK, path)
    lsn = put(journal, 0, 10)
    lsn = put(journal, lsn, 200_000)
    lsn = put(journal, lsn, 10)
    found = list(journal.frames(0))
    assert [f.rows for f, _ in found] == [1, 1, 1]
    body = journal.read_body(found[1][0])
    assert body is not None
    assert (
        fr.body_columns(found[1][0], body)[2][0].as_py() == bytes([found[1][0].lsn // 64]) * 200_000
    )


def test_a_frame_of_the_round_before_is_stale(path: Path) -> None:
    journal = Journal(DISK, path)
    put(journal, 0, 1_000)
    assert journal.read_head(0) is not None
    assert journal.read_head(SIZE) is None
    assert list(journal.frames(SIZE)) == []


def test_a_broken_frame_with_nothing_behind_it_is_a_torn_tail(path: Path) -> None:
    journal = Journal(DISK, path)
    lsn = put(journal, 0, 100)
    end = put(journal, lsn, 5_000)
    with path.open("r+b") as file:
        file.seek(SUPERBLOCK + end - 1_000)
        file.write(bytes(500))
    assert [f.lsn for f, _ in journal.frames(0)] == [0]
    journal.check_nothing_follows(lsn, 1)


def test_frames_of_the_same_group_behind_a_broken_one_are_torn_too(path: Path) -> None:
    journal = Journal(DISK, path)
    lsn = put(journal, 0, 100)
    behind = put(journal, lsn, 100, group=lsn)
    put(journal, behind, 100, group=lsn)
    with path.open("r+b") as file:
        file.seek(SUPERBLOCK + lsn)
        file.write(bytes(64))
    journal.check_nothing_follows(lsn, 1)


def test_a_later_group_behind_a_broken_frame_proves_damage(path: Path) -> None:
    journal = Journal(DISK, path)
    lsn = put(journal, 0, 100)
    behind = put(journal, lsn, 100, group=lsn)
    put(journal, behind, 100, group=behind)
    with path.open("r+b") as file:
        file.seek(SUPERBLOCK + lsn)
        file.write(bytes(64))
    with pytest.raises(JournalDamaged, match=f"byte {SUPERBLOCK + lsn} .*a whole later frame"):
        journal.check_nothing_follows(lsn, 1)


def test_frames_of_an_older_epoch_behind_prove_nothing(path: Path) -> None:
    journal = Journal(DISK, path)
    lsn = put(journal, 0, 100, epoch=5)
    put(journal, lsn + 640, 100, epoch=4)
    journal.check_nothing_follows(lsn, 5)


def test_the_mark_remembers_how_far_was_confirmed(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    mark = Mark(DISK, path)
    assert mark.get() == 0
    for lsn in (64, 2**40, 0):
        mark.set(lsn)
        assert Mark(DISK, path).get() == lsn
    mark.set(2**40)
    content = path.read_bytes()
    for bit in range(len(content) * 8):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert Mark(DISK, path).get() == 0


# -- the ring at work ----------------------------------------------------------------------------


def ring_log(data: Path) -> EmbeddedLog:
    settings = small_log(
        journal_bytes=SIZE, checkpoint_bytes=64 * limits.KIB, record_bytes_max=64 * limits.KIB
    )
    return open_log(data, settings, writer="inline")


@pytest.mark.parametrize("size", [400, 5_000, 60_000])
def test_a_log_goes_around_its_ring_and_keeps_everything(tmp_path: Path, size: int) -> None:
    count = 3 * SIZE // size // 10
    with ring_log(tmp_path) as log:
        log.create_stream("s")
        for number in range(count):
            log.append("s", Batch.of([padded(number * 10 + each, size) for each in range(4)]))
        assert log.committed_lsn > SIZE
    expected = [padded(number * 10 + each, size) for number in range(count) for each in range(4)]
    with ring_log(tmp_path) as log:
        assert read_all(log, "s") == expected


def test_readers_keep_up_while_the_ring_is_written_over(tmp_path: Path) -> None:
    with ring_log(tmp_path) as log:
        log.create_stream("s")
        seen: list[bytes] = []
        for number in range(200):
            log.append("s", Batch.of([padded(number, 20_000)]))
            if number % 3 == 0:
                for batch in log.read("s", 0, len(seen)):
                    seen.extend(batch.column("value").to_pylist())
        assert seen == [padded(number, 20_000) for number in range(199)]
