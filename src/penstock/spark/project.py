"""Declarative pipelines: a project that runs as it is, and running it.

Spark's `spark-pipelines` has traps that a first project falls into: a catalog in memory, settings
and jars that are not seen, a format that cannot be named. The project written here avoids them, and
`run` gives the command the environment it needs.
"""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from penstock import limits
from penstock.errors import BadSetting, QueryFailed, SparkMissing, SparkUnreachable
from penstock.log.names import check_stream_name
from penstock.spark import jars
from penstock.spark import project_files as files
from penstock.spark.java import use_java
from penstock.spark.session import CHECKPOINT_MANAGER

TableFormat: TypeAlias = Literal["parquet", "delta"]

SPEC: Final = "spark-pipeline.yml"
LOG: Final = "run.log"
"""All that spark-pipelines printed in the last run."""

_PORT: Final = 15_002
"""Of the server that spark-pipelines starts and talks to; it cannot be another."""

_NEEDED: Final = ("pyspark", "grpc", "grpc_status", "google.rpc", "zstandard", "pandas", "yaml")


class Project(NamedTuple):
    """What `init` wrote."""

    path: Path
    stream: str
    output: str
    files: list[str]


def table_name(stream: str) -> str:
    """A table's name for a stream: letters, digits and `_`, as every catalog takes it."""
    name = re.sub(r"[^a-z0-9]+", "_", stream.lower()).strip("_")
    if not name:
        return "records"
    return name if name[0].isalpha() else f"s_{name}"


def write(
    directory: Path,
    stream: str,
    *,
    output: str | None = None,
    form: TableFormat = "parquet",
    url: str = "http://127.0.0.1:7470",
) -> Project:
    """Write a project to an empty or new directory."""
    check_stream_name(stream)
    output = check_stream_name(output or f"{stream}.out")
    home = directory.absolute()
    if any(each in str(home) for each in " \t\n%;,#"):
        raise BadSetting(
            f"{home} has a space or one of %;,# in its path, which Spark's settings cannot hold: "
            "give another directory"
        )
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise BadSetting(f"{home} is there already and not empty: give a new directory")
    table = table_name(stream)
    values = {
        "name": re.sub(r"[^A-Za-z0-9_-]", "-", home.name) or "pipeline",
        "stream": stream,
        "output": output,
        "table": table,
        "sink": f"{table}_out",
        "format": form.capitalize(),
        "url": url,
        "path": str(home),
        "home": home.as_uri(),
        "manager": CHECKPOINT_MANAGER,
        "jars": ",".join(map(str, jars.paths("delta"))) if form == "delta" else "",
    }
    contents = {
        SPEC: files.SPEC,
        "transformations/ingest.py": files.INGEST,
        "transformations/report.py": files.REPORT,
        "transformations/publish.py": files.PUBLISH,
        "conf/spark-defaults.conf": files.DEFAULTS
        + (files.DEFAULTS_DELTA if form == "delta" else ""),
        "conf/log4j2.properties": files.LOG4J,
        ".gitignore": files.IGNORE,
        "README.md": files.README,
    }
    for name, content in contents.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(re.sub(r"\[\[(\w+)\]\]", lambda match: values[match[1]], content))
    return Project(home, stream, output, list(contents))


@dataclass(frozen=True)
class Event:
    """Something spark-pipelines said about a flow, or about the run (`flow` is empty)."""

    flow: str
    state: str
    detail: str = ""

    @property
    def failed(self) -> bool:
        return self.state in ("FAILED", "UNRESOLVED")


@dataclass
class Outcome:
    """How a run ended."""

    status: int
    flows: dict[str, str] = field(default_factory=dict)
    """Each flow and the last that was said of it."""
    reasons: list[str] = field(default_factory=list)
    seconds: float = 0.0


def run(
    directory: Path,
    *,
    dry: bool = False,
    full_refresh_all: bool = False,
    full_refresh: Sequence[str] = (),
    refresh: Sequence[str] = (),
    remote: str | None = None,
    hub: Mapping[str, str] | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    on_line: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Run a project; `hub` are the variables PENSTOCK_URL and so on for it.

    `QueryFailed` if spark-pipelines ends with another status than 0, whatever it printed.
    """
    home = directory.absolute()
    spec = _spec(home)
    if full_refresh_all and (full_refresh or refresh):
        raise BadSetting("--full-refresh-all means all tables: leave the other refreshes out")
    if dry and (full_refresh_all or full_refresh or refresh):
        raise BadSetting("a dry run refreshes nothing: leave the refreshes out")
    command = [str(_command()), "dry-run" if dry else "run", "--spec", str(spec)]
    command += ["--remote", remote or "local[*]"]
    if full_refresh_all:
        command.append("--full-refresh-all")
    for option, tables in (("--full-refresh", full_refresh), ("--refresh", refresh)):
        if tables:
            command += [option, ",".join(tables)]
    if remote is None or remote.startswith("local"):
        _wait_for_port()
    began = time.monotonic()
    outcome = _follow(command, home, _environment(home, hub or {}), on_event, on_line)
    outcome.seconds = time.monotonic() - began
    if outcome.status:
        why = "\n".join(outcome.reasons) or "see what it printed"
        raise QueryFailed(
            f"spark-pipelines ended with status {outcome.status}: {why}\n"
            f"All it printed is in {home / LOG}"
        )
    return outcome


def _spec(home: Path) -> Path:
    for name in (SPEC, "spark-pipeline.yaml"):
        if (home / name).is_file():
            return home / name
    raise BadSetting(
        f"{home} has no {SPEC}: name a project's directory, or make one with "
        f"`penstock pipeline init {home.name or 'DIR'}`"
    )


def _command() -> Path:
    missing = [name for name in _NEEDED if not _is_there(name)]
    if missing:
        raise SparkMissing(
            f"declarative pipelines need {', '.join(missing)}, which cannot be imported. "
            "Type: pip install 'penstock[spark]'"
        )
    import pyspark

    return Path(pyspark.__file__).parent / "bin" / "spark-pipelines"


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _environment(home: Path, hub: Mapping[str, str]) -> dict[str, str]:
    use_java()
    environment = {**os.environ, **hub}
    environment["SPARK_HOME"] = str(_command().parent.parent)
    environment["SPARK_CONF_DIR"] = str(home / "conf")
    environment["PYSPARK_PYTHON"] = sys.executable
    environment["PYTHONUNBUFFERED"] = "1"
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Of another session, as in a test or a shell: spark-pipelines makes its own.
    for name in (
        "SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYSPARK_GATEWAY_PORT",
        "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS", "PYSPARK_DRIVER_PYTHON",
        "SPARK_CONNECT_AUTHENTICATE_TOKEN",
    ):  # fmt: skip
        environment.pop(name, None)
    return environment


def _wait_for_port() -> None:
    """Two local servers at once would talk past each other: wait until the other has ended."""
    deadline = time.monotonic() + limits.CONNECT_PORT_S_MAX
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", _PORT)) != 0:
                return
        if time.monotonic() > deadline:
            raise SparkUnreachable(
                f"port {_PORT} is taken, perhaps by another pipeline that runs: spark-pipelines "
                f"needs it for its own server. End that, or use it: --remote sc://localhost:{_PORT}"
            )
        time.sleep(0.5)


_STAMPED: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: (.*)")
_FLOW: Final = re.compile(r"Flow '?([\w.`-]+)'? (?:is|has) ([A-Z]+)(.*)")
_UNRESOLVED: Final = re.compile(r"Failed to resolve flow: '?([\w.`-]+)'?")
_RUN: Final = re.compile(r"Run (?:is|has) ([A-Z]+)")
_LOGGED: Final = re.compile(r"\d\d:\d\d:\d\d (?:ERROR|WARN|FATAL) ")


def events(lines: Iterable[str]) -> Iterator[Event]:
    """What the lines tell of flows; a failure's `detail` is its reason.

    A flow that failed is called COMPLETED first, so that is told only after what comes next.
    """
    held: Event | None = None
    reason: list[str] = []
    for line in lines:
        stamped = _STAMPED.match(line)
        if held is not None and held.failed:
            if stamped is None and not line.startswith(("Traceback ", "===")):
                if not _LOGGED.match(line) and len(reason) < limits.REASON_LINES_MAX:
                    reason.append(line.removeprefix("Error: "))
                continue
            yield replace(held, detail="\n".join(reason))
            held, reason = None, []
        found = _event(stamped[1]) if stamped is not None else None
        if found is None:
            continue
        if held is not None and not (found.failed and found.flow == held.flow):
            yield held
        held = None
        if found.failed or found.state == "COMPLETED":
            held = found
        else:
            yield found
    if held is not None:
        yield replace(held, detail="\n".join(reason))


def _event(message: str) -> Event | None:
    if found := _FLOW.match(message):
        return Event(_short(found[1]), found[2])
    if found := _UNRESOLVED.match(message):
        return Event(_short(found[1]), "UNRESOLVED")
    if found := _RUN.match(message):
        return Event("", found[1])
    return None


def _short(flow: str) -> str:
    return flow.replace("`", "").removeprefix("spark_catalog.").removeprefix("default.")


def _follow(
    command: list[str],
    home: Path,
    environment: dict[str, str],
    on_event: Callable[[Event], None],
    on_line: Callable[[str], None],
) -> Outcome:
    """Run the command, keep its output in a file and tell what it means."""
    last: deque[str] = deque(maxlen=limits.REASON_LINES_MAX)
    outcome = Outcome(0)
    with (
        (home / LOG).open("w") as log,
        subprocess.Popen(
            command, cwd=home, env=environment, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None

        def lines() -> Iterator[str]:
            for line in process.stdout or ():
                log.write(line)
                log.flush()
                on_line(line.rstrip("\n"))
                if line.strip():
                    last.append(line.rstrip())
                yield line.rstrip("\n")

        try:
            for event in events(lines()):
                if event.flow:
                    outcome.flows[event.flow] = event.state
                if event.detail:
                    reason = f"{event.flow}: {shorten(event.detail)}"
                    if reason not in outcome.reasons:
                        outcome.reasons.append(reason)
                on_event(event)
        except BaseException:
            process.terminate()
            raise
    outcome.status = process.returncode
    if outcome.status and not outcome.reasons:
        outcome.reasons = list(last)
    return outcome


_RAISED: Final = re.compile(r"^(?:\w+\.)+\w*(?:Error|Exception)?: (.+)", re.MULTILINE)


def shorten(reason: str) -> str:
    """A reason Spark gives, without the plan and the stack; of a Python error, what it says."""
    reason = reason.split("=== Streaming Query ===")[0]
    if "Traceback (most recent call last)" in reason:
        raised = _RAISED.findall(reason.split("Traceback (most recent call last)")[-1])
        if raised:
            return str(raised[-1]).strip()
    text = re.sub(r"\s*SQLSTATE: \w+;?", "", reason)
    text = re.sub(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ", "", text)
    return re.split(r"\n['+]", text)[0].strip()
