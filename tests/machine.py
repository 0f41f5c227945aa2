"""Machines with another Java, and with other jars: plugged into the tests that need them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.spark import jars, java

_RESOLVER = """
import pathlib, sys
print("looking around", file=sys.stderr)
if pathlib.Path({unplugged!r}).exists():
    sys.exit("no network today")
for coordinates in sys.argv[2:]:
    group, artifact, version = coordinates.split(":")
    file = pathlib.Path(sys.argv[1], "jars", f"{{group}}_{{artifact}}-{{version}}.jar")
    file.parent.mkdir(exist_ok=True)
    file.write_text(coordinates + {damage!r})
    print(coordinates, flush=True)
"""


class FakeJars:
    """Three small jars in two sets, and a resolver that makes them up instead of downloading."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = tmp_path / "jars"
        self._unplugged = tmp_path / "unplugged"
        self._patch = monkeypatch
        monkeypatch.setenv("PENSTOCK_JARS", str(self.folder))
        monkeypatch.setattr(
            jars, "JARS", {"delta": (self._jar("one"), self._jar("two")),
                           "kafka": (self._jar("three"),)},
        )  # fmt: skip
        self._resolve_with("")

    def _jar(self, artifact: str) -> jars.Jar:
        digest = hashlib.sha256(f"org.example:{artifact}:1.0".encode()).hexdigest()
        return jars.Jar("org.example", artifact, "1.0", digest)

    def _resolve_with(self, damage: str) -> None:
        program = _RESOLVER.format(unplugged=str(self._unplugged), damage=damage)
        self._patch.setattr(jars, "_RESOLVER", (sys.executable, "-c", program))

    def unplug(self) -> None:
        """From now on the resolver finds nothing."""
        self._unplugged.touch()

    def damage(self) -> None:
        """From now on what it brings is not what was pinned."""
        self._resolve_with("?")


@pytest.fixture
def fake_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeJars:
    return FakeJars(tmp_path, monkeypatch)


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java; returns the folder where it would look for installed ones."""
    installed = tmp_path / "installed"
    installed.mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "_JVM_FOLDER", installed)
    monkeypatch.setattr(java, "_wheel", lambda: None)
    return installed


@pytest.fixture
def fake_java(tmp_path: Path) -> Callable[..., Path]:
    """Makes a Java that tells its version and, asked for anything else, what it was asked."""

    def make(name: str, version: str, folder: Path = tmp_path) -> Path:
        java = folder / name / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(
            "#!/bin/sh\n"
            f'[ "$1" = -version ] && echo \'openjdk version "{version}" 2024-01-16\' >&2\n'
            'for word do echo "$word"; done\n'
        )
        java.chmod(0o755)
        return folder / name

    return make
