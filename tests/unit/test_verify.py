"""`verify` finds what is wrong and says where; `repair` only cuts a torn tail."""

import shutil

import pytest

from penstock.errors import DataDirectoryInUse, StorageError
from penstock.log import Batch, StreamSettings, open_log, small_log
from penstock.log.verify import repair, verify

SETTINGS = StreamSettings(segment_bytes=16 * 1024)


@pytest.fixture
def data(tmp_path):
    """A closed log with sealed segments, a growing one, and records of two partitions."""
    path = tmp_path / "data"
    with open_log(path, small_log(), writer="inline") as log:
        log.create_stream("orders", 2, SETTINGS)
        for round_ in range(6):
            log.append("orders", Batch.of([b"%d" % round_ * 50] * 100), 0)
            log.append("orders", Batch.of([b"x"] * 3), 1)
            log.checkpoint()
        log.save_positions("billing", "orders", {0: 600})
    return path


def kinds(report):
    return {problem.kind for problem in report.problems}


def test_a_whole_directory_has_no_problems(data):
    report = verify(data)
    assert report.ok
    assert report.problems == []
    assert (report.streams, report.partitions, report.records) == (1, 2, 618)


def test_progress_is_told_for_each_partition(data):
    seen = []
    verify(data, progress=lambda what, done, total: seen.append((what, done, total)))
    assert seen == [("orders/0", 0, 2), ("orders/1", 1, 2)]


def test_records_that_are_only_in_the_journal_are_checked_too(data):
    log = open_log(data, small_log(), writer="inline")
    log.append("orders", Batch.of([b"late"]), 1)
    copy = data.parent / "copy"
    shutil.copytree(data, copy)
    log.close()
    (copy / "LOCK").unlink()
    report = verify(copy)
    assert report.ok
    assert report.journal_records == 1


@pytest.mark.parametrize("suffix", ["arrow", "arrows"])
def test_a_flipped_bit_in_a_segment_is_found_and_named(data, suffix):
    path = min((data / "streams/orders/0").glob(f"*.{suffix}"))
    spoiled = bytearray(path.read_bytes())
    spoiled[len(spoiled) // 2] ^= 4
    path.write_bytes(spoiled)
    report = verify(data)
    assert not report.ok
    assert any(path.name in problem.where for problem in report.problems)


def test_a_missing_segment_is_found_and_its_records_named(data):
    second = sorted((data / "streams/orders/0").glob("*.arrow"))[1]
    second.unlink()
    report = verify(data)
    assert kinds(report) == {"missing"}
    assert f"records {int(second.stem)} to" in report.problems[0].message


def test_a_missing_journal_is_found(data):
    (data / "journal").unlink()
    assert kinds(verify(data)) == {"damage"}


def test_bytes_behind_the_checkpoint_are_a_torn_tail_and_repair_cuts_only_them(data):
    path = max((data / "streams/orders/1").glob("*.arrows"))
    whole = path.read_bytes()
    path.write_bytes(whole + b"half a batch")
    report = verify(data)
    assert report.ok
    assert kinds(report) == {"torn-tail"}
    assert repair(data) == [path]
    assert path.read_bytes() == whole
    assert verify(data).problems == []
    assert repair(data) == []


def test_a_directory_of_no_stream_is_a_leftover(data):
    (data / "streams/old").mkdir()
    report = verify(data)
    assert report.ok
    assert kinds(report) == {"leftover"}


def test_a_directory_in_use_is_refused(data):
    with (
        open_log(data, small_log(), writer="inline"),
        pytest.raises(DataDirectoryInUse, match="in use by process"),
    ):
        verify(data)


def test_a_directory_that_is_none_of_ours_is_refused(tmp_path):
    with pytest.raises(StorageError, match="not a Penstock data directory"):
        verify(tmp_path)
