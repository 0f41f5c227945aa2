"""`penstock pipeline sql`, `init` and `run`: SQL files and declarative projects."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.client import Refused
from penstock.cli.options import (
    DEFAULT_URL,
    CaOption,
    JsonOption,
    TokenOption,
    UrlOption,
    connect,
)
from penstock.cli.output import duration, errors, say, show_json
from penstock.errors import HubUnreachable


class Form(StrEnum):
    """How tables are stored."""

    PARQUET = "parquet"
    DELTA = "delta"


ProjectArgument = Annotated[
    Path, typer.Argument(metavar="DIR", file_okay=False, help="The project's directory.")
]


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
