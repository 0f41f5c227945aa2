"""`penstock pipeline`: what runs on Spark; `archive` and `compact` are here."""

from __future__ import annotations

import typer

from penstock.cli.group import Commands

app = typer.Typer(cls=Commands, rich_markup_mode="markdown", no_args_is_help=True)


@app.callback()
def pipeline() -> None:
    """Run pipelines on Spark: streams into tables, and tables back into streams.

    Examples:

        penstock pipeline archive --streams 'orders.*' --to /data/tables
        penstock pipeline compact /data/tables
    """
