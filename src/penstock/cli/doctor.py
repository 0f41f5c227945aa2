"""`penstock doctor`: is this machine ready, and what to do if not."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

import typer

import penstock
from penstock import config as configuration
from penstock import limits
from penstock.cli.options import (
    DEFAULT_URL,
    CaOption,
    JsonOption,
    TokenOption,
    UrlOption,
    connect,
)
from penstock.cli.output import errors, show_json, show_table, size
from penstock.cli.serve import ConfigOption, DataOption, flags
from penstock.errors import HubUnreachable, PenstockError

State = Literal["ok", "warning", "problem"]

_JAVA_MIN: Final = 17
"""What Spark 4 asks for."""
_SYNCS: Final = 20
_SYNC_S_SLOW: Final = 0.05
"""A disk that takes longer for 4 KiB is a spinning one or a network's: it works, but slowly."""
_FREE_BYTES_LOW: Final = 10 * 1024 * limits.MIB
_FILES_MIN: Final = 1_024
_FILES_GOOD: Final = limits.HTTP_CONNECTIONS_MAX + 2 * limits.OPEN_SEGMENTS_MAX + 1_024


class Finding(NamedTuple):
    """What was looked at, how it is, and what to do."""

    what: str
    state: State
    found: str
    advice: str = ""


def doctor(
    config: ConfigOption = None,
    data: DataOption = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
    json: JsonOption = False,
) -> None:
    """Look at Python, the disk, limits and the hub, and say what to do.

    Exits with 1 if there is a problem; a warning is none.

    Examples:

        penstock doctor
        penstock doctor --data /var/lib/penstock --url https://hub.example:7470
    """
    findings = [_python(), _compiled(), _java(), *_config(config, data), _open_files()]
    findings.append(_hub(url, token, ca))
    problems = [each for each in findings if each.state == "problem"]
    if json:
        show_json({"ok": not problems, "findings": [each._asdict() for each in findings]})
    else:
        show_table(("what", "state", "found"), [each[:3] for each in findings], "")
        for each in findings:
            if each.advice:
                errors.print(f"{each.what}: {each.advice}", markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def _python() -> Finding:
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if platform.python_implementation() == "CPython":
        return Finding("python", "ok", found)
    return Finding("python", "warning", found, "Penstock is tested with CPython only")


def _compiled() -> Finding:
    build = penstock.build_info()
    if build.compiled:
        return Finding("compiled modules", "ok", f"{len(build.compiled)}")
    if build.forced_pure:
        return Finding("compiled modules", "warning", "none", "PENSTOCK_PURE is set: unset it")
    advice = "it works, but slower: install a wheel, or install with a C compiler at hand"
    return Finding("compiled modules", "warning", "none", advice)


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    needed = f"only Spark needs it: install Java {_JAVA_MIN} or newer, or set JAVA_HOME"
    if java is None:
        return Finding("java", "warning", "not found", needed)
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", "warning", f"does not run: {error}", needed)
    match = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if match is None:
        return Finding("java", "warning", "tells no version", needed)
    # Until 8 it called itself 1.8.
    number = int(match[2] or 0) if match[1] == "1" else int(match[1])
    if number < _JAVA_MIN:
        return Finding("java", "warning", f"version {number}", needed)
    return Finding("java", "ok", f"version {number}")


def _config(path: Path | None, data: str | None) -> Iterator[Finding]:
    try:
        resolved = configuration.load(path, flags=flags(data)).config
    except configuration.ConfigError as error:
        yield Finding("configuration", "problem", str(error), "`penstock check` lists the mistakes")
        return
    yield Finding("configuration", "ok", "no mistakes")
    yield from _disk(Path(resolved.hub.data), resolved.log.journal_bytes)


def _disk(data: Path, journal_bytes: int) -> Iterator[Finding]:
    there = data.absolute()
    while not there.exists():
        there = there.parent
    made = "" if data.exists() else " (will be made)"
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        advice = f"let this user write to {there}, or choose another directory with --data"
        yield Finding("data directory", "problem", f"{data} is not writable", advice)
        return
    yield Finding("data directory", "ok", f"{data}{made}")
    free = shutil.disk_usage(there).free
    needed = 0 if (data / "catalog.sqlite").exists() else 2 * journal_bytes
    if free < needed:
        advice = f"a new hub needs {size(needed)}: make room, or lower log.journal_bytes"
        yield Finding("free space", "problem", size(free), advice)
    elif free < _FREE_BYTES_LOW:
        advice = "little room for records: set a retention (penstock streams set)"
        yield Finding("free space", "warning", size(free), advice)
    else:
        yield Finding("free space", "ok", size(free))
    yield _sync_time(there)


def _sync_time(directory: Path) -> Finding:
    block, times = bytes(4096), []
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            for _ in range(_SYNCS):
                began = time.perf_counter()
                os.pwrite(file.fileno(), block, 0)
                os.fdatasync(file.fileno())
                times.append(time.perf_counter() - began)
    except OSError as error:
        return Finding("sync", "problem", f"cannot write: {error}", "look at the disk")
    median = statistics.median(times)
    shown = f"{median * 1000:.2f} ms"
    if median > _SYNC_S_SLOW:
        return Finding("sync", "warning", shown, "each commit waits that long: use a faster disk")
    return Finding("sync", "ok", shown)


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _FILES_GOOD:
        return Finding("open files", "ok", "no limit" if soft < 0 else f"{soft:,}")
    advice = f"for {limits.HTTP_CONNECTIONS_MAX:,} connections: ulimit -n {_FILES_GOOD} (or more)"
    if 0 <= hard < _FILES_GOOD:
        advice += f"; the hard limit is {hard:,}, an administrator has to raise it"
    return Finding(
        "open files", "warning" if soft >= _FILES_MIN else "problem", f"{soft:,}", advice
    )


def _hub(url: str, token: str | None, ca: Path | None) -> Finding:
    try:
        with connect(url, token, ca) as hub:
            hub.json("GET", "/readyz")
            info = hub.json("GET", "/api/v1/info")
    except HubUnreachable as error:
        return Finding("hub", "warning", f"none at {url}", str(error))
    except PenstockError as error:
        return Finding("hub", "problem", f"refuses at {url}", str(error))
    found = f"version {info['version']} at {url}, {info['streams']} streams, you: {info['user']}"
    if info["version"] != penstock.__version__:
        advice = f"this command is version {penstock.__version__}: use the same"
        return Finding("hub", "warning", found, advice)
    return Finding("hub", "ok", found)
