"""What travels between a Flight client and the door: JSON in tickets, descriptors, actions, errors.

Only the standard library and Arrow, so that it can be imported where nothing else is installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import flight

from penstock import errors, limits
from penstock.errors import HubBusy, IndexTrimmed, PenstockError, RemoteError

HEADERS: Final = pa.list_(
    pa.struct([pa.field("name", pa.utf8(), False), pa.field("value", pa.binary(), False)])
)
STAGED: Final = pa.schema(
    [
        pa.field("topic", pa.utf8(), False),
        pa.field("partition", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("headers", HEADERS),
    ]
)
"""The columns of what is staged. Without a partition the key chooses it, without a timestamp the
record has the time of its arrival."""

FINISH: Final = b'{"finish":true}'
"""Ends what is staged: a client that only goes away has not finished."""


class Bounds(NamedTuple):
    """A partition has the records `earliest` to `end`, the latter not included."""

    earliest: int
    end: int
    bytes: int
    """Memory they take as Arrow; an estimate from a few of them."""


class HubInfo(NamedTuple):
    """Who answers."""

    version: str
    user: str
    data: str | None
    """The hub's data directory, and the id stored in it, for a client that may read all streams:
    on the same machine it can read segments itself."""
    data_id: str | None


class Run(NamedTuple):
    """Records that went to one partition, one after the other from `first` on."""

    partition: int
    first: int
    records: int


class Appended(NamedTuple):
    """What became of records that were sent; they are on disk."""

    records: int
    """Records that were stored."""
    dropped: int
    """Records that were not, because the producer had sent them before."""
    runs: tuple[Run, ...]


class Published(NamedTuple):
    """What became visible."""

    records: int
    already: bool
    """Whether this epoch of the writer, or a later one, had been published before."""


def encode(value: Mapping[str, Any]) -> bytes:
    """A body as JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def decode(body: Any) -> dict[str, Any]:
    """The JSON object the hub sent."""
    try:
        value = json.loads(memoryview(body).tobytes())
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RemoteError("the hub's answer is not a JSON object: is it another version?")
    return value


# -- errors ------------------------------------------------------------------------------------

_CLASSES: Final[dict[str, type[PenstockError]]] = {
    each.code: each
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, PenstockError)
}
_FLIGHT: Final[dict[type[PenstockError], Any]] = {
    errors.Unauthorized: flight.FlightUnauthenticatedError,
    errors.Forbidden: flight.FlightUnauthorizedError,
    HubBusy: flight.FlightUnavailableError,
    errors.LogClosed: flight.FlightUnavailableError,
}


def error_body(error: PenstockError) -> dict[str, Any]:
    """An error as clients get it, in the extra information of Flight's error."""
    message = str(error)
    if len(message) > limits.FLIGHT_ERROR_CHARS_MAX:
        message = message[: limits.FLIGHT_ERROR_CHARS_MAX - 4] + " ..."
    told: dict[str, Any] = {"code": error.code, "message": message}
    if isinstance(error, IndexTrimmed):
        told["earliest"] = error.earliest
    return told


def to_flight(error: PenstockError) -> flight.FlightError:
    """The Flight error that carries `error`."""
    told = error_body(error)
    kind = _FLIGHT.get(type(error), flight.FlightServerError)
    return kind(told["message"], encode(told))


def from_body(told: Mapping[str, Any]) -> PenstockError:
    """The error that `error_body` described."""
    code, message = str(told.get("code")), str(told.get("message"))
    if code == IndexTrimmed.code:
        return IndexTrimmed(message, earliest=int(told.get("earliest", 0)))
    kind = _CLASSES.get(code)
    return RemoteError(f"{message} ({code})") if kind is None else kind(message)
