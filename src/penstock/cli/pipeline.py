"""`penstock pipeline`: what runs on Spark; `archive` and `compact` are here."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.group import Commands
from penstock.cli.options import (
    DEFAULT_URL,
    CaOption,
    JsonOption,
    MasterOption,
    RemoteOption,
    TokenOption,
    UrlOption,
)
from penstock.cli.output import errors, show_json, show_table, size
from penstock.cli.streams import BYTES, amount

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.compact import Compacted
    from penstock.spark.progress import Shown
    from penstock.spark.running import Archive

app = typer.Typer(cls=Commands, rich_markup_mode="markdown", no_args_is_help=True)

_INTERRUPTED: Final = 130
"""What shells give a program that Ctrl-C has ended."""

_LOOK_S: Final = 0.2


class Form(StrEnum):
    """What tables are made of."""

    PARQUET = "parquet"
    DELTA = "delta"


class Parse(StrEnum):
    """How values are read."""

    JSON = "json"


ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", help="A setting of Spark, KEY=VALUE. Repeat it.")
]


@app.callback()
def pipeline() -> None:
    """Run pipelines on Spark: streams into tables, and tables back into streams.

    Examples:

        penstock pipeline archive --streams 'orders.*' --to /data/tables
        penstock pipeline compact /data/tables
    """


@app.command()
def archive(
    streams: Annotated[
        str,
        typer.Option(help="Names with commas between, or a regular expression for whole names."),
    ],
    to: Annotated[
        str, typer.Option(metavar="DIR", help="Where the tables go, one directory each.")
    ],
    form: Annotated[Form, typer.Option("--format", help="Of the tables.")] = Form.PARQUET,
    trigger: Annotated[
        str,
        typer.Option(help="available-now takes what is there and ends; 'processing 10s' goes on."),
    ] = "available-now",
    parse: Annotated[
        Parse | None, typer.Option(help="Values become columns; what does not parse, dead letters.")
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(help="Of parsed values: DDL, or a file. Default: inferred once, and pinned."),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Whose positions show how far it is. Default: archive:DIR.")
    ] = None,
    batch_records: Annotated[
        int | None, typer.Option(min=1, help="Most records of a batch. Default: no limit.")
    ] = None,
    batch_bytes: Annotated[
        str, typer.Option(help="About so much of a batch; larger batches make larger files.")
    ] = "512MiB",
    fail_on_data_loss: Annotated[
        bool,
        typer.Option(help="Stop if retention has dropped records that were not archived yet."),
    ] = True,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Archive streams to tables, exactly once; started again, it goes on where it was.

    Each stream has a table `DIR/<stream>/date=YYYY-MM-DD/`, and what belongs to the archive itself
    is in `DIR/_penstock`. With a pattern, streams that come later join. Ctrl-C lets the batch that
    runs end; a second one does not. `--json` prints a line for each batch, and a summary.

    Examples:

        penstock pipeline archive --streams orders --to /data/tables
        penstock pipeline archive --streams 'orders.*' --to /data/tables --trigger 'processing 10s'
        penstock pipeline archive --streams clicks --to /data/clicks --format delta
        penstock pipeline archive --streams orders --to /data/orders --parse json
        penstock pipeline archive --streams orders --to /data/t --master spark://host:7077
    """
    from penstock.spark.triggers import Trigger

    endless = Trigger.of(trigger).interval_s is not None
    most = amount("--batch-bytes", batch_bytes, BYTES, none=False)
    with session("penstock archive", master, remote, form is Form.DELTA, conf) as spark:
        from penstock.spark.archive import archive as begin
        from penstock.spark.progress import Shown

        running = begin(
            spark, streams=streams, to=to, format=form.value, trigger=trigger,
            parse=None if parse is None else "json", schema=schema, group=group, url=url,
            token=token, ca=None if ca is None else str(ca), batch_records=batch_records,
            batch_bytes=most, fail_on_data_loss=fail_on_data_loss,
        )  # fmt: skip
        with Shown(running.board, as_json=json, console=errors) as shown:
            stopped = _wait(running, shown)
        summary = running.board.summary()
        shown.summary(summary)
        if not summary.failed:
            running.wait()
    if summary.failed:
        raise typer.Exit(1)
    if stopped and not endless:
        raise typer.Exit(_INTERRUPTED)


@app.command()
def compact(
    to: Annotated[str, typer.Argument(metavar="DIR", help="What archive was told with --to.")],
    streams: Annotated[
        str | None, typer.Option(help="Only these, with commas between. Default: all.")
    ] = None,
    target: Annotated[str, typer.Option(help="The size of the files to be made.")] = "128MiB",
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    json: JsonOption = False,
) -> None:
    """Join the many small files of an archive's tables into few large ones.

    The archive may run meanwhile, and so may readers: each row is there once at any time. It can be
    killed at any point. Only Delta tables need Spark for it, which then runs OPTIMIZE.

    Examples:

        penstock pipeline compact /data/tables
        penstock pipeline compact /data/tables --streams orders --target 256MiB
    """
    from penstock.spark.compact import compact as join
    from penstock.spark.compact import compact_delta
    from penstock.spark.table import archived

    bytes_each = amount("--target", target, BYTES, none=False)
    assert bytes_each is not None
    found = archived(to, None if streams is None else [each.strip() for each in streams.split(",")])
    done: list[Compacted] = []
    if found.form == "delta":
        with session("penstock compact", master, remote, True, conf) as spark:
            done += [
                compact_delta(spark, found.path(stream), stream, bytes_each)
                for stream in found.streams
            ]
    else:
        for stream in found.streams:
            with errors.status(f"compacting {stream} ..."):
                done.append(join(to, stream, bytes_each))
    if json:
        show_json([each._asdict() for each in done])
        return
    rows = [
        (each.stream, each.dates, each.files_before, each.files_after,
         size(each.bytes_before), size(each.bytes_after))
        for each in done
    ]  # fmt: skip
    columns = ("stream", "dates>", "files before>", "after>", "bytes before>", "after>")
    show_table(columns, rows, f"nothing is archived in {to} yet")


@contextmanager
def session(
    app: str, master: str | None, remote: str | None, delta: bool, conf: list[str] | None
) -> Iterator[SparkSession]:
    """A Spark session for one command; a clear word if Spark is not installed."""
    from penstock.spark.session import spark_session

    settings = {}
    for each in conf or ():
        key, equals, value = each.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"--conf is {each!r}: write KEY=VALUE")
        settings[key.strip()] = value.strip()
    with errors.status("starting Spark ..."):
        spark = spark_session(app, master=master, remote=remote, delta=delta, conf=settings)
    try:
        yield spark
    finally:
        spark.stop()


def _wait(running: Archive, shown: Shown) -> bool:
    """Wait for the archive's end; returns whether it was told to stop."""
    asked = 0

    def ask(_number: int, _frame: Any) -> None:
        nonlocal asked
        asked += 1
        running.stop(now=asked > 1)
        if asked == 1:
            shown.say("stopping after the batch that runs; Ctrl-C again stops at once")

    # PySpark's own handler of Ctrl-C would cancel the batches.
    before = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        schemas: set[str] = set()
        while running.active:
            for each in running.progress:
                if each.schema is not None and each.stream not in schemas:
                    schemas.add(each.stream)
                    shown.say(f"{each.stream} has the schema {each.schema}")
            running.join(_LOOK_S)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return asked > 0
