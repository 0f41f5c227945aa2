"""Notes: what doors remember that is no record, as how far a connector's streams got."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from penstock import limits
from penstock.errors import TooMany
from penstock.log.catalog import Catalog
from penstock.log.names import check_label


class Notes:
    """All notes, kept in memory and in the catalog. Threads may share it."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._by_owner: dict[str, dict[str, bytes]] = {}
        self._count = 0
        for owner, name, value in catalog.notes():
            self._keep(owner, {name: value})

    def get(self, owner: str) -> dict[str, bytes]:
        with self._lock:
            return dict(self._by_owner.get(owner, {}))

    def put(self, owner: str, notes: Mapping[str, bytes | None]) -> None:
        check_label(owner, "owner", limits.NOTE_NAME_BYTES_MAX)
        for name, value in notes.items():
            check_label(name, "note", limits.NOTE_NAME_BYTES_MAX)
            if value is not None and len(value) > limits.NOTE_BYTES_MAX:
                raise TooMany(f"a note of {len(value)} bytes: at most {limits.NOTE_BYTES_MAX}")
        if self._count + len(notes) > limits.NOTES_MAX:
            raise TooMany(
                f"{self._count} notes are kept already, at most {limits.NOTES_MAX}: forget those "
                "of connectors that are gone"
            )
        if notes:
            self._catalog.put_notes(owner, list(notes.items()))
            with self._lock:
                self._keep(owner, notes)

    def _keep(self, owner: str, notes: Mapping[str, bytes | None]) -> None:
        own = self._by_owner.setdefault(owner, {})
        self._count -= len(own)
        for name, value in notes.items():
            if value is None:
                own.pop(name, None)
            else:
                own[name] = value
        self._count += len(own)
