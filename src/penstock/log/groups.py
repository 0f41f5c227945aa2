"""Groups: who reads, and how far each got.

A position is the next index a group will read in a partition. It moves forward only, except by a
reset. A *registered* group holds retention back on a stream: what it has not read stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from penstock import limits
from penstock.errors import PositionBackwards, TooMany, UnknownGroup
from penstock.log.catalog import Catalog
from penstock.log.names import check_label


class _Membership:
    __slots__ = ("registered", "seen_at")

    def __init__(self, registered: bool, seen_at: int) -> None:
        self.registered = registered
        self.seen_at = seen_at


class Groups:
    """Positions and registrations, in memory and in the catalog. Times are in microseconds."""

    def __init__(self, catalog: Catalog, clock: Callable[[], int], stale_seconds: float) -> None:
        self._catalog = catalog
        self._clock = clock
        self._stale_us = int(stale_seconds * 1_000_000)
        self._lock = threading.Lock()
        self._members: dict[tuple[str, int], _Membership] = {}
        self._positions: dict[tuple[str, int], int] = {}
        for row in catalog.groups():
            self._members[row.group, row.stream] = _Membership(row.registered, row.seen_at)
        for position in catalog.positions():
            self._positions[position.group, position.pid] = position.position

    def register(self, group: str, stream: int) -> None:
        check_label(group, "group", limits.GROUP_NAME_BYTES_MAX)
        self._check_room(group, stream)
        now = self._clock()
        self._catalog.put_group(group, stream, True, now)
        with self._lock:
            self._members[group, stream] = _Membership(True, now)

    def drop(self, group: str, stream: int, pids: Iterable[int]) -> None:
        pids = list(pids)
        if (group, stream) not in self._members:
            raise self.unknown(group)
        self._catalog.drop_group(group, stream, pids)
        with self._lock:
            self._members.pop((group, stream), None)
            for pid in pids:
                self._positions.pop((group, pid), None)

    def streams_of(self, group: str) -> list[int]:
        return [stream for name, stream in list(self._members) if name == group]

    def members(self, stream: int) -> list[str]:
        return sorted(name for name, each in list(self._members) if each == stream)

    def is_registered(self, group: str, stream: int) -> bool:
        member = self._members.get((group, stream))
        return member is not None and member.registered

    def is_stale(self, group: str, stream: int) -> bool:
        member = self._members.get((group, stream))
        return (
            member is not None
            and member.registered
            and self._clock() - member.seen_at > self._stale_us
        )

    def position(self, group: str, pid: int) -> int | None:
        return self._positions.get((group, pid))

    def save(self, group: str, stream: int, moves: dict[int, int], *, backwards: bool) -> None:
        """`moves` are positions by pid; already checked against the ends of the partitions."""
        check_label(group, "group", limits.GROUP_NAME_BYTES_MAX)
        self._check_room(group, stream)
        if not backwards:
            for pid, position in moves.items():
                before = self._positions.get((group, pid), 0)
                if position < before:
                    raise PositionBackwards(
                        f"group {group!r} is at {before} and cannot save {position}: positions "
                        "only move forward; use a reset to read again"
                    )
        now = self._clock()
        self._catalog.save_positions(group, stream, list(moves.items()), now)
        with self._lock:
            for pid, position in moves.items():
                key = (group, pid)
                if backwards or position > self._positions.get(key, -1):
                    self._positions[key] = position
            member = self._members.setdefault((group, stream), _Membership(False, now))
            member.seen_at = now

    def holder(self, stream: int, pid: int) -> tuple[int, str] | None:
        """The lowest position of a registered group, and whose it is."""
        lowest: tuple[int, str] | None = None
        for (group, each), member in list(self._members.items()):
            if each == stream and member.registered:
                position = self._positions.get((group, pid), 0)
                if lowest is None or position < lowest[0]:
                    lowest = (position, group)
        return lowest

    def forget_stream(self, stream: int, pids: set[int]) -> None:
        with self._lock:
            for key in [key for key in self._members if key[1] == stream]:
                del self._members[key]
            for key in [key for key in self._positions if key[1] in pids]:
                del self._positions[key]

    def unknown(self, group: str) -> UnknownGroup:
        names = sorted({name for name, _ in self._members})
        if group in names:
            return UnknownGroup(f"group {group!r:.300} is not on this stream, only on others")
        shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        return UnknownGroup(f"there is no group {group!r:.300}; groups are: {shown or 'none yet'}")

    def _check_room(self, group: str, stream: int) -> None:
        if (group, stream) not in self._members and len(self._members) >= limits.GROUPS_MAX:
            raise TooMany(
                f"{len(self._members)} groups are kept already, at most {limits.GROUPS_MAX}: "
                "drop those that no longer read"
            )
