"""`penstock doctor`: is this machine ready, and what to do if not."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
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
from penstock.spark import jars
from penstock.spark.java import VERSION_MIN, find_java

State = Literal["ok", "warning", "problem"]

_SPARK_MIN: Final = (4, 2)
"""Python sources can limit a batch since then."""
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
    """Look at Python, the disk, limits, Spark and the hub, and say what to do.

    Exits with 1 if there is a problem; a warning is none.

    Examples:

        penstock doctor
        penstock doctor --data /var/lib/penstock --url https://hub.example:7470
    """
    findings = [_python(), _compiled(), *_config(config, data), _open_files()]
    findings += [_java(), *_spark()]
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
    java = find_java()
    if java is None:
        advice = f"only Spark needs it: install Java {VERSION_MIN} or newer, or penstock[java]"
        return Finding("java", "warning", f"none of version {VERSION_MIN} or newer", advice)
    unused = os.environ.get("JAVA_HOME") if java.origin != "JAVA_HOME" else None
    note = f" (JAVA_HOME, {unused}, is none or too old)" if unused else ""
    return Finding("java", "ok", f"version {java.version} in {java.home}{note}")


def _spark() -> Iterator[Finding]:
    try:
        found = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        advice = "only pipelines need it: pip install 'penstock[spark]'"
        yield Finding("spark", "warning", "not installed", advice)
        return
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < _SPARK_MIN:
        needed = ".".join(map(str, _SPARK_MIN))
        advice = f"the source needs {needed} or newer: pip install 'penstock[spark]'"
        yield Finding("spark", "warning", f"PySpark {found}", advice)
    else:
        yield Finding("spark", "ok", f"PySpark {found}")
    there = ", ".join(
        f"{name} {len(each) - len(jars.missing([name]))} of {len(each)}"
        for name, each in jars.JARS.items()
    )
    if jars.missing(["delta"]):
        advice = "only Delta tables need them: penstock jars --set delta"
        yield Finding("jars", "warning", f"{there} in {jars.folder()}", advice)
    else:
        yield Finding("jars", "ok", f"{there} in {jars.folder()}")


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
