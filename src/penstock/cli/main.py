"""The commands, put together. Each group of them has a file of its own beside this one."""

from __future__ import annotations

import sys

import typer

from penstock.cli import check, serve
from penstock.cli.output import fail
from penstock.errors import PenstockError

app = typer.Typer(
    name="penstock",
    help="Streams to Spark: one durable log, many doors.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(serve.serve)
app.command()(check.check)


def main() -> None:
    """Run the command; errors we know are shown as one clear message."""
    try:
        app()
    except PenstockError as error:
        sys.exit(fail(error))
    except BrokenPipeError:  # `penstock read | head`
        sys.stderr.close()
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)
