"""The contract holds through the hub's HTTP API, too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.config import Config
from penstock.log import now_us, small_log
from penstock.testing.hub import TestHub
from tests.contract.http_log import HttpLog
from tests.contract.log import LogContract, OpenLog

pytestmark = pytest.mark.slow


class TestOverHttp(LogContract):
    @pytest.fixture(scope="class")
    @classmethod
    def open_log(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenLog]:
        data: Path = tmp_path_factory.mktemp("hubs")
        with contextlib.ExitStack() as opened:

            def opener(
                place: str,
                *,
                clock: Callable[[], int] = now_us,
                group_stale_seconds: float = 3600.0,
            ) -> HttpLog:
                settings = small_log(
                    group_stale_seconds=group_stale_seconds, record_bytes_max=256 * 1024
                )
                running = contextlib.ExitStack()
                hub = running.enter_context(
                    TestHub(data / place, Config(log=settings), clock=clock)
                )
                log = HttpLog(hub, running.close)
                opened.callback(log.close)
                return log

            yield opener
