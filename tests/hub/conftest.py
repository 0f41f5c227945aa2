"""A hub for each test file, and one for each test that changes it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import requests

from penstock.config import Config
from penstock.log import small_log
from penstock.testing.hub import TestHub

Ask = Callable[..., requests.Response]


def config(**sections: dict[str, Any]) -> Config:
    """A small hub's configuration, with some values changed."""
    base = Config(log=small_log())
    changed = {
        name: msgspec.structs.replace(getattr(base, name), **values)
        for name, values in sections.items()
    }
    return msgspec.structs.replace(base, **changed)


@pytest.fixture(scope="module")
def shared() -> Iterator[TestHub]:
    """One hub for the tests of a file that leave it as it is."""
    with TestHub() as hub:
        yield hub


@pytest.fixture
def hub() -> Iterator[TestHub]:
    """A hub of the test's own."""
    with TestHub() as hub:
        yield hub


@pytest.fixture
def start() -> Iterator[Callable[..., TestHub]]:
    """Start hubs with a configuration; they are stopped at the end."""
    with contextlib.ExitStack() as stack:

        def starter(configured: Config | None = None, **more: Any) -> TestHub:
            return stack.enter_context(TestHub(config=configured, **more))

        yield starter


def api(hub: TestHub, method: str, path: str, **more: Any) -> requests.Response:
    """One request to the API; `token` is sent as a bearer token."""
    token = more.pop("token", None)
    headers = dict(more.pop("headers", {}))
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return requests.request(method, hub.url + "/api/v1" + path, headers=headers, timeout=30, **more)


def code_of(answer: requests.Response) -> tuple[int, str]:
    """Status and error code."""
    return answer.status_code, answer.json()["error"]["code"]
