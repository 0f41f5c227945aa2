"""The few things the log asks of a disk, behind an interface so that a test can make it fail.

`RealDisk` is the operating system. `penstock.testing.FakeDisk` keeps everything in memory, knows
what was synced and what was not, and can crash, tear writes and return errors on demand.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import shutil
import socket
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock import limits
from penstock.errors import DataDirectoryInUse

Buffer = bytes | bytearray | memoryview

_IOV_MAX: Final = 1024
_SYNC_FILE_RANGE_WRITE: Final = 2


class File(ABC):
    """An open file. Reads and writes name their place; there is no cursor."""

    @abstractmethod
    def read(self, size: int, offset: int) -> bytes:
        """At most `size` bytes from `offset`; fewer only at the end of the file."""

    @abstractmethod
    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` from `offset`; returns how many bytes there were."""

    @abstractmethod
    def write(self, parts: Sequence[Buffer], offset: int) -> None:
        """Write all of `parts`, one after the other, at `offset`."""

    @abstractmethod
    def start_writeback(self, offset: int, size: int) -> None:
        """Ask for early writing; promises nothing."""

    @abstractmethod
    def sync(self) -> None:
        """Return once all that was written is on disk."""

    @abstractmethod
    def truncate(self, size: int) -> None: ...

    @abstractmethod
    def size(self) -> int: ...

    @abstractmethod
    def close(self) -> None: ...


class Disk(ABC):
    """A file system, as far as the log needs one."""

    @abstractmethod
    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File: ...

    @abstractmethod
    def exists(self, path: Path) -> bool: ...

    @abstractmethod
    def list(self, path: Path) -> list[str]:
        """Names in a directory; empty if it does not exist."""

    @abstractmethod
    def file_size(self, path: Path) -> int: ...

    @abstractmethod
    def make_directory(self, path: Path) -> None:
        """Make `path` and its parents, and put their names on disk."""

    @abstractmethod
    def rename(self, old: Path, new: Path) -> None: ...

    @abstractmethod
    def remove(self, path: Path) -> None:
        """Remove a file; it may be gone already."""

    @abstractmethod
    def remove_tree(self, path: Path) -> None: ...

    @abstractmethod
    def sync_directory(self, path: Path) -> None:
        """Return once the names in `path` are on disk."""

    @abstractmethod
    def sync_paths(self, files: Sequence[Path], directories: Sequence[Path]) -> None:
        """Sync the contents of files and the names in directories, in the cheapest way."""

    @abstractmethod
    def connect(self, path: Path) -> sqlite3.Connection:
        """Open the catalog's database."""

    @abstractmethod
    def lock(self, path: Path) -> Lock:
        """Take the data directory for this process, or raise `DataDirectoryInUse`."""


class Lock(ABC):
    """A held lock. `descriptor` can be inherited by a child, which then holds it too."""

    @property
    @abstractmethod
    def descriptor(self) -> int | None: ...

    @abstractmethod
    def release(self) -> None: ...


class RealFile(File):
    """A file descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        have = len(data)
        while have < size and (more := os.pread(self._fd, size - have, offset + have)):
            parts.append(more)
            have += len(more)
        return b"".join(parts)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        have = 0
        while have < len(buffer):
            got = os.preadv(self._fd, [buffer[have:]], offset + have)
            if not got:
                break
            have += got
        return have

    def write(self, parts: Sequence[Buffer], offset: int) -> None:
        for first in range(0, len(parts), _IOV_MAX):
            chunk = parts[first : first + _IOV_MAX]
            total = sum([len(part) for part in chunk])
            done = os.pwritev(self._fd, chunk, offset)
            if done < total:
                self._write_rest(b"".join(chunk), done, offset)
            offset += total

    def _write_rest(self, data: bytes, done: int, offset: int) -> None:
        view = memoryview(data)
        while done < len(view):
            wrote = os.pwrite(self._fd, view[done:], offset + done)
            if not wrote:
                raise OSError(errno.ENOSPC, "the disk took no more bytes")
            done += wrote

    def start_writeback(self, offset: int, size: int) -> None:
        _start_writeback(self._fd, offset, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __del__(self) -> None:
        # A cache of readers just forgets a file: closing it there could pull it from under a read.
        self.close()


class RealDisk(Disk):
    """The operating system's disk."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        flags = os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT
        return RealFile(os.open(path, flags, 0o600))

    def exists(self, path: Path) -> bool:
        return path.exists()

    def list(self, path: Path) -> list[str]:
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def file_size(self, path: Path) -> int:
        return path.stat().st_size

    def make_directory(self, path: Path) -> None:
        # The last name is synced even if it is there: one who made it may have been killed then.
        missing = [path]
        while not (above := missing[-1].parent).exists():
            missing.append(above)
        for each in reversed(missing):
            each.mkdir(mode=0o700, exist_ok=True)
            self.sync_directory(each.parent)

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_paths(self, files: Sequence[Path], directories: Sequence[Path]) -> None:
        many = len(files) + len(directories) > limits.SYNC_FILES_ONE_BY_ONE_MAX
        if many and files and _syncfs(files[0]):
            return
        for path in files:
            _sync_file(path)
        for path in directories:
            self.sync_directory(path)

    def connect(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        os.chmod(path, 0o600)
        return connection

    def lock(self, path: Path) -> Lock:
        return _FlockLock(path)


class _FlockLock(Lock):
    """An flock on a file that names its owner.

    The lock belongs to the open file, so a child that inherits the descriptor keeps it: after the
    owner is killed the directory stays locked until its segment writer has gone too.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + limits.OWNER_EXIT_S_MAX
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                owner = _read_owner(self._fd)
                if _is_alive(owner) or time.monotonic() > deadline:
                    os.close(self._fd)
                    raise DataDirectoryInUse(
                        f"{path.parent} is in use by {_describe_owner(owner)}: "
                        "stop that process, or choose another data directory"
                    ) from None
                time.sleep(0.01)
        record = {"pid": os.getpid(), "host": socket.gethostname(), "since": int(time.time())}
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps(record).encode(), 0)

    @property
    def descriptor(self) -> int | None:
        return self._fd

    def release(self) -> None:
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1


def _read_owner(fd: int) -> dict[str, object]:
    try:
        owner = json.loads(os.pread(fd, 4096, 0))
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _is_alive(owner: dict[str, object]) -> bool:
    """Whether the owner runs still. Unknown counts as not: opening then waits a little."""
    pid = owner.get("pid")
    if not isinstance(pid, int) or owner.get("host") != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] == ["Z"]


def _describe_owner(owner: dict[str, object]) -> str:
    if "pid" not in owner:
        return "another process"
    return f"process {owner['pid']} on {owner.get('host', 'this machine')}"


_libc = ctypes.CDLL(None, use_errno=True)


def _start_writeback(fd: int, offset: int, size: int) -> None:
    call = getattr(_libc, "sync_file_range", None)
    if call is not None:
        call(
            ctypes.c_int(fd),
            ctypes.c_int64(offset),
            ctypes.c_int64(size),
            ctypes.c_uint(_SYNC_FILE_RANGE_WRITE),
        )


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def _syncfs(path: Path) -> bool:
    """Sync the whole file system `path` is on; False where there is no such call."""
    call = getattr(_libc, "syncfs", None)
    if call is None:
        return False
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if call(ctypes.c_int(fd)) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(fd)
    return True
