"""`penstock read`: records of a stream to a pipe or a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from penstock.cli.client import Client, stream_path
from penstock.cli.files import Format, Joiner, guess
from penstock.cli.options import (
    DEFAULT_URL,
    CaOption,
    JsonOption,
    StreamArgument,
    TokenOption,
    UrlOption,
    connect,
)
from penstock.cli.output import progress, put, say, show_json
from penstock.cli.streams import only_partition
from penstock.errors import BadSetting
from penstock.hub import formats

PAGE: Final = 10_000
"""Records asked for at a time; a page also ends at 8 MiB."""


def read(
    stream: StreamArgument,
    partition: Annotated[
        str, typer.Option(help="A partition's number, or all, one after the other.")
    ] = "all",
    start: Annotated[int | None, typer.Option("--from", min=0, help="From this index on.")] = None,
    moment: Annotated[
        str | None,
        typer.Option("--time", help="From this time on: ISO 8601, or microseconds since 1970."),
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=0, help="Only the last so many of each partition.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many in all.")] = None,
    to: Annotated[Path | None, typer.Option(dir_okay=False, help="Write to this file.")] = None,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="Default: what the file's name tells, else jsonl."),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Read records up to the end as it is now; `penstock tail` goes on from there.

    `--json` prints JSON lines, or with `--to` a summary as JSON.

    Examples:

        penstock read orders --last 10
        penstock read orders --partition 0 --from 5000 --limit 100 --format csv
        penstock read orders --time 2026-01-31T12:00 --to orders.arrow
        penstock read orders | penstock write orders-copy
    """
    given = {"from": start, "time": moment, "last": last}
    asked = {name: value for name, value in given.items() if value is not None}
    if len(asked) > 1:
        names = " and ".join(f"--{name}" for name in asked)
        raise typer.BadParameter(f"{names} exclude each other: give one")
    if partition != "all" and not partition.isdigit():
        raise typer.BadParameter(f"--partition is {partition!r}: it must be a number, or all")
    chosen = form or guess(to)
    if to is None:
        _check_stdout(chosen, json)
    with connect(url, token, ca) as hub:
        numbers = _partitions(hub, stream, partition, start)
        reader = _Reader(hub, stream, chosen, limit)
        joiner = Joiner(chosen)
        with _sink(to) as write, progress(f"reading {stream}", shown=to is not None) as bar:
            for page in reader.pages(numbers, asked):
                write(joiner.feed(page))
                bar.update(bar.task_ids[0], completed=reader.records)
            write(joiner.end())
    if to is not None:
        summary = {"stream": stream, "records": reader.records, "file": str(to), "format": chosen}
        if json:
            show_json(summary)
        else:
            say(f"read {reader.records:,} records of {stream} to {to} as {chosen}")


class _Page(NamedTuple):
    data: bytes
    following: int
    end: int


class _Reader:
    """Pages through partitions, to the end they had when it came to them."""

    def __init__(self, hub: Client, stream: str, form: Format, limit: int | None) -> None:
        self._hub = hub
        self._stream = stream
        self._form = form
        self._limit = limit
        self.records = 0

    def pages(self, partitions: list[int], start: dict[str, Any]) -> Iterator[bytes]:
        for partition in partitions:
            yield from self._pages(partition, start)
        if not self.records and self._form is Format.CSV:
            yield formats.render_csv(0, [])  # the heading alone

    def _pages(self, partition: int, start: dict[str, Any]) -> Iterator[bytes]:
        # One record as JSON first: it tells where the first is, and where the end is now.
        found = self._page(partition, start, 1, Format.JSONL)
        at, end = found.following - bool(found.data), found.end
        while at < end and (wanted := self._wanted(end - at)):
            page = self._page(partition, {"from": at}, wanted, self._form)
            self.records += page.following - at
            at = page.following
            yield page.data

    def _wanted(self, left: int) -> int:
        if self._limit is not None:
            left = min(left, self._limit - self.records)
        return min(left, PAGE)

    def _page(self, partition: int, start: dict[str, Any], limit: int, form: Format) -> _Page:
        data, headers = self._hub.fetch(
            "GET",
            stream_path(self._stream, "partitions", partition, "records"),
            query={**start, "limit": limit},
            headers={"Accept": form.media_type},
        )
        return _Page(data, int(headers["Penstock-Next-Index"]), int(headers["Penstock-End-Index"]))


def _partitions(hub: Client, stream: str, partition: str, start: int | None) -> list[int]:
    if partition != "all":
        return [int(partition)]
    if start is not None:
        return [only_partition(hub, stream, "--from")]
    return [each["number"] for each in hub.json("GET", stream_path(stream))["partitions"]]


def _check_stdout(form: Format, json: bool) -> None:
    if json and form is not Format.JSONL:
        raise typer.BadParameter(f"--json prints JSON lines, not {form}: leave one of the two out")
    if form is Format.ARROW and sys.stdout.isatty():
        raise typer.BadParameter("Arrow is not for a terminal: say --to FILE, or pipe it on")


@contextmanager
def _sink(path: Path | None) -> Iterator[Callable[[bytes], object]]:
    """Where records go. A file has its name only once it is whole."""
    if path is None:
        yield put
        return
    direct = path.exists() and not path.is_file()  # /dev/stdout, a named pipe
    growing = path if direct else path.with_name(path.name + ".part")
    try:
        file = growing.open("wb")
    except OSError as error:
        raise BadSetting(f"{path} cannot be written: {error.strerror}") from None
    with file:
        try:
            yield file.write
        except BaseException:
            if not direct:
                growing.unlink()
            raise
    if not direct:
        os.replace(growing, path)
