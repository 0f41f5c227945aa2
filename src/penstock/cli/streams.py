"""`penstock streams`: list, make, change, trim and delete streams."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from penstock.cli.client import Client, stream_path
from penstock.cli.group import Commands
from penstock.cli.options import (
    DEFAULT_URL,
    CaOption,
    JsonOption,
    StreamArgument,
    TokenOption,
    UrlOption,
    YesOption,
    before_subcommand,
    connect,
)
from penstock.cli.output import confirm, duration, say, show_json, show_table, size

app = typer.Typer(cls=Commands, rich_markup_mode="markdown")

_UNITS: Final = {
    "": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SECONDS: Final = ("", "s", "m", "h", "d")
BYTES: Final = ("", "kib", "mib", "gib", "tib")


class Codec(StrEnum):
    """How sealed segments are compressed."""

    LZ4 = "lz4"
    ZSTD = "zstd"
    NONE = "none"


SecondsOption = Annotated[
    str | None,
    typer.Option("--retention-seconds", help="Drop what is older: 3600, 36h, 7d, or none."),
]
BytesOption = Annotated[
    str | None,
    typer.Option("--retention-bytes", help="Keep about this much a partition: 10GiB, or none."),
]
RecordsOption = Annotated[
    str | None,
    typer.Option("--retention-records", help="Keep about so many a partition, or none."),
]
ReadOption = Annotated[
    bool | None,
    typer.Option(
        "--retention-read/--no-retention-read", help="Drop what all registered groups have read."
    ),
]
SegmentOption = Annotated[
    str | None, typer.Option("--segment-bytes", help="Size of a segment file: 128MiB.")
]
CompressionOption = Annotated[
    Codec | None, typer.Option("--compression", help="Of sealed segments.")
]


@app.callback(invoke_without_command=True)
def streams(
    context: typer.Context,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """List the streams; with a subcommand, make, change, trim or delete them.

    Examples:

        penstock streams
        penstock streams create orders --partitions 4 --retention-seconds 7d
        penstock streams show orders --json
    """
    if before_subcommand(context):
        return
    with connect(url, token, ca) as hub:
        found = hub.json("GET", "/api/v1/streams")["streams"]
    if json:
        show_json(found)
        return
    columns = ("stream", "partitions>", "records>", "bytes>", "earliest..end", "settings")
    rows = [
        (
            info["name"],
            len(info["partitions"]),
            sum(each["end"] - each["earliest"] for each in info["partitions"]),
            size(sum(each["bytes"] for each in info["partitions"])),
            _range(info["partitions"]),
            _settings_text(info["settings"]),
        )
        for info in found
    ]
    show_table(columns, rows, "no streams yet: make one with `penstock streams create NAME`")


@app.command()
def create(
    stream: StreamArgument,
    partitions: Annotated[int, typer.Option(min=1, help="How many partitions.")] = 1,
    retention_seconds: SecondsOption = None,
    retention_bytes: BytesOption = None,
    retention_records: RecordsOption = None,
    retention_read: ReadOption = None,
    segment_bytes: SegmentOption = None,
    compression: CompressionOption = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Make a stream. Nothing is ever dropped from it unless a retention is set.

    Examples:

        penstock streams create orders
        penstock streams create orders --partitions 4 --retention-seconds 7d
        penstock streams create clicks --retention-bytes 10GiB --compression zstd
    """
    settings = _settings(
        retention_seconds, retention_bytes, retention_records, retention_read,
        segment_bytes, compression,
    )  # fmt: skip
    wanted = {"name": stream, "partitions": partitions, "settings": settings}
    with connect(url, token, ca) as hub:
        info = hub.json("POST", "/api/v1/streams", wanted)
    _show(info, json, f"made stream {stream}, partitions: {partitions}")


@app.command()
def show(
    stream: StreamArgument,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Show a stream: its settings and each of its partitions.

    Examples:

        penstock streams show orders
    """
    with connect(url, token, ca) as hub:
        info = hub.json("GET", stream_path(stream))
    if json:
        show_json(info)
        return
    print(f"{info['name']}: {_settings_text(info['settings'])}")
    rows = [
        (
            each["number"],
            each["end"] - each["earliest"],
            each["earliest"],
            each["end"],
            each["segments"],
            size(each["bytes"]),
        )
        for each in info["partitions"]
    ]
    columns = ("partition>", "records>", "earliest>", "end>", "segments>", "bytes>")
    show_table(columns, rows, "no partitions")


@app.command("set")
def change(
    stream: StreamArgument,
    retention_seconds: SecondsOption = None,
    retention_bytes: BytesOption = None,
    retention_records: RecordsOption = None,
    retention_read: ReadOption = None,
    segment_bytes: SegmentOption = None,
    compression: CompressionOption = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Change settings of a stream; those not named stay as they are, `none` unsets one.

    Examples:

        penstock streams set orders --retention-seconds 30d
        penstock streams set orders --retention-seconds none --retention-read
    """
    wanted = _settings(
        retention_seconds, retention_bytes, retention_records, retention_read,
        segment_bytes, compression,
    )  # fmt: skip
    if not wanted:
        raise typer.BadParameter("name a setting to change, as in --retention-seconds 7d")
    with connect(url, token, ca) as hub:
        settings = hub.json("GET", stream_path(stream))["settings"]
        info = hub.json("PATCH", stream_path(stream), {"settings": {**settings, **wanted}})
    _show(info, json, f"{stream}: {_settings_text(info['settings'])}")


@app.command("add-partitions")
def add_partitions(
    stream: StreamArgument,
    total: Annotated[int, typer.Argument(min=1, help="How many there shall be in all.")],
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Raise the number of partitions; it can never be lowered.

    Records of a key may go to another partition from then on.

    Examples:

        penstock streams add-partitions orders 8
    """
    with connect(url, token, ca) as hub:
        info = hub.json("PATCH", stream_path(stream), {"partitions": total})
    _show(info, json, f"{stream} has {len(info['partitions'])} partitions")


@app.command()
def delete(
    stream: StreamArgument,
    yes: YesOption = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a stream and all its records. Asks first.

    Examples:

        penstock streams delete orders
        penstock streams delete orders --yes
    """
    with connect(url, token, ca) as hub:
        info = hub.json("GET", stream_path(stream))
        records = sum(each["end"] - each["earliest"] for each in info["partitions"])
        confirm(f"Delete stream {stream} and its {records:,} records for good?", yes, json)
        hub.json("DELETE", stream_path(stream))
    _show({"deleted": stream, "records": records}, json, f"deleted stream {stream}")


@app.command()
def trim(
    stream: StreamArgument,
    before: Annotated[int, typer.Option(min=0, help="Drop records below this index.")],
    partition: Annotated[
        int | None, typer.Option(min=0, help="Needed if the stream has several.")
    ] = None,
    yes: YesOption = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Drop the oldest records of a partition, whole segments only. Asks first.

    Examples:

        penstock streams trim orders --before 1000000
        penstock streams trim orders --partition 2 --before 1000000 --yes
    """
    with connect(url, token, ca) as hub:
        number = only_partition(hub, stream, "--before") if partition is None else partition
        confirm(f"Drop records of {stream}/{number} below {before:,} for good?", yes, json)
        done = hub.json("POST", stream_path(stream, "partitions", number, "trim"),
                        {"before": before})  # fmt: skip
    done = {"stream": stream, "partition": number, **done}
    _show(done, json, f"the earliest record of {stream}/{number} is now {done['earliest']:,}")


def only_partition(hub: Client, stream: str, option: str) -> int:
    """Partition 0 of a stream that has no other; an index means nothing without its partition."""
    count = len(hub.json("GET", stream_path(stream))["partitions"])
    if count > 1:
        raise typer.BadParameter(
            f"{stream} has {count} partitions, each with its own indexes: {option} needs "
            "--partition as well"
        )
    return 0


def _settings(
    retention_seconds: str | None,
    retention_bytes: str | None,
    retention_records: str | None,
    retention_read: bool | None,
    segment_bytes: str | None,
    compression: Codec | None,
) -> dict[str, Any]:
    """What was given, as the API takes it."""
    given: dict[str, Any] = {}
    if retention_seconds is not None:
        given["retention_seconds"] = amount("--retention-seconds", retention_seconds, _SECONDS)
    if retention_bytes is not None:
        given["retention_bytes"] = amount("--retention-bytes", retention_bytes, BYTES)
    if retention_records is not None:
        given["retention_records"] = amount("--retention-records", retention_records, ("",))
    if retention_read is not None:
        given["retention_read"] = retention_read
    if segment_bytes is not None:
        given["segment_bytes"] = amount("--segment-bytes", segment_bytes, BYTES, none=False)
    if compression is not None:
        given["compression"] = compression
    return given


def amount(option: str, text: str, units: tuple[str, ...], none: bool = True) -> int | None:
    """A number with a unit, as in 7d or 10GiB."""
    if none and text.lower() == "none":
        return None
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in units:
        allowed = [f"with {'/'.join(u for u in units if u)} behind it"] if len(units) > 1 else []
        words = ", ".join(["a whole number", *allowed, *(["none"] if none else [])])
        raise typer.BadParameter(f"{option} is {text!r}: it must be {words}")
    return int(match[1]) * _UNITS[match[2]]


def _show(value: Any, json: bool, sentence: str) -> None:
    if json:
        show_json(value)
    else:
        say(sentence)


def _range(partitions: list[dict[str, Any]]) -> str:
    ranges = [f"{each['earliest']}..{each['end']}" for each in partitions[:4]]
    return " ".join(ranges) + (" ..." if len(partitions) > 4 else "")


def _settings_text(settings: dict[str, Any]) -> str:
    """Only what differs from the defaults comes; that is what is worth reading."""
    shown = {"retention_seconds": duration, "retention_bytes": size, "segment_bytes": size}
    words = []
    for name, value in settings.items():
        if value is True:
            words.append(name)
        elif value is not None and value is not False:
            words.append(f"{name}={shown[name](value) if name in shown else value}")
    return ", ".join(words) or "keeps everything"
