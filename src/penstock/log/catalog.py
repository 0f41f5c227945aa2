"""The catalog: streams, checkpoints, positions and producers, in SQLite.

Everything the log must know that is not a record. WAL with `synchronous = FULL`: a transaction
that returned is on disk. A checkpoint is one transaction, so what it says fits together.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from penstock.errors import DiskFull, FormatUnknown, StorageError, StorageFailed
from penstock.log.disk import Disk
from penstock.log.settings import StreamSettings

FORMAT: Final = "1"
_LATER: Final = (
    "CREATE TABLE IF NOT EXISTS publications (writer TEXT PRIMARY KEY, epoch INTEGER NOT NULL, "
    "at INTEGER NOT NULL, unfinished BLOB) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS notes (owner TEXT NOT NULL, name TEXT NOT NULL, "
    "value BLOB NOT NULL, PRIMARY KEY (owner, name)) WITHOUT ROWID",
)
"""Tables that came after format 1 was fixed; a data directory without them gets them."""

T = TypeVar("T")

_SCHEMA: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE streams (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, settings BLOB NOT NULL,
    created_at INTEGER NOT NULL);
CREATE TABLE partitions (
    pid INTEGER PRIMARY KEY AUTOINCREMENT, stream INTEGER NOT NULL, number INTEGER NOT NULL,
    earliest INTEGER NOT NULL DEFAULT 0, segment INTEGER NOT NULL DEFAULT 0,
    segment_size INTEGER NOT NULL DEFAULT 0, segments_end INTEGER NOT NULL DEFAULT 0,
    UNIQUE (stream, number));
CREATE TABLE producers (
    name BLOB NOT NULL, pid INTEGER NOT NULL, last_id BLOB NOT NULL, PRIMARY KEY (name, pid)
) WITHOUT ROWID;
CREATE TABLE groups (
    name TEXT NOT NULL, stream INTEGER NOT NULL, registered INTEGER NOT NULL DEFAULT 0,
    seen_at INTEGER NOT NULL, PRIMARY KEY (name, stream)) WITHOUT ROWID;
CREATE TABLE positions (
    name TEXT NOT NULL, pid INTEGER NOT NULL, position INTEGER NOT NULL, saved_at INTEGER NOT NULL,
    PRIMARY KEY (name, pid)) WITHOUT ROWID;
"""


class PartitionRow(NamedTuple):
    """A partition, as of the last checkpoint."""

    pid: int
    stream: int
    number: int
    earliest: int
    segment: int
    """Base index of the growing segment."""
    segment_size: int
    segments_end: int
    """Records below are in segments."""


class StreamRow(NamedTuple):
    """A stream; its id is never used again."""

    id: int
    name: str
    settings: StreamSettings
    created_at: int


class SegmentState(NamedTuple):
    """What a checkpoint says of one partition."""

    pid: int
    segment: int
    segment_size: int
    segments_end: int


class PositionRow(NamedTuple):
    """The next index a group will read."""

    group: str
    pid: int
    position: int
    saved_at: int


class PublicationRow(NamedTuple):
    """The last epoch of a writer; `unfinished`: how to finish it, if that is still to be done."""

    writer: str
    epoch: int
    at: int
    unfinished: bytes | None


class GroupRow(NamedTuple):
    """A group that reads a stream."""

    group: str
    stream: int
    registered: bool
    seen_at: int


class Catalog:
    """All reads and writes of the database. Threads may share it."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._waiting: list[tuple[Callable[[sqlite3.Connection], None], list[object]]] = []
        self._queue_lock = threading.Lock()
        try:
            self._db = disk.connect(path)
            found = self._db.execute(
                "SELECT count(*) FROM sqlite_master WHERE name = 'meta'"
            ).fetchone()
            if not found[0]:
                self._create()
            version = self.get("format")
            if version == FORMAT:
                self.write(lambda db: [db.execute(statement) for statement in _LATER])
        except sqlite3.DatabaseError as error:
            raise StorageError(
                f"{path} cannot be read as a database ({error}): restore it from a backup"
            ) from None
        if version != FORMAT:
            raise FormatUnknown(
                f"{path.parent} has data format {version}, this Penstock reads format {FORMAT}: "
                "use the version that wrote it"
            )

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _create(self) -> None:
        def create(db: sqlite3.Connection) -> None:
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            for name, value in (
                ("format", FORMAT), ("epoch", "0"), ("epoch_lsn", "0"), ("checkpoint", "0"),
                ("checkpoint_epoch", "0"),
            ):  # fmt: skip
                db.execute("INSERT INTO meta VALUES (?, ?)", (name, value))

        self.write(create)

    # -- transactions ----------------------------------------------------------------------------

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a transaction of its own; it is on disk when this returns."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    result = work(self._db)
                    self._db.commit()
                except BaseException:
                    if self._db.in_transaction:
                        self._db.rollback()
                    raise
            except sqlite3.Error as error:
                raise self._failure(error) from error
        return result

    def write_gathered(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Like `write`, but work that waits meanwhile shares the next transaction.

        Work must not fail for reasons of its own: it would fail its neighbours too.
        """
        ticket: list[object] = []
        with self._queue_lock:
            self._waiting.append((work, ticket))
        with self._lock:
            if not ticket:
                with self._queue_lock:
                    taken, self._waiting = self._waiting, []
                outcome: object = None
                try:
                    self.write(lambda db: [each(db) for each, _ in taken])
                except Exception as error:  # noqa: BLE001 - each waiter gets it
                    outcome = error
                for _, waiting in taken:
                    waiting.append(outcome)
        if isinstance(ticket[0], Exception):
            raise ticket[0]

    def _failure(self, error: sqlite3.Error) -> Exception:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
            return DiskFull(f"no space is left to write {self._path}: free some, then try again")
        return StorageFailed(f"writing {self._path} failed: {error}. Check the disk")

    # -- meta ------------------------------------------------------------------------------------

    def get(self, name: str) -> str:
        with self._lock:
            row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return row[0] if row else ""

    def get_int(self, name: str) -> int:
        return int(self.get(name) or 0)

    def new_epoch(self, lsn: int) -> int:
        """Count up the epoch, on disk, and return it. What stands at `lsn` and above is void."""

        def count_up(db: sqlite3.Connection) -> int:
            epoch = int(db.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()[0]) + 1
            for name, value in (("epoch", epoch), ("epoch_lsn", lsn)):
                db.execute("UPDATE meta SET value = ? WHERE name = ?", (str(value), name))
            return epoch

        return self.write(count_up)

    def epoch_since(self) -> tuple[int, int]:
        """The last epoch, and the lsn it began at: no frame from there on is of an older one."""
        return self.get_int("epoch"), self.get_int("epoch_lsn")

    # -- streams ---------------------------------------------------------------------------------

    def streams(self) -> list[StreamRow]:
        with self._lock:
            rows = self._db.execute("SELECT id, name, settings, created_at FROM streams").fetchall()
        decode = msgspec.json.Decoder(StreamSettings).decode
        return [StreamRow(id_, name, decode(text), at) for id_, name, text, at in rows]

    def partitions(self) -> list[PartitionRow]:
        with self._lock:
            rows = self._db.execute(
                "SELECT pid, stream, number, earliest, segment, segment_size, segments_end "
                "FROM partitions ORDER BY stream, number"
            ).fetchall()
        return [PartitionRow(*row) for row in rows]

    def create_stream(
        self, name: str, settings: StreamSettings, partitions: int, created_at: int
    ) -> tuple[int, list[int]]:
        """Returns the stream's id and the partitions' pids. Neither is ever used again."""

        def create(db: sqlite3.Connection) -> tuple[int, list[int]]:
            stream = db.execute(
                "INSERT INTO streams (name, settings, created_at) VALUES (?, ?, ?)",
                (name, msgspec.json.encode(settings), created_at),
            ).lastrowid
            assert stream is not None
            return stream, _insert_partitions(db, stream, range(partitions))

        return self.write(create)

    def add_partitions(self, stream: int, numbers: range) -> list[int]:
        return self.write(lambda db: _insert_partitions(db, stream, numbers))

    def change_settings(self, stream: int, settings: StreamSettings) -> None:
        text = msgspec.json.encode(settings)
        self.write(
            lambda db: db.execute("UPDATE streams SET settings = ? WHERE id = ?", (text, stream))
        )

    def delete_stream(self, stream: int, pids: Iterable[int]) -> None:
        gone = [(pid,) for pid in pids]

        def delete(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM streams WHERE id = ?", (stream,))
            db.execute("DELETE FROM partitions WHERE stream = ?", (stream,))
            db.execute("DELETE FROM groups WHERE stream = ?", (stream,))
            db.executemany("DELETE FROM positions WHERE pid = ?", gone)
            db.executemany("DELETE FROM producers WHERE pid = ?", gone)

        self.write(delete)

    def set_earliest(self, pid: int, earliest: int) -> None:
        self.write(
            lambda db: db.execute(
                "UPDATE partitions SET earliest = ? WHERE pid = ?", (earliest, pid)
            )
        )

    # -- checkpoints -----------------------------------------------------------------------------

    def checkpoint(
        self,
        lsn: int,
        epoch: int,
        segments: list[SegmentState],
        producers: dict[tuple[bytes, int], int],
    ) -> None:
        """Everything below `lsn` is in segments, which are on disk as `segments` says."""
        last_ids = [(name, pid, last.to_bytes(8, "big")) for (name, pid), last in producers.items()]
        states = [(s.segment, s.segment_size, s.segments_end, s.pid) for s in segments]

        def store(db: sqlite3.Connection) -> None:
            db.executemany(
                "UPDATE partitions SET segment = ?, segment_size = ?, segments_end = ? "
                "WHERE pid = ?",
                states,
            )
            db.executemany("INSERT OR REPLACE INTO producers VALUES (?, ?, ?)", last_ids)
            for name, value in (("checkpoint", lsn), ("checkpoint_epoch", epoch)):
                db.execute("UPDATE meta SET value = ? WHERE name = ?", (str(value), name))

        self.write(store)

    def producers(self) -> dict[tuple[bytes, int], int]:
        with self._lock:
            rows = self._db.execute("SELECT name, pid, last_id FROM producers").fetchall()
        return {(name, pid): int.from_bytes(last, "big") for name, pid, last in rows}

    # -- groups and positions --------------------------------------------------------------------

    def groups(self) -> list[GroupRow]:
        with self._lock:
            rows = self._db.execute(
                "SELECT name, stream, registered, seen_at FROM groups ORDER BY name, stream"
            ).fetchall()
        return [GroupRow(name, stream, bool(flag), at) for name, stream, flag, at in rows]

    def positions(self) -> list[PositionRow]:
        with self._lock:
            rows = self._db.execute(
                "SELECT name, pid, position, saved_at FROM positions"
            ).fetchall()
        return [PositionRow(*row) for row in rows]

    def put_group(self, group: str, stream: int, registered: bool, at: int) -> None:
        self.write(
            lambda db: db.execute(
                "INSERT OR REPLACE INTO groups VALUES (?, ?, ?, ?)",
                (group, stream, int(registered), at),
            )
        )

    def drop_group(self, group: str, stream: int, pids: Iterable[int]) -> None:
        gone = [(group, pid) for pid in pids]

        def drop(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM groups WHERE name = ? AND stream = ?", (group, stream))
            db.executemany("DELETE FROM positions WHERE name = ? AND pid = ?", gone)

        self.write(drop)

    def save_positions(
        self, group: str, stream: int, moves: list[tuple[int, int]], at: int
    ) -> None:
        """`moves` are (pid, position)."""
        rows = [(group, pid, position, at) for pid, position in moves]

        def save(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO groups VALUES (?, ?, 0, ?) "
                "ON CONFLICT (name, stream) DO UPDATE SET seen_at = excluded.seen_at",
                (group, stream, at),
            )
            db.executemany("INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?)", rows)

        self.write_gathered(save)

    # -- publications ----------------------------------------------------------------------------

    def publications(self) -> list[PublicationRow]:
        with self._lock:
            rows = self._db.execute(
                "SELECT writer, epoch, at, unfinished FROM publications"
            ).fetchall()
        return [PublicationRow(*row) for row in rows]

    def begin_publication(self, row: PublicationRow, next_id: int) -> None:
        """Note what is about to be published, and which producer id comes after it."""

        def begin(db: sqlite3.Connection) -> None:
            db.execute("INSERT OR REPLACE INTO publications VALUES (?, ?, ?, ?)", row)
            db.execute("INSERT OR REPLACE INTO meta VALUES ('publish_id', ?)", (str(next_id),))

        self.write(begin)

    def end_publication(self, writer: str) -> None:
        self.write_gathered(
            lambda db: _run(
                db, "UPDATE publications SET unfinished = NULL WHERE writer = ?", (writer,)
            )
        )

    def forget_publications(self, writers: Iterable[str]) -> None:
        gone = [(writer,) for writer in writers]
        self.write(lambda db: db.executemany("DELETE FROM publications WHERE writer = ?", gone))

    # -- notes -----------------------------------------------------------------------------------

    def notes(self) -> list[tuple[str, str, bytes]]:
        """Owner, name and value of every note."""
        with self._lock:
            return self._db.execute("SELECT owner, name, value FROM notes").fetchall()

    def put_notes(self, owner: str, notes: Iterable[tuple[str, bytes | None]]) -> None:
        """A value of None removes the note."""
        changes = [(owner, name, value) for name, value in notes]

        def put(db: sqlite3.Connection) -> None:
            for own, name, value in changes:
                if value is None:
                    db.execute("DELETE FROM notes WHERE owner = ? AND name = ?", (own, name))
                else:
                    db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?, ?)", (own, name, value))

        self.write_gathered(put)

    def problems(self) -> list[str]:
        """What SQLite's own check finds wrong."""
        with self._lock:
            rows = self._db.execute("PRAGMA integrity_check").fetchall()
        return [row[0] for row in rows if row[0] != "ok"]


def _run(db: sqlite3.Connection, statement: str, values: tuple[object, ...]) -> None:
    db.execute(statement, values)


def _insert_partitions(db: sqlite3.Connection, stream: int, numbers: range) -> list[int]:
    pids = []
    for number in numbers:
        pid = db.execute(
            "INSERT INTO partitions (stream, number) VALUES (?, ?)", (stream, number)
        ).lastrowid
        assert pid is not None
        pids.append(pid)
    return pids
