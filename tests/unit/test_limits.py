from __future__ import annotations

import ast
from pathlib import Path

import pytest

from penstock import limits

NAMES = [name for name in vars(limits) if name.isupper()]
SOURCE = Path(limits.__file__).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_every_limit_is_a_positive_number(name: str) -> None:
    value = getattr(limits, name)
    assert isinstance(value, int | float)
    assert value > 0


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("_MAX")])
def test_no_least_value_is_above_its_largest(name: str) -> None:
    least = getattr(limits, name[: -len("MAX")] + "MIN", 0)
    assert least <= getattr(limits, name)


def test_defaults_lie_within_their_limits() -> None:
    for what in ("JOURNAL_BYTES", "SEGMENT_BYTES"):
        default = getattr(limits, f"{what}_DEFAULT")
        assert getattr(limits, f"{what}_MIN") <= default <= getattr(limits, f"{what}_MAX")


def test_every_limit_is_set_once_and_stays() -> None:
    assigned = [
        node.target.id
        for node in ast.parse(SOURCE).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if ast.unparse(node.annotation) == "Final"
    ]
    assert sorted(assigned) == sorted(NAMES)


def test_every_limit_is_used() -> None:
    package = Path(limits.__file__).parent
    used = "".join(
        path.read_text(encoding="utf-8")
        for path in package.rglob("*.py")
        if path.name != "limits.py"
    )
    unused = [name for name in NAMES if f"limits.{name}" not in used and name not in ("KIB", "MIB")]
    assert unused == []
