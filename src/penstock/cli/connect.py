"""`penstock connect`: ready connectors, which send to a hub or any other Wallaroo worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import uvloop

from penstock.cli.group import Commands
from penstock.cli.options import CaOption, JsonOption
from penstock.cli.output import errors, say, show_json
from penstock.clients import Connector, FileSource, GenerateSource, Progress
from penstock.errors import BadSetting
from penstock.protocols.wallaroo.client import DEFAULT_ADDRESS

app = typer.Typer(cls=Commands, rich_markup_mode="markdown", no_args_is_help=True)


@app.callback()
def connect() -> None:
    """Send messages to the hub as a Wallaroo connector: from files, or made up.

    Examples:

        penstock connect file access.log --follow
        penstock connect generate --rate 1000/s --count 10000
    """


_SHOWN_S: Final = 0.2
_LINES_S: Final = 10.0
"""How often a line tells how far it got, where there is no terminal."""


class DialectName(StrEnum):
    """How frames are written."""

    SPEC = "spec"
    SHIPPED = "shipped"
    LITERAL = "literal"


class FileFormat(StrEnum):
    """What the records of a file are."""

    LINES = "lines"
    CSV = "csv"
    JSONL = "jsonl"


_SUFFIXES: Final = {
    ".csv": FileFormat.CSV, ".jsonl": FileFormat.JSONL, ".ndjson": FileFormat.JSONL,
}  # fmt: skip

ToOption = Annotated[
    str, typer.Option("--to", envvar="PENSTOCK_WORKER", help="Where the worker is, host:port.")
]
ProgramOption = Annotated[str, typer.Option("--program", help="The connector's name.")]
InstanceOption = Annotated[
    str | None,
    typer.Option("--instance", help="Which of those with this name. Default: this machine's name."),
]
CookieOption = Annotated[
    str,
    typer.Option(
        "--cookie",
        envvar="PENSTOCK_COOKIE",
        show_envvar=True,
        help="The worker's secret. In the environment nobody else sees it.",
    ),
]
DialectOption = Annotated[DialectName, typer.Option("--dialect", help="What the worker speaks.")]
TlsOption = Annotated[bool, typer.Option("--tls", help="Connect with TLS; --ca says it too.")]
GiveUpOption = Annotated[
    float | None,
    typer.Option("--give-up", min=0, help="End after so many seconds without a worker."),
]


@dataclass(frozen=True, slots=True)
class _Target:
    """Who sends, and where to."""

    to: str
    program: str
    instance: str | None
    cookie: str
    dialect: DialectName
    tls: bool
    ca: Path | None
    give_up: float | None

    def connector(self) -> Connector:
        return Connector(
            self.to,
            program=self.program,
            instance=self.instance or socket.gethostname(),
            cookie=self.cookie,
            dialect=self.dialect.value,
            tls=_context(self.ca) if self.tls or self.ca else False,
            give_up_seconds=self.give_up,
        )


def _context(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except OSError as error:
        raise BadSetting(f"{ca} is no PEM file of an authority: {error}") from None


@app.command()
def file(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The file.")],
    stream: Annotated[
        str | None, typer.Option("--stream", help="Default: the file's name without its ending.")
    ] = None,
    form: Annotated[
        FileFormat | None, typer.Option("--format", help="Default: what the name tells, or lines.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")
    ] = False,
    to: ToOption = DEFAULT_ADDRESS,
    program: ProgramOption = "connect",
    instance: InstanceOption = None,
    cookie: CookieOption = "",
    dialect: DialectOption = DialectName.SPEC,
    tls: TlsOption = False,
    ca: CaOption = None,
    give_up: GiveUpOption = None,
    json: JsonOption = False,
) -> None:
    """Send a file's records: lines as they are, JSON lines, or rows of CSV as JSON.

    Run it again, and it goes on after the last record that the worker has on disk. The worker
    knows a file by program, instance and stream: two files of one name need a `--stream` each.
    `--follow` also goes on with the file that takes its place (log rotation).

    Ctrl-C ends it once all that was sent is acked, or after ten seconds; a second one at once.

    Examples:

        penstock connect file orders.csv
        penstock connect file /var/log/app.log --follow --stream app
        PENSTOCK_COOKIE=... penstock connect file events.jsonl --to hub.example:7472 --tls
    """
    chosen = form or _SUFFIXES.get(path.suffix.lower(), FileFormat.LINES)
    if not path.is_file():
        raise typer.BadParameter(f"{path} is no file that can be read")
    source = FileSource(path, stream, form=chosen.value, follow=follow, notice=say)
    target = _Target(to, program, instance, cookie, dialect, tls, ca, give_up)
    try:
        _run(target, [source], json=json, endless=follow)
    finally:
        source.close()


@app.command()
def generate(
    rate: Annotated[
        str | None, typer.Option("--rate", help="Of all streams together, as 1000/s or 50k/s.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="Messages of all streams together.")
    ] = None,
    size: Annotated[int, typer.Option("--size", min=1, max=1_000_000, help="Bytes of each.")] = 100,
    streams: Annotated[int, typer.Option("--streams", min=1, max=10_000)] = 1,
    stream: Annotated[
        str, typer.Option("--stream", help="Their name; several are numbered.")
    ] = "generated",
    to: ToOption = DEFAULT_ADDRESS,
    program: ProgramOption = "connect",
    instance: InstanceOption = None,
    cookie: CookieOption = "",
    dialect: DialectOption = DialectName.SPEC,
    tls: TlsOption = False,
    ca: CaOption = None,
    give_up: GiveUpOption = None,
    json: JsonOption = False,
) -> None:
    """Send numbered messages, as fast as they go or at a rate.

    Run it again, and the numbers go on where they ended.

    Examples:

        penstock connect generate --count 1000000
        penstock connect generate --rate 1000/s --streams 3 --size 200
    """
    wished = None if rate is None else _rate(rate)
    if count is not None and count < streams:
        raise typer.BadParameter(f"{count} messages for {streams} streams: at least one for each")
    sources = [
        GenerateSource(
            stream if streams == 1 else f"{stream}-{number}",
            count=None if count is None else count // streams + (number < count % streams),
            rate=None if wished is None else wished / streams,
            size=size,
        )
        for number in range(streams)
    ]
    target = _Target(to, program, instance, cookie, dialect, tls, ca, give_up)
    _run(target, sources, json=json, endless=count is None)


def _rate(text: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kM]?)(?:/s)?", text.strip())
    rate = float(found[1]) * {"": 1, "k": 1_000, "M": 1_000_000}[found[2]] if found else 0.0
    if rate <= 0:
        raise typer.BadParameter(f"--rate is {text!r}: write messages a second, as 1000/s or 50k/s")
    return rate


# -- running -----------------------------------------------------------------------------------


def _run(target: _Target, sources: Sequence[Any], *, json: bool, endless: bool) -> None:
    """Send all; exit with 1 if something sent is not acked, with 130 if it was ended early."""
    began = time.perf_counter()
    done, stopped = uvloop.run(_connect(target, sources, quiet=json))
    took = time.perf_counter() - began
    rate = done.acked / took if took else 0.0
    if json:
        show_json(
            {
                "sent": done.sent,
                "acked": done.acked,
                "repeated": done.repeated,
                "connections": done.connections,
                "stopped": stopped,
                "seconds": round(took, 6),
                "messages_per_second": round(rate, 1),
            }
        )
    else:
        again = f", {done.repeated:,} sent again" if done.repeated else ""
        say(f"{done.acked:,} messages sent and acked{again} ({rate:,.0f} messages/s)")
    if done.acked < done.sent:
        say(f"{done.sent - done.acked:,} messages were sent and not acked: run it again")
        raise typer.Exit(1)
    if stopped and not endless:
        raise typer.Exit(130)


async def _connect(
    target: _Target, sources: Sequence[Any], *, quiet: bool
) -> tuple[Progress, bool]:
    stops = 0
    async with target.connector() as connector:

        def on_signal() -> None:
            nonlocal stops
            stops += 1
            if stops > 1:
                os._exit(130)
            connector.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, on_signal)
        showing = asyncio.create_task(_show(connector, quiet=quiet))
        try:
            return await connector.run(sources), stops > 0
        finally:
            showing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await showing


async def _show(connector: Connector, *, quiet: bool) -> None:
    """Tell how far it got: in place on a terminal, by lines elsewhere."""
    told = ""
    if errors.is_terminal and not quiet:
        with errors.status("connecting") as status:
            acked = 0
            while True:
                await asyncio.sleep(_SHOWN_S)
                now = connector.progress
                status.update(f"{_text(now)} ({(now.acked - acked) / _SHOWN_S:,.0f}/s)")
                acked = now.acked
    ticks = 0
    while True:
        await asyncio.sleep(_SHOWN_S)
        now = connector.progress
        ticks += 1
        if now.state == "waiting" and now.problem != told:
            say(f"{now.problem}; trying again until it does")
            told = now.problem
        elif now.state == "streaming":
            told = ""
        if not quiet and ticks % round(_LINES_S / _SHOWN_S) == 0:
            say(_text(now))


def _text(now: Progress) -> str:
    text = f"{now.state}: {now.acked:,} acked, {now.sent - now.acked:,} on their way"
    return f"{text} ({now.problem})" if now.state == "waiting" else text
