"""Names from peers as names of streams, and back.

A stream's name has letters, digits, `.`, `_` and `-`. A peer's may have any bytes: those outside
the rule are written as `-x` and two hex digits each, so that most names stay as they are, and all
can be shown as their owner wrote them.

    orders          orders
    orders/eu       orders-x2feu
    déjà            d-xc3-xa9j-xc3-xa0
    a-x2f           a-x2dx2f        it would be read as an escape
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from penstock import limits
from penstock.errors import BadName, BadSetting

_LEGAL: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_ESCAPE: Final = re.compile(r"-x([0-9a-f]{2})")
_LOOKS_ESCAPED: Final = re.compile(rb"-x[0-9a-f]{2}")
_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_EMPTY: Final = "-x"


def escape(name: bytes, also: str = "") -> str:
    """`name` in the characters a stream's name may have; those of `also` are escaped too."""
    if not name:
        return _EMPTY
    legal = _LEGAL - set(also.encode())
    begins = {match.start() for match in _LOOKS_ESCAPED.finditer(name)}
    if name == _EMPTY.encode() or name in (b".", b".."):
        begins.add(0)
    return "".join(
        chr(byte) if byte in legal and at not in begins else f"-x{byte:02x}"
        for at, byte in enumerate(name)
    )


def unescape(text: str) -> bytes:
    """What `escape` was given."""
    if text == _EMPTY:
        return b""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text).encode("latin-1")


class Template:
    """A stream's name with fields in braces, as in `{program}.{instance}.{stream}`.

    What separates the fields is escaped in all of them but the last, so that values which differ
    never give one name.
    """

    def __init__(self, text: str, fields: Collection[str], needed: Collection[str] = ()) -> None:
        self.text = text
        self._parts = _FIELD.split(text)
        """Literals at even places, names of fields at odd ones."""
        found = self._parts[1::2]
        self._separators = "".join(sorted(set("".join(self._parts[0::2]))))
        for name in found:
            if name not in fields:
                raise BadSetting(
                    f"{text!r:.300} has the field {{{name:.100}}}: allowed are "
                    f"{', '.join(f'{{{each}}}' for each in fields)}"
                )
        if len(found) != len(set(found)):
            raise BadSetting(f"{text!r:.300} has a field twice: use each once")
        for name in needed:
            if name not in found:
                raise BadSetting(f"{text!r:.300} lacks {{{name}}}: streams could not be told apart")
        if not set(self._separators.encode()) <= _LEGAL:
            raise BadSetting(
                f"{text!r:.300} has characters that no stream's name has: between fields use "
                "letters, digits, '.', '_' and '-'"
            )

    def name(self, values: Mapping[str, bytes]) -> str:
        """The name of a stream; `BadName` if it becomes too long."""
        parts = list(self._parts)
        for at in range(1, len(parts), 2):
            is_last = at == len(parts) - 2
            parts[at] = escape(values[parts[at]], "" if is_last else self._separators)
        name = "".join(parts)
        if len(name) > limits.STREAM_NAME_CHARS_MAX:
            raise BadName(
                f"{name:.60}... has {len(name)} characters as a stream's name: at most "
                f"{limits.STREAM_NAME_CHARS_MAX} fit; use shorter names"
            )
        return name
