"""`penstock groups`: who reads what, how far behind, and moving positions."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.client import group_path
from penstock.cli.group import Commands
from penstock.cli.options import (
    DEFAULT_URL,
    CaOption,
    GroupArgument,
    JsonOption,
    StreamArgument,
    TokenOption,
    UrlOption,
    YesOption,
    before_subcommand,
    connect,
)
from penstock.cli.output import confirm, duration, say, show_json, show_table
from penstock.hub.formats import parse_time

app = typer.Typer(cls=Commands, rich_markup_mode="markdown")


@app.callback(invoke_without_command=True)
def groups(
    context: typer.Context,
    group: Annotated[str | None, typer.Option(help="Only this group.")] = None,
    stream: Annotated[str | None, typer.Option(help="Only this stream.")] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """List groups and how far behind they are; with a subcommand, register, save, reset, drop.

    Examples:

        penstock groups
        penstock groups --stream orders --json
        penstock groups reset billing orders --to earliest --dry-run
    """
    if before_subcommand(context):
        return
    with connect(url, token, ca) as hub:
        found = hub.json("GET", "/api/v1/groups", group=group, stream=stream)["groups"]
    _show_lags(found, json)


@app.command()
def register(
    group: GroupArgument,
    stream: StreamArgument,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Register a group on a stream: what it has not read is never dropped.

    Examples:

        penstock groups register billing orders
    """
    with connect(url, token, ca) as hub:
        found = hub.json("PUT", group_path(group, stream))["groups"]
    _show_lags(found, json)


@app.command()
def drop(
    group: GroupArgument,
    stream: StreamArgument,
    yes: YesOption = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Forget a group on a stream: its positions, and its hold on unread records. Asks first.

    Examples:

        penstock groups drop billing orders --yes
    """
    confirm(f"Forget the positions of group {group} on {stream}?", yes, json)
    with connect(url, token, ca) as hub:
        hub.json("DELETE", group_path(group, stream))
    if json:
        show_json({"dropped": group, "stream": stream})
    else:
        say(f"dropped group {group} on {stream}")


@app.command()
def save(
    group: GroupArgument,
    stream: StreamArgument,
    positions: Annotated[
        list[str],
        typer.Argument(metavar="PARTITION=POSITION...", help="The next index to read of each."),
    ],
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Save positions of a group; only forward (`reset` goes anywhere).

    Examples:

        penstock groups save billing orders 0=1200 1=1180
    """
    wanted = dict(_position(text) for text in positions)
    with connect(url, token, ca) as hub:
        found = hub.json("PUT", group_path(group, stream, "positions"), {"positions": wanted})
    _show_lags(found["groups"], json)


@app.command()
def reset(
    group: GroupArgument,
    stream: StreamArgument,
    to: Annotated[
        str,
        typer.Option(help="earliest, latest, an index, an ISO 8601 time, or +N / -N records."),
    ],
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Only this one; may be given again.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would move.")] = False,
    yes: YesOption = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Move positions of a group anywhere. Shows what would move, and asks before it does it.

    Examples:

        penstock groups reset billing orders --to earliest
        penstock groups reset billing orders --to 2026-01-31T12:00 --dry-run
        penstock groups reset billing orders --to -100 --partition 0 --yes
    """
    wanted = {**_target(to), "partitions": partition or None}
    path = group_path(group, stream, "reset")
    with connect(url, token, ca) as hub:
        preview = hub.json("POST", path, {**wanted, "dry_run": True})
        if not json:
            _show_moves(preview["moves"])
        if dry_run:
            done = preview
        else:
            confirm(f"Move group {group} on {stream} like that?", yes, json)
            done = hub.json("POST", path, {**wanted, "dry_run": False})
    if json:
        show_json(done)
    elif not dry_run:
        say(f"moved group {group} on {stream}")
        if done["moves"] != preview["moves"]:  # it read on while we asked
            _show_moves(done["moves"])


def _target(text: str) -> dict[str, Any]:
    """`--to` as the API takes it."""
    if text in ("earliest", "latest"):
        return {"to": text}
    if text[:1] in "+-" and text[1:].isdigit():
        return {"to": "shift", "value": int(text)}
    if text.isdigit():
        return {"to": "index", "value": int(text)}
    try:
        return {"to": "timestamp", "value": parse_time(text)}
    except ValueError:
        raise typer.BadParameter(
            f"--to is {text!r}: use earliest, latest, an index, +N or -N records, or a time "
            "like 2026-01-31T12:00:00 (UTC unless it says otherwise)"
        ) from None


def _position(text: str) -> tuple[int, int]:
    partition, _, position = text.partition("=")
    if not partition.isdigit() or not position.isdigit():
        raise typer.BadParameter(f"{text!r} is no position: write PARTITION=POSITION, as in 0=1200")
    return int(partition), int(position)


def _show_lags(lags: list[dict[str, Any]], json: bool) -> None:
    if json:
        show_json(lags)
        return
    rows = [
        (
            lag["group"],
            lag["stream"],
            lag["partition"],
            lag["position"],
            lag["end"],
            lag["records"],
            duration(lag["seconds"]),
            " ".join(word for word in ("registered", "stale") if lag[word]) or None,
        )
        for lag in lags
    ]
    columns = (
        "group", "stream", "partition>", "position>", "end>", "lag>", "behind>", "state",
    )  # fmt: skip
    show_table(columns, rows, "no groups yet")


def _show_moves(moves: list[dict[str, Any]]) -> None:
    rows = [
        (
            move["partition"],
            move["before"],
            move["after"],
            None if move["before"] is None else f"{move['after'] - move['before']:+,}",
        )
        for move in moves
    ]
    show_table(("partition>", "before>", "after>", "difference>"), rows, "nothing would move")
