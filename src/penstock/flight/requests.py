"""What Flight clients ask for: the JSON of tickets, descriptors and actions, checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec

from penstock import limits
from penstock.errors import BadFormat, BatchTooLarge
from penstock.log import SCHEMA

T = TypeVar("T", bound=msgspec.Struct)
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Index = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Id = Annotated[int, msgspec.Meta(ge=0)]


class Read(msgspec.Struct, forbid_unknown_fields=True):
    """A ticket: the records `from` to `to` of a partition."""

    stream: str
    partition: Int64 = 0
    start: Index | None = msgspec.field(default=None, name="from")
    end: Index | None = msgspec.field(default=None, name="to")
    columns: list[str] | None = None

    def checked_columns(self) -> list[str]:
        """The columns to give."""
        if self.columns is None:
            return list(SCHEMA.names)
        wrong = [name for name in self.columns if name not in SCHEMA.names]
        if wrong or len(set(self.columns)) < len(self.columns):
            raise BadFormat(
                f"the columns are {self.columns!s:.200}: use each of {', '.join(SCHEMA.names)} "
                "at most once"
            )
        return self.columns


class Append(msgspec.Struct, forbid_unknown_fields=True):
    """A descriptor: the batches are appended to a stream."""

    stream: str
    partition: Int64 | None = None
    producer: str | None = None
    first_id: Id | None = None
    drop_resent: bool = True


class Staging(msgspec.Struct, forbid_unknown_fields=True):
    """A descriptor: the batches are staged."""

    writer: str
    epoch: Index


class Look(msgspec.Struct, forbid_unknown_fields=True):
    """Bounds of streams, now or when there is more than what is known."""

    streams: list[str]
    known: dict[str, list[Index]] | None = None
    wait: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    names: str | None = None
    """The digest of the stream names the client has; new ones are told when there are."""


class IndexAt(msgspec.Struct, forbid_unknown_fields=True):
    """The first index at or after a time, of every partition."""

    stream: str
    timestamp: Int64


class Positions(msgspec.Struct, forbid_unknown_fields=True):
    """Where a group is in a stream."""

    group: str
    stream: str


class SavePositions(msgspec.Struct, forbid_unknown_fields=True):
    """Save positions of a group, by stream and partition."""

    group: str
    positions: dict[str, dict[Int64, Int64]]


class CreateStream(msgspec.Struct, forbid_unknown_fields=True):
    """Make a stream."""

    name: str
    partitions: Int64 = 1


class Publish(msgspec.Struct, forbid_unknown_fields=True):
    """Make staged parts visible."""

    writer: str
    epoch: Index
    parts: list[str]


class Discard(msgspec.Struct, forbid_unknown_fields=True):
    """Forget what is staged."""

    writer: str
    epoch: Index


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """An action without a body."""


_NUMBER: Final = re.compile("[0-9]{1,9}")
_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def parse(body: bytes, kind: type[T], what: str) -> T:
    """The JSON of a `what` (ticket, descriptor, action) as `kind`."""
    _check_size(body, what)
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except _ERRORS as error:
        raise BadFormat(
            f"the {what} is not what is expected: {error}. It is a JSON object with "
            f"{', '.join(field.encode_name for field in msgspec.structs.fields(kind))}"
        ) from None


def parse_put(command: bytes | None, path: Sequence[bytes] | None) -> Append | Staging:
    """Where batches go: a command in JSON, or the path stream[/partition]."""
    if command is None:
        return parse_path(path, Append)
    _check_size(command, "descriptor")
    try:
        given: Any = msgspec.json.decode(command)
    except _ERRORS:
        given = None
    if isinstance(given, dict) and "writer" in given:
        return parse(command, Staging, "descriptor")
    return parse(command, Append, "descriptor")


def parse_read(command: bytes | None, path: Sequence[bytes] | None) -> Read:
    """What to describe: a command in JSON, or the path stream[/partition]."""
    return parse_path(path, Read) if command is None else parse(command, Read, "descriptor")


def parse_path(path: Sequence[bytes] | None, kind: type[T]) -> T:
    """The path of a descriptor: a stream, and a partition if wished."""
    words = [word.decode("utf-8", "replace") for word in path or ()]
    if len(words) == 1:
        return msgspec.convert({"stream": words[0]}, kind)
    if len(words) == 2 and _NUMBER.fullmatch(words[1]):
        return msgspec.convert({"stream": words[0], "partition": int(words[1])}, kind)
    raise BadFormat(f"the path is {words!r:.200}: give a stream, and a partition if wished")


def _check_size(body: bytes, what: str) -> None:
    if len(body) > limits.FLIGHT_BODY_BYTES_MAX:
        raise BatchTooLarge(
            f"a {what} of {len(body)} bytes: at most {limits.FLIGHT_BODY_BYTES_MAX}; ask in parts"
        )
