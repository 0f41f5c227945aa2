from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.errors import BadName
from penstock.log.names import check_label, check_stream_name, clash_key

ALLOWED = string.ascii_letters + string.digits + "._-"


@given(st.text(ALLOWED, min_size=1, max_size=limits.STREAM_NAME_CHARS_MAX))
def test_kafkas_letters_are_allowed(name: str) -> None:
    if name in (".", ".."):
        with pytest.raises(BadName):
            check_stream_name(name)
    else:
        assert check_stream_name(name) == name


@given(st.text(min_size=1, max_size=20).filter(lambda name: set(name) - set(ALLOWED)))
def test_other_letters_are_not(name: str) -> None:
    with pytest.raises(BadName, match="use letters"):
        check_stream_name(name)


@pytest.mark.parametrize("name", [None, 1, b"bytes", ["list"]])
def test_a_name_is_text(name: object) -> None:
    with pytest.raises(BadName):
        check_stream_name(name)  # type: ignore[arg-type]
    with pytest.raises(BadName):
        check_label(name, "group", 10)  # type: ignore[arg-type]


def test_a_name_that_is_too_long_is_not_shown_in_full() -> None:
    with pytest.raises(BadName, match="250 characters is too long: at most 249"):
        check_stream_name("x" * 250)
    with pytest.raises(BadName) as caught:
        check_stream_name("/" * 10_000)
    assert len(str(caught.value)) < 500


@given(st.text(ALLOWED, min_size=1, max_size=20), st.text(ALLOWED, min_size=1, max_size=20))
def test_names_clash_when_only_dots_and_underscores_differ(one: str, two: str) -> None:
    same = one.replace(".", "_") == two.replace(".", "_")
    assert (clash_key(one) == clash_key(two)) is same
    assert clash_key(one.replace("_", ".")) == clash_key(one.replace(".", "_"))


@pytest.mark.parametrize("name", ["g", "user:part", "a space", "ü" * 5, "a" * 10])
def test_a_label_is_any_text_within_its_bytes(name: str) -> None:
    assert check_label(name, "group", 10) == name


@pytest.mark.parametrize("name", ["", "a\x00", "a" * 11, "ü" * 6, "\ud800"], ids=repr)
def test_other_labels_are_refused(name: str) -> None:
    with pytest.raises(BadName, match="group"):
        check_label(name, "group", 10)
