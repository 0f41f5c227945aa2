"""`penstock user`: who may do what. Works on the data directory, also while a hub runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from penstock import config as configuration
from penstock.cli.group import Commands
from penstock.cli.options import JsonOption, YesOption
from penstock.cli.output import confirm, say, show_json, show_table
from penstock.cli.serve import ConfigOption, DataOption, flags
from penstock.errors import BadSetting
from penstock.hub.users import Grant, Users

T = TypeVar("T")
app = typer.Typer(
    cls=Commands,
    help="Users, their rights and tokens, in the data directory.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]


@app.command()
def add(
    name: NameArgument,
    right: Annotated[
        list[str],
        typer.Option(help="read, write or admin, and a pattern if wished: read:orders.*"),
    ],
    data: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Add a user and print the token. It is shown this once; only its hash is stored.

    From the first user on, everybody needs a token. `admin` includes read and write.

    Examples:

        penstock user add ada --right admin
        penstock user add billing --right 'read:orders.*' --right write:invoices
    """
    grants = [Grant.parse(text) for text in right]
    token = _with_users(data, config, lambda users: users.add(name, grants))
    _show_token(name, token, json)


@app.command("list")
def list_users(
    data: DataOption = None, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """List the users and their rights.

    Examples:

        penstock user list --data /var/lib/penstock
    """
    found = _with_users(data, config, lambda users: users.all())
    if json:
        shown = [
            {
                "name": user.name,
                "rights": list(map(str, user.grants)),
                "created_at": user.created_at,
                "rotated_at": user.rotated_at,
            }
            for user in found
        ]
        show_json(shown)
        return
    rows = [
        (user.name, ", ".join(map(str, user.grants)), _day(user.created_at), _day(user.rotated_at))
        for user in found
    ]
    empty = "no users: whoever reaches the hub may do everything"
    show_table(("user", "rights", "created", "token of"), rows, empty)


@app.command()
def remove(
    name: NameArgument,
    yes: YesOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Remove a user; the token is void at once. Asks first.

    Examples:

        penstock user remove ada --yes
    """
    confirm(f"Remove user {name}?", yes, json)
    _with_users(data, config, lambda users: users.remove(name))
    if json:
        show_json({"removed": name})
    else:
        say(f"removed user {name}")


@app.command()
def rotate(
    name: NameArgument,
    data: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Give a user a new token; the old one is void at once.

    Examples:

        penstock user rotate ada
    """
    token = _with_users(data, config, lambda users: users.rotate(name))
    _show_token(name, token, json)


def _with_users(data: str | None, config: Path | None, call: Callable[[Users], T]) -> T:
    directory = Path(configuration.load(config, flags=flags(data)).config.hub.data)
    try:
        return call(Users(directory))
    except OSError as error:
        raise BadSetting(f"the users of {directory} cannot be reached: {error}") from None


def _show_token(name: str, token: str, json: bool) -> None:
    if json:
        show_json({"user": name, "token": token})
        return
    say(f"the token of {name}, shown this once (use it with --token or PENSTOCK_TOKEN):")
    print(token)


def _day(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1e6, UTC).strftime("%Y-%m-%d %H:%M")
