"""`penstock check`: what the configuration is, and where each value came from."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from penstock import config as configuration
from penstock.cli.output import console, errors, show_json
from penstock.cli.serve import ConfigOption, DataOption, SetOption, flags


def check(
    config: ConfigOption = None,
    data: DataOption = None,
    settings: SetOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the resolved configuration and the source of each value; list mistakes.

    Exits with 2 if there are mistakes.

    Examples:

        penstock check
        penstock check --config penstock.toml --json
    """
    try:
        resolved = configuration.load(config, flags=flags(data, settings=settings))
    except configuration.ConfigError as error:
        if json:
            show_json({"ok": False, "mistakes": [each._asdict() for each in error.mistakes]})
        else:
            for mistake in error.mistakes:
                errors.print(f"[red]✗[/] [bold]{mistake.source}[/]: ", end="")
                errors.print(mistake.message, markup=False, highlight=False)
        raise typer.Exit(2) from None
    if json:
        values = {name: _shown(name, value)._asdict() for name, value in resolved.values.items()}
        show_json({"ok": True, "values": values})
        return
    table = Table(box=None, padding=(0, 2))
    for column in ("setting", "value", "from"):
        table.add_column(column)
    for name, each in resolved.values.items():
        value = _shown(name, each)
        style = None if value.source == "default" else "bold"
        table.add_row(name, str(value.value), value.source, style=style)
    console.print(table)


_SECRETS = {"wallaroo.cookie"}


def _shown(name: str, value: configuration.Value) -> configuration.Value:
    """Secrets are not shown, only that there is one."""
    return value._replace(value="***") if name in _SECRETS and value.value else value
