"""The actions of the Flight door: JSON in, JSON out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import penstock
from penstock import limits
from penstock.errors import BadFormat, BatchTooLarge, Forbidden, PositionBackwards
from penstock.flight import requests as asks
from penstock.flight.reads import Reads
from penstock.hub.users import User, require

if TYPE_CHECKING:
    from penstock.hub.hub import Hub

_SAVE_TRIES: Final = 10


class _Action(NamedTuple):
    asks: Any
    text: str


ACTIONS: Final[dict[str, _Action]] = {
    "info": _Action(asks.Nothing, "version, user, and for who may read all: the data directory"),
    "look": _Action(asks.Look, "bounds of streams; may wait for more than what is known"),
    "index_at": _Action(asks.IndexAt, "per partition the first index at or after a time"),
    "positions": _Action(asks.Positions, "where a group is in a stream"),
    "save_positions": _Action(asks.SavePositions, "save positions; those behind are left"),
    "create_stream": _Action(asks.CreateStream, "make a stream"),
    "publish": _Action(asks.Publish, "make staged parts visible, all at once and once"),
    "discard": _Action(asks.Discard, "forget what is staged"),
}
"""Each is the method of `Actions` with its name."""


class Actions:
    """What actions do on a hub."""

    def __init__(self, hub: Hub, reads: Reads) -> None:
        self._hub = hub
        self._log = hub.log
        self._reads = reads

    def run(self, user: User, name: str, body: Any) -> dict[str, Any]:
        """The answer of one action."""
        action = ACTIONS.get(name)
        if action is None:
            raise BadFormat(f"there is no action {name!r:.100}; actions are: {', '.join(ACTIONS)}")
        if body.size > limits.FLIGHT_BODY_BYTES_MAX:
            raise BatchTooLarge(
                f"a body of {body.size} bytes: at most {limits.FLIGHT_BODY_BYTES_MAX}; ask in parts"
            )
        asked = asks.parse(body.to_pybytes(), action.asks, f"body of {name}")
        answer: dict[str, Any] = getattr(self, name)(user, asked)
        return answer

    def info(self, user: User, asked: asks.Nothing) -> dict[str, Any]:
        told: dict[str, Any] = {"version": penstock.__version__, "user": user.name}
        if any(each.pattern == "*" and each.right in ("read", "admin") for each in user.grants):
            data = Path(self._hub.config.hub.data).resolve()
            told |= {"data": str(data), "data_id": self._hub.data_id}
        return told

    def look(self, user: User, asked: asks.Look) -> dict[str, Any]:
        return self._reads.look(user, asked)

    def index_at(self, user: User, asked: asks.IndexAt) -> dict[str, Any]:
        require(user, "read", asked.stream)
        numbers = range(len(self._log.all_bounds(asked.stream)))
        return {
            "indexes": [self._log.index_at(asked.stream, each, asked.timestamp) for each in numbers]
        }

    def positions(self, user: User, asked: asks.Positions) -> dict[str, Any]:
        require(user, "read", asked.stream)
        found = {
            str(number): self._log.position(asked.group, asked.stream, number)
            for number in range(len(self._log.all_bounds(asked.stream)))
        }
        return {"positions": {number: at for number, at in found.items() if at is not None}}

    def save_positions(self, user: User, asked: asks.SavePositions) -> dict[str, Any]:
        for stream in asked.positions:
            require(user, "read", stream)
        for stream, positions in asked.positions.items():
            self._save(asked.group, stream, positions)
        return {}

    def _save(self, group: str, stream: str, positions: dict[int, int]) -> None:
        """Save those that are not behind; another reader of the group may be moving them too."""
        for attempt in range(_SAVE_TRIES):
            ahead = {
                number: index
                for number, index in positions.items()
                if index >= (self._log.position(group, stream, number) or 0)
            }
            if not ahead:
                return
            try:
                self._log.save_positions(group, stream, ahead)
            except PositionBackwards:
                if attempt == _SAVE_TRIES - 1:
                    raise
            else:
                return

    def create_stream(self, user: User, asked: asks.CreateStream) -> dict[str, Any]:
        require(user, "admin", asked.name)
        self._log.create_stream(asked.name, asked.partitions)
        return {}

    def publish(self, user: User, asked: asks.Publish) -> dict[str, Any]:
        require_some_write(user)
        done = self._log.publish(asked.writer, asked.epoch, asked.parts)
        return {"records": done.records, "already": done.already}

    def discard(self, user: User, asked: asks.Discard) -> dict[str, Any]:
        require_some_write(user)
        self._log.discard(asked.writer, asked.epoch)
        return {}


def require_some_write(user: User) -> None:
    """Staged records may go to any stream, and each was checked as it came."""
    if not any(grant.right in ("write", "admin") for grant in user.grants):
        raise Forbidden(f"user {user.name!r} has no right to write to any stream")
