"""The jars Spark needs beyond PySpark's own: which, where they are kept, and how they come.

The list is pinned by version and checksum. Spark's own resolver fetches each once into a cache
folder, from wherever it is set up to look; nothing goes over the network after that.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import BadSetting, JarsMissing
from penstock.spark.cache import cache_folder

_SECONDS_MAX: Final = 600.0
"""For all jars together. It takes 25 s on a good line; without one the resolver gives up itself."""

_RESOLVER: Final = (sys.executable, "-m", "penstock.spark.resolve")
_LINES_MAX: Final = 5
_LINE_MAX: Final = 300
"""How much of what a failed resolver said is shown."""


class Jar(NamedTuple):
    """One jar, by coordinates and checksum."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


JARS: Final[dict[str, tuple[Jar, ...]]] = {
    # The newest for Spark 4.2. What else its pom asks for is in PySpark, newer, or not needed.
    "delta": (
        Jar(
            "io.delta", "delta-spark_4.2_2.13", "4.4.0",
            "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
        ),
        Jar(
            "io.delta", "delta-storage", "4.4.0",
            "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
        ),
    ),
    "kafka": (
        Jar(
            "org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0",
            "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
        ),
        # Later releases of this one are not everywhere; it works with the connector of 4.2.
        Jar(
            "org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0",
            "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
        ),
        Jar(
            "org.apache.kafka", "kafka-clients", "3.9.2",
            "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
        ),
        Jar(
            "org.apache.commons", "commons-pool2", "2.13.1",
            "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
        ),
    ),
}  # fmt: skip
"""Every set by name."""


def folder() -> Path:
    """Where the jars are kept: `$PENSTOCK_JARS`, else `jars` in the cache folder."""
    given = os.environ.get("PENSTOCK_JARS")
    return Path(given).expanduser().absolute() if given else cache_folder() / "jars"


def paths(name: str) -> list[Path]:
    """The files of a set, checked; `JarsMissing` if they were not fetched."""
    wrong = missing([name])
    if wrong:
        raise JarsMissing(
            f"{', '.join(each.file for each in wrong)} not in {folder()}, or not as pinned. "
            f"Type: penstock jars --set {name}"
        )
    return [folder() / each.file for each in _named([name])]


def missing(names: Iterable[str]) -> list[Jar]:
    """The jars of these sets that are not there, or not what they should be."""
    return [each for each in _named(names) if not _is_right(folder() / each.file, each)]


def fetch(names: Iterable[str], on_progress: Callable[[Jar], None] = lambda jar: None) -> list[Jar]:
    """Fetch what is missing of these sets; returns what was fetched.

    `on_progress` hears of every jar that has come. If all are there, nothing is started.
    """
    wanted = missing(names)
    if not wanted:
        return []
    target = folder()
    try:
        target.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix=".fetch-", dir=target)
    except OSError as error:
        raise JarsMissing(
            f"jars cannot be kept in {target}: {error.strerror}. Let PENSTOCK_JARS name a folder "
            "that this user may write"
        ) from error
    try:
        with closing(_arrivals(Path(scratch), wanted)) as arrivals:
            for jar in arrivals:
                _take(Path(scratch, "jars", f"{jar.group}_{jar.file}"), jar)
                on_progress(jar)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return wanted


def _named(names: Iterable[str]) -> list[Jar]:
    found: list[Jar] = []
    for name in names:
        if name not in JARS:
            raise BadSetting(f"no set of jars is called {name!r}; there are: {', '.join(JARS)}")
        found += JARS[name]
    return found


def _is_right(path: Path, jar: Jar) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
    except OSError:
        return False


def _take(came: Path, jar: Jar) -> None:
    """Check a jar that has come and put it in its place, whole or not at all."""
    if not _is_right(came, jar):
        raise JarsMissing(
            f"{jar.coordinates} came with another checksum than the pinned one ({jar.sha256}): "
            "it was damaged or replaced on its way, so it is not used"
        )
    os.replace(came, folder() / jar.file)


def _arrivals(scratch: Path, wanted: Sequence[Jar]) -> Generator[Jar]:
    """Each jar once it is in `scratch`, where a Spark of its own downloads them all."""
    unwanted = ("SPARK_REMOTE", "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS")
    with (scratch / "said").open("w+b") as said:
        process = subprocess.Popen(
            [*_RESOLVER, str(scratch), *(each.coordinates for each in wanted)],
            env={key: value for key, value in os.environ.items() if key not in unwanted},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        assert process.stdout is not None
        watchdog = threading.Timer(_SECONDS_MAX, process.kill)
        watchdog.start()
        try:
            for jar in wanted:
                if process.stdout.readline().strip() != jar.coordinates:
                    process.wait()
                    said.seek(0)
                    raise _not_fetched(jar, said.read().decode(errors="replace"))
                yield jar
        finally:
            watchdog.cancel()
            process.kill()
            process.stdout.close()
            process.wait()


def _not_fetched(jar: Jar, said: str) -> JarsMissing:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    # It says a lot: of interest are hosts it did not reach, and why it gave up.
    told = [line for line in lines if line.startswith(("Host ", "Server access"))] + lines[-1:]
    shown = "\n  ".join(line[:_LINE_MAX] for line in told[-_LINES_MAX:])
    return JarsMissing(
        f"{jar.coordinates} could not be fetched. With a network, `penstock jars` tries again; "
        f"without one, copy the jars from a machine that has them into {folder()}. Spark's "
        f"resolver said:\n  {shown}"
    )
