"""Notes: small things a door remembers."""

from __future__ import annotations

import pytest

from penstock import limits
from penstock.errors import BadName, TooMany
from penstock.log import Log
from tests.contract.log.base import Base, OpenLog


class NotesOfDoors(Base):
    def test_notes_are_kept_by_owner(self, log: Log, name: str) -> None:
        log.put_notes(name, {"a": b"1", "b": b""})
        log.put_notes(name + "-other", {"a": b"2"})
        log.put_notes(name, {"b": b"3", "c": b"4", "a": None, "no-such-note": None})
        assert log.notes(name) == {"b": b"3", "c": b"4"}
        assert log.notes(name + "-other") == {"a": b"2"}
        assert log.notes("nobody") == {}

    def test_notes_are_there_after_opening_again(self, open_log: OpenLog, name: str) -> None:
        with open_log(name) as log:
            log.put_notes("door", {"a": b"1", "b": b"2"})
            log.put_notes("door", {"b": None})
        with open_log(name) as log:
            assert log.notes("door") == {"a": b"1"}

    def test_notes_have_limits(self, log: Log, name: str) -> None:
        with pytest.raises(TooMany, match="at most"):
            log.put_notes(name, {"a": bytes(limits.NOTE_BYTES_MAX + 1)})
        with pytest.raises(BadName):
            log.put_notes(name, {"": b""})
        assert log.notes(name) == {}
