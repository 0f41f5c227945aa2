from __future__ import annotations

import inspect
import re

from penstock import errors
from penstock.errors import PenstockError

CLASSES = [
    each
    for _, each in inspect.getmembers(errors, inspect.isclass)
    if issubclass(each, PenstockError) and each.__module__ == errors.__name__
]


def drawn_tree() -> dict[str, str | None]:
    """Each class of the tree in the docstring, and the one it hangs from."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([│├└─ ]*)([A-Z]\w+)(?=  |$)", line)
        if found is None:
            continue
        depth = len(found[1]) // 4
        path = [*path[:depth], found[2]]
        parents[found[2]] = path[depth - 1] if depth else None
    return parents


def test_the_tree_on_top_of_the_page_is_the_tree_of_the_classes() -> None:
    assert drawn_tree() == {
        each.__name__: None if each is PenstockError else each.__bases__[0].__name__
        for each in CLASSES
    }


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [each.__dict__.get("code") for each in CLASSES]
    assert all(isinstance(code, str) and re.fullmatch("[a-z]+(-[a-z]+)*", code) for code in codes)
    assert len(set(codes)) == len(CLASSES) > 20


def test_a_trimmed_index_carries_the_earliest() -> None:
    error = errors.IndexTrimmed("gone", earliest=7)
    assert error.earliest == 7
    assert str(error) == "gone"
