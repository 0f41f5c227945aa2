"""The commands, put together. Each group of them has a file of its own beside this one."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import penstock
from penstock.cli import (
    bench,
    check,
    connect,
    doctor,
    groups,
    jars,
    pipeline,
    pipeline_sql,
    read,
    serve,
    shell,
    streams,
    tail,
    user,
    verify,
    wallaroo,
    write,
)
from penstock.cli import version as version_command
from penstock.cli.group import Commands
from penstock.cli.output import close_stdout

app = typer.Typer(
    name="penstock",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Streams to Spark: one durable log, many doors.

    Begin with:

        penstock serve
        penstock streams create orders
        echo hello | penstock write orders --format lines
        penstock read orders
    """


app.command()(serve.serve)
app.command()(check.check)
app.add_typer(streams.app, name="streams")
app.command()(write.write)
app.command()(read.read)
app.command()(tail.tail)
app.add_typer(connect.app, name="connect")
app.add_typer(groups.app, name="groups")
pipeline.app.command()(pipeline_sql.sql)
pipeline.app.command()(pipeline_sql.init)
pipeline.app.command()(pipeline_sql.run)
app.add_typer(pipeline.app, name="pipeline")
app.command()(shell.shell)
app.add_typer(user.app, name="user")
app.add_typer(wallaroo.app, name="wallaroo")
app.command()(verify.verify)
app.command()(doctor.doctor)
app.command()(jars.jars)
app.command()(bench.bench)
app.command()(version_command.version)


def main() -> None:
    """Run the command."""
    try:
        app()
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # `penstock streams | true`
            close_stdout()
