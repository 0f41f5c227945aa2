"""What the API shows of Wallaroo's connectors, and what operators may do to them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock import limits
from penstock.errors import BadFormat, BadSetting, DoorClosed, UnknownSession, UnknownStream
from penstock.hub.requests import WallarooDebug, WallarooRewind
from penstock.hub.users import User, require
from penstock.protocols.wallaroo import points
from penstock.protocols.wallaroo.wire import Dialect

if TYPE_CHECKING:
    from penstock.hub.hub import Hub
    from penstock.protocols.wallaroo.connection import Connection
    from penstock.protocols.wallaroo.door import WallarooDoor

_U64_MAX = 2**64 - 1


class SessionInfo(msgspec.Struct, frozen=True):
    """A connector's session."""

    session: int
    peer: str
    program: str
    instance: str
    dialect: str
    state: str
    opened_at: int
    credits: int
    window: int
    unsettled: int
    """Messages that are not on disk yet."""
    streams: int
    stored: int
    ignored: int
    repeated: int
    stutter_seconds: float
    hold_credits: bool


class ConnectorStream(msgspec.Struct, frozen=True):
    """A connector's stream, in a session or between two."""

    program: str
    instance: str
    id: int
    name: str
    stream: str
    partition: int
    session: int | None
    state: str
    """Of the session's stream; `known` if no session has it."""
    last: int | None
    last_stable: int | None
    acked: int | None
    ref: int | None
    """The point of reference: the connector goes on after it."""
    nacks: int


class WallarooApi:
    """Looks into the Wallaroo door, if it is open."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def _door(self) -> WallarooDoor:
        from penstock.protocols.wallaroo.door import WallarooDoor

        for door in self._hub.doors:
            if isinstance(door, WallarooDoor):
                return door
        raise DoorClosed("the door for Wallaroo's connectors is closed: set wallaroo.listen")

    def sessions(self, user: User) -> list[SessionInfo]:
        """Those with a stream that the user may read."""
        found = []
        for each in self._door().by_number.values():
            streams = each.session.streams()
            if any(user.may("read", it.stream) for it in streams) or user.may("admin", "*"):
                found.append(_session_info(each, len(streams)))
        return found

    def streams(self, user: User) -> list[ConnectorStream]:
        """Those the user may read."""
        door = self._door()
        live: dict[tuple[str, int], list[tuple[int, Any]]] = {}
        for each in door.by_number.values():
            for view in each.session.streams():
                live.setdefault((each.producer, view.id), []).append((each.number, view))
        found = []
        for producer, stream, entry in door.book.all():
            if not user.may("read", entry.stream):
                continue
            program, instance = points.names_of(producer)
            ref = door.point_of(producer, entry)
            head = (program, instance, stream, entry.owner_name.decode(errors="replace"))
            where = (entry.stream, entry.partition)
            views = live.get((producer, stream), [])
            if not views:
                found.append(
                    ConnectorStream(*head, *where, None, "known", None, None, None, ref, 0)
                )
            for number, it in views:
                numbers = (it.last, it.last_stable, it.acked, ref, it.nacks)
                found.append(ConnectorStream(*head, *where, number, it.state, *numbers))
        return found

    def close(self, user: User, number: int) -> None:
        """Close a session; the connector may come back."""
        self._session(user, number).cut()

    async def rewind(self, user: User, wanted: WallarooRewind) -> ConnectorStream:
        """Have a stream sent again."""
        door = self._door()
        for value in (wanted.stream, wanted.ref or 0):
            if value > _U64_MAX:
                raise BadFormat(f"{value} is no id: they go up to {_U64_MAX}")
        producer = points.producer(wanted.program, wanted.instance)
        entry = door.book.of(producer).get(wanted.stream)
        # Who may not see it learns nothing about it.
        require(user, "admin", "*" if entry is None else entry.stream)
        await door.rewind(producer, wanted.stream, wanted.ref)
        for each in self.streams(user):
            if (each.program, each.instance, each.id) == (
                wanted.program, wanted.instance, wanted.stream,
            ):  # fmt: skip
                return each
        raise UnknownStream(f"stream {wanted.stream} is gone meanwhile")

    def debug(self, user: User, number: int, wanted: WallarooDebug) -> SessionInfo:
        """Make faults on purpose."""
        door = self._door()
        if not door.settings.debug:
            raise BadSetting("faults are not made on purpose here: set wallaroo.debug = true")
        found = self._session(user, number)
        session = found.session
        if wanted.stutter_seconds is not None:
            found.stutter_s = wanted.stutter_seconds
        if wanted.hold_credits is not None:
            session.credits.held = wanted.hold_credits
        if wanted.force == "nack":
            if wanted.stream is None:
                raise BadFormat("nack needs a stream id: give stream")
            found.do(session.nack(wanted.stream, min(wanted.ref, _U64_MAX)))
        elif wanted.force == "error":
            found.do(session.fail(wanted.text[:1000]))
        elif wanted.force == "restart":
            found.do(session.restart(wanted.text if ":" in wanted.text else ""))
        elif wanted.force == "cut":
            found.cut()
        found.flush()
        return _session_info(found, len(session.streams()))

    def _session(self, user: User, number: int) -> Connection:
        """A session all of whose streams are in the user's hands."""
        door = self._door()
        found = door.by_number.get(number)
        streams = [] if found is None else [each.stream for each in found.session.streams()]
        for stream in streams or ["*"]:
            require(user, "admin", stream)
        if found is None:
            numbers = ", ".join(map(str, list(door.by_number)[:10])) or "none"
            raise UnknownSession(f"there is no session {number}; sessions are: {numbers}")
        return found


def metrics_of(door: WallarooDoor) -> Iterator[Metric]:
    """Sessions by dialect, what they took, and how far each stream got. Called in a thread."""
    every = list(door.by_number.values())
    sessions = GaugeMetricFamily(
        "penstock_wallaroo_sessions", "Sessions of connectors", labels=["dialect"]
    )
    for dialect in Dialect:
        sessions.add_metric(
            [dialect.value], sum(each.session.dialect is dialect for each in every if each.producer)
        )
    yield sessions
    for name, text, value in (
        ("credits", "What connectors may send", sum(each.session.credits.left for each in every)),
        ("unsettled", "Taken, not on disk", sum(each.session.credits.taken for each in every)),
    ):
        yield GaugeMetricFamily(f"penstock_wallaroo_{name}", text, value)
    outcomes = CounterMetricFamily(
        "penstock_wallaroo_messages", "Messages taken, by what became of them", labels=["outcome"]
    )
    for outcome, count in zip(("stored", "ignored", "repeated"), door.counts(), strict=True):
        outcomes.add_metric([outcome], count)
    yield outcomes
    labels = ["program", "instance", "id", "state"]
    last = GaugeMetricFamily("penstock_wallaroo_stream_last_id", "Last message", labels=labels)
    stable = GaugeMetricFamily(
        "penstock_wallaroo_stream_last_stable_id", "Last point of reference", labels=labels
    )
    streams = ((each, view) for each in every for view in each.session.streams())
    for each, view in islice(streams, limits.METRIC_STREAMS_MAX):
        names = [*points.names_of(each.producer), str(view.id), view.state]
        if view.last is not None:
            last.add_metric(names, view.last)
        if view.last_stable is not None:
            stable.add_metric(names, view.last_stable)
    yield last
    yield stable


def _session_info(each: Connection, streams: int) -> SessionInfo:
    session = each.session
    hello = session.hello
    return SessionInfo(
        each.number,
        each.peer,
        hello.program if hello else "",
        hello.instance if hello else "",
        session.dialect.value,
        session.state.value,
        int(each.opened_at * 1_000_000),
        session.credits.left,
        session.credits.window,
        session.credits.taken,
        streams,
        *session.counts,
        each.stutter_s,
        session.credits.held,
    )
