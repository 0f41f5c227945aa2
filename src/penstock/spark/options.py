"""The options of `format("penstock")`, read once into typed classes.

They are named as Spark's Kafka source names them. Spark hands them over in lower case, so names
are compared that way and shown as they are written here.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Self

from penstock import limits
from penstock.errors import BadSetting
from penstock.spark.offsets import EARLIEST, LATEST, Offsets, parse_offsets

HUB_OPTIONS: Final = ("penstock.url", "penstock.token", "penstock.ca", "penstock.timeout")
SOURCE_OPTIONS: Final = (
    "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "maxOffsetsPerTrigger", "maxBytesPerTrigger",
    "minPartitions", "includeHeaders", "failOnDataLoss", "group", "latency", "pushFilters",
    *HUB_OPTIONS,
)  # fmt: skip
SINK_OPTIONS: Final = ("topic", "txnAppId", "txnVersion", *HUB_OPTIONS)
SPARK_SINK_OPTIONS: Final = ("checkpointLocation", "path", "queryName")
"""What Spark itself adds to the options of a sink; to those of a source it adds nothing."""

URL_DEFAULT: Final = "http://127.0.0.1:7470"
_SCHEMES: Final = ("http://", "https://", "grpc://", "grpc+tls://")
_PROPERTIES_OF_A_TABLE: Final = ("provider", "owner")

Mode = Literal["batch", "stream"]
Where = int | Offsets
"""EARLIEST, LATEST, or an index (or one of the two) for each partition."""


class Given:
    """The options as they came, looked up under any spelling of upper and lower case."""

    def __init__(
        self, options: Mapping[str, str], valid: Sequence[str], ignored: Iterable[str] = ()
    ) -> None:
        known = {name.lower() for name in (*valid, *ignored)}
        self._values = {name.lower(): value for name, value in options.items()}
        unknown = [name for name in self._values if name not in known]
        if unknown:
            raise unknown_option(unknown, self._values, valid)

    def text(self, name: str) -> str | None:
        """The value without spaces around it; None if it is not given."""
        value = self._values.get(name.lower())
        if value is None:
            return None
        if not value.strip():
            raise BadSetting(f"option {name} is empty: give it a value, or leave it out")
        return value.strip()

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise BadSetting(f"option {name} is {text!r}: it has to be true or false")
        return text.lower() == "true"

    def whole(self, name: str, least: int, most: int) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text) or not least <= int(text) <= most:
            raise BadSetting(
                f"option {name} is {text!r}: it has to be a whole number from {least} to {most}"
            )
        return int(text)

    def seconds(self, name: str, default: float, most: float) -> float:
        text = self.text(name)
        if text is None:
            return default
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?s?", text) or float(text.rstrip("s")) > most:
            raise BadSetting(
                f"option {name} is {text!r}: it has to be a number of seconds from 0 to {most:g}"
            )
        return float(text.rstrip("s"))

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        """One of a few words; the first is the default."""
        text = self.text(name)
        if text is None:
            return allowed[0]
        if text.lower() not in allowed:
            raise BadSetting(f"option {name} is {text!r}: it has to be {' or '.join(allowed)}")
        return text.lower()


def unknown_option(
    unknown: Sequence[str], given: Mapping[str, str], valid: Sequence[str]
) -> BadSetting:
    """What to say of options that do not exist."""
    if all(name in given for name in _PROPERTIES_OF_A_TABLE):
        return BadSetting(
            "CREATE TABLE ... USING penstock does not work, because Spark forgets the options of "
            "such a table: use CREATE TEMPORARY VIEW name USING penstock OPTIONS (...)"
        )
    if "path" in unknown:
        return BadSetting(
            f"a path ({given['path']!r}) means nothing here: name streams with the option "
            "subscribe, and call load() and save() without an argument"
        )
    lower = {name.lower(): name for name in valid}
    close = {
        name: difflib.get_close_matches(name, lower, n=1, cutoff=0.6) for name in sorted(unknown)
    }
    hints = [
        f"{name} (did you mean {lower[found[0]]}?)" if found else name
        for name, found in close.items()
    ]
    return BadSetting(
        f"unknown option{'s' if len(hints) > 1 else ''} {', '.join(hints)}; "
        f"valid are {', '.join(sorted(valid, key=str.lower))}"
    )


def refuse_foreign(options: Mapping[str, str]) -> None:
    """Refuse what is an option of neither the source nor the sink."""
    Given(options, sorted({*SOURCE_OPTIONS, *SINK_OPTIONS}), SPARK_SINK_OPTIONS)


@dataclass(frozen=True)
class HubOptions:
    """Which hub, as whom, and how long to wait for it."""

    url: str
    token: str | None = field(repr=False)
    ca: str | None
    timeout_s: float

    @classmethod
    def of(cls, given: Given) -> HubOptions:
        url = given.text("penstock.url") or os.environ.get("PENSTOCK_URL") or URL_DEFAULT
        if not url.startswith(_SCHEMES):
            raise BadSetting(
                f"option penstock.url is {url!r}: it has to begin with one of {', '.join(_SCHEMES)}"
            )
        return cls(
            url.rstrip("/"),
            given.text("penstock.token") or os.environ.get("PENSTOCK_TOKEN") or None,
            given.text("penstock.ca") or os.environ.get("PENSTOCK_CA") or None,
            given.seconds(
                "penstock.timeout", limits.SPARK_TIMEOUT_DEFAULT_S, limits.SPARK_TIMEOUT_S_MAX
            ),
        )


@dataclass(frozen=True)
class Streams:
    """What to read: names, or a pattern, or some partitions of some streams."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, frozenset[int]] | None = None

    @classmethod
    def of(cls, given: Given) -> Streams:
        ways = ("subscribe", "subscribePattern", "assign")
        chosen = [way for way in ways if given.text(way) is not None]
        if len(chosen) != 1:
            raise BadSetting(
                f"exactly one of the options {', '.join(ways)} says which streams to read; "
                f"given {'are ' + ' and '.join(chosen) if chosen else 'is none'}"
            )
        text = given.text(chosen[0]) or ""
        if chosen == ["subscribe"]:
            return cls(names=_names(text))
        if chosen == ["subscribePattern"]:
            return cls(pattern=_pattern(text))
        return _assigned(text)

    def has(self, stream: str, partition: int) -> bool:
        """Whether a partition of a stream that was found is to be read."""
        return self.partitions is None or partition in self.partitions[stream]

    def __str__(self) -> str:
        return self.pattern if self.pattern is not None else ", ".join(self.names)


@dataclass(frozen=True)
class SourceOptions:
    """Everything that can be said about reading."""

    hub: HubOptions
    streams: Streams
    starting: Where
    ending: Where
    starting_us: int | None
    ending_us: int | None
    max_offsets: int | None
    max_bytes: int | None
    min_partitions: int | None
    headers: bool
    fail_on_data_loss: bool
    group: str | None
    low_latency: bool
    push_filters: bool
    """Whether to take filters where the session pushes them. Spark 4.2 keeps what was planned with
    the filters of one query for the next one of the same DataFrame or view, which then misses rows:
    so it has to be asked for, by who uses a DataFrame in one query only."""

    @classmethod
    def of(cls, options: Mapping[str, str], mode: Mode | None = None) -> Self:
        """Read them; with a mode, also refuse what makes no sense in it."""
        given = Given(options, SOURCE_OPTIONS)
        streams = Streams.of(given)
        for offsets, timestamp in (
            ("startingOffsets", "startingTimestamp"),
            ("endingOffsets", "endingTimestamp"),
        ):
            if given.text(offsets) is not None and given.text(timestamp) is not None:
                raise BadSetting(f"options {offsets} and {timestamp} contradict: give one of them")
        read = cls(
            hub=HubOptions.of(given),
            streams=streams,
            starting=_where(given, "startingOffsets", EARLIEST if mode == "batch" else LATEST),
            ending=_where(given, "endingOffsets", LATEST),
            starting_us=_microseconds(given, "startingTimestamp"),
            ending_us=_microseconds(given, "endingTimestamp"),
            max_offsets=given.whole("maxOffsetsPerTrigger", 1, 2**62),
            max_bytes=given.whole("maxBytesPerTrigger", 1, 2**62),
            min_partitions=given.whole("minPartitions", 1, limits.SPARK_PARTITIONS_MAX),
            headers=given.flag("includeHeaders", False),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            group=given.text("group"),
            low_latency=given.choice("latency", ("bulk", "low")) == "low",
            push_filters=given.flag("pushFilters", False),
        )
        if mode == "batch":
            _check_batch(given, read)
        elif mode == "stream":
            _check_stream(given)
        return read


def _check_batch(given: Given, read: SourceOptions) -> None:
    if _has(read.starting, LATEST):
        raise BadSetting(
            f"option startingOffsets is {given.text('startingOffsets')!r}: a batch cannot start at "
            "latest (-1), there is nothing after it"
        )
    if _has(read.ending, EARLIEST):
        raise BadSetting(
            f"option endingOffsets is {given.text('endingOffsets')!r}: a batch cannot end at "
            "earliest (-2), there is nothing before it"
        )


def _check_stream(given: Given) -> None:
    for name in ("endingOffsets", "endingTimestamp"):
        if given.text(name) is not None:
            raise BadSetting(
                f"option {name} is for batches: a streaming query has no end; stop it, or use "
                "trigger(availableNow=True)"
            )


def _has(where: Where, special: int) -> bool:
    if isinstance(where, int):
        return where == special
    return any(special in partitions.values() for partitions in where.values())


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise BadSetting(f"option subscribe is {text!r}: it has to be names separated by commas")
    return names


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise BadSetting(
            f"option subscribePattern is {text!r}: not a regular expression ({error})"
        ) from None
    return text


def _assigned(text: str) -> Streams:
    example = 'option assign has to be like {"orders": [0, 1]}'
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadSetting(f"{example}; {text!r} is not JSON ({error})") from None
    if not (isinstance(found, dict) and found):
        raise BadSetting(f"{example}; given is {text!r}")
    for numbers in found.values():
        if not (isinstance(numbers, list) and numbers):
            raise BadSetting(f"{example}; given is {text!r}")
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise BadSetting(f"{example}; {number!r} is no partition")
    partitions = {stream: frozenset(numbers) for stream, numbers in found.items()}
    return Streams(names=tuple(partitions), partitions=partitions)


def _where(given: Given, name: str, default: int) -> Where:
    text = given.text(name)
    if text is None:
        return default
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    return parse_offsets(text, name)


def _microseconds(given: Given, name: str) -> int | None:
    milliseconds = given.whole(name, 0, 2**62 // 1000)
    return None if milliseconds is None else milliseconds * 1000
