"""The configuration: layers, where each value came from, and mistakes that say where they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import ConfigError, load


def mistakes(tmp_path: Path, text: str, **environment: str) -> list[str]:
    path = tmp_path / "penstock.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path, environment=environment)
    return [str(mistake).replace(str(path), "penstock.toml") for mistake in caught.value.mistakes]


def test_without_anything_the_defaults_hold_and_say_so():
    resolved = load(environment={})
    assert resolved.config.http.listen == "127.0.0.1:7470"
    assert resolved.values["http.listen"].source == "default"
    assert all(value.source == "default" for value in resolved.values.values())


def test_the_file_then_the_environment_then_flags(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text('[http]\nlisten = "127.0.0.1:1"\n\n[log]\nbuffer_bytes = 1000\n')
    resolved = load(path, environment={"PENSTOCK_LOG_BUFFER_BYTES": "2000"})
    assert resolved.config.http.listen == "127.0.0.1:1"
    assert resolved.values["http.listen"].source == f"{path}:2"
    assert resolved.config.log.buffer_bytes == 2000
    assert resolved.values["log.buffer_bytes"].source == "PENSTOCK_LOG_BUFFER_BYTES"
    resolved = load(path, environment={}, flags={"log.buffer_bytes": "3000"})
    assert resolved.config.log.buffer_bytes == 3000
    assert resolved.values["log.buffer_bytes"].source == "--set log.buffer_bytes"


def test_penstock_toml_is_read_if_it_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "penstock.toml").write_text('[hub]\ndata = "here"\n')
    assert load(environment={}).config.hub.data == "here"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[htp]\n", "penstock.toml:1: unknown section [htp]; did you mean 'http'?"),
        ("[http]\nlisen = 1\n", "penstock.toml:2: unknown key 'lisen' in [http]; did you mean"),
        ("[http]\nlisten = 1\n", "penstock.toml:2: http.listen is 1: it must be text"),
        ("hub = 1\n", "penstock.toml:1: hub is a section: write [hub]"),
        ("[log\n", "penstock.toml: is not TOML"),
        ('[hub]\nlog_level = "loud"\n', "it must be 'debug' or 'info' or 'warning' or 'error'"),
        ("[log]\ncheckpoint_bytes = 999999999\n", "penstock.toml:2: checkpoint_bytes is 999999999"),
        ('[tls]\nkey = "k"\n', "penstock.toml:2: TLS needs both certificate and key"),
    ],
)
def test_a_mistake_says_where_it_is_and_what_is_allowed(tmp_path, text, expected):
    (message,) = mistakes(tmp_path, text)
    assert expected in message


def test_all_mistakes_are_listed_at_once(tmp_path):
    found = mistakes(tmp_path, "[http]\na = 1\nb = 2\n", PENSTOCK_HUB_INSECURE="perhaps")
    assert len(found) == 3
    assert found[-1].startswith("PENSTOCK_HUB_INSECURE: hub.insecure is 'perhaps'")


def test_a_missing_file_is_a_mistake(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.toml", environment={})


@pytest.mark.parametrize("text", ["true", "yes", "on", "1"])
def test_truth_has_several_spellings_in_the_environment(text):
    assert load(environment={"PENSTOCK_HUB_INSECURE": text}).config.hub.insecure is True


def test_variables_of_other_kinds_are_left_alone():
    load(environment={"PENSTOCK_PURE": "1", "PENSTOCK_TOKEN": "x", "PENSTOCK_WHATEVER": "y"})


def test_a_variable_of_a_known_section_must_be_a_known_key():
    with pytest.raises(ConfigError, match="unknown key 'lisen'"):
        load(environment={"PENSTOCK_HTTP_LISEN": "x"})
