"""`penstock version`: what is installed."""

from __future__ import annotations

import platform

import penstock
from penstock.cli.options import JsonOption
from penstock.cli.output import show_json


def version(json: JsonOption = False) -> None:
    """Show the version, and what it runs on.

    Examples:

        penstock version --json
    """
    build = penstock.build_info()
    python = platform.python_version()
    if json:
        show_json({"version": build.version, "python": python, "compiled": build.compiled})
        return
    compiled = f"{len(build.compiled)} modules compiled" if build.compiled else "pure Python"
    print(f"penstock {build.version} (Python {python}, {compiled})")
