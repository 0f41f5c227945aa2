"""What the Flight door answers: every method of Flight.

Errors of `errors.py` travel as Flight errors whose extra information is JSON with the error's
code; `wire.py` has both directions.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from penstock import limits
from penstock.errors import BadFormat, UnknownStream
from penstock.flight import requests as asks
from penstock.flight import wire
from penstock.flight.actions import ACTIONS, Actions, require_some_write
from penstock.flight.gate import GATE, Gate, told, user_of
from penstock.flight.reads import Reads
from penstock.flight.writes import Appending, stage
from penstock.hub.users import require
from penstock.log import SCHEMA

if TYPE_CHECKING:
    from penstock.hub.hub import Hub

T = TypeVar("T")
# gRPC would write about every peer that breaks its rules to standard error.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Flight's methods on a hub. It listens as soon as it is made."""

    def __init__(
        self,
        hub: Hub,
        location: str,
        pair: tuple[bytes, bytes] | None,
        loop: asyncio.AbstractEventLoop,
        stopping: threading.Event,
    ) -> None:
        self.gate = Gate(hub, loop, stopping)
        self._hub = hub
        self._stopping = stopping
        self._reads = Reads(hub.log, stopping)
        self._actions = Actions(hub, self._reads)
        super().__init__(
            location,
            tls_certificates=None if pair is None else [pair],
            middleware={GATE: self.gate},
        )

    # -- what there is ---------------------------------------------------------------------------

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """The streams the user may read; criteria is a pattern like `orders.*`."""
        with told(self._hub):
            try:
                pattern = criteria.decode() or "*"
            except UnicodeDecodeError:
                raise BadFormat("the criteria are a pattern of stream names, as UTF-8") from None
            if len(pattern) > limits.STREAM_NAME_CHARS_MAX:
                raise BadFormat(
                    f"a pattern of {len(pattern)} characters: at most "
                    f"{limits.STREAM_NAME_CHARS_MAX}"
                )
            names = self._reads.names(user_of(context))
        return self._guarded(self._infos(fnmatch.filter(names, pattern)))

    def _infos(self, names: list[str]) -> Iterator[flight.FlightInfo]:
        for name in names:
            with contextlib.suppress(UnknownStream):  # deleted meanwhile
                yield self._info(asks.Read(name), None, sized=False)

    def get_flight_info(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        """A stream, with an endpoint for each partition; or one partition."""
        with told(self._hub):
            asked, partition = self._described(context, descriptor)
            return self._info(asked, partition, sized=True)

    def get_schema(self, context: Any, descriptor: Any) -> flight.SchemaResult:
        """The same for all streams, but for the columns asked for."""
        with told(self._hub):
            asked, _ = self._described(context, descriptor)
            self._hub.log.all_bounds(asked.stream)
            return flight.SchemaResult(_schema(asked.checked_columns()))

    def _described(self, context: Any, descriptor: Any) -> tuple[asks.Read, int | None]:
        command, path = descriptor.command, descriptor.path
        asked = asks.parse_read(command, path)
        require(user_of(context), "read", asked.stream)
        named = len(path) > 1 if command is None else b'"partition"' in command
        return asked, asked.partition if named else None

    def _info(self, asked: asks.Read, partition: int | None, *, sized: bool) -> flight.FlightInfo:
        numbers = range(len(self._hub.log.all_bounds(asked.stream)))
        columns = asked.checked_columns()
        endpoints = []
        records = nbytes = 0
        for number in numbers if partition is None else [partition]:
            each = asks.Read(asked.stream, number, asked.start, asked.end, asked.columns)
            start, end = self._reads.range_of(each)
            ticket = {"stream": asked.stream, "partition": number, "from": start, "to": end}
            if asked.columns is not None:
                ticket["columns"] = columns
            endpoints.append(flight.FlightEndpoint(wire.encode(ticket), []))
            records += end - start
            if sized:
                nbytes += self._reads.size_of(asked.stream, number, start, end)
        return flight.FlightInfo(
            _schema(columns),
            flight.FlightDescriptor.for_path(asked.stream),
            endpoints,
            records,
            nbytes if sized else -1,
        )

    # -- records ---------------------------------------------------------------------------------

    def do_get(self, context: Any, ticket: Any) -> flight.GeneratorStream:
        """Exactly the records of a ticket, or an error."""
        with told(self._hub):
            asked = asks.parse(ticket.ticket, asks.Read, "ticket")
            require(user_of(context), "read", asked.stream)
            columns = asked.checked_columns()
            start, end = self._reads.range_of(asked)
            batches = self._reads.batches(asked.stream, asked.partition, start, end, columns)
            return flight.GeneratorStream(_schema(columns), self._guarded(batches))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Append or stage batches, as the descriptor says."""
        with told(self._hub):
            user = user_of(context)
            asked = asks.parse_put(descriptor.command, descriptor.path)
            if isinstance(asked, asks.Staging):
                require_some_write(user)
                stage(self._hub, asked, user, reader, writer, self._stopping)
            else:
                require(user, "write", asked.stream)
                Appending(self._hub, asked, writer, self._stopping).run(reader)

    # -- actions ---------------------------------------------------------------------------------

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """The actions and what they do."""
        return [(name, action.text) for name, action in ACTIONS.items()]

    def do_action(self, context: Any, action: Any) -> list[flight.Result]:
        """One action: JSON in, JSON out."""
        with told(self._hub):
            answer = self._actions.run(user_of(context), action.type, action.body)
            return [flight.Result(wire.encode(answer))]

    def _guarded(self, items: Iterator[T]) -> Iterator[T]:
        """What comes of `items`, with errors in Flight's words."""
        with told(self._hub):
            yield from items


def _schema(columns: list[str]) -> pa.Schema:
    return pa.schema([SCHEMA.field(name) for name in columns])
