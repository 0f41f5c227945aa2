"""The names of streams, groups and producers.

A stream's name obeys Kafka's topic rule, and as in Kafka two names that differ only in `.` and `_`
cannot both exist (Kafka's metric names would collide).
"""

from __future__ import annotations

import re

from penstock import limits
from penstock.errors import BadName

_STREAM = re.compile(r"[A-Za-z0-9._-]+")


def check_stream_name(name: str) -> str:
    """Return `name` if it may name a stream, else raise `BadName`."""
    if not isinstance(name, str) or not _STREAM.fullmatch(name) or name in (".", ".."):
        raise BadName(
            f"{name!r:.300} cannot name a stream: use letters, digits, '.', '_' and '-' "
            "(and neither '.' nor '..' alone)"
        )
    if len(name) > limits.STREAM_NAME_CHARS_MAX:
        raise BadName(
            f"a stream name of {len(name)} characters is too long: "
            f"at most {limits.STREAM_NAME_CHARS_MAX}"
        )
    return name


def clash_key(name: str) -> str:
    """Names with equal keys cannot both exist."""
    return name.replace(".", "_")


def check_label(name: str, what: str, bytes_max: int) -> str:
    """Return `name` if it may name a group or producer (`what`), else raise `BadName`."""
    if not isinstance(name, str) or not name or "\x00" in name:
        raise BadName(f"{name!r:.300} cannot name a {what}: it must be text without NUL, not empty")
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > bytes_max:
        raise BadName(f"a {what} name of {size} bytes is too long: at most {bytes_max}")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise BadName(f"{name!r:.300} cannot name a {what}: it is not valid Unicode") from None
    return name
