"""What commands print: for people on a terminal, as JSON for scripts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from penstock.cli.client import Refused
from penstock.errors import Forbidden, LocalError, PenstockError, Unauthorized

console = Console()
errors = Console(stderr=True)

_NOT_ALLOWED: Final = (401, 403)
_PIPE_WIDTH: Final = 10_000
"""A table in a pipe is as wide as it needs to be: a script reads whole lines."""


def show_json(value: Any) -> None:
    """Print a value as JSON, one document."""
    print(msgspec.json.format(msgspec.json.encode(value)).decode())


def show_table(columns: Iterable[str], rows: Iterable[Iterable[Any]], empty: str) -> None:
    """Print rows under a heading, numbers to the right; `empty` if there are none.

    A column whose name ends in `>` holds numbers.
    """
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in columns:
        right = column.endswith(">")
        table.add_column(
            column.removesuffix(">"), justify="right" if right else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(_cell(each) for each in row))
    if not table.row_count:
        errors.print(empty, highlight=False, soft_wrap=True)
    else:
        wide = console if console.is_terminal else Console(width=_PIPE_WIDTH)
        wide.print(table, markup=False, highlight=False)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value).replace("[", r"\[")


def say(text: str) -> None:
    """A sentence for the person at the terminal, beside the command's output."""
    errors.print(text, markup=False, highlight=False, soft_wrap=True)


def size(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def duration(seconds: float) -> str:
    """Seconds as people read them."""
    for unit, length in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


@contextmanager
def progress(title: str, total: float | None = None, *, shown: bool = True) -> Iterator[Progress]:
    """A progress bar on a terminal (on stderr), nothing anywhere else; one task, number 0."""
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=errors,
        transient=True,
        disable=not (shown and errors.is_terminal),
    )
    with bar:
        bar.add_task(title, total=total)
        yield bar


def put(data: bytes) -> None:
    """Write bytes to stdout; a reader that has seen enough (`| head`) ends the command well."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        quit_pipe()


def quit_pipe() -> NoReturn:
    """End the command: nobody reads its output any more."""
    close_stdout()
    raise typer.Exit(0)


def close_stdout() -> None:
    """Let what Python still flushes to stdout at exit go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def confirm(question: str, yes: bool, json: bool = False) -> None:
    """Ask before something that cannot be undone; anything but yes ends the command with 1."""
    if yes:
        return
    if json:
        raise typer.BadParameter("with --json nothing is asked: say --yes to do it")
    if not typer.confirm(question, err=True):
        say("nothing was changed")
        raise typer.Exit(1)


def fail(error: PenstockError) -> int:
    """Print an error; returns the exit code: 2 wrong usage, 3 not allowed, 1 anything else."""
    errors.print(f"[red]error[/] ({error.code}): ", end="", highlight=False)
    say(str(error))
    if isinstance(error, Refused):
        if error.status in _NOT_ALLOWED:
            return 3
        return 2 if error.status < 500 else 1
    if isinstance(error, Unauthorized | Forbidden):
        return 3
    return 2 if isinstance(error, LocalError) else 1
