"""Bad input and faults: each has an error of its own, and its message says what to do."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from penstock import limits
from penstock.errors import (
    BadBatch,
    BadName,
    BatchTooLarge,
    DataDirectoryInUse,
    FormatUnknown,
    JournalDamaged,
    RecordTooLarge,
    SegmentDamaged,
    SegmentMissing,
    StorageError,
    TooMany,
    UnknownStream,
)
from penstock.log import Batch, EmbeddedLog, StreamSettings, open_log, small_log
from penstock.log.journal import SUPERBLOCK
from tests.records import numbered, padded, read_all, values

SMALL = StreamSettings(segment_bytes=limits.SEGMENT_BYTES_MIN, compression="none")


def opened(data: Path) -> EmbeddedLog:
    return open_log(data, small_log(record_bytes_max=64 * limits.KIB), writer="inline")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def flip(path: Path, at: int) -> None:
    """Flip one bit of the byte `at`."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def left_as_it_is(log: EmbeddedLog, to: Path) -> Path:
    """The data directory as a killed process would leave it."""
    shutil.copytree(log.data, to)
    return to


# -- what callers get wrong ----------------------------------------------------------------------


def test_an_unknown_stream_lists_those_there_are(data: Path) -> None:
    with opened(data) as log:
        with pytest.raises(UnknownStream, match="none yet"):
            log.read("orders", 0, 0)
        log.create_stream("ordres")
        with pytest.raises(UnknownStream, match="'orders'; streams are: ordres"):
            log.read("orders", 0, 0)


def test_a_bad_name_is_shown_with_what_is_allowed(data: Path) -> None:
    with opened(data) as log:
        with pytest.raises(BadName, match="'a/b' cannot name a stream: use letters"):
            log.create_stream("a/b")
        with pytest.raises(BadName, match="at most 249"):
            log.create_stream("x" * 250)


def test_too_many_partitions_name_the_limit(data: Path) -> None:
    with opened(data) as log:
        with pytest.raises(TooMany, match="1025 partitions: a stream has 1 to 1024"):
            log.create_stream("s", partitions=1025)
        log.create_stream("s")
        with pytest.raises(TooMany, match="1 to 1024"):
            log.add_partitions("s", 1025)
        assert len(log.describe("s").partitions) == 1


def test_the_default_limit_of_a_record_is_16_mib() -> None:
    assert limits.RECORD_BYTES_MAX == 16 * 1024 * 1024


@pytest.mark.parametrize(
    "batch",
    [
        Batch.of([bytes(65_537)]),
        Batch.of([b"small", bytes(65_000)], keys=[None, bytes(537)]),
        Batch.of([bytes(65_000)], headers=[[("n", bytes(536))]]),
    ],
    ids=["value", "value and key", "value and header"],
)
def test_an_oversized_record_names_the_limit(data: Path, batch: Batch) -> None:
    with opened(data) as log:
        log.create_stream("s")
        with pytest.raises(RecordTooLarge, match=r"65537 bytes .* at most 65536 .*split it"):
            log.append("s", batch)
        log.append("s", Batch.of([bytes(65_536)]))
        assert log.bounds("s", 0) == (0, 1)


def test_the_largest_record_fits_into_the_smallest_journal(data: Path) -> None:
    largest = limits.JOURNAL_BYTES_MIN // 4 - limits.FRAME_BYTES_MAX
    settings = small_log(
        journal_bytes=limits.JOURNAL_BYTES_MIN,
        checkpoint_bytes=limits.JOURNAL_BYTES_MIN // 4,
        record_bytes_max=largest,
    )
    headers = [("", b"")] * limits.RECORD_HEADERS_MAX
    value = bytes(largest)
    with open_log(data, settings, writer="inline") as log:
        log.create_stream("s")
        for number in range(12):
            batch = Batch.of([value], keys=[b""], timestamps=[1], headers=[headers])
            log.append("s", batch, producer="x" * limits.PRODUCER_NAME_BYTES_MAX, ids=[number])
        assert values(log.read("s", 0, 11)) == [value]


def test_a_batch_larger_than_a_commit_says_to_append_in_parts(data: Path) -> None:
    with opened(data) as log:
        log.create_stream("s")
        with pytest.raises(BatchTooLarge, match="append it in parts"):
            log.append("s", numbered(1_000))
        assert log.bounds("s", 0) == (0, 0)


def test_wrong_column_lengths_name_both(data: Path) -> None:
    with pytest.raises(BadBatch, match="1 keys for 2 values"):
        Batch.of([b"a", b"b"], keys=[b"k"])
    with pytest.raises(BadBatch, match="3 timestamps for 2 values"):
        Batch.of([b"a", b"b"], timestamps=[1, 2, 3])
    with pytest.raises(BadBatch, match="1 header lists for 2 values"):
        Batch.of([b"a", b"b"], headers=[[]])
    with opened(data) as log:
        log.create_stream("s")
        with pytest.raises(BadBatch, match="3 producer ids for 2 records"):
            log.append("s", Batch.of([b"a", b"b"]), producer="p", ids=[1, 2, 3])
        with pytest.raises(BadBatch, match="1 partitions for 2 records"):
            log.submit(np.array([1], np.uint32), Batch.of([b"a", b"b"]))


# -- the journal ---------------------------------------------------------------------------------


@pytest.fixture
def killed(data: Path, tmp_path: Path) -> Path:
    """A data directory with 20 commits in its journal, none of them in segments."""
    with opened(data) as log:
        log.create_stream("s")
        for number in range(20):
            log.append("s", Batch.of([padded(number, 200)]))
        return left_as_it_is(log, tmp_path / "killed")


def frame_offsets(data: Path) -> list[int]:
    """Where frames begin in the journal file."""
    content = (data / "journal").read_bytes()
    return [at for at in range(SUPERBLOCK, len(content), 64) if content[at : at + 4] == b"PJF1"]


def test_a_killed_log_opens_with_everything(killed: Path) -> None:
    with opened(killed) as log:
        assert log.recovered.records == 20
        assert read_all(log, "s") == [padded(number, 200) for number in range(20)]


@pytest.mark.parametrize("at", [0, 17, 24], ids=["magic", "version", "size"])
def test_a_damaged_head_of_the_journal_is_refused(killed: Path, at: int) -> None:
    flip(killed / "journal", at)
    with pytest.raises(JournalDamaged, match=r"journal.*restore it from a backup"):
        opened(killed)


@pytest.mark.parametrize("offset", [8, 70, 200], ids=["head", "runs", "body"])
@pytest.mark.parametrize("frame", [0, 10], ids=["first", "middle"])
def test_a_damaged_frame_before_others_is_refused_and_left(
    killed: Path, frame: int, offset: int
) -> None:
    at = frame_offsets(killed)[frame]
    flip(killed / "journal", at + offset)
    before = (killed / "journal").read_bytes()
    with pytest.raises(JournalDamaged, match=f"byte {at}.*Nothing was changed. Restore"):
        opened(killed)
    assert (killed / "journal").read_bytes() == before
    flip(killed / "journal", at + offset)
    with opened(killed) as log:
        assert len(read_all(log, "s")) == 20


@pytest.mark.parametrize("offset", [8, 70, 200], ids=["head", "runs", "body"])
def test_the_last_frame_damaged_after_it_was_confirmed_is_refused(
    killed: Path, offset: int
) -> None:
    flip(killed / "journal", frame_offsets(killed)[-1] + offset)
    with pytest.raises(JournalDamaged, match="confirmed up to"):
        opened(killed)


@pytest.mark.parametrize("offset", [8, 70, 200], ids=["head", "runs", "body"])
def test_a_torn_last_frame_that_was_not_confirmed_is_cut(killed: Path, offset: int) -> None:
    (killed / "mark").unlink()
    flip(killed / "journal", frame_offsets(killed)[-1] + offset)
    for _ in range(2):
        with opened(killed) as log:
            assert read_all(log, "s")[:19] == [padded(number, 200) for number in range(19)]
            log.append("s", Batch.of([b"next"]))
            assert read_all(log, "s")[19] == b"next"


def test_a_missing_journal_is_not_made_anew(killed: Path) -> None:
    (killed / "journal").unlink()
    with pytest.raises(JournalDamaged, match="missing: put it back"):
        opened(killed)
    assert not (killed / "journal").exists()


def test_a_journal_cut_short_is_refused(killed: Path) -> None:
    at = frame_offsets(killed)[5]
    with (killed / "journal").open("r+b") as file:
        file.truncate(at + 10)
    with pytest.raises(JournalDamaged):
        opened(killed)


def test_a_journal_of_another_format_is_refused(killed: Path) -> None:
    with (killed / "journal").open("r+b") as file:
        head = bytearray(file.read(32))
        head[16] = 9
        file.seek(0)
        file.write(head + crc32c(head).to_bytes(4, "little"))
    with pytest.raises(FormatUnknown, match="format 9, this Penstock reads format 1: use the"):
        opened(killed)


def test_frames_damaged_while_the_log_runs_stop_the_read_with_an_error(data: Path) -> None:
    log = opened(data)
    log.create_stream("s")
    for number in range(5):
        log.append("s", Batch.of([padded(number, 200)]))
    flip(data / "journal", frame_offsets(data)[2] + 200)
    assert values(log.read("s", 0, 0, max_records=2)) == [padded(0, 200), padded(1, 200)]
    with pytest.raises(JournalDamaged, match="not whole any more"):
        log.read("s", 0, 2)
    log.close()


# -- the catalog ---------------------------------------------------------------------------------


def test_a_catalog_of_another_format_is_refused(killed: Path) -> None:
    db = sqlite3.connect(killed / "catalog.sqlite")
    db.execute("UPDATE meta SET value = '99' WHERE name = 'format'")
    db.commit()
    db.close()
    with pytest.raises(FormatUnknown, match="format 99, this Penstock reads format 1: use the"):
        opened(killed)


def test_a_catalog_that_is_no_database_is_refused(killed: Path) -> None:
    for name in ("catalog.sqlite-wal", "catalog.sqlite-shm"):
        (killed / name).unlink(missing_ok=True)
    (killed / "catalog.sqlite").write_bytes(b"this is no database" * 100)
    with pytest.raises(StorageError, match="restore it from a backup"):
        opened(killed)


def test_a_missing_catalog_is_not_taken_for_a_new_log(killed: Path) -> None:
    for path in killed.glob("catalog.sqlite*"):
        path.unlink()
    for _ in range(2):
        with pytest.raises(StorageError, match=r"catalog\.sqlite is missing.*backup"):
            opened(killed)
    assert (killed / "streams" / "s" / "0").is_dir()


# -- segments ------------------------------------------------------------------------------------


@pytest.fixture
def sealed(data: Path) -> Path:
    """A closed log with 100 records in sealed segments and one that grows."""
    with opened(data) as log:
        log.create_stream("s", settings=SMALL)
        for start in range(0, 100, 10):
            log.append("s", numbered(10, start))
            log.checkpoint()
    return data


def segments(data: Path) -> list[Path]:
    return sorted((data / "streams" / "s" / "0").glob("*.arrow*"))


def first_index(path: Path) -> int:
    return int(path.name.split(".")[0])


def expect_error_only_inside(
    data: Path, paths: list[Path], number: int, error: type[Exception], what: str
) -> None:
    """All records but those of segment `number` can be read; those say what is wrong."""
    begin = first_index(paths[number])
    end = first_index(paths[number + 1]) if number + 1 < len(paths) else 100
    with opened(data) as log:
        assert log.bounds("s", 0) == (0, 100)
        for index in (0, begin - 1):
            if 0 <= index < begin:
                assert values(log.read("s", 0, index, 1)) == [padded(index)]
        with pytest.raises(error, match=what):
            log.read("s", 0, begin)
        if end < 100:
            assert values(log.read("s", 0, end, 1)) == [padded(end)]
        assert log.append("s", Batch.of([b"on"])).first_index == 100


@pytest.mark.parametrize("where", ["head", "middle", "tail"])
@pytest.mark.parametrize("number", [0, 2, -1], ids=["first", "middle", "growing"])
def test_a_damaged_segment_stops_reads_there_with_an_error(
    sealed: Path, number: int, where: str
) -> None:
    paths = segments(sealed)
    number %= len(paths)
    content = paths[number].read_bytes()
    body = content.index(b"record ")
    at = {"head": body - 200, "middle": body + 3_000, "tail": content.rindex(b"record ") + 900}
    flip(paths[number], at[where])
    damaged = paths[number].read_bytes()
    expect_error_only_inside(
        sealed, paths, number, SegmentDamaged, "restore the file from a backup"
    )
    assert paths[number].read_bytes() == damaged, "nothing was cut or repaired"


@pytest.mark.parametrize("number", [0, 2, -1], ids=["first", "middle", "growing"])
def test_a_segment_cut_short_stops_reads_there_with_an_error(sealed: Path, number: int) -> None:
    path = segments(sealed)[number]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 2 // 3)
    with opened(sealed) as log, pytest.raises(SegmentDamaged, match="backup"):
        log.read("s", 0, first_index(path), 1_000)


@pytest.mark.parametrize("number", [0, 2, -1], ids=["first", "middle", "growing"])
def test_a_missing_segment_stops_reads_there_with_an_error(sealed: Path, number: int) -> None:
    paths = segments(sealed)
    number %= len(paths)
    paths[number].unlink()
    expect_error_only_inside(sealed, paths, number, SegmentMissing, "put it back")


def test_a_missing_segment_is_an_error_for_all_who_need_it(sealed: Path) -> None:
    with opened(sealed) as log:
        log.change_settings(
            "s",
            StreamSettings(segment_bytes=limits.SEGMENT_BYTES_MIN, retention_seconds=1e9),
        )
        assert len(segments(sealed)) > 3
        segments(sealed)[0].unlink()
        with pytest.raises(SegmentMissing, match="put it back"):
            log.index_at("s", 0, 1)
        with pytest.raises(SegmentMissing, match="put it back"):
            log.apply_retention()


def test_a_missing_or_damaged_index_is_made_good_by_the_segment(sealed: Path) -> None:
    indexes = sorted((sealed / "streams" / "s" / "0").glob("*.index"))
    assert len(indexes) > 2
    indexes[0].unlink()
    flip(indexes[1], 40)
    indexes[2].write_bytes(b"")
    with opened(sealed) as log:
        assert read_all(log, "s") == [padded(number) for number in range(100)]


@pytest.mark.parametrize("found", ["by its checksum", "by its shape"])
def test_a_segment_damaged_before_it_is_sealed_loses_nothing(data: Path, found: str) -> None:
    """Sealing must not take the damage for the end of the file and drop what is behind it."""
    with opened(data) as log:
        log.create_stream("s", settings=StreamSettings(segment_bytes=64 * limits.KIB))
        for start in range(0, 30, 10):
            log.append("s", numbered(10, start))
            log.checkpoint()
        (path,) = segments(data)
        content = path.read_bytes()
        body = content.index(b"record 10 ")
        begin = content.rindex(b"\xff\xff\xff\xff", 0, body - 500)
        flip(path, begin if found == "by its shape" else body)
        damaged = path.read_bytes()
        for start in range(30, 80, 10):
            log.append("s", numbered(10, start))
            log.checkpoint()
        assert path.read_bytes().startswith(damaged)
        assert log.failed is None
        with pytest.raises(SegmentDamaged, match="backup"):
            log.read("s", 0, 10)
        last = first_index(segments(data)[-1])
        assert values(log.read("s", 0, last, 1)) == [padded(last)]


# -- who owns the directory ----------------------------------------------------------------------

OWN = """
import sys
from penstock.log import open_log, small_log
log = open_log(sys.argv[1], small_log(), writer=sys.argv[2])
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("writer", ["inline", "process"])
def test_a_second_process_is_told_who_owns_the_directory(data: Path, writer: str) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWN, str(data), writer],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"open\n"
        with pytest.raises(DataDirectoryInUse, match=f"process {owner.pid} .*choose another"):
            opened(data)
        owner.kill()
        owner.wait()
        opened(data).close()


def test_a_second_log_in_one_process_is_refused_too(data: Path) -> None:
    with opened(data), pytest.raises(DataDirectoryInUse, match=f"process {os.getpid()} "):
        opened(data)
    opened(data).close()


def test_a_directory_that_cannot_be_written_is_refused(data: Path) -> None:
    data.mkdir(mode=0o500)
    child = os.fork()
    if child == 0:  # root may write anywhere, so be nobody for a moment
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            opened(data)
        except StorageError as error:
            os._exit(0 if f"{data} cannot be used as data directory" in str(error) else 2)
        except BaseException:  # noqa: BLE001 - the parent says that it failed
            os._exit(3)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_file_in_place_of_the_directory_is_refused(data: Path) -> None:
    data.write_text("not a directory")
    with pytest.raises(StorageError, match="cannot be used as data directory"):
        opened(data)


def test_a_failed_opening_lets_go_of_the_directory(killed: Path) -> None:
    journal = (killed / "journal").read_bytes()
    (killed / "journal").unlink()
    with pytest.raises(JournalDamaged):
        opened(killed)
    (killed / "journal").write_bytes(journal)
    with opened(killed) as log:
        assert len(read_all(log, "s")) == 20


def test_the_data_directory_is_its_owners_alone(data: Path) -> None:
    with opened(data) as log:
        log.create_stream("s")
        log.append("s", Batch.of([b"v"]))
        log.checkpoint()
        for path in [data, *data.rglob("*")]:
            assert path.stat().st_mode & 0o077 == 0, path
