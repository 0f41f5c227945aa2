"""A disk in memory that can crash, tear writes, fail and fill up on demand.

    disk = FakeDisk()
    disk.crash_at(17)                         # the 17th operation raises Crashed
    try:
        use(open_log("data", disk=disk, writer="inline"))
    except Crashed:
        pass
    disk = disk.after_crash(Loss.unsynced())  # what a power cut would leave

A write is on disk once its file was synced, a name (of a file made, renamed or removed) once its
directory was. Until then a power cut may keep it, lose it, or keep some of its sectors: `Loss` says
which. A killed process loses nothing, but what it had not synced is still not synced.

The catalog is trusted to be atomic, as SQLite is: its state is that of the last commit.
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from penstock.errors import DataDirectoryInUse
from penstock.log.disk import Buffer, Disk, File, Lock
from penstock.testing.fake_files import (
    Directory,
    Loss,
    Naming,
    Node,
    PowerCut,
    Truncate,
    Write,
    copied,
    digest,
    flipped,
    total,
)

Kind = Literal[
    "create", "write", "truncate", "sync", "rename", "remove", "make_directory",
    "sync_directory", "commit",
]  # fmt: skip
"""Operations that are counted: all that change the disk, or promise that it was changed."""

Full = Literal["no", "growth", "all"]


class Crashed(BaseException):
    """The disk stopped here, and everything above it stops with it.

    Not an `Exception`: nothing that handles errors may go on after it.
    """


class Stall:
    """Syncs that hang. `entered` is set once one does; `release` lets all go on."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.entered = threading.Event()
        self._released = threading.Event()

    def release(self) -> None:
        self._released.set()

    def wait(self) -> None:
        self.entered.set()
        self._released.wait()


class _Fault(NamedTuple):
    kind: Kind
    pattern: str
    number: int
    code: int


class FakeDisk(Disk):
    """A disk in memory. Threads may share it; it knows no directories but those it was given."""

    def __init__(self) -> None:
        self.operations = 0
        """How many operations there were; the next one is number `operations + 1`."""
        self.history: list[tuple[Kind, str]] = []
        self.crashed = False
        self.full: Full = "no"
        """`growth`: no file can grow; `all`: nothing can be written (as when each write copies)."""
        self.capacity: int | None = None
        """Bytes all files may have together; None: no limit."""
        self.on_operation: Callable[[int], None] | None = None
        """Called where a crash at this operation would be."""
        self._lock = threading.RLock()
        self._root = Directory()
        self._catalogs: dict[Path, bytes] = {}
        self._locks: set[Path] = set()
        self._crash_at: int | None = None
        self._faults: list[_Fault] = []
        self._seen: dict[_Fault, int] = {}
        self._stalls: list[Stall] = []
        self._last_write: tuple[Node, Write] | None = None

    # -- making it fail --------------------------------------------------------------------------

    def crash_at(self, operation: int) -> None:
        """Crash in the operation with this number: begun, and nobody knows how far it got."""
        self._crash_at = operation

    def fail(
        self, kind: Kind, pattern: str = "*", *, number: int = 1, code: int = errno.EIO
    ) -> None:
        """Fail the next operation (or the `number`-th from now) of a kind, on files so named.

        A write that fails has written half. What a failed sync should have written is never
        written by a later one.
        """
        self._faults.append(_Fault(kind, pattern, number, code))

    def mend(self) -> None:
        """Forget the failures that have not come yet."""
        with self._lock:
            self._faults.clear()
            self._seen.clear()

    def used(self) -> int:
        """Bytes of all files."""
        with self._lock:
            return total(self._root)

    def stall_syncs(self, pattern: str = "*") -> Stall:
        """Let syncs of files so named hang until released."""
        stall = Stall(pattern)
        self._stalls.append(stall)
        return stall

    def flip(self, path: Path, bit: int) -> None:
        """Flip one bit of a file, on disk and in memory."""
        at, mask = bit // 8, 1 << bit % 8
        with self._lock:
            node = self._node(path)
            for content in (node.content, node.synced):
                if at < len(content):
                    content[at] ^= mask
            node.pending = [flipped(change, at, mask) for change in node.pending]
            node.forgotten = [flipped(change, at, mask) for change in node.forgotten]

    def content(self, path: Path) -> bytes:
        """A file's bytes as a process would read them."""
        with self._lock:
            return bytes(self._node(path).content)

    def fingerprint(self) -> str:
        """The same for disks with the same files and catalogs; what is not synced is not seen."""
        found = hashlib.sha256()
        for path, catalog in sorted(self._catalogs.items()):
            found.update(f"{path} {len(catalog)} ".encode() + catalog)
        digest(found, "", self._root)
        return found.hexdigest()

    @property
    def torn_bytes(self) -> int:
        """The length of the last write, if it is not synced yet; else 0."""
        if self._last_write is None:
            return 0
        node, write = self._last_write
        return len(write.data) if any(write is each for each in node.unsynced()) else 0

    def after_crash(self, loss: Loss) -> FakeDisk:
        """A new disk, as this one would be found after it stopped now."""
        with self._lock:
            after = FakeDisk()
            after._catalogs = dict(self._catalogs)
            if loss.power:
                after._root = PowerCut(loss, self._last_write).directory(self._root)
            else:
                after._root, nodes = copied(self._root)
                if self._last_write is not None:
                    node, write = self._last_write
                    if id(node) in nodes:
                        after._last_write = nodes[id(node)], write
            return after

    # -- what the log asks for -------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        with self._lock:
            self._check_running()
            directory = self._directory(path.parent)
            node = directory.entries.get(path.name)
            if node is None:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
                self._begin("create", path)
                if self.full != "no":
                    raise _no_space(path)
                node = Node()
                directory.change(Naming(None, path.name, node))
                self._end()
            if isinstance(node, Directory):
                raise IsADirectoryError(errno.EISDIR, "it is a directory", str(path))
            return _FakeFile(self, path, node, writable)

    def exists(self, path: Path) -> bool:
        with self._lock:
            self._check_running()
            return path in self._catalogs or self._find(path) is not None

    def list(self, path: Path) -> list[str]:
        with self._lock:
            self._check_running()
            found = self._find(path)
            return [*found.entries] if isinstance(found, Directory) else []

    def file_size(self, path: Path) -> int:
        with self._lock:
            self._check_running()
            return len(self._node(path).content)

    def make_directory(self, path: Path) -> None:
        with self._lock:
            self._check_running()
            for each in [*reversed(path.parents), path]:
                missing = self._find(each) is None
                if missing:
                    self._begin("make_directory", each)
                    self._directory(each.parent).change(Naming(None, each.name, Directory()))
                    self._end()
                if missing or each == path:
                    self.sync_directory(each.parent)

    def rename(self, old: Path, new: Path) -> None:
        with self._lock:
            if old.parent != new.parent:
                raise OSError(errno.EXDEV, "FakeDisk renames within a directory only", str(old))
            self._begin("rename", new)
            self._directory(old.parent).change(Naming(old.name, new.name, self._node(old)))
            self._end()

    def remove(self, path: Path) -> None:
        with self._lock:
            self._check_running()
            directory = self._find(path.parent)
            if not isinstance(directory, Directory) or path.name not in directory.entries:
                return
            self._begin("remove", path)
            directory.change(Naming(path.name, None, directory.entries[path.name]))
            self._end()

    def remove_tree(self, path: Path) -> None:
        with self._lock:
            self._check_running()
            found = self._find(path)
            if isinstance(found, Directory):
                for name in [*found.entries]:
                    self.remove_tree(path / name)
            self.remove(path)

    def sync_directory(self, path: Path) -> None:
        self._stall(path)
        with self._lock:
            self._begin("sync_directory", path)
            self._end()
            self._directory(path).sync()

    def sync_paths(self, files: Sequence[Path], directories: Sequence[Path]) -> None:
        for path in files:
            self._stall(path)
            with self._lock:
                self._sync(path, self._node(path))
        for path in directories:
            self.sync_directory(path)

    def connect(self, path: Path) -> sqlite3.Connection:
        with self._lock:
            self._check_running()
            connection = sqlite3.connect(
                ":memory:", check_same_thread=False, isolation_level=None, factory=_FakeConnection
            )
            if path in self._catalogs:
                connection.deserialize(self._catalogs[path])
            connection.disk, connection.path = self, path
            return connection

    def lock(self, path: Path) -> Lock:
        with self._lock:
            self._check_running()
            if path in self._locks:
                raise DataDirectoryInUse(f"{path.parent} is in use by this test")
            self._locks.add(path)
            return _FakeLock(self._locks, path)

    # -- inside ----------------------------------------------------------------------------------

    def _check_running(self) -> None:
        if self.crashed:
            raise Crashed("the disk crashed before")

    def _begin(self, kind: Kind, path: Path) -> None:
        """Count an operation, or fail it."""
        self._check_running()
        self.operations += 1
        self.history.append((kind, path.name))
        code = self._fault(kind, path)
        if code is not None:
            raise OSError(code, f"the fake disk fails this {kind}", str(path))

    def _end(self) -> None:
        """Where a crash in an operation happens: its change is made and not synced."""
        if self.on_operation is not None:
            self.on_operation(self.operations)
        if self._crash_at is not None and self.operations >= self._crash_at:
            self.crashed = True
            raise Crashed(f"crash in operation {self.operations}: {self.history[-1]}")

    def _fault(self, kind: Kind, path: Path) -> int | None:
        for fault in self._faults:
            if fault.kind == kind and fnmatch.fnmatch(path.name, fault.pattern):
                seen = self._seen[fault] = self._seen.get(fault, 0) + 1
                if seen == fault.number:
                    self._faults.remove(fault)
                    del self._seen[fault]
                    return fault.code
        return None

    def _stall(self, path: Path) -> None:
        for stall in self._stalls:
            if fnmatch.fnmatch(path.name, stall.pattern):
                stall.wait()

    def _find(self, path: Path) -> Node | Directory | None:
        found: Node | Directory | None = self._root
        for part in path.parts:
            if part in ("/", "."):
                continue
            if not isinstance(found, Directory):
                return None
            found = found.entries.get(part)
        return found

    def _directory(self, path: Path) -> Directory:
        found = self._find(path)
        if isinstance(found, Directory):
            return found
        raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))

    def _node(self, path: Path) -> Node:
        found = self._find(path)
        if isinstance(found, Node):
            return found
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path))

    def _room(self, node: Node, offset: int, length: int) -> int:
        """How many of `length` bytes can be written."""
        if self.full == "all":
            return 0
        inside = max(0, min(length, len(node.content) - offset))
        if self.full == "growth":
            return inside
        if self.capacity is None or inside == length:
            return length
        left = max(0, self.capacity - total(self._root))
        gap = max(0, offset - len(node.content))
        return min(length, inside + max(0, left - gap))

    def _write(self, path: Path, node: Node, data: bytes, offset: int) -> None:
        try:
            self._begin("write", path)
        except OSError:
            node.change(Write(offset, data[: len(data) // 2]))
            raise
        fits = self._room(node, offset, len(data))
        write = Write(offset, data[:fits])
        node.change(write)
        self._last_write = node, write
        self._end()
        if fits < len(data):
            raise _no_space(path)

    def _truncate(self, path: Path, node: Node, size: int) -> None:
        self._begin("truncate", path)
        if size > len(node.content) and self._room(node, 0, size) < size:
            raise _no_space(path)
        node.change(Truncate(size))
        self._end()

    def _sync(self, path: Path, node: Node) -> None:
        try:
            self._begin("sync", path)
        except OSError:
            node.forget()
            raise
        self._end()
        node.sync()

    def _commit(self, path: Path, connection: _FakeConnection) -> None:
        try:
            self._begin("commit", path)
            if self.full != "no":
                raise _no_space(path)
        except OSError as error:
            raise _database_error(error) from error
        self._end()
        connection.commit_for_real()
        self._catalogs[path] = connection.serialize()


class _FakeFile(File):
    def __init__(self, disk: FakeDisk, path: Path, node: Node, writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._node: Node | None = node
        self._writable = writable

    def _open(self, *, writing: bool = False) -> Node:
        self._disk._check_running()
        if self._node is None or (writing and not self._writable):
            raise OSError(errno.EBADF, "not open for this", str(self._path))
        return self._node

    def read(self, size: int, offset: int) -> bytes:
        with self._disk._lock:
            return bytes(self._open().content[offset : offset + size])

    def read_into(self, buffer: memoryview, offset: int) -> int:
        data = self.read(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def write(self, parts: Sequence[Buffer], offset: int) -> None:
        with self._disk._lock:
            data = b"".join([bytes(part) for part in parts])
            self._disk._write(self._path, self._open(writing=True), data, offset)

    def start_writeback(self, offset: int, size: int) -> None:
        self._open(writing=True)

    def sync(self) -> None:
        self._disk._stall(self._path)
        with self._disk._lock:
            self._disk._sync(self._path, self._open(writing=True))

    def truncate(self, size: int) -> None:
        with self._disk._lock:
            self._disk._truncate(self._path, self._open(writing=True), size)

    def size(self) -> int:
        with self._disk._lock:
            return len(self._open().content)

    def close(self) -> None:
        self._node = None


class _FakeConnection(sqlite3.Connection):
    disk: FakeDisk
    path: Path

    def commit(self) -> None:
        with self.disk._lock:
            self.disk._commit(self.path, self)

    def commit_for_real(self) -> None:
        super().commit()


class _FakeLock(Lock):
    descriptor: ClassVar[None] = None

    def __init__(self, held: set[Path], path: Path) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        self._held.discard(self._path)


def _no_space(path: Path) -> OSError:
    return OSError(errno.ENOSPC, "the fake disk is full", str(path))


def _database_error(error: OSError) -> sqlite3.OperationalError:
    full = error.errno == errno.ENOSPC
    made = sqlite3.OperationalError("database or disk is full" if full else "disk I/O error")
    made.sqlite_errorname = "SQLITE_FULL" if full else "SQLITE_IOERR"
    made.sqlite_errorcode = sqlite3.SQLITE_FULL if full else sqlite3.SQLITE_IOERR
    return made
