"""Files that survive a kill and a power cut: synced writes, atomic exchanges, and locks."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, Final, Self

from penstock import limits
from penstock.errors import PipelineError, TableInUse

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_LOCK_LOOK_S: Final = 0.05


def sync(path: Path) -> None:
    """Return once the file, or the directory's list of names, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Make a directory and its parents, each on disk before the next."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync(each.parent)


def write_json(path: Path, value: Any) -> None:
    """Put a value in the place of the file's old content, at once and on disk."""
    data = json.dumps(value, indent=1).encode()
    if len(data) > limits.TABLE_STATE_BYTES_MAX:
        raise PipelineError(
            f"{path} would have {len(data):,} bytes, more than {limits.TABLE_STATE_BYTES_MAX:,}: "
            "a batch of the archive has too many files; make the batches smaller"
        )
    growing = path.with_name(path.name + ".new")
    with growing.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(growing, path)
    sync(path.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """What `write_json` wrote last; none if the file is not there."""
    try:
        with path.open("rb") as file:
            data = file.read(limits.TABLE_STATE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise PipelineError(f"{path} is not what an archive wrote: it must be one JSON object")
    return value


def exchange(one: Path, other: Path) -> bool:
    """Let two directories change names at once; false where the file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    rename = getattr(libc, "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(one))


class Lock:
    """A lock on a file, given back when its process ends, however it ends."""

    def __init__(self, path: Path, held: str) -> None:
        """`held` says who has it, for the one who cannot get it."""
        self._path = path
        self._held = held
        self._descriptor: int | None = None

    def take(self, wait_s: float = 0.0) -> None:
        """Take the lock; `TableInUse` if another process keeps it for longer than `wait_s`."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    raise TableInUse(
                        f"{self._held} ({self._path} is locked): wait for it, or stop it"
                    ) from None
                time.sleep(_LOCK_LOOK_S)
            except BaseException:
                os.close(descriptor)
                raise
            else:
                self._descriptor = descriptor
                return

    def give_back(self) -> None:
        """Let others have it; nothing happens if it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        self.take(limits.TABLE_LOCK_S_MAX)
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()
