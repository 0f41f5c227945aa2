"""Ten thousand idle connections, and clients that never read: memory stays within bounds."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import limits
from penstock.testing.served import ServedHub

pytestmark = pytest.mark.slow

CONNECTIONS = 10_000
PAGE = resource.getpagesize()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ServedHub]:
    hub = ServedHub(
        tmp_path / "data", {"log.journal_bytes": "134217728", "log.checkpoint_bytes": "8388608"}
    )
    hub.start()
    assert hub.request("POST", "/api/v1/streams", b'{"name": "s"}')[0] == 201
    yield hub
    hub.end()


def memory(hub: ServedHub) -> int:
    assert hub.process is not None
    return int(Path(f"/proc/{hub.process.pid}/statm").read_text().split()[1]) * PAGE


def append(hub: ServedHub, megabytes: int) -> None:
    body = b"".join(b'{"value":"%s"}\n' % (b"x" * 1000) for _ in range(1_000))
    for _ in range(megabytes):
        status, answer = hub.request("POST", "/api/v1/streams/s/records", body)
        assert status == 200, answer


def test_ten_thousand_idle_connections_cost_little_and_disturb_nobody(hub: ServedHub) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < CONNECTIONS + 500:
        pytest.skip(f"this machine allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, CONNECTIONS + 500), hard))
    append(hub, 5)
    before = memory(hub)
    with contextlib.ExitStack() as opened:
        for _ in range(CONNECTIONS):
            opened.enter_context(socket.create_connection(("127.0.0.1", hub.port), 30))
        append(hub, 5)
        assert hub.request("GET", "/healthz")[0] == 200
        assert memory(hub) - before < CONNECTIONS * 16 * limits.KIB
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_tails_that_are_never_read_do_not_grow_memory(hub: ServedHub) -> None:
    append(hub, 20)
    with contextlib.ExitStack() as opened:

        def tail(count: int) -> None:
            for _ in range(count):
                client = opened.enter_context(socket.create_connection(("127.0.0.1", hub.port), 30))
                client.sendall(
                    b"GET /api/v1/streams/s/tail?from=earliest HTTP/1.1\r\nHost: h\r\n\r\n"
                )

        tail(10)  # the threads that read have their own memory; let them have it first
        append(hub, 50)
        before = memory(hub)
        tail(100)
        append(hub, 100)
        assert memory(hub) - before < 48 * limits.MIB
        assert hub.request("GET", "/readyz")[0] == 200
