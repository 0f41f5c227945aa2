"""`penstock serve`: run the hub until told to stop."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from penstock import config as configuration
from penstock import limits
from penstock.cli.output import errors
from penstock.hub.hub import Hub
from penstock.hub.logs import set_up_logs

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", envvar="PENSTOCK_CONFIG", help="TOML file; default penstock.toml."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set one value, as in `--set http.listen=127.0.0.1:8080`."),
]
DataOption = Annotated[str | None, typer.Option("--data", "-d", help="The data directory.")]


def flags(
    data: str | None = None,
    listen: str | None = None,
    insecure: bool = False,
    settings: list[str] | None = None,
) -> dict[str, str]:
    """Flags as `section.key` to text."""
    given: dict[str, str] = {}
    for setting in settings or []:
        name, equals, value = setting.partition("=")
        if not equals:
            raise typer.BadParameter(f"{setting!r}: write section.key=value")
        given[name.strip()] = value.strip()
    if data is not None:
        given["hub.data"] = data
    if listen is not None:
        given["http.listen"] = listen
    if insecure:
        given["hub.insecure"] = "true"
    return given


def serve(
    config: ConfigOption = None,
    data: DataOption = None,
    listen: Annotated[str | None, typer.Option(help="HTTP address, host:port.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without TLS and users.")
    ] = False,
    settings: SetOption = None,
) -> None:
    """Run the hub.

    Ctrl-C stops it: doors close, what came is committed, the log is closed. A second Ctrl-C ends
    at once; nothing confirmed is lost either way.

    Examples:

        penstock serve
        penstock serve --data /var/lib/penstock --config /etc/penstock.toml
        penstock serve --listen 127.0.0.1:0 --set log.buffer_bytes=134217728
    """
    resolved = configuration.load(config, flags=flags(data, listen, insecure, settings))
    set_up_logs(resolved.config.hub.log_level)
    _allow_many_files(resolved.config.http.connections_max)
    uvloop.run(_serve(resolved.config))


def _allow_many_files(connections: int) -> None:
    """Raise the soft limit of open files, as far as the hard one lets us."""
    wanted = connections + 4 * limits.OPEN_SEGMENTS_MAX
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def _serve(config: configuration.Config) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    hub = await Hub.start(config)
    if sys.stderr.isatty():
        found = hub.log.recovered
        errors.print(f"[bold]Penstock[/] owns {config.hub.data}", highlight=False)
        if found.records:
            errors.print(f"  recovered {found.records:,} records from the journal")
        for door in hub.doors:
            errors.print(f"  {door.name:<8} {door.address}", highlight=False)
        errors.print("  Ctrl-C stops it")
    await stop.wait()
    if sys.stderr.isatty():
        errors.print("stopping: finishing requests, committing, closing (Ctrl-C again: at once)")
    await hub.stop()
