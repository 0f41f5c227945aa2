from __future__ import annotations

import re

import pytest

from penstock.errors import BadSetting, JarsMissing
from penstock.spark import jars
from penstock.spark.cache import cache_folder


def test_every_pinned_jar_has_exact_coordinates_and_a_checksum():
    pinned = [each for jars_of_set in jars.JARS.values() for each in jars_of_set]
    assert len({each.file for each in pinned}) == len(pinned)
    for each in pinned:
        assert re.fullmatch(r"[\w.-]+:[\w.-]+:\d[\w.-]*", each.coordinates)
        assert re.fullmatch(r"[0-9a-f]{64}", each.sha256)


def test_jars_are_kept_in_the_cache_unless_told_otherwise(monkeypatch, tmp_path):
    monkeypatch.delenv("PENSTOCK_JARS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jars.folder() == tmp_path / "penstock" / "jars"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "penstock"
    monkeypatch.setenv("PENSTOCK_JARS", "~/my jars")
    assert jars.folder() == tmp_path / "my jars"


def test_what_is_there_is_not_fetched_again(fake_jars):
    came: list[jars.Jar] = []
    assert len(jars.fetch(["delta"], came.append)) == 2
    assert [each.artifact for each in came] == ["one", "two"]
    fake_jars.unplug()
    assert jars.fetch(["delta"]) == []
    assert [path.name for path in jars.paths("delta")] == ["one-1.0.jar", "two-1.0.jar"]
    assert {path.name for path in fake_jars.folder.iterdir()} == {"one-1.0.jar", "two-1.0.jar"}


def test_jars_that_were_not_fetched_say_what_to_type(fake_jars):
    with pytest.raises(JarsMissing, match=r"three-1\.0\.jar.* penstock jars --set kafka"):
        jars.paths("kafka")


def test_a_damaged_jar_is_not_used_but_fetched_again(fake_jars):
    jars.fetch(["delta"])
    fake_jars.folder.joinpath("two-1.0.jar").write_text("half of i")
    with pytest.raises(JarsMissing, match=r"^two-1\.0\.jar"):
        jars.paths("delta")
    assert [each.artifact for each in jars.fetch(["delta"])] == ["two"]
    assert len(jars.paths("delta")) == 2


def test_a_jar_with_another_checksum_is_not_taken(fake_jars):
    fake_jars.damage()
    with pytest.raises(JarsMissing, match="another checksum"):
        jars.fetch(["delta"])
    assert list(fake_jars.folder.iterdir()) == []


def test_without_a_network_it_tells_what_the_resolver_said(fake_jars):
    fake_jars.unplug()
    with pytest.raises(JarsMissing, match="no network today") as caught:
        jars.fetch(["kafka"])
    assert str(fake_jars.folder) in str(caught.value)
    assert list(fake_jars.folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_says_what_to_set(fake_jars, monkeypatch):
    monkeypatch.setenv("PENSTOCK_JARS", "/dev/null/jars")
    with pytest.raises(JarsMissing, match="PENSTOCK_JARS"):
        jars.fetch(["delta"])


def test_unknown_sets_are_refused_with_those_there_are(fake_jars):
    with pytest.raises(BadSetting, match="'avro'; there are: delta, kafka"):
        jars.fetch(["avro"])
