"""What commands print: for people on a terminal, as JSON for scripts."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Console

from penstock.errors import LocalError, PenstockError, Unauthorized

console = Console()
errors = Console(stderr=True)


def show_json(value: Any) -> None:
    """Print a value as JSON, one document."""
    print(msgspec.json.format(msgspec.json.encode(value)).decode())


def fail(error: PenstockError) -> int:
    """Print an error; returns the exit code: 2 wrong usage, 3 not allowed, 1 anything else."""
    errors.print(f"[red]error[/] ({error.code}): ", end="")
    errors.print(str(error), markup=False, highlight=False)
    if isinstance(error, Unauthorized):
        return 3
    return 2 if isinstance(error, LocalError) else 1
