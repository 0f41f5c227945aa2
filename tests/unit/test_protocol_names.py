"""Names from peers become names of streams, and come back as they were."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.errors import BadName, BadSetting
from penstock.log.names import check_stream_name
from penstock.protocols.names import Template, escape, unescape

FIELDS = ("program", "instance", "stream")


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        (b"orders", "orders"),
        (b"Orders_2.eu-west", "Orders_2.eu-west"),
        (b"orders/eu", "orders-x2feu"),
        ("déjà".encode(), "d-xc3-xa9j-xc3-xa0"),
        (b"a-x2f", "a-x2dx2f"),
        (b"-x2-x2f", "-x2-x2dx2f"),
        (b"--x", "--x"),
        (b"", "-x"),
        (b"-x", "-x2dx"),
        (b".", "-x2e"),
        (b"..", "-x2e."),
        (b"\x00\xff", "-x00-xff"),
    ],
)
def test_a_name_is_escaped_and_comes_back(name: bytes, escaped: str) -> None:
    assert escape(name) == escaped
    assert unescape(escaped) == name


@given(st.binary(max_size=60), st.sampled_from(["", ".", "._", "-", "x2"]))
def test_any_bytes_become_a_legal_name_and_come_back(name: bytes, also: str) -> None:
    escaped = escape(name, also)
    check_stream_name(escaped)
    assert unescape(escaped) == name


@given(st.text("-x2df", max_size=12))
def test_what_looks_like_an_escape_comes_back_too(name: str) -> None:
    assert unescape(escape(name.encode())) == name.encode()


def test_a_template_gives_plain_names_where_it_can() -> None:
    template = Template("{program}.{instance}.{stream}", FIELDS)
    values = {"program": b"feed", "instance": b"a", "stream": b"orders.eu"}
    assert template.name(values) == "feed.a.orders.eu"


@given(*(2 * [st.tuples(*3 * [st.text("ab.-", max_size=4)])]))
def test_different_values_give_different_names(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    assume(one != other)
    template = Template("{program}.{instance}.{stream}", FIELDS)
    names = [
        template.name({key: text.encode() for key, text in zip(FIELDS, values, strict=True)})
        for values in (one, other)
    ]
    assert names[0] != names[1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{program}.{topic}", "allowed are"),
        ("{program}", "lacks {stream}"),
        ("{stream}.{stream}", "twice"),
        ("{program}/{stream}", "no stream's name has"),
        ("{program.{stream}", "no stream's name has"),
        ("", "lacks"),
    ],
)
def test_a_bad_template_says_what_is_wrong(text: str, told: str) -> None:
    with pytest.raises(BadSetting, match=told):
        Template(text, FIELDS, needed=["stream"])


def test_a_name_that_becomes_too_long_is_refused() -> None:
    with pytest.raises(BadName, match="at most 249"):
        Template("in.{stream}", FIELDS).name({"stream": b"/" * 100})
