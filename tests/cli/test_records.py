"""`penstock write`, `read` and `tail`: round trips, paging, formats, mistakes."""

from __future__ import annotations

import csv
import io
import threading

import pyarrow as pa
import pytest
from pyarrow import ipc

from penstock.cli import files, read
from penstock.hub import formats
from penstock.log import Batch
from tests.cli.conftest import Cli, Outcome

JSONL = b"""{"value": "one", "key": "a"}

{"value": {"cents": 2}}
{"value64": "/w==", "timestamp": 7}
"""


def values(cli: Cli, stream: str, *more: str) -> list[bytes]:
    return cli("read", stream, "--format", "lines", *more).data.splitlines()


# -- writing ---------------------------------------------------------------------------------------


def test_json_lines_come_from_stdin(cli, stream):
    done = cli("write", stream, "--json", stdin=JSONL).json
    assert (done["records"], done["dropped"], done["requests"]) == (3, 0, 1)
    found = cli("read", stream).lines
    assert [record.get("value") for record in found] == ["one", '{"cents":2}', None]
    assert (found[0]["key"], found[2]["value64"], found[2]["timestamp"]) == ("a", "/w==", 7)


def test_a_dash_is_stdin_too_and_the_summary_is_for_people(cli, stream):
    done = cli("write", stream, "-", "--format", "lines", stdin="one\ntwo")
    assert "wrote 2 records" in done.err
    assert values(cli, stream) == [b"one", b"two"]


def test_many_records_go_in_several_requests(cli, stream):
    lines = b"".join(b"%d\n" % number for number in range(1000))
    done = cli("write", stream, "--format", "lines", "--batch", 100, "--json", stdin=lines).json
    assert (done["records"], done["requests"]) == (1000, 10)
    assert values(cli, stream) == lines.splitlines()


def test_large_records_go_in_small_requests(cli, stream, monkeypatch):
    monkeypatch.setattr(files, "REQUEST_BYTES", 4500)
    lines = b"x" * 999 + b"\n"
    done = cli("write", stream, "--format", "lines", "--json", stdin=lines * 10).json
    assert (done["records"], done["requests"]) == (10, 3)
    table = pa.table({"value": [b"x" * 999] * 8})
    sink = io.BytesIO()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    done = cli("write", stream, "--format", "arrow", "--json", stdin=sink.getvalue()).json
    assert (done["records"], done["requests"]) == (8, 2)


def test_what_is_too_much_for_the_hub_goes_in_halves(cli, stream):
    lines = [b"%d %s" % (n, b"x" * 1000) for n in range(3001)]  # the hub takes 1 MiB at once
    done = cli("write", stream, "--format", "lines", "--json", stdin=b"\n".join(lines)).json
    assert done["records"] == 3001
    assert values(cli, stream) == lines
    form = cli("read", stream, "--format", "arrow").data
    words = ("write", stream, "--format", "arrow", "--producer", "p", "--first-id", 0)
    assert cli(*words, "--json", stdin=form).json["records"] == 3001
    assert values(cli, stream) == lines * 2


def test_one_record_that_is_too_large_is_refused(cli, stream):
    done = cli("write", stream, "--format", "lines", stdin=b"x" * 600_000, code=2)
    assert "error (record-too-large)" in done.err


def test_nothing_to_write_is_no_error(cli, stream):
    for form in files.Format:
        done = cli("write", stream, "--format", form, "--json", stdin=b"").json
        assert (done["records"], done["requests"]) == (0, 0)


def test_several_files_each_by_its_name(cli, stream, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"lines\n")
    (tmp_path / "b.jsonl").write_bytes(b'{"value": "json"}\n')
    (tmp_path / "c.csv").write_bytes(b'key,value\nk,"two\nlines"\n,bare\n"",\n')
    names = [tmp_path / name for name in ("a.txt", "b.jsonl", "c.csv")]
    assert cli("write", stream, *names, "--json").json["records"] == 5
    found = cli("read", stream).lines
    assert [each["value"] for each in found] == ["lines", "json", "two\nlines", "bare", ""]
    assert [each.get("key") for each in found] == [None, None, "k", None, ""]


def test_csv_may_have_line_ends_in_values_wherever_blocks_meet(cli, hub, stream, tmp_path):
    value = 'one\ntwo,"three"\n' * 20_000  # 320 kB: blocks end within one
    with (tmp_path / "long.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["value"], *[[value]] * 120])
    assert cli("write", stream, tmp_path / "long.csv", "--json").json["records"] == 120
    found = hub.log.read(stream, 0, 0, 120, 2**26)
    assert {each for batch in found for each in batch.column(3).to_pylist()} == {value.encode()}
    text = b"value\n" + b"".join(b'"%d\n\n\n%s"\n' % (n, b"x" * 90) for n in range(20_000))
    assert formats.parse(formats.CSV, text, 0).batch.count == 20_000


def test_an_arrow_file_is_taken_as_well_as_a_stream(cli, stream, tmp_path):
    table = pa.table({"value": [b"one", b"two"], "key": [b"k", None]})
    with ipc.new_file(str(tmp_path / "f.arrow"), table.schema) as writer:
        writer.write_table(table)
    assert cli("write", stream, tmp_path / "f.arrow", "--json").json["records"] == 2
    assert values(cli, stream) == [b"one", b"two"]


def test_the_partition_can_be_chosen(cli, hub, wide):
    cli("write", wide, "--format", "lines", "--partition", 2, stdin="x\n")
    assert hub.log.bounds(wide, 2) == (0, 1)


def test_a_producer_may_send_again(cli, stream):
    words = ("write", stream, "--format", "lines", "--producer", "p", "--json")
    assert cli(*words, "--first-id", 0, "--batch", 2, stdin="a\nb\nc\n").json["records"] == 3
    again = cli(*words, "--first-id", 0, "--batch", 2, stdin="a\nb\nc\nd\n").json
    assert (again["records"], again["dropped"]) == (1, 3)
    assert values(cli, stream) == [b"a", b"b", b"c", b"d"]


def test_records_may_bring_their_own_ids(cli, stream):
    lines = '{"value": "a", "id": 5}\n{"value": "b", "id": 9}\n'
    words = ("write", stream, "--producer", "p", "--json")
    assert cli(*words, stdin=lines).json["records"] == 2
    assert cli(*words, stdin=lines).json["dropped"] == 2


@pytest.mark.parametrize("record", ['{"value": 1}', '{"key": "a", "value": 1}'])
def test_a_producer_is_recognised_over_partitions_with_and_without_keys(cli, wide, record):
    words = ("write", wide, "--producer", "p", "--first-id", 0, "--json")
    assert cli(*words, stdin=record + "\n").json["records"] == 1
    for _ in range(3):
        assert cli(*words, stdin=record + "\n").json["dropped"] == 1


def test_an_id_without_a_producer_is_wrong_usage(cli, stream):
    done = cli("write", stream, "--first-id", 0, stdin="", code=2)
    assert "--producer" in done.err


@pytest.mark.parametrize(
    ("form", "data", "message"),
    [
        ("jsonl", b'{"value": 1}\n{"value": \n', "line 2"),
        ("jsonl", b"\xff\n", "line 1"),
        ("csv", b"nothing,known\n1,2\n", "value"),
        ("arrow", b"certainly not Arrow", "Arrow"),
        ("arrow", b"ARROW1 nor this", "Arrow"),
    ],
)
def test_what_is_not_in_its_format_is_refused(cli, hub, stream, form, data, message):
    assert message in cli("write", stream, "--format", form, stdin=data, code=2).err
    assert hub.log.bounds(stream, 0) == (0, 0)


def test_a_failure_midway_says_what_is_stored(cli, hub, stream):
    lines = '{"value": 1}\n{"value": 2}\nbad\n'
    done = cli("write", stream, "--batch", 2, stdin=lines, code=2)
    assert "the first 2 records are stored" in done.err
    assert hub.log.bounds(stream, 0) == (0, 2)


def test_a_file_whose_name_says_nothing_needs_a_format(cli, stream, tmp_path):
    path = tmp_path / "records.dat"
    path.write_bytes(b"x\n")
    assert "--format" in cli("write", stream, path, code=2).err
    cli("write", stream, path, "--format", "lines")


def test_a_file_that_is_not_there_is_wrong_usage(cli, stream, tmp_path):
    assert "No such file" in cli("write", stream, tmp_path / "none.csv", code=2).err
    assert "cannot be read" in cli("write", stream, tmp_path, "--format", "csv", code=2).err


# -- reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["jsonl", "csv", "arrow", "lines"])
def test_what_was_read_can_be_written_and_is_the_same(
    cli, hub, stream, tmp_path, form, monkeypatch
):
    monkeypatch.setattr(read, "PAGE", 7)  # several pages
    keys = None if form == "lines" else [None if n % 5 == 0 else b"k%d" % n for n in range(40)]
    batch = Batch.of([b"value %d" % n for n in range(40)], keys=keys)
    hub.log.append(stream, batch)
    copy = stream + "-copy"
    hub.log.create_stream(copy)
    piped = cli("read", stream, "--format", form)
    cli("write", copy, "--format", form, stdin=piped.data)
    suffix = "txt" if form == "lines" else form
    path = tmp_path / f"records.{suffix}"
    summary = cli("read", copy, "--to", path, "--json").json
    assert summary == {"stream": copy, "records": 40, "file": str(path), "format": form}
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    cli("write", copy, path)
    first, second = (hub.log.read(copy, 0, start, 40) for start in (0, 40))
    original = hub.log.read(stream, 0, 0, 40)
    names = ["value"] if form == "lines" else ["timestamp", "key", "value"]
    for copied in (first, second):
        assert pa.Table.from_batches(copied).select(names) == pa.Table.from_batches(
            original
        ).select(names)


def test_read_by_index_time_last_and_limit(cli, hub, stream, monkeypatch):
    monkeypatch.setattr(read, "PAGE", 10)
    times = [1_000_000 * n for n in range(100)]
    hub.log.append(stream, Batch.of([b"%d" % n for n in range(100)], timestamps=times))
    assert values(cli, stream, "--from", "90") == [b"%d" % n for n in range(90, 100)]
    assert values(cli, stream, "--from", "5", "--limit", "12") == [b"%d" % n for n in range(5, 17)]
    assert values(cli, stream, "--last", "3") == [b"97", b"98", b"99"]
    assert values(cli, stream, "--time", "1970-01-01T00:01:38") == [b"98", b"99"]
    assert values(cli, stream, "--time", "99000000") == [b"99"]
    assert values(cli, stream, "--limit", "0") == []
    assert values(cli, stream, "--last", "0") == []
    assert len(values(cli, stream)) == 100


def test_all_partitions_come_one_after_the_other(cli, hub, wide):
    for partition in range(3):
        hub.log.append(wide, Batch.of([b"%d-%d" % (partition, n) for n in range(4)]), partition)
    found = cli("read", wide, "--json").lines
    assert [(each["partition"], each["index"]) for each in found] == [
        (partition, index) for partition in range(3) for index in range(4)
    ]
    assert values(cli, wide, "--last", "1") == [b"0-3", b"1-3", b"2-3"]
    assert values(cli, wide, "--limit", "5") == [b"0-0", b"0-1", b"0-2", b"0-3", b"1-0"]
    assert values(cli, wide, "--partition", "1", "--from", "3") == [b"1-3"]


def test_an_empty_stream_reads_as_an_empty_document(cli, wide):
    assert cli("read", wide).data == b""
    assert cli("read", wide, "--format", "csv").out == '"index","timestamp","key","value"\n'
    assert ipc.open_stream(cli("read", wide, "--format", "arrow").data).read_all().num_rows == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from", "1", "--last", "1"], "--from and --last exclude each other"),
        (["--partition", "some"], "a number, or all"),
        (["--format", "xml"], "'xml'"),
        (["--json", "--format", "csv"], "--json prints JSON lines"),
        (["--to", "records.what"], "--format"),
        (["--from", "1"], "--partition"),
        (["--partition", "9"], "error (unknown-partition)"),
        (["--partition", "0", "--from", "1"], "error (index-out-of-range)"),
        (["--time", "yesterday"], "ISO 8601"),
        (["--to", "/dev/null/x.csv"], "cannot be written"),
    ],
)
def test_reading_what_cannot_be_is_wrong_usage(cli, wide, words, message):
    assert message in cli("read", wide, *words, code=2).err


def test_a_file_is_left_as_it_was_when_reading_fails(cli, hub, stream, tmp_path):
    hub.log.append(stream, Batch.of([b"\xff"]))
    path = tmp_path / "out.csv"
    path.write_text("before")
    assert "not text" in cli("read", stream, "--to", path, code=2).err
    assert path.read_text() == "before"
    assert [each.name for each in tmp_path.iterdir()] == ["out.csv"]


# -- tailing ---------------------------------------------------------------------------------------


def test_tail_from_the_earliest_and_from_an_index(cli, hub, stream):
    hub.log.append(stream, Batch.of([b"%d" % n for n in range(10)]))
    found = cli("tail", stream, "--from", "earliest", "--limit", 3, "--json").lines
    assert [each["index"] for each in found] == [0, 1, 2]
    words = ("--format", "lines", "--limit", 2, "--partition", 0)
    assert cli("tail", stream, "--from", 7, *words).data == b"7\n8\n"


def test_tail_shows_bytes_as_they_are(cli, hub, stream):
    hub.log.append(stream, Batch.of([b"\xff", b""]))
    done = cli("tail", stream, "--from", "earliest", "--format", "lines", "--limit", 2)
    assert done.data == b"\xff\n\n"


def test_tail_from_the_latest_shows_what_comes(cli, hub, wide):
    hub.log.append(wide, Batch.of([b"before"]), 1)
    stop = threading.Event()

    def feed() -> None:
        while not stop.wait(0.01):
            hub.log.append(wide, Batch.of([b"after"]), 1)

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        done = cli("tail", wide, "--format", "lines", "--limit", 2)
    finally:
        stop.set()
        feeding.join()
    assert done.data == b"after\nafter\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from", "middle"], "latest, earliest or an index"),
        (["--partition", "9"], "error (unknown-partition)"),
        (["--json", "--format", "lines"], "--json"),
    ],
)
def test_tailing_what_cannot_be_is_wrong_usage(cli, wide, words, message):
    assert message in cli("tail", wide, *words, code=2).err


def test_tail_of_a_stream_that_is_deleted_ends_with_the_reason(cli, hub, stream):
    hub.log.append(stream, Batch.of([b"last"]))
    outcome: list[Outcome] = []
    words = ("tail", stream, "--from", "earliest")
    tailing = threading.Thread(target=lambda: outcome.append(cli(*words, code=2)))
    tailing.start()
    hub.log.delete_stream(stream)
    tailing.join()
    assert "error (unknown-stream)" in outcome[0].err
