"""`penstock tail`: records as they come, until Ctrl-C."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Final

import msgspec
import typer

from penstock.cli.client import Client, Event, Refused, stream_path
from penstock.cli.options import (
    DEFAULT_URL,
    CaOption,
    JsonOption,
    StreamArgument,
    TokenOption,
    UrlOption,
    connect,
)
from penstock.cli.output import put, say
from penstock.errors import HubUnreachable

_PAUSE_S: Final = 0.2
_PAUSE_S_MAX: Final = 3.0


class TailFormat(StrEnum):
    """How records are shown."""

    JSONL = "jsonl"
    LINES = "lines"


def tail(
    stream: StreamArgument,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this one.")] = None,
    start: Annotated[str, typer.Option("--from", help="latest, earliest, or an index.")] = "latest",
    form: Annotated[
        TailFormat, typer.Option("--format", help="Whole records, or only their values.")
    ] = TailFormat.JSONL,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many.")] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Show records as they are committed, until Ctrl-C.

    When the hub restarts, it goes on behind the last record shown: none is left out or shown twice.
    `--json` is the same as `--format jsonl`.

    Examples:

        penstock tail orders
        penstock tail orders --from earliest --format lines
        penstock tail orders --partition 0 --from 5000 --limit 100
    """
    if start not in ("latest", "earliest") and not start.isdigit():
        raise typer.BadParameter(f"--from is {start!r}: use latest, earliest or an index")
    if json and form is TailFormat.LINES:
        raise typer.BadParameter("--json shows JSON lines: leave out --format lines")
    with connect(url, token, ca) as hub:
        for shown, record in enumerate(_records(hub, stream, partition, start), 1):
            put(record.encode() + b"\n" if form is TailFormat.JSONL else _value(record) + b"\n")
            if shown == limit:
                return


def _records(hub: Client, stream: str, partition: int | None, start: str) -> Iterator[str]:
    """Records as JSON, over as many connections as it takes."""
    last = _before(hub, stream, partition, start)
    path, query = stream_path(stream, "tail"), {"from": "earliest", "partition": partition}
    pause, waiting = _PAUSE_S, False
    while True:
        try:
            for event in hub.events(path, last=last, **query):
                pause, waiting = _PAUSE_S, False
                _check(event)
                last = event.id
                yield event.data
        except HubUnreachable as error:
            if not waiting:
                say(f"{error}; trying again until it does")
        except Refused as error:
            if error.status != 503:
                raise
        waiting = True
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE_S_MAX)


def _before(hub: Client, stream: str, partition: int | None, start: str) -> str:
    """The id of an event before the first: fixed now, so that a restart leaves nothing out."""
    at = {"latest": "end", "earliest": "earliest"}
    infos = hub.json("GET", stream_path(stream))["partitions"]
    firsts = {
        info["number"]: info[at[start]] if start in at else int(start)
        for info in infos
        if partition in (None, info["number"])
    }
    return ",".join(f"{number}:{first - 1}" for number, first in firsts.items())


def _check(event: Event) -> None:
    """Raise the error an event tells of, as if it were an answer."""
    if event.name == "error":
        error = msgspec.json.decode(event.data)["error"]
        status = 503 if error["code"] == "log-closed" else 400
        raise Refused(status, error["code"], error["message"])


class _Value(msgspec.Struct):
    value: str | None = None
    value64: str | None = None


def _value(record: str) -> bytes:
    decoded = msgspec.json.decode(record, type=_Value)
    if decoded.value64 is not None:
        return base64.b64decode(decoded.value64)
    return (decoded.value or "").encode()
