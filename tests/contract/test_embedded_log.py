"""The embedded log keeps the contract, with its segment writer inline and as a process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from penstock.log import EmbeddedLog, now_us, open_log, small_log
from penstock.log.embedded import WriterKind
from tests.contract.log import LogContract, OpenLog


class Embedded(LogContract):
    writer: ClassVar[WriterKind]

    @pytest.fixture(scope="class")
    @classmethod
    def open_log(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenLog]:
        data: Path = tmp_path_factory.mktemp("logs")
        with contextlib.ExitStack() as opened:

            def opener(
                place: str,
                *,
                clock: Callable[[], int] = now_us,
                group_stale_seconds: float = 3600.0,
            ) -> EmbeddedLog:
                settings = small_log(
                    group_stale_seconds=group_stale_seconds, record_bytes_max=256 * 1024
                )
                log = open_log(data / place, settings, writer=cls.writer, clock=clock)
                opened.callback(log.close)
                return log

            yield opener


class TestWithTheWriterInline(Embedded):
    writer = "inline"


class TestWithTheWriterAsAProcess(Embedded):
    writer = "process"
