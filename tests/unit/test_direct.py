"""Reading segments without the log: the same records, wherever they are by then."""

import pytest

from penstock.errors import IndexTrimmed, SegmentMissing
from penstock.log import Batch, StreamSettings, open_log, small_log
from penstock.log.direct import DirectReader

SETTINGS = StreamSettings(segment_bytes=16 * 1024)


@pytest.fixture
def log(tmp_path):
    with open_log(tmp_path / "data", small_log(), writer="inline") as log:
        log.create_stream("s", settings=SETTINGS)
        yield log


def append(log, count, first=0):
    log.append("s", Batch.of([b"%09d" % n * 10 for n in range(first, first + count)]))


def read_values(reader, start=0):
    values = []
    while batches := reader.read(start):
        for batch in batches:
            assert batch.column("index").to_pylist() == list(range(start, start + batch.num_rows))
            values += batch.column("value").to_pylist()
            start += batch.num_rows
    return values


def test_what_is_only_in_the_journal_is_not_seen_yet(log):
    append(log, 10)
    reader = DirectReader(log.data, "s", 0)
    assert reader.read(0) == []
    log.checkpoint()
    assert len(read_values(reader)) == 10


def test_a_reader_follows_through_growing_closed_and_sealed_segments(log):
    reader = DirectReader(log.data, "s", 0)
    seen: list[bytes] = []
    for turn in range(8):
        append(log, 100, 100 * turn)
        log.checkpoint()
        seen += read_values(reader, len(seen))
    assert seen == [b"%09d" % n * 10 for n in range(800)]
    assert seen == read_values(DirectReader(log.data, "s", 0))


def test_a_segment_that_was_cut_and_written_again_gives_the_same_records(log):
    append(log, 50)
    log.checkpoint()
    append(log, 50, 50)
    log.checkpoint()
    reader = DirectReader(log.data, "s", 0)
    assert len(read_values(reader, 60)) == 40
    path = next((log.data / "streams/s/0").glob("*.arrows"))
    path.write_bytes(path.read_bytes())
    assert len(read_values(reader)) == 100


def test_records_dropped_by_retention_are_an_error_that_says_the_earliest(log):
    for turn in range(6):
        append(log, 100, 100 * turn)
        log.checkpoint()
    earliest = log.trim("s", 0, 500)
    assert earliest > 0
    with pytest.raises(IndexTrimmed) as caught:
        DirectReader(log.data, "s", 0).read(0)
    assert caught.value.earliest == earliest


def test_a_missing_file_in_the_middle_is_an_error(log):
    for turn in range(8):
        append(log, 100, 100 * turn)
        log.checkpoint()
    files = sorted((log.data / "streams/s/0").glob("*.arrow"))
    files[1].unlink()
    with pytest.raises(SegmentMissing):
        read_values(DirectReader(log.data, "s", 0))
