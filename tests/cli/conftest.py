"""A hub for the tests of commands, and the commands as a person types them."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.testing.hub import TestHub
from tests.machine import fake_jars, fake_java, no_java

__all__ = ["fake_jars", "fake_java", "no_java"]

_numbers = itertools.count()


class Outcome:
    """What a command printed, and its exit code."""

    def __init__(self, code: int, out: bytes, err: str) -> None:
        self.code = code
        self.data = out
        self.err = re.sub(r"[\s│╭╮╰╯─]+", " ", err)
        """On one line, without the frame around usage errors."""

    @property
    def out(self) -> str:
        return self.data.decode()

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.data)

    @property
    def lines(self) -> list[Any]:
        """The output as JSON lines."""
        return msgspec.json.Decoder().decode_lines(self.data)


class Cli:
    """Runs commands in this process, against a hub."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._environment = {"PENSTOCK_URL": url, "PENSTOCK_TOKEN": token}

    def __call__(
        self, *words: str | Path | int, code: int = 0, stdin: bytes | str | None = None
    ) -> Outcome:
        result = CliRunner().invoke(
            app, [str(word) for word in words], input=stdin, env=self._environment
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return Outcome(result.exit_code, result.stdout_bytes, result.stderr)


@pytest.fixture(scope="session")
def hub() -> Iterator[TestHub]:
    with TestHub() as hub:
        yield hub


@pytest.fixture
def cli(hub: TestHub) -> Cli:
    return Cli(hub.url)


@pytest.fixture
def stream(hub: TestHub) -> str:
    """A stream of this test, with one partition."""
    name = f"stream-{next(_numbers)}"
    hub.log.create_stream(name)
    return name


@pytest.fixture
def wide(hub: TestHub) -> str:
    """A stream of this test, with three partitions."""
    name = f"wide-{next(_numbers)}"
    hub.log.create_stream(name, 3)
    return name


def command(*words: str | Path | int) -> list[str]:
    """The command as a process of its own."""
    return [sys.executable, "-m", "penstock.cli", *map(str, words)]


def start(*words: str | Path | int, **more: Any) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command(*words), stdout=pipe, stderr=pipe, **more)
