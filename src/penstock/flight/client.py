"""The hub through Arrow Flight, synchronous: what Spark's side uses, and any bulk reader or writer.

with FlightClient("http://127.0.0.1:7470") as hub:
    hub.append("orders", pa.record_batch({"value": [b"one", b"two"]}))
    for batch in hub.read("orders", 0, 0, 2):
        print(batch.to_pylist())

It needs nothing but Arrow. Errors of the hub are raised as the classes of `penstock.errors`.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

import pyarrow as pa
from pyarrow import flight

from penstock import limits
from penstock.errors import BadSetting, HubBusy, HubUnreachable, PenstockError, RemoteError
from penstock.flight import wire
from penstock.flight.address import Address, find
from penstock.flight.puts import Appender, Stager
from penstock.flight.wire import Appended, Bounds, HubInfo, Published

__all__ = ["Appended", "Appender", "Bounds", "FlightClient", "HubInfo", "Published", "Stager"]

T = TypeVar("T")
_CHANNEL = [
    ("grpc.keepalive_time_ms", 360_000),  # more often than every 5 minutes the hub would refuse
    ("grpc.keepalive_timeout_ms", 20_000),
]
_BUSY_STEP_S = 0.05


class FlightClient:
    """Talks to one hub. May be used by several threads."""

    def __init__(
        self, url: str | None = None, token: str | None = None, ca: str | None = None
    ) -> None:
        """`url` is the hub's HTTP address, or `grpc://host:port` or `grpc+tls://` of its door.

        What is not given comes from PENSTOCK_URL, PENSTOCK_TOKEN and PENSTOCK_CA.
        """
        found: Address = find(url, token, ca)
        self.address = found.location
        self._headers = (
            [(b"authorization", b"Bearer " + found.token.encode())] if found.token else []
        )
        self._names: tuple[str, list[str]] = ("", [])
        try:
            self._client = flight.FlightClient(
                found.location, tls_root_certs=found.roots, generic_options=_CHANNEL
            )
        except pa.ArrowException as error:
            raise BadSetting(f"{found.location!r:.100} cannot be used: {error}") from None

    def close(self) -> None:
        """Close the connection; calls under way end with an error."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- asking ----------------------------------------------------------------------------------

    def info(self) -> HubInfo:
        """The hub's version, and where its data is."""
        told = self._ask("info", {})
        return HubInfo(told["version"], told["user"], told.get("data"), told.get("data_id"))

    def streams(self) -> list[str]:
        """The names of all streams that may be read, sorted."""
        self._look({"streams": [], "names": ""})
        return list(self._names[1])

    def look(
        self,
        streams: Sequence[str] | None = None,
        pattern: str | None = None,
        *,
        known: Mapping[str, Sequence[int]] | None = None,
        wait_seconds: float = 0.0,
    ) -> dict[str, list[Bounds]]:
        """The bounds of every partition: of `streams`, of those a pattern matches, or of all.

        The pattern is a Python regular expression for the whole name. With `known`, the ends
        already seen, it waits up to `wait_seconds` for records beyond them, or for a new stream
        or partition.
        """
        if streams is not None and pattern is not None:
            raise BadSetting("streams and pattern exclude each other: give one")
        deadline = time.monotonic() + wait_seconds
        wanted = list(streams) if streams is not None else None
        chosen = _matcher(pattern)
        while True:
            left = deadline - time.monotonic()
            asked: dict[str, Any] = {"known": None, "wait": 0.0}
            if known is not None and left > 0:
                asked["known"] = {name: list(ends) for name, ends in known.items()}
                asked["wait"] = min(left, limits.FLIGHT_WAIT_S_MAX)
            if wanted is None:
                asked["names"] = self._names[0]
                asked["streams"] = [name for name in self._names[1] if chosen(name)]
            else:
                asked["streams"] = wanted
            before = asked.get("names")
            found = self._look(asked)
            if wanted is None and before != self._names[0]:
                continue  # streams came or went: look at those that match now
            if known is None or left <= 0 or _is_new(found, known):
                return found

    def _look(self, asked: dict[str, Any]) -> dict[str, list[Bounds]]:
        told = self._ask("look", asked)
        if "names" in told:
            self._names = (told["digest"], told["names"])
        return {
            name: [Bounds(*each) for each in partitions]
            for name, partitions in told["streams"].items()
        }

    def index_at(self, stream: str, timestamp_us: int) -> list[int]:
        """Per partition the first index at or after this time; the end if there is none."""
        told = self._ask("index_at", {"stream": stream, "timestamp": timestamp_us})
        return [int(index) for index in told["indexes"]]

    def create_stream(self, name: str, partitions: int = 1) -> None:
        """Make a stream. Needs the right to administer it."""
        self._ask("create_stream", {"name": name, "partitions": partitions})

    def positions(self, group: str, stream: str) -> dict[int, int]:
        """The next index the group will read, of the partitions where it saved one."""
        told = self._ask("positions", {"group": group, "stream": stream})
        return {int(number): index for number, index in told["positions"].items()}

    def save_positions(self, group: str, positions: Mapping[str, Mapping[int, int]]) -> None:
        """Save positions by stream and partition; on disk when this returns.

        A position that would move backwards is left as it is.
        """
        asked = {
            stream: {str(number): index for number, index in moves.items()}
            for stream, moves in positions.items()
        }
        self._ask("save_positions", {"group": group, "positions": asked})

    # -- records ---------------------------------------------------------------------------------

    def read(
        self,
        stream: str,
        partition: int,
        start: int,
        end: int,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Exactly the records `start` to `end`, the latter not included, or an error.

        `columns` are of index, timestamp, key, value and headers; all by default.
        """
        asked = {"stream": stream, "partition": partition, "from": start, "to": end}
        if columns is not None:
            asked["columns"] = list(columns)
        ticket = flight.Ticket(wire.encode(asked))
        reader, first = self._patiently(lambda: self._open(ticket))
        at = start
        try:
            while first is not None:
                at += first.num_rows
                yield first
                with self._told():
                    first = _next(reader)
        finally:
            if first is not None:
                reader.cancel()
        if at != end:
            raise RemoteError(
                f"the hub gave {at - start} records of {stream}/{partition} from {start} on, and "
                f"not the {end - start} asked for"
            )

    def _open(self, ticket: flight.Ticket) -> tuple[Any, pa.RecordBatch | None]:
        with self._told():
            reader = self._client.do_get(ticket, self._options(None))
            return reader, _next(reader)

    def append(
        self,
        stream: str,
        batch: pa.RecordBatch | pa.Table,
        partition: int | None = None,
        *,
        producer: str | None = None,
        ids: Sequence[int] | Any | None = None,
        first_id: int | None = None,
        drop_resent: bool = True,
    ) -> Appended:
        """Append columns value and, if wished, key, timestamp, headers; on disk when this returns.

        With a producer and ids (or the first of them), records sent before are dropped.
        """
        if ids is not None:
            batch = batch.append_column("id", pa.array(ids, pa.uint64()))

        def attempt() -> Appended:
            with self.appender(
                stream, partition, producer=producer, first_id=first_id, drop_resent=drop_resent
            ) as appender:
                appender.write(batch)
                return appender.flush()

        return self._patiently(attempt)

    def appender(
        self,
        stream: str,
        partition: int | None = None,
        *,
        producer: str | None = None,
        first_id: int | None = None,
        drop_resent: bool = True,
        on_confirmed: Callable[[Appended], None] | None = None,
    ) -> Appender:
        """Append many batches without waiting for each; a context manager.

        `on_confirmed` is called for each batch, in order, once it is on disk. Larger batches go
        in parts, with a confirmation each.
        """
        asked = {
            "stream": stream,
            "partition": partition,
            "producer": producer,
            "first_id": first_id,
            "drop_resent": drop_resent,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        return Appender(self._put, given, on_confirmed)

    # -- staging ---------------------------------------------------------------------------------

    def stage(self, writer: str, epoch: int) -> Stager:
        """Send records that stay invisible until `publish`; a context manager.

        Their columns are those of `penstock.flight.wire.STAGED`.
        """
        return Stager(self._put, {"writer": writer, "epoch": epoch})

    def publish(self, writer: str, epoch: int, parts: Sequence[str]) -> Published:
        """Make staged parts visible, all at once and once, however often this is called."""
        told = self._ask("publish", {"writer": writer, "epoch": epoch, "parts": list(parts)})
        return Published(told["records"], told["already"])

    def discard(self, writer: str, epoch: int) -> None:
        """Forget what is staged for this epoch."""
        self._ask("discard", {"writer": writer, "epoch": epoch})

    # -- calling ---------------------------------------------------------------------------------

    def _ask(self, action: str, body: Mapping[str, Any]) -> dict[str, Any]:
        def attempt() -> dict[str, Any]:
            with self._told():
                call = flight.Action(action, wire.encode(body))
                results = list(
                    self._client.do_action(call, self._options(limits.FLIGHT_CALL_S_MAX))
                )
            return wire.decode(results[0].body) if results else {}

        return self._patiently(attempt)

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """Try again while the hub serves too many others: it has done nothing then."""
        deadline = time.monotonic() + limits.FLIGHT_BUSY_S_MAX
        pause = _BUSY_STEP_S
        while True:
            try:
                return attempt()
            except HubBusy:
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def _put(self, command: Mapping[str, Any], schema: pa.Schema) -> tuple[Any, Any, Any]:
        """Begin to send batches; the writer, what reads the answers, and who explains errors."""
        descriptor = flight.FlightDescriptor.for_command(wire.encode(command))
        with self._told():
            writer, answers = self._client.do_put(descriptor, schema, self._options(None))
        return writer, answers, self._told

    def _options(self, seconds: float | None) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=seconds, headers=self._headers)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:  # Arrow raises either
            raise self._explained(error) from None

    def _explained(self, error: Exception) -> PenstockError:
        told = getattr(error, "extra_info", b"")
        if told:
            return wire.from_body(wire.decode(told))
        text = str(error).split(". gRPC client debug context:")[0][:500]
        if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
            return RemoteError(f"the hub at {self.address} refuses the call: {text}")
        if isinstance(error, flight.FlightError | OSError):
            return HubUnreachable(
                f"the Flight door at {self.address} does not answer ({text}): is the hub running? "
                "Start it with: penstock serve"
            )
        return RemoteError(f"the call to the Flight door at {self.address} failed: {text}")


def _next(reader: Any) -> pa.RecordBatch | None:
    try:
        return reader.read_chunk().data
    except StopIteration:
        return None


def _matcher(pattern: str | None) -> Callable[[str], object]:
    if pattern is None:
        return lambda name: True
    try:
        return re.compile(pattern).fullmatch
    except (re.error, RecursionError, OverflowError) as error:
        raise BadSetting(f"{pattern!r:.100} is no regular expression: {error}") from None


def _is_new(found: Mapping[str, list[Bounds]], known: Mapping[str, Sequence[int]]) -> bool:
    """Whether something is beyond the known ends."""
    for name, partitions in found.items():
        ends = known.get(name, ())
        if len(partitions) > len(ends):
            return True
        if any(bounds.end > end for bounds, end in zip(partitions, ends, strict=False)):
            return True
    return False
