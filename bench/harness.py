"""What every benchmark needs: results, the machine, raw references, a place on disk."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

import penstock

OUT = Path(__file__).parent / "out"


@dataclass
class Result:
    """One figure. `ratio` is value over reference; `goal` says what it should be."""

    name: str
    value: float
    unit: str
    reference: float | None = None
    ratio: float | None = None
    goal: str = ""
    met: bool | None = None
    note: str = ""


@dataclass
class Run:
    """The results of one run, printed as they come."""

    console: Console = field(default_factory=Console)
    results: list[Result] = field(default_factory=list)

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        reference: float | None = None,
        ratio: float | None = None,
        at_least: float | None = None,
        at_most: float | None = None,
        note: str = "",
    ) -> None:
        """Note a figure; the goal is on the ratio if there is one, else on the value."""
        if ratio is None and reference:
            ratio = value / reference
        judged = value if ratio is None else ratio
        goal, met = "", None
        if at_least is not None:
            goal, met = f">= {at_least:g}", judged >= at_least
        if at_most is not None:
            goal, met = f"<= {at_most:g}", judged <= at_most
        result = Result(name, value, unit, reference, ratio, goal, met, note)
        self.results.append(result)
        shown = f"{number(value)} {unit}"
        if ratio is not None:
            shown += f", ratio {ratio:.2f}"
        self.console.print(f"  {name}: {shown} {goal} {note}", highlight=False)

    def table(self) -> Table:
        table = Table(title="Penstock benchmarks", title_justify="left")
        for column, justify in (
            ("figure", "left"), ("value", "right"), ("unit", "left"), ("reference", "right"),
            ("ratio", "right"), ("goal", "left"), ("", "left"),
        ):  # fmt: skip
            table.add_column(column, justify=justify)  # type: ignore[arg-type]
        for result in self.results:
            table.add_row(
                result.name,
                number(result.value),
                result.unit,
                "" if result.reference is None else number(result.reference),
                "" if result.ratio is None else f"{result.ratio:.2f}",
                result.goal,
                {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[result.met],
            )
        return table

    def save(self) -> Path:
        OUT.mkdir(exist_ok=True)
        path = OUT / "latest.json"
        document = {"machine": machine(), "results": [asdict(result) for result in self.results]}
        path.write_text(json.dumps(document, indent=2) + "\n")
        return path


def number(value: float) -> str:
    """As a person reads it."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    build = penstock.build_info()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "file_system": _file_system(Path(tempfile.gettempdir())),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "penstock": penstock.__version__,
        "compiled": sorted(build.compiled),
    }


def _file_system(path: Path) -> str:
    best, kind = "", ""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, fs, *_ = line.split()
        if str(path).startswith(mount) and len(mount) > len(best):
            best, kind = mount, fs
    return kind


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory on a real disk that is gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def settle() -> None:
    """Let the disk finish what earlier work left behind, so that it does not count here."""
    os.sync()
    time.sleep(0.2)


def raw_append(directory: Path, group_bytes: int, seconds: float) -> float:
    """Bytes a second of plain `write` + `fdatasync` of groups to a growing file."""
    data = os.urandom(group_bytes)
    path = directory / "raw"
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    began = time.perf_counter()
    groups = 0
    while (took := time.perf_counter() - began) < seconds:
        os.write(fd, data)
        os.fdatasync(fd)
        groups += 1
    os.close(fd)
    path.unlink()
    return groups * group_bytes / took


def median(values: list[float]) -> float:
    return statistics.median(values)


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def cpu_seconds(pid: int) -> float:
    """Processor time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


Benchmark = Callable[[Run], None]
