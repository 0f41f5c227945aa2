"""Options that many commands share, and the hub they lead to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.client import DEFAULT_URL, Client

UrlOption = Annotated[str, typer.Option("--url", envvar="PENSTOCK_URL", help="Where the hub is.")]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", envvar="PENSTOCK_TOKEN", help="Your token, if the hub has users."),
]
CaOption = Annotated[
    Path | None,
    typer.Option("--ca", help="PEM file of the authority that signed the hub's certificate."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
MasterOption = Annotated[
    str | None, typer.Option("--master", help="Where Spark runs: local[4], spark://host:7077, ...")
]
RemoteOption = Annotated[
    str | None, typer.Option("--remote", help="A Spark Connect server: sc://host:15002.")
]
StreamArgument = Annotated[str, typer.Argument(metavar="STREAM", help="The stream's name.")]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]

__all__ = ["DEFAULT_URL"]


def connect(url: str, token: str | None, ca: Path | None) -> Client:
    """The hub at `url`. Nothing is sent yet."""
    return Client(url, token, None if ca is None else str(ca))


def before_subcommand(context: typer.Context) -> bool:
    """Whether a subcommand follows, which then takes the options itself.

    An option in front of a subcommand would be lost without a word, so it is refused.
    """
    name = context.invoked_subcommand
    if name is None:
        return False
    for option in context.params:
        source = context.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"write --{option} behind {name!r}: {context.command_path} {name} ... --{option}"
            )
    return True
