"""Where things are kept that can be had again: jars, launchers, the package as an archive."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/penstock`, by default `~/.cache/penstock`. It need not exist."""
    given = os.environ.get("XDG_CACHE_HOME")
    # As the XDG rules say, a relative path is no path.
    base = Path(given) if given and Path(given).is_absolute() else Path.home() / ".cache"
    return base / "penstock"


def keep_file(name: str, data: bytes, *, mode: int = 0o644) -> Path:
    """A file with this content, made if it is not there; a name stands for one content for ever.

    Where the cache folder cannot be written, it lives as long as this process.
    """
    path = cache_folder() / name
    try:
        if not path.exists():
            write_atomically(path, data, mode=mode)
    except OSError:
        path = _own_folder() / name
        if not path.exists():
            write_atomically(path, data, mode=mode)
    return path


@functools.cache
def _own_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="penstock-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file so that others see all of it or nothing; folders are made as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
