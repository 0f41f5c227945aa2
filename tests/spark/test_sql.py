"""Files of SQL: from streams to streams and tables, once each, whatever is repeated."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock.errors import BadStatement, QueryFailed
from penstock.log import Batch
from penstock.spark.sql import SqlPipeline, group_name, merged
from penstock.spark.triggers import Trigger
from penstock.spark.views import HubAddress
from tests.records import rows
from tests.spark.queries import until

PARSED = """
CREATE OR REPLACE TEMPORARY VIEW parsed AS
SELECT from_json(CAST(value AS STRING), 'country STRING, amount INT') AS o FROM `{stream}`;
"""


def order(amount):
    return {"country": "fr" if amount % 2 else "de", "amount": amount}


def orders(amounts):
    return Batch.of([json.dumps(order(each)).encode() for each in amounts])


def records(hub, stream):
    """Key and value of all records of a stream's first partition."""
    return [(each["key"], each["value"]) for each in rows(hub.log.read(stream, 0, 0))]


@pytest.fixture
def run(spark, hub, tmp_path):
    """Runs SQL as a file with available-now; returns what was said."""

    def run(text: str, **more) -> list[str]:
        said: list[str] = []
        file = tmp_path / "job.sql"
        file.write_text(text)
        with SqlPipeline(spark, file, hub=HubAddress(hub.url), say=said.append, **more) as pipeline:
            pipeline.start()
            summary = pipeline.wait()
        assert not summary.failed
        return said

    return run


def repeat_last_batch(checkpoint: Path) -> None:
    """Let Spark think that the last batch was never finished, as after a kill."""
    commits = [each for each in (checkpoint / "commits").iterdir() if each.name.isdigit()]
    last = max(commits, key=lambda each: int(each.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)


# -- to streams ------------------------------------------------------------------------------------


def test_rows_become_records_once_and_a_run_goes_on_where_the_last_one_stopped(
    run, hub, new_stream, tmp_path
):
    stream, big, copy = new_stream(), new_stream(name="big.of"), new_stream(name="copy")
    hub.log.append(stream, orders(range(10)))
    text = (
        PARSED.format(stream=stream)
        + f"""
        INSERT INTO {big.replace(".", "_").replace("-", "_")}
        SELECT o.country AS key, o.amount, o.country FROM parsed WHERE o.amount >= 5;
        INSERT INTO `{copy}` SELECT * FROM `{big}`;
    """
    )
    assert run(text) == [f"{big}: values are JSON objects of amount, country"]
    expected = [
        (country, b'{"amount":%d,"country":"%s"}' % (each, country))
        for each in range(5, 10)
        if (country := order(each)["country"].encode())
    ]
    assert records(hub, big) == records(hub, copy) == expected

    hub.log.append(stream, orders([7]))
    checkpoints = tmp_path / "job.checkpoints"
    repeat_last_batch(checkpoints / f"stream-{big}")
    run(text)
    assert records(hub, big) == records(hub, copy) == [*expected, expected[2]]
    group = group_name(str(checkpoints / f"stream-{big}"))
    assert hub.log.position(group, stream, 0) == 11


def test_groups_that_change_become_a_record_for_each_change(run, hub, new_stream, tmp_path):
    stream, totals = new_stream(), new_stream(name="totals")
    hub.log.append(stream, orders(range(4)))
    text = (
        "SET spark.sql.shuffle.partitions = 1;"
        + PARSED.format(stream=stream)
        + f"""
        INSERT INTO `{totals}` (key, value) SELECT o.country, sum(o.amount) FROM parsed GROUP BY 1
    """
    )
    said = run(text)
    assert "each change of a group becomes a record of its own" in said[-1]
    assert Counter(records(hub, totals)) == Counter([(b"de", b"2"), (b"fr", b"4")])
    hub.log.append(stream, orders([10]))
    run(text)
    repeat_last_batch(tmp_path / "job.checkpoints" / f"stream-{totals}")
    run(text)
    assert records(hub, totals)[2:] == [(b"de", b"12")]


def test_a_stream_that_is_missing_is_made(run, hub, new_stream):
    stream = new_stream()
    hub.log.append(stream, Batch.of([b"1"]))
    said = run(f"INSERT INTO `{stream}.made` SELECT struct(1 AS a) AS value FROM `{stream}`")
    assert said == [f"made stream {stream}.made, partitions: 1"]
    assert records(hub, f"{stream}.made") == [(None, b'{"a":1}')]


# -- to tables -------------------------------------------------------------------------------------


def test_a_parquet_table_can_be_read_by_anybody_and_has_each_row_once(
    run, hub, new_stream, tmp_path
):
    stream = new_stream()
    hub.log.append(stream, orders(range(10)))
    text = (
        PARSED.format(stream=stream)
        + """
        CREATE TABLE sales PARTITIONED BY (country) LOCATION 'out/sales' AS
        SELECT o.country, o.amount FROM parsed
    """
    )
    run(text)
    hub.log.append(stream, orders(range(10, 15)))
    run(text)
    repeat_last_batch(tmp_path / "job.checkpoints" / "table-sales")
    said = run(text.replace("o.amount FROM", "o.amount FROM  "))
    assert said == []  # only spaces have changed
    table = pq.read_table(tmp_path / "out" / "sales")
    assert sorted(table["amount"].to_pylist()) == list(range(15))
    assert set(table["country"].to_pylist()) == {"de", "fr"}
    assert not list((tmp_path / "out" / "sales").rglob("_*"))

    hub.log.append(stream, orders([15, 16]))
    said = run(text + " WHERE o.amount > 15")
    assert "job.sql:5: the statement is not the one that" in said[0]
    assert "To begin anew, delete" in said[0]
    table = pq.read_table(tmp_path / "out" / "sales")
    assert sorted(table["amount"].to_pylist()) == [*range(15), 16]


def test_a_delta_table_is_appended_to_or_for_aggregates_written_anew(
    run, spark, hub, new_stream, tmp_path
):
    stream = new_stream()
    hub.log.append(stream, orders(range(4)))
    text = (
        PARSED.format(stream=stream)
        + """
        SET spark.sql.shuffle.partitions = 1;
        CREATE TABLE sales USING delta AS SELECT o.amount FROM parsed;
        CREATE TABLE totals USING delta AS SELECT o.country, sum(o.amount) s FROM parsed GROUP BY 1
    """
    )
    said = run(text)
    assert "so the table is written anew with each batch" in said[-1]
    hub.log.append(stream, orders([10]))
    run(text)
    sales = spark.read.format("delta").load(str(tmp_path / "tables/sales"))
    assert sorted(row.amount for row in sales.collect()) == [0, 1, 2, 3, 10]
    totals = spark.read.format("delta").load(str(tmp_path / "tables/totals"))
    assert {row.country: row.s for row in totals.collect()} == {"de": 12, "fr": 4}


# -- going on --------------------------------------------------------------------------------------


def test_with_an_interval_it_goes_on_until_it_is_told_to_stop(spark, hub, new_stream, tmp_path):
    stream, copy = new_stream(), new_stream(name="copy")
    file = tmp_path / "job.sql"
    file.write_text(f"INSERT INTO `{copy}` SELECT key, value FROM `{stream}`")
    pipeline = SqlPipeline(spark, file, hub=HubAddress(hub.url), trigger=Trigger(0.1))
    pipeline.start()
    waiting = threading.Thread(target=pipeline.wait)
    waiting.start()
    for number in range(2):
        hub.log.append(stream, Batch.of([b"%d" % number]))
        until(lambda: hub.log.bounds(copy, 0)[1] == number + 1)  # noqa: B023
    pipeline.ask_to_stop()
    waiting.join(60)
    assert not waiting.is_alive()
    (entry,) = pipeline.board.summary().streams
    assert (entry.state, entry.rows) == ("stopped", 2)


def test_reports_of_a_join_are_added_up():
    first = {"startOffset": None, "endOffset": '{"a": {"0": 7}}', "latestOffset": {"a": {"0": 9}}}
    other = {"startOffset": {"b": {"0": 1}}, "endOffset": {"b": {"0": 3}}, "latestOffset": None}
    told = merged({"batchId": 4, "sources": [first, other]}, {"a": {"0": 5}, "c": {"0": 1}})
    assert told["batchId"] == 4
    assert told["sources"] == [
        {
            "startOffset": {"a": {"0": 5}, "b": {"0": 1}},
            "endOffset": {"a": {"0": 7}, "b": {"0": 3}},
            "latestOffset": {"a": {"0": 9}},
        }
    ]


def test_a_query_that_fails_says_which_statement_and_why(spark, hub, new_stream, tmp_path):
    stream = new_stream()
    hub.log.append(stream, Batch.of([b"1"]))
    file = tmp_path / "job.sql"
    file.write_text(
        f"\nINSERT INTO `{stream}.out`\n"
        f"SELECT CAST(raise_error('no such thing') AS STRING) AS value FROM `{stream}`"
    )
    with SqlPipeline(spark, file, hub=HubAddress(hub.url)) as pipeline:
        pipeline.start()
        with pytest.raises(QueryFailed, match=r"job.sql:2: .* failed: .*no such thing"):
            pipeline.wait()
    (entry,) = pipeline.board.summary().failed
    assert "no such thing" in (entry.error or "")


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("INSERT INTO x SELECT value FROM nowhere", r"job.sql:2: .*`nowhere` cannot be found"),
        ("INSERT INTO x SELECT value FROM nowhere", "\nStreams are: `"),
        ("INSERT INTO x\nSELECT nothing\nFROM `{stream}`", "job.sql:3: .*`nothing` cannot be"),
        ("INSERT INTO x\nSELECT value\nFRM `{stream}` x", "job.sql:4: .*Syntax error"),
        ("CREATE TEMP VIEW v AS\nSELECT nothing\nFROM `{stream}`; INSERT INTO x SELECT * FROM v",
         "job.sql:3: .*`nothing` cannot be"),
        ("INSERT INTO x SELECT 1 AS value", "job.sql:2: the query reads no stream"),
        ("INSERT INTO x (key) SELECT 1, 2 FROM `{stream}`", "names 1 columns .key., but .* has 2"),
        ("INSERT INTO x SELECT value, 1 AS a FROM `{stream}`", "column a is none of a record's"),
        ("INSERT INTO x SELECT 1 AS a, 2 AS a FROM `{stream}`", "two columns have the name a"),
        ("INSERT INTO x SELECT key FROM `{stream}`", "a record needs a value"),
        ("INSERT INTO `a b` SELECT value FROM `{stream}`", "job.sql:2: 'a b' cannot name a stream"),
        ("CREATE TABLE x PARTITIONED BY (day) AS SELECT value FROM `{stream}`",
         "has no such column, but value"),
        ("CREATE TABLE x LOCATION 's3a://b/x' AS SELECT value FROM `{stream}`", "say USING delta"),
    ],
)  # fmt: skip
def test_mistakes_are_shown_where_they_are_and_nothing_is_started(
    run, hub, new_stream, text, message
):
    stream = new_stream(name="there")
    with pytest.raises(BadStatement, match=message.format(stream=stream)):
        run("-- the first line\n" + text.format(stream=stream))
    assert "x" not in hub.log.streams()


def test_an_aggregate_cannot_be_appended_to_parquet_without_a_watermark(run, new_stream):
    stream = new_stream()
    with pytest.raises(BadStatement, match=r"job.sql:1: .* add a watermark"):
        run(f"CREATE TABLE x AS SELECT count(*) AS c FROM `{stream}`")
