"""`penstock write`: records from files or a pipe into a stream."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import msgspec
import typer

from penstock.cli.client import Client, Refused, stream_path
from penstock.cli.files import Format, Part, cut, guess, halves
from penstock.cli.options import (
    DEFAULT_URL,
    CaOption,
    JsonOption,
    StreamArgument,
    TokenOption,
    UrlOption,
    connect,
)
from penstock.cli.output import progress, say, show_json
from penstock.errors import HubUnreachable, PenstockError

_TRIES: Final = 8
_PAUSE_S: Final = 0.25
"""Doubled each time: eight tries take half a minute, which a hub needs at most to restart."""


def write(
    stream: StreamArgument,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE|-", help="Files, or - for stdin, which is also the default."),
    ] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="Default: what the file's name tells.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Default: the records' keys choose.")
    ] = None,
    producer: Annotated[
        str | None, typer.Option(help="Name the sender: what was stored is not stored again.")
    ] = None,
    first_id: Annotated[
        int | None, typer.Option(min=0, help="Of the first record; else records bring an id each.")
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Records in one request.")
    ] = 10_000,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Write records to a stream; all of them are on disk when the command ends well.

    A JSON line is `{"value": ..., "key": ..., "timestamp": ..., "headers": {...}}`, only the value
    is needed. CSV has a heading with the same names, `lines` takes each line as a value.

    With `--producer` the records are numbered (from `--first-id`, or by their own `id`), and one
    that is stored already is left out: the same command may be run again, and is tried again by
    itself while the hub is busy or restarts.

    Examples:

        echo '{"key": "ada", "value": {"cents": 1200}}' | penstock write orders
        penstock write orders monday.csv tuesday.csv
        tail -f app.log | penstock write logs --format lines --batch 1
        penstock write orders monday.jsonl --producer import --first-id 0
    """
    if first_id is not None and producer is None:
        raise typer.BadParameter("--first-id needs --producer: ids are numbers of one sender")
    sources = files or [Path("-")]
    chosen = [form or guess(path) for path in sources]
    with connect(url, token, ca) as hub:
        sender = _Sender(hub, stream, partition, producer, first_id)
        began = time.perf_counter()
        try:
            with progress(f"writing {stream}") as bar:
                for path, each in zip(sources, chosen, strict=True):
                    with _opened(path) as source:
                        for part in cut(source, each, batch):
                            sender.send(part)
                            bar.update(bar.task_ids[0], completed=sender.sent)
        except PenstockError:
            if sender.sent:
                say(f"the first {sender.sent:,} records are stored, those behind them may not be")
            raise
        took = time.perf_counter() - began
    rate = sender.sent / took if took else 0.0
    if json:
        show_json(
            {
                "stream": stream,
                "records": sender.stored,
                "dropped": sender.dropped,
                "requests": sender.requests,
                "seconds": round(took, 6),
                "records_per_second": round(rate, 1),
            }
        )
        return
    known = f", {sender.dropped:,} were there already" if sender.dropped else ""
    say(f"wrote {sender.stored:,} records to {stream}{known} ({rate:,.0f} records/s)")


class _Sender:
    """Sends parts one after the other, and again where that cannot store anything twice."""

    def __init__(
        self,
        hub: Client,
        stream: str,
        partition: int | None,
        producer: str | None,
        first_id: int | None,
    ) -> None:
        self._hub = hub
        self._stream = stream
        self._partition = partition
        self._producer = producer
        self._next_id = first_id
        self.stored = self.dropped = self.requests = 0

    @property
    def sent(self) -> int:
        return self.stored + self.dropped

    def send(self, part: Part) -> None:
        query: dict[str, Any] = {"partition": self._partition}
        if self._producer is not None:
            query |= {"producer": self._producer, "first_id": self._next_id}
        try:
            done = self._try(part, query)
        except Refused as error:
            if error.code != "batch-too-large" or part.records == 1:
                raise
            for half in halves(part):
                self.send(half)
            return
        if self._next_id is not None:
            self._next_id += part.records
        self.stored += done["count"]
        self.dropped += done["dropped"]
        self.requests += 1

    def _try(self, part: Part, query: dict[str, Any]) -> Any:
        path, headers = stream_path(self._stream, "records"), {"Content-Type": part.media_type}
        for attempt in range(_TRIES):
            try:
                data, _ = self._hub.fetch(
                    "POST", path, query=query, body=part.body, headers=headers
                )
            except (HubUnreachable, Refused) as error:
                if attempt == _TRIES - 1 or not self._may_resend(error):
                    raise
                time.sleep(_PAUSE_S * 2**attempt)
            else:
                return msgspec.json.decode(data)
        raise AssertionError("the last try returns or raises")

    def _may_resend(self, error: HubUnreachable | Refused) -> bool:
        """Only a busy log is known to have stored nothing; a producer's ids make all safe."""
        if isinstance(error, Refused):
            return error.code == "log-busy" or (error.status == 503 and self._producer is not None)
        return self._producer is not None and self.requests > 0


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be read: {error.strerror}") from None
    with file:
        yield file
