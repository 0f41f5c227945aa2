"""`penstock pipeline sql`, `init` and `run`: SQL files and declarative projects."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from penstock.cli.client import Refused
from penstock.cli.options import (
    DEFAULT_URL,
    CaOption,
    JsonOption,
    MasterOption,
    RemoteOption,
    TokenOption,
    UrlOption,
    connect,
)
from penstock.cli.output import duration, errors, say, show_json
from penstock.cli.pipeline import ConfOption, Form, session
from penstock.errors import HubUnreachable

_INTERRUPTED: Final = 130
"""What shells give a program that Ctrl-C has ended."""

ProjectArgument = Annotated[
    Path, typer.Argument(metavar="DIR", file_okay=False, help="The project's directory.")
]


def sql(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.sql", dir_okay=False, help="What is to be run.")
    ],
    trigger: Annotated[
        str,
        typer.Option(help="available-now takes what is there and ends; 'processing 10s' goes on."),
    ] = "available-now",
    checkpoints: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="How far each statement is. Default: beside the file."),
    ] = None,
    var: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="What ${NAME} in it stands for.")
    ] = None,
    batch_records: Annotated[
        int | None, typer.Option(min=1, help="Most records of a stream in a batch.")
    ] = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Run a file of SQL in which streams are views: from streams to streams and tables.

    `INSERT INTO <stream> SELECT ...` writes records, `CREATE TABLE <name> AS SELECT ...` a table,
    each exactly once; `CREATE TEMPORARY VIEW` and `SET` prepare. Started again, it goes on where
    it was. A stream named `orders.eu` is `orders_eu` too. Without a column `value`, all columns
    become a JSON value. Tables go to `tables/` beside the file unless a LOCATION is given.

    Examples:

        penstock pipeline sql totals.sql
        penstock pipeline sql totals.sql --trigger 'processing 5s' --var country=de
        penstock pipeline sql totals.sql --checkpoints /data/checkpoints --json
    """
    from penstock.spark.statements import needs_delta, read_file
    from penstock.spark.triggers import Trigger
    from penstock.spark.views import HubAddress

    chosen = Trigger.of(trigger)
    variables = dict(_pair(each) for each in var or ())
    hub = HubAddress(url, token, None if ca is None else str(ca))
    delta = needs_delta(read_file(file, variables))
    with hub.client() as client:
        client.streams()  # a hub that is not there is worth knowing before Spark has started
    with session("penstock sql", master, remote, delta, conf) as spark:
        from penstock.spark.progress import Shown
        from penstock.spark.sql import SqlPipeline

        running = SqlPipeline(
            spark, file, hub=hub, trigger=chosen, checkpoints=checkpoints, variables=variables,
            batch_records=batch_records, say=lambda text: shown.say(text),
        )  # fmt: skip
        with Shown(running.board, as_json=json, console=errors) as shown:
            running.start()
            stopped = _wait(running, shown)
        shown.summary(running.board.summary())
    if stopped and chosen.interval_s is None:
        raise typer.Exit(_INTERRUPTED)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise typer.BadParameter(f"--var is {text!r}: write NAME=VALUE")
    return name, value


def _wait(running: Any, shown: Any) -> bool:
    """Wait for the end; returns whether it was told to stop."""
    asked = 0

    def ask(_number: int, _frame: Any) -> None:
        nonlocal asked
        asked += 1
        running.ask_to_stop()
        if asked == 1:
            shown.say("stopping after the batches that run; Ctrl-C again stops at once")

    # PySpark's own handler of Ctrl-C would cancel the batches.
    before = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        running.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return asked > 0


def init(
    directory: ProjectArgument,
    stream: Annotated[str, typer.Option(help="The stream it reads.")] = "events",
    output: Annotated[
        str | None, typer.Option(help="The stream it writes. Default: the stream's name and .out.")
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="How tables are stored.")] = Form.PARQUET,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Write a declarative pipeline that runs as it is: stream, tables, and back to a stream.

    If the hub answers, streams that are missing are made.

    Examples:

        penstock pipeline init sales --stream orders
        penstock pipeline init sales --stream orders --format delta
        penstock pipeline run sales
    """
    from penstock.spark import project

    made = project.write(directory, stream, output=output, form=form.value, url=url)
    streams = _make_streams([made.stream, made.output], url, token, ca)
    if json:
        show_json({"directory": str(made.path), "files": made.files, "streams": streams})
        return
    for name in made.files:
        print(directory / name)
    for name, state in streams.items():
        say(f"stream {name}: {state}")
    say(f"next: penstock pipeline run {directory}")


def _make_streams(names: list[str], url: str, token: str | None, ca: Path | None) -> dict[str, str]:
    """Make what is missing; a project can be written without a hub too."""
    found: dict[str, str] = {}
    with connect(url, token, ca) as hub:
        for name in names:
            try:
                hub.json("POST", "/api/v1/streams", {"name": name})
                found[name] = "made"
            except HubUnreachable:
                found[name] = f"no hub answers, make it with `penstock streams create {name}`"
            except Refused as error:
                found[name] = "is there" if error.code == "stream-exists" else str(error)
    return found


def run(
    directory: ProjectArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only look for mistakes; nothing is read or written.")
    ] = False,
    full_refresh_all: Annotated[
        bool, typer.Option("--full-refresh-all", help="Build all tables anew, from the beginning.")
    ] = False,
    full_refresh: Annotated[
        list[str] | None, typer.Option(metavar="TABLE", help="Build only this table anew.")
    ] = None,
    refresh: Annotated[
        list[str] | None, typer.Option(metavar="TABLE", help="Update only this table.")
    ] = None,
    remote: Annotated[
        str | None,
        typer.Option(help="A Spark Connect server, or local[N]. Default: all cores of this one."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show all that spark-pipelines prints.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Run a declarative pipeline once: it takes what has come since the last run, and ends.

    Exits with 1 if anything failed. All that Spark printed is in `run.log`.

    Examples:

        penstock pipeline run sales --dry-run
        penstock pipeline run sales
        penstock pipeline run sales --full-refresh-all
    """
    from penstock.spark import project

    variables = {"PENSTOCK_URL": url, "PENSTOCK_TOKEN": token, "PENSTOCK_CA": ca and str(ca)}
    shown = _Flows(quiet=json or verbose)
    with errors.status("starting Spark") if not verbose else errors.status(""):
        outcome = project.run(
            directory,
            dry=dry_run,
            full_refresh_all=full_refresh_all,
            full_refresh=full_refresh or (),
            refresh=refresh or (),
            remote=remote,
            hub={name: value for name, value in variables.items() if value},
            on_event=shown.event,
            on_line=(lambda line: print(line, file=sys.stderr)) if verbose else lambda line: None,
        )
    if json:
        show_json({"flows": outcome.flows, "seconds": round(outcome.seconds, 1)})
        return
    what = "no mistakes found" if dry_run else "all flows completed"
    say(f"{what} in {duration(outcome.seconds)}")


class _Flows:
    """Shows what happens to flows, a line for each change worth reading."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._began: dict[str, float] = {}

    def event(self, event: Any) -> None:
        if self._quiet or not event.flow:
            return
        now = time.monotonic()
        if event.state == "RUNNING":
            self._began[event.flow] = now
            say(f"{event.flow}: running")
        elif event.state in ("FAILED", "UNRESOLVED"):
            say(f"{event.flow}: {event.state.lower()}")
        elif event.state in ("COMPLETED", "SKIPPED", "EXCLUDED", "IDLE"):
            took = (
                f" in {duration(now - self._began[event.flow])}"
                if event.flow in self._began
                else ""
            )
            say(f"{event.flow}: {event.state.lower()}{took}")
