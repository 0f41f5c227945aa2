"""When a pipeline runs: once over what is there, or again and again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from penstock.errors import BadSetting

_AVAILABLE_NOW: Final = re.compile(r"available[-_ ]?now|once", re.IGNORECASE)
_INTERVAL: Final = re.compile(r"(?:processing\s+|every\s+)?(\d{1,6})\s*(ms|s|m|h)", re.IGNORECASE)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Trigger:
    """`available-now`, or an interval."""

    interval_s: float | None = None

    @classmethod
    def of(cls, text: str) -> Self:
        """Read `available-now`, `processing 10s`, or `10s` (ms, s, m, h)."""
        if _AVAILABLE_NOW.fullmatch(text.strip()):
            return cls()
        match = _INTERVAL.fullmatch(text.strip())
        if match is None:
            raise BadSetting(
                f"there is no trigger {text!r}: write available-now (take what is there and end), "
                "or processing with an interval, as in 'processing 10s' (units ms, s, m, h)"
            )
        return cls(int(match[1]) * _SECONDS[match[2].lower()])
