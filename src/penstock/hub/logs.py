"""Logs: readable on a terminal, JSON otherwise, and nothing in normal operation."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

_SECRET = re.compile(r"pst_[A-Za-z0-9.-]+_[0-9a-f]+")


def set_up_logs(level: str) -> None:
    """Log to standard error from `level` on."""
    pretty = sys.stderr.isatty()
    renderer: Any = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if pretty
        else structlog.processors.JSONRenderer()
    )
    chain: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        # Tracebacks become text here: rich ones show local variables, and so secrets.
        structlog.processors.format_exc_info,
        hide_secrets,
        renderer,
    ]
    structlog.configure(
        processors=chain,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def hide_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace anything that looks like a token, wherever it stands."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = _SECRET.sub("pst_...", value)
    return event
