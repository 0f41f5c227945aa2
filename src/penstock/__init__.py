"""Penstock brings streams to Spark: five stream protocols in, one durable log, Spark out.

Some modules are compiled when Penstock is installed; `build_info` tells which. Set
`PENSTOCK_PURE=1` before the first import to run the same source uncompiled.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

__all__ = ["BuildInfo", "__version__", "build_info"]
__version__ = "0.1.0"

_FORCED_PURE = os.environ.get("PENSTOCK_PURE", "") not in ("", "0")


class _PureFinder:
    """Finds Penstock's `.py` files only, so a compiled extension beside one is never imported."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or not name.startswith(f"{__name__}."):
            return None
        for folder in path:
            spec = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name, target)
            if spec is not None and spec.loader is not None:
                return spec
        return None


if _FORCED_PURE:
    # In front of the usual finder, which prefers an extension to its source.
    sys.meta_path.insert(0, _PureFinder)


class BuildInfo(NamedTuple):
    """How this installation runs."""

    version: str
    compiled: tuple[str, ...]
    """The modules that run as machine code, sorted; none when pure."""
    forced_pure: bool
    """Whether `PENSTOCK_PURE` switched compiled modules off."""


def build_info() -> BuildInfo:
    """Tell the version and which modules run compiled.

    It looks at the installed files, not at what has been imported so far.
    """
    root = Path(__file__).parent
    compiled: set[str] = set()
    if not _FORCED_PURE:
        for source in root.rglob("*.py"):
            if any(source.with_suffix(suffix).exists() for suffix in EXTENSION_SUFFIXES):
                compiled.add(".".join((__name__, *source.relative_to(root).with_suffix("").parts)))
    return BuildInfo(__version__, tuple(sorted(compiled)), _FORCED_PURE)
