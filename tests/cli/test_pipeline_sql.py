"""`penstock pipeline sql`, `init`, `run` and `penstock shell`, as far as they need no Spark."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from penstock.cli import pipeline_sql
from penstock.cli.shell import execute, history_file
from penstock.spark import project
from penstock.spark.project import Event
from tests.cli.conftest import Cli

NOBODY = Cli("http://127.0.0.1:9")  # the discard port: nothing listens

WITHOUT_SPARK = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyspark", "grpc", "pandas"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from penstock.cli import main
main()
"""


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["pipeline", "--help"], "init"),
        (["pipeline", "sql", "--help"], "penstock pipeline sql totals.sql"),
        (["pipeline", "init", "--help"], "--format"),
        (["pipeline", "run", "--help"], "--full-refresh-all"),
        (["shell", "--help"], "penstock shell -c"),
    ],
)
def test_help_shows_examples(words, shown):
    assert shown in NOBODY(*words).out


# -- sql -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("SET a=1;\nDROP TABLE x;", [], "f.sql:2: DROP TABLE is not supported"),
        ("SET a=1;", [], "starts nothing"),
        ("INSERT INTO x SELECT '${day}'", [], "give one with --var day="),
        ("INSERT INTO x SELECT 1", ["--var", "day"], "--var is 'day': write NAME=VALUE"),
        ("INSERT INTO x SELECT 1", ["--trigger", "soon"], "there is no trigger 'soon'"),
        ("INSERT INTO x SELECT 1;" * 33, [], "33 statements with a target: at most 32"),
    ],
)
def test_mistakes_in_a_file_are_shown_before_spark_starts(tmp_path, text, words, message):
    file = tmp_path / "f.sql"
    file.write_text(text)
    assert message in NOBODY("pipeline", "sql", file, *words, code=2).err


def test_a_file_that_cannot_be_read_is_wrong_usage(tmp_path):
    assert "cannot be read: No such file" in NOBODY("pipeline", "sql", tmp_path / "x", code=2).err
    (tmp_path / "f.sql").write_bytes(b"\xff")
    assert "it is not UTF-8" in NOBODY("pipeline", "sql", tmp_path / "f.sql", code=2).err


def test_a_hub_that_is_not_there_is_told_before_spark_starts(tmp_path):
    file = tmp_path / "f.sql"
    file.write_text("INSERT INTO x SELECT * FROM orders")
    assert "no hub answers" in NOBODY("pipeline", "sql", file, code=1).err
    assert "no hub answers" in NOBODY("shell", "-c", "1", code=1).err


@pytest.mark.slow
@pytest.mark.parametrize("words", [["pipeline", "sql"], ["pipeline", "run"], ["shell", "-c", "1"]])
def test_without_pyspark_it_says_what_to_install(hub, stream, tmp_path, words):
    if words[-1] == "sql":
        (tmp_path / "f.sql").write_text(f"INSERT INTO x SELECT * FROM `{stream}`")
        words = [*words, str(tmp_path / "f.sql")]
    elif words[-1] == "run":
        (tmp_path / project.SPEC).touch()
        words = [*words, str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, *words, "--url", hub.url],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "pip install 'penstock[spark]'" in done.stderr
    assert "Traceback" not in done.stderr


# -- shell -----------------------------------------------------------------------------------------


def test_code_ends_with_a_status_as_a_script_does(capsys):
    names = {"x": 2}
    assert execute("print(x * 21)", names) == 0
    assert capsys.readouterr().out == "42\n"
    assert execute("raise SystemExit(3)", {}) == 3
    assert execute("raise SystemExit", {}) == 0
    assert execute("raise SystemExit('no')", {}) == 1
    assert capsys.readouterr().err == "no\n"
    assert execute("1 +", {}) == 1
    assert "SyntaxError" in capsys.readouterr().err
    assert execute("\n1 / 0", {}) == 1
    shown = capsys.readouterr().err
    assert 'File "<shell>", line 2' in shown
    assert "shell.py" not in shown


def test_history_is_kept_where_state_belongs(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_file() == tmp_path / "penstock" / "shell_history"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert history_file().is_absolute()


# -- init ------------------------------------------------------------------------------------------


def test_a_project_is_written_and_its_streams_made(cli, hub, tmp_path):
    done = cli("pipeline", "init", tmp_path / "sales", "--stream", "sales-eu.1", "--json").json
    assert done["streams"] == {"sales-eu.1": "made", "sales-eu.1.out": "made"}
    for name in done["files"]:
        text = (tmp_path / "sales" / name).read_text()
        assert "[[" not in text, name
        if name.endswith(".py"):
            ast.parse(text)
    ingest = (tmp_path / "sales/transformations/ingest.py").read_text()
    assert "def sales_eu_1()" in ingest
    assert f'"{hub.url}"' in ingest
    assert (
        f"storage: file://{tmp_path}/sales/checkpoints"
        in (tmp_path / "sales" / project.SPEC).read_text()
    )
    again = cli("pipeline", "init", tmp_path / "more", "--stream", "sales-eu.1", "--json").json
    assert again["streams"] == {"sales-eu.1": "is there", "sales-eu.1.out": "is there"}


def test_a_project_can_be_written_without_a_hub(tmp_path):
    done = NOBODY("pipeline", "init", tmp_path / "p", "--stream", "orders")
    assert "p/transformations/publish.py" in done.out
    assert "no hub answers, make it with `penstock streams create orders.out`" in done.err
    assert f"penstock pipeline run {tmp_path / 'p'}" in done.err


def test_a_project_is_written_over_nothing(tmp_path):
    (tmp_path / "file").touch()
    assert "not empty" in NOBODY("pipeline", "init", tmp_path, code=2).err
    spaced = tmp_path / "a b"
    assert "which Spark's settings cannot hold" in NOBODY("pipeline", "init", spaced, code=2).err
    assert "cannot name a stream" in NOBODY("pipeline", "init", tmp_path / "p", "--stream", "a b",
                                            code=2).err  # fmt: skip
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("stream", "table"),
    [("orders", "orders"), ("Orders.EU-1", "orders_eu_1"), ("1st", "s_1st"), ("--", "records")],
)
def test_tables_are_named_as_every_catalog_takes_it(stream, table):
    assert project.table_name(stream) == table


# -- run -------------------------------------------------------------------------------------------


def test_only_a_project_can_be_run(tmp_path):
    assert "has no spark-pipeline.yml" in NOBODY("pipeline", "run", tmp_path, code=2).err
    (tmp_path / project.SPEC).touch()
    words = ["pipeline", "run", tmp_path, "--full-refresh-all", "--refresh", "orders"]
    assert "means all tables" in NOBODY(*words, code=2).err
    words = ["pipeline", "run", tmp_path, "--dry-run", "--full-refresh-all"]
    assert "a dry run refreshes nothing" in NOBODY(*words, code=2).err


FAILING = """\
2026-11-15 13:58:33: Starting run...
2026-11-15 13:58:40: Flow spark_catalog.default.orders is QUEUED.
2026-11-15 13:58:41: Flow spark_catalog.default.orders is RUNNING.
2026-11-15 13:58:52: Flow spark_catalog.default.orders has COMPLETED.
2026-11-15 13:58:54: Flow out is RUNNING.
13:58:58 ERROR Utils: Aborting task
2026-11-15 13:59:00: Flow out has COMPLETED.
13:59:00 ERROR TriggeredGraphExecution: Flow `out` failed
2026-11-15 13:59:00: Flow 'out' has FAILED.
Error: [STREAM_FAILED] Query [id = 2d] terminated with exception: [USER] bad SQLSTATE: P0
=== Streaming Query ===
Identifier: out
Traceback (most recent call last):
"""


def test_what_spark_pipelines_prints_is_told_as_what_happened_to_flows():
    found = list(project.events(FAILING.splitlines()))
    assert [(each.flow, each.state) for each in found] == [
        ("orders", "QUEUED"),
        ("orders", "RUNNING"),
        ("orders", "COMPLETED"),
        ("out", "RUNNING"),
        ("out", "FAILED"),  # and not COMPLETED, as Spark says first
    ]
    assert project.shorten(found[-1].detail) == "[USER] bad"


def test_a_flow_that_cannot_be_resolved_says_why():
    lines = """\
2026-11-15 13:57:55: Failed to resolve flow: 'out'.
Error: [UNRESOLVED_COLUMN] A column with name `x` cannot be resolved. SQLSTATE: 42703;
'Project [key#33, 'x]
+- more

Traceback (most recent call last):
""".splitlines()
    (found,) = project.events(lines)
    assert (found.flow, found.state) == ("out", "UNRESOLVED")
    reason = "[UNRESOLVED_COLUMN] A column with name `x` cannot be resolved."
    assert project.shorten(found.detail) == reason


def test_of_a_python_error_only_what_it_says_is_shown():
    text = (
        "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed: Traceback (most recent call last):\n"
        '  File "x.py", line 1, in y\n'
        "penstock.errors.UnknownStream: there is no stream 'orders'\n"
    )
    assert project.shorten(text) == "there is no stream 'orders'"


def test_flows_are_shown_a_line_for_each_change(capsys):
    shown = pipeline_sql._Flows(quiet=False)
    for state in ("QUEUED", "RUNNING", "COMPLETED"):
        shown.event(Event("orders", state))
    shown.event(Event("", "COMPLETED"))
    shown.event(Event("out", "UNRESOLVED", "why"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "orders: running"
    assert lines[1].startswith("orders: completed in ")
    assert lines[2:] == ["out: unresolved"]
