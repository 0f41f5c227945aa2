"""How the progress of an archive is reckoned and shown."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from penstock.spark.progress import Batch, Board, Shown, lag, read


def progress(batch: int, start: object, end: object, latest: object) -> dict[str, object]:
    source = {"startOffset": start, "endOffset": end, "latestOffset": latest, "numInputRows": 999}
    return {"batchId": batch, "sources": [source], "durationMs": {"triggerExecution": 2000}}


def test_rows_lag_and_rate_come_from_offsets() -> None:
    board = Board()
    board.begins("orders", {0: 10, 1: 0})
    board.report("orders", progress(0, None, {"orders": {"0": 30, "1": 5}}, None))
    entry = board.of("orders")
    assert (entry.rows, entry.rate, entry.lag, entry.batches) == (25, 12.5, None, 1)
    text = {"orders": {"0": 50, "1": 5}}
    board.report("orders", progress(1, {"orders": {"0": 30, "1": 5}}, json.dumps(text), text))
    assert (entry.rows, entry.lag, entry.batches, entry.batch_s) == (45, 0, 2, 2.0)
    assert board.summary().rows == 45


def test_a_batch_without_rows_is_not_counted() -> None:
    board = Board()
    same = {"orders": {"0": 30}}
    board.report("orders", progress(3, same, same, {"orders": {"0": 70}}))
    assert (board.of("orders").batches, board.of("orders").lag) == (0, 40)
    board.report("orders", {"sources": []})
    assert board.of("orders").lag is None


def test_what_a_source_notes_beside_offsets_is_left_out() -> None:
    offsets = {"a": {"0": 3}, "_first": {"a": {"0": 1}}, "_version": 1}
    assert read({"startOffset": {"a": {"0": 1}}, "endOffset": offsets}, {}) == 2
    assert lag({"latestOffset": offsets, "endOffset": {"a": {"0": 1}}}) == 2


def test_pipes_get_lines_and_scripts_json(capsys: pytest.CaptureFixture[str]) -> None:
    board = Board()
    board.begins("orders", {0: 0})
    text = io.StringIO()
    with Shown(board, console=Console(file=text, width=200)) as shown:
        board.told(Batch("orders", 1, 1000, 500.0, 7, 2.0))
    assert text.getvalue() == "orders: batch 1, 1,000 rows in 2.0 s, 500 rows/s, lag 7\n"
    board.report("orders", progress(0, None, {"orders": {"0": 30}}, None))
    board.of("orders").state, board.of("orders").error = "failed", "it broke"
    shown.summary(board.summary())
    assert "orders failed: it broke" in text.getvalue()
    assert "30 rows of 1 streams" in text.getvalue()
    with Shown(board, as_json=True) as shown:
        board.told(Batch("orders", 1, 1000, 500.0, 7, 2.0))
        shown.say("not for scripts")
    shown.summary(board.summary())
    batch, summary = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (batch["event"], batch["rows"], batch["lag"]) == ("batch", 1000, 7)
    assert (summary["event"], summary["rows"], summary["failed"]) == ("summary", 30, 1)


def test_a_terminal_shows_a_table_of_those_that_are_busy() -> None:
    board = Board()
    for number in range(30):
        board.of(f"stream-{number:02d}").state = "running" if number < 3 else "done"
    board.of("stream-00").dead = 4
    text = io.StringIO()
    with Shown(board, console=Console(file=text, force_terminal=True, width=120)):
        pass
    assert "stream-02" in text.getvalue()
    assert "stream-07" not in text.getvalue()
    assert "and 27 more" in text.getvalue()
    assert "dead letters" in text.getvalue()
