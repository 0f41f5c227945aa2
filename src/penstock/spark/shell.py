"""A PySpark session with the streams at hand: what the prompt of `penstock shell` begins with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import penstock
from penstock import limits
from penstock.spark import views
from penstock.spark.views import BatchViews, HubAddress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FRESH: Final = ("sql", "table")
"""Methods of the session that see streams as they are when they are called."""


class StreamRow(NamedTuple):
    """One line of `streams()`."""

    stream: str
    view: str
    """How SQL names it without backticks; empty if that could be another stream too."""
    partitions: int
    records: int


class Listing(list[StreamRow]):
    """Streams, shown as a table at the prompt."""

    def __repr__(self) -> str:
        if not self:
            return "no streams yet: make one with `penstock streams create NAME`"
        head = ("stream", "in SQL", "partitions", "records")
        rows = [head, *((each[0], each[1], str(each[2]), f"{each[3]:,}") for each in self)]
        wide = [max(len(row[at]) for row in rows) for at in range(4)]
        return "\n".join(
            f"{row[0]:<{wide[0]}}  {row[1]:<{wide[1]}}  {row[2]:>{wide[2]}}  {row[3]:>{wide[3]}}"
            for row in rows
        )


class Shell:
    """What the names at the prompt stand for."""

    def __init__(self, spark: SparkSession, hub: HubAddress) -> None:
        self._spark = spark
        self._hub = hub
        self._views = BatchViews(spark, hub)
        for name in _FRESH:
            setattr(spark, name, self._fresh(getattr(spark, name)))

    def _fresh(self, ask: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
        def asked(text: str, *more: Any, **named: Any) -> DataFrame:
            self._views.freshen(text)
            return ask(text, *more, **named)

        asked.__doc__ = ask.__doc__
        return asked

    def streams(self) -> Listing:
        """The streams there are, how SQL names them, and how many records each holds."""
        bounds = self._views.bounds()
        names = views.view_names(bounds)
        short = {stream: name for name, stream in names.items() if name == views.plain(stream)}
        return Listing(
            StreamRow(
                stream,
                short.get(stream, ""),
                len(parts),
                sum(each.end - each.earliest for each in parts),
            )
            for stream, parts in sorted(bounds.items())
        )

    def stream(self, name: str, **options: str) -> DataFrame:
        """The records of a stream as they are now; options as the source `penstock` has them."""
        return views.read(self._spark, name, self._hub, options)

    def follow(self, name: str, **options: str) -> DataFrame:
        """The records of a stream as they come, from the earliest on: a streaming frame."""
        return views.read_stream(self._spark, name, self._hub, options)

    @property
    def names(self) -> dict[str, Any]:
        """Everything the prompt begins with."""
        from pyspark.sql import functions

        return {
            "__name__": "__main__",
            "__doc__": None,
            "spark": self._spark,
            "F": functions,
            "sql": self._spark.sql,
            "streams": self.streams,
            "stream": self.stream,
            "follow": self.follow,
        }

    @property
    def banner(self) -> str:
        found = self._views.streams()
        named = ", ".join(found[:8]) + (", ..." if len(found) > 8 else "")
        return "\n".join((
            f"Penstock {penstock.__version__}, Spark {self._spark.version}, "
            f"{len(found)} streams at {self._hub.url}{': ' + named if named else ''}",
            "",
            "  streams()                            what there is",
            "  sql('SELECT * FROM orders')          a stream by its name, . and - as _",
            "  stream('orders')                     its records now, as a frame",
            "  follow('orders').writeStream         its records as they come",
            "  spark, F                             the session; pyspark.sql.functions",
            "",
        ))  # fmt: skip

    def make_views(self) -> None:
        """Make the views that a list of tables shows; the others come when they are named."""
        self._views.make(self._views.streams()[: limits.VIEWS_MAX])

    def close(self) -> None:
        """Let the hub go, and leave the session as it was."""
        for name in _FRESH:
            delattr(self._spark, name)
        self._views.close()
