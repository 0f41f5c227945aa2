"""Streams as views of a Spark session: `SELECT * FROM orders`.

A view has the stream's own name, which SQL wants in backticks if there are dots or dashes in it,
and one with underscores in their place: `orders.eu-west` is `orders_eu_west` too, if no other
stream could be meant.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from penstock.flight.client import Bounds, FlightClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class HubAddress(NamedTuple):
    """Which hub, and as whom."""

    url: str
    token: str | None = None
    ca: str | None = None

    @property
    def options(self) -> dict[str, str]:
        """As options of the source and the sink."""
        given = {"penstock.url": self.url, "penstock.token": self.token, "penstock.ca": self.ca}
        return {name: value for name, value in given.items() if value}

    def client(self) -> FlightClient:
        return FlightClient(self.url, self.token, self.ca)


def plain(stream: str) -> str:
    """A stream's name as SQL takes it without backticks."""
    return re.sub(r"[.-]", "_", stream)


def view_names(streams: Iterable[str]) -> dict[str, str]:
    """Each name a view can have, and the stream it means.

    A name that could mean two streams means none: Spark does not tell capitals from small letters.
    """
    own: defaultdict[str, set[str]] = defaultdict(set)
    other: defaultdict[str, set[str]] = defaultdict(set)
    streams = list(streams)
    for stream in streams:
        own[stream.lower()].add(stream)
        other[plain(stream).lower()].add(stream)
    found: dict[str, str] = {}
    for stream in streams:
        if len(own[stream.lower()]) == 1:
            found[stream] = stream
        short = plain(stream)
        if short.lower() not in own and len(other[short.lower()]) == 1:
            found[short] = stream
    return found


def read(
    spark: SparkSession, stream: str, hub: HubAddress, options: Mapping[str, str] | None = None
) -> DataFrame:
    """The records of a stream as they are when they are asked for."""
    settings = {**hub.options, "subscribe": stream, **(options or {})}
    return spark.read.format("penstock").options(**settings).load()


def read_stream(
    spark: SparkSession, stream: str, hub: HubAddress, options: Mapping[str, str] | None = None
) -> DataFrame:
    """The records of a stream, from the earliest on, as they come."""
    settings = {
        **hub.options, "subscribe": stream, "startingOffsets": "earliest", **(options or {}),
    }  # fmt: skip
    return spark.readStream.format("penstock").options(**settings).load()


def make_view(frame: DataFrame, name: str) -> None:
    """Let SQL find the frame under this name, dots and dashes included."""
    frame.createOrReplaceTempView(f"`{name}`")


def mentioned(names: Mapping[str, str], text: str) -> set[str]:
    """The streams that a piece of SQL or code may mean; rather one too many."""
    lower = text.lower()
    return {stream for name, stream in names.items() if name.lower() in lower}


class BatchViews:
    """Views of all streams of a hub that show what a stream holds when it is asked for.

    Spark fixes where a frame ends when that is read first. So whatever was named once is made anew
    before each query.
    """

    def __init__(self, spark: SparkSession, hub: HubAddress) -> None:
        self._spark = spark
        self._hub = hub
        self._client = hub.client()
        self._named: set[str] = set()

    def streams(self) -> list[str]:
        """The streams there are now."""
        return self._client.streams()

    def bounds(self) -> dict[str, list[Bounds]]:
        """Where each partition of each stream begins and ends now."""
        return self._client.look(pattern=".*")

    def make(self, streams: Iterable[str]) -> None:
        """Make the views of these streams, or make them anew."""
        wanted = set(streams)
        if not wanted:
            return
        frames = {stream: read(self._spark, stream, self._hub) for stream in sorted(wanted)}
        for name, stream in view_names(self.streams()).items():
            if stream in frames:
                make_view(frames[stream], name)

    def freshen(self, text: str) -> None:
        """Before a query with this text: streams it names, and those named before, as of now."""
        names = view_names(self.streams())
        self._named = (self._named | mentioned(names, text)) & set(names.values())
        self.make(self._named)

    def close(self) -> None:
        """Let the hub go."""
        self._client.close()
