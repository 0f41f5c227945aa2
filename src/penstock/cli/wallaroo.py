"""`penstock wallaroo`: the sessions and streams of Wallaroo's connectors."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.group import Commands
from penstock.cli.options import (
    DEFAULT_URL,
    CaOption,
    JsonOption,
    TokenOption,
    UrlOption,
    YesOption,
    connect,
)
from penstock.cli.output import confirm, say, show_json, show_table

app = typer.Typer(cls=Commands, rich_markup_mode="markdown", no_args_is_help=True)
_API = "/api/v1/wallaroo"

SessionArgument = Annotated[int, typer.Argument(metavar="SESSION", help="The session's number.")]


@app.callback()
def wallaroo() -> None:
    """Look at the sessions and streams of Wallaroo's connectors; rewind, close.

    Examples:

        penstock wallaroo sessions
        penstock wallaroo streams --json
    """


@app.command()
def sessions(
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """List sessions: who is connected, and how many messages they may send.

    Examples:

        penstock wallaroo sessions
        penstock wallaroo sessions --json
    """
    with connect(url, token, ca) as hub:
        found = hub.json("GET", _API + "/sessions")["sessions"]
    if json:
        show_json(found)
        return
    columns = (
        "session>", "peer", "program", "instance", "dialect", "state", "streams>", "stored>",
        "credits>", "window>", "unsettled>",
    )  # fmt: skip
    keys = [column.rstrip(">") for column in columns]
    show_table(columns, [[each[key] for key in keys] for each in found], "no connectors")


@app.command()
def streams(
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """List connectors' streams, and where they go on (`ref`).

    Examples:

        penstock wallaroo streams
    """
    with connect(url, token, ca) as hub:
        found = hub.json("GET", _API + "/streams")["streams"]
    _show_streams(found, json)


def _show_streams(found: list[dict[str, Any]], json: bool) -> None:
    if json:
        show_json(found)
        return
    columns = (
        "program", "instance", "id>", "name", "stream", "session>", "state", "last>",
        "last_stable>", "acked>", "ref>",
    )  # fmt: skip
    keys = [column.rstrip(">") for column in columns]
    show_table(columns, [[each[key] for key in keys] for each in found], "no streams yet")


@app.command()
def rewind(
    program: Annotated[str, typer.Argument(metavar="PROGRAM", help="The connector's program.")],
    instance: Annotated[str, typer.Argument(metavar="INSTANCE", help="Its instance.")],
    stream: Annotated[int, typer.Argument(metavar="ID", min=0, help="The stream's id.")],
    ref: Annotated[
        int | None,
        typer.Option(min=0, help="The message it goes on after; without it, from the beginning."),
    ] = None,
    yes: YesOption = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Have a connector send a stream again. What it sends again is stored again. Asks first.

    A connector of the specification is told at once, with a NACK. A shipped one is cut off, and
    told when it comes back.

    Examples:

        penstock wallaroo rewind feed a 7 --ref 1200
        penstock wallaroo rewind feed a 7 --yes
    """
    where = "from the beginning" if ref is None else f"from after message {ref}"
    confirm(f"Have {program} {instance} send stream {stream} again {where}?", yes, json)
    body = {"program": program, "instance": instance, "stream": stream, "ref": ref}
    with connect(url, token, ca) as hub:
        found = hub.json("POST", _API + "/rewind", body)
    if json:
        show_json(found)
    else:
        say(f"stream {stream} ({found['stream']}) goes on {where}")


@app.command()
def close(
    session: SessionArgument,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Close a session. The connector may come back.

    Examples:

        penstock wallaroo close 3
    """
    with connect(url, token, ca) as hub:
        hub.json("DELETE", f"{_API}/sessions/{session}")
    if json:
        show_json({"closed": session})
    else:
        say(f"closed session {session}")


@app.command()
def debug(
    session: SessionArgument,
    stutter: Annotated[
        float | None, typer.Option(min=0, help="Acks wait for so many seconds; 0 ends it.")
    ] = None,
    hold_credits: Annotated[
        bool | None, typer.Option("--hold-credits/--give-credits", help="Give none back, or do.")
    ] = None,
    force: Annotated[str | None, typer.Option(help="nack, error, restart or cut.")] = None,
    stream: Annotated[int | None, typer.Option(min=0, help="For nack: the stream's id.")] = None,
    ref: Annotated[int, typer.Option(min=0, help="For nack: the point of reference.")] = 0,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Make faults in a session on purpose, to see how a connector takes them.

    Only where the hub listens on its own machine, and with `wallaroo.debug = true`.

    Examples:

        penstock wallaroo debug 3 --stutter 2
        penstock wallaroo debug 3 --hold-credits
        penstock wallaroo debug 3 --force nack --stream 7 --ref 1200
    """
    body: dict[str, Any] = {
        "stutter_seconds": stutter,
        "hold_credits": hold_credits,
        "force": force,
        "stream": stream,
        "ref": ref,
    }
    with connect(url, token, ca) as hub:
        found = hub.json("POST", f"{_API}/sessions/{session}/debug", body)
    if json:
        show_json(found)
    else:
        say(f"session {session} is {found['state']}")
