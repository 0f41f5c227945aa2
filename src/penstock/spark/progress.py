"""How far an archive is: what Spark reports of its queries, and how it is shown.

Terminals get a table that is renewed in place, everything else a line for each batch, and scripts
JSON lines. At the end comes a summary.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

State = Literal["waiting", "running", "retrying", "done", "stopped", "failed"]
_STREAMS_SHOWN: Final = 20


@dataclass
class StreamProgress:
    """How far one stream is."""

    stream: str
    state: State = "waiting"
    batches: int = 0
    rows: int = 0
    rate: float = 0.0
    """Rows a second in the last batch."""

    lag: int | None = None
    """Records behind the end, when it was last looked at."""

    batch_s: float = 0.0
    """How long the last batch took."""

    dead: int = 0
    """Records that did not parse. Through Spark Connect nobody can tell."""

    schema: str | None = None
    error: str | None = None


@dataclass
class Batch:
    """One batch, as it is told."""

    stream: str
    batch: int
    rows: int
    rate: float
    lag: int | None
    seconds: float


@dataclass
class Summary:
    """What an archive has done."""

    seconds: float
    streams: list[StreamProgress] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.streams)

    @property
    def failed(self) -> list[StreamProgress]:
        return [each for each in self.streams if each.state == "failed"]

    def as_dict(self) -> dict[str, Any]:
        return {
            "event": "summary",
            "seconds": round(self.seconds, 3),
            "rows": self.rows,
            "failed": len(self.failed),
            "streams": [asdict(each) for each in self.streams],
        }


class Board:
    """The progress of all streams. Queries report to it from threads of their own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[str, StreamProgress] = {}
        self._earliest: dict[str, Mapping[int, int]] = {}
        self._since = time.monotonic()
        self.told: Callable[[Batch], None] = lambda _batch: None
        """Hears of each batch."""

    def of(self, stream: str) -> StreamProgress:
        """The progress of one stream, to be changed in place."""
        with self._lock:
            return self._streams.setdefault(stream, StreamProgress(stream))

    def begins(self, stream: str, earliest: Mapping[int, int]) -> None:
        """Where a stream's partitions begin, which Spark does not tell of a query's first batch."""
        self._earliest[stream] = earliest

    def report(self, stream: str, progress: Mapping[str, Any]) -> None:
        """A query's progress, as Spark tells it."""
        source = progress["sources"][0] if progress.get("sources") else {}
        rows = read(source, self._earliest.get(stream, {}))
        durations = progress.get("durationMs") or {}
        seconds = float(durations.get("triggerExecution") or 0) / 1000
        entry = self.of(stream)
        entry.lag = lag(source)
        if not rows:
            return
        entry.batches += 1
        entry.rows += rows
        entry.batch_s = seconds
        entry.rate = rows / seconds if seconds else 0.0
        number = int(progress.get("batchId") or 0)
        self.told(Batch(stream, number, rows, entry.rate, entry.lag, seconds))

    def streams(self) -> list[StreamProgress]:
        """All streams, by name."""
        with self._lock:
            return [self._streams[name] for name in sorted(self._streams)]

    def summary(self) -> Summary:
        return Summary(time.monotonic() - self._since, self.streams())


def read(source: Mapping[str, Any], earliest: Mapping[int, int]) -> int:
    """How many records a batch read.

    Spark's own number counts them again whenever a batch looks at them again.
    """
    start, end = (_offsets(source.get(name)) for name in ("startOffset", "endOffset"))
    return sum(
        index - start.get(place, earliest.get(int(place[1]), 0)) for place, index in end.items()
    )


def lag(source: Mapping[str, Any]) -> int | None:
    """How many records a source had still to read after a batch; none if it does not say."""
    latest, end = (_offsets(source.get(name)) for name in ("latestOffset", "endOffset"))
    if not latest or not end:
        return None
    return sum(max(0, last - end.get(place, 0)) for place, last in latest.items())


def _offsets(told: Any) -> dict[tuple[str, str], int]:
    """Offsets by stream and partition; what else a source notes there is left out."""
    if isinstance(told, str):
        told = json.loads(told)
    if not isinstance(told, Mapping):
        return {}
    return {
        (stream, partition): index
        for stream, partitions in told.items()
        if isinstance(partitions, Mapping)
        for partition, index in partitions.items()
        if isinstance(index, int)
    }


# -- showing ---------------------------------------------------------------------------------------


class Shown(AbstractContextManager["Shown"]):
    """Shows a board while something runs."""

    def __init__(self, board: Board, *, as_json: bool = False, console: Console | None = None):
        self._board = board
        self._json = as_json
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._out: TextIO = sys.stdout

    def __enter__(self) -> Self:
        if not self._json and self._console.is_terminal:
            self._live = Live(
                console=self._console, get_renderable=self._table, refresh_per_second=4,
                transient=True,
            )  # fmt: skip
            self._live.start()
        else:
            self._board.told = self._line
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _line(self, batch: Batch) -> None:
        if self._json:
            self._write({"event": "batch", **asdict(batch)})
            return
        self.say(
            f"{batch.stream}: batch {batch.batch}, {batch.rows:,} rows in {batch.seconds:.1f} s, "
            f"{batch.rate:,.0f} rows/s{'' if batch.lag is None else f', lag {batch.lag:,}'}"
        )

    def summary(self, summary: Summary) -> None:
        """Show what was done."""
        if self._json:
            self._write(summary.as_dict())
            return
        if summary.streams:
            self._console.print(self._table(all_of_them=True), highlight=False)
        for each in summary.failed:
            self.say(f"{each.stream} failed: {each.error}")
        rate = summary.rows / summary.seconds if summary.seconds else 0.0
        self.say(
            f"{summary.rows:,} rows of {len(summary.streams)} streams in {summary.seconds:.1f} s "
            f"({rate:,.0f} rows/s)"
        )

    def say(self, text: str) -> None:
        """A sentence beside the progress."""
        if not self._json:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _write(self, value: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(value) + "\n")
        self._out.flush()

    def _table(self, all_of_them: bool = False) -> Table:
        streams = self._board.streams()
        busy = [each for each in streams if each.state in ("running", "retrying", "failed")]
        shown = streams if all_of_them or len(streams) <= _STREAMS_SHOWN else busy[:_STREAMS_SHOWN]
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("stream", overflow="fold")
        table.add_column("state")
        for name in ("rows", "rows/s", "lag", "batches", "batch time"):
            table.add_column(name, justify="right")
        dead = any(each.dead for each in streams)
        if dead:
            table.add_column("dead letters", justify="right")
        for each in shown:
            cells = [
                each.stream, each.state, f"{each.rows:,}", f"{each.rate:,.0f}",
                "-" if each.lag is None else f"{each.lag:,}", f"{each.batches:,}",
                f"{each.batch_s:.1f} s",
            ]  # fmt: skip
            table.add_row(*cells, *([f"{each.dead:,}"] if dead else []))
        if len(shown) < len(streams):
            table.add_row(f"and {len(streams) - len(shown):,} more", "")
        return table
