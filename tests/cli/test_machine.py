"""Commands that need no hub: user, verify, doctor, bench, version, check; and help."""

from __future__ import annotations

import stat
from importlib import metadata

import pytest
import trustme
import typer

import penstock
from penstock.cli import app, doctor
from penstock.config import Config, TlsSettings
from penstock.hub.users import Users
from penstock.log import Batch, open_log, small_log
from penstock.testing.hub import TestHub
from tests.cli.conftest import Cli

NOBODY = "http://127.0.0.1:9"  # the discard port: nothing listens


@pytest.fixture
def cli() -> Cli:
    return Cli(NOBODY)


# -- users -----------------------------------------------------------------------------------------


def test_a_user_is_added_and_the_token_shown_once(cli, tmp_path):
    done = cli("user", "add", "ada", "--right", "read:orders.*", "--right", "write",
               "--data", tmp_path)  # fmt: skip
    token = done.out.strip()
    assert "shown this once" in done.err
    assert Users(tmp_path).authenticate(token).name == "ada"
    assert token not in (tmp_path / "users.json").read_text()
    assert stat.S_IMODE((tmp_path / "users.json").stat().st_mode) == 0o600
    row = cli("user", "list", "--data", tmp_path).out.splitlines()[1]
    assert row.startswith("ada")
    assert "read:orders.*, write:*" in row
    listed = cli("user", "list", "--data", tmp_path, "--json")
    assert listed.json[0]["rights"] == ["read:orders.*", "write:*"]
    assert "hash" not in listed.out


def test_a_token_is_rotated_and_the_old_one_void(cli, tmp_path):
    old = cli("user", "add", "ada", "--right", "admin", "--data", tmp_path, "--json").json["token"]
    new = cli("user", "rotate", "ada", "--data", tmp_path, "--json").json["token"]
    users = Users(tmp_path)
    assert users.authenticate(new).name == "ada"
    with pytest.raises(penstock.errors.Unauthorized):
        users.authenticate(old)


def test_a_user_is_removed_after_asking(cli, tmp_path):
    cli("user", "add", "ada", "--right", "admin", "--data", tmp_path)
    cli("user", "remove", "ada", "--data", tmp_path, stdin="n\n", code=1)
    assert len(Users(tmp_path).all()) == 1
    assert cli("user", "remove", "ada", "--data", tmp_path, "--yes", "--json").json == {
        "removed": "ada"
    }
    assert "no users" in cli("user", "list", "--data", tmp_path).err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add", "ada"], "--right"),
        (["add", "ada", "--right", "fly"], "read, write or admin"),
        (["add", "a b", "--right", "read"], "cannot name a user"),
        (["rotate", "nobody"], "error (unknown-user)"),
        (["remove", "nobody", "--yes"], "users are: none yet"),
    ],
)
def test_wrong_users_are_wrong_usage(cli, tmp_path, words, message):
    assert message in cli("user", *words, "--data", tmp_path, code=2).err


def test_a_data_directory_that_cannot_be_says_why(cli, tmp_path):
    (tmp_path / "file").write_text("")
    done = cli("user", "add", "ada", "--right", "read", "--data", tmp_path / "file", code=2)
    assert "cannot be reached" in done.err


# -- what a hub says no to -------------------------------------------------------------------------


def test_tokens_and_rights_are_asked_for(cli, tmp_path):
    token = cli("user", "add", "ada", "--right", "read", "--data", tmp_path, "--json").json["token"]
    with TestHub(tmp_path) as hub:
        hub.log.create_stream("orders")
        assert "error (unauthorized)" in Cli(hub.url)("streams", code=3).err
        assert "error (unauthorized)" in Cli(hub.url, "pst_ada_wrong")("streams", code=3).err
        assert "PENSTOCK_TOKEN" in Cli(hub.url, "pst_\u00e4")("streams", code=2).err
        ada = Cli(hub.url, token)
        assert ada("streams", "--json").json[0]["name"] == "orders"
        for words in (["streams", "create", "x"], ["write", "orders", "--format", "lines"]):
            assert "error (forbidden)" in ada(*words, stdin="x\n", code=3).err
        assert {
            finding["what"]: finding["state"]
            for finding in Cli(hub.url)("doctor", "--json", code=1).json["findings"]
        }["hub"] == "problem"
        assert "you: ada" in ada("doctor").out


@pytest.mark.parametrize(
    "words",
    [
        ["streams"],
        ["streams", "show", "x"],
        ["write", "x", "--format", "lines"],
        ["read", "x"],
        ["tail", "x"],
        ["groups"],
    ],
)
def test_without_a_hub_it_says_how_to_start_one(cli, words):
    done = cli(*words, stdin="x\n", code=1)
    assert "error (hub-unreachable)" in done.err
    assert "penstock serve" in done.err


@pytest.mark.parametrize("url", ["nowhere", "ftp://here", "http://", "http://x:port"])
def test_a_url_that_is_none_is_wrong_usage(cli, url):
    assert "no hub's address" in cli("streams", "--url", url, code=2).err


def test_a_ca_file_that_is_none_is_wrong_usage(cli, tmp_path):
    words = ("streams", "--url", "https://127.0.0.1:9", "--ca", tmp_path / "none.pem")
    assert "--ca" in cli(*words, code=2).err


def test_a_hub_with_tls_is_reached_with_its_ca(cli, tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(tmp_path / "cert.pem", append=True)
    tls = TlsSettings(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    with TestHub(config=Config(log=small_log(), tls=tls)) as hub:
        words = ("streams", "--json", "--url", hub.url)
        assert cli(*words, "--ca", tmp_path / "ca.pem").json == []
        assert "certificate" in cli(*words, code=1).err


# -- verify ----------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path):
    with open_log(tmp_path / "data", small_log()) as log:
        log.create_stream("orders")
        log.append("orders", Batch.of([b"x" * 100] * 1000))
        log.checkpoint()
    return tmp_path / "data"


def test_a_sound_directory_is_ok(cli, data):
    assert cli("verify", data).out.startswith("ok: 1 streams, 1 partitions")
    report = cli("verify", data, "--json").json
    assert report["ok"] is True
    assert (report["records"], report["problems"], report["cut"]) == (1000, [], [])


def test_damage_is_told_and_ends_with_1(cli, data):
    segment = next((data / "streams").rglob("*.open"), None) or next(
        path for path in (data / "streams").rglob("*") if path.is_file()
    )
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    done = cli("verify", data, code=1)
    assert "damage" in done.out
    assert "DATA IS LOST" in done.out
    assert cli("verify", data, "--json", code=1).json["problems"][0]["kind"] == "damage"


def test_a_torn_tail_is_cut_only_if_asked(cli, data):
    segment = next(path for path in (data / "streams").rglob("*") if path.is_file())
    size = segment.stat().st_size
    with segment.open("ab") as file:
        file.write(b"torn")
    assert cli("verify", data, "--json").json["problems"][0]["kind"] == "torn-tail"
    assert segment.stat().st_size == size + 4
    report = cli("verify", data, "--repair", "--json").json
    assert (report["cut"], report["problems"]) == ([str(segment)], [])
    assert segment.stat().st_size == size


def test_what_is_no_data_directory_is_not_made_one(cli, tmp_path):
    assert "catalog.sqlite" in cli("verify", tmp_path, "--repair", code=1).err
    assert list(tmp_path.iterdir()) == []
    assert "does not exist" in cli("verify", tmp_path / "none", code=2).err


def test_a_directory_in_use_is_left_alone(cli, hub):
    assert "error (data-directory-in-use)" in cli("verify", hub.data, code=1).err


# -- doctor, bench, version, check -----------------------------------------------------------------


def test_doctor_has_a_line_for_each_thing(cli, hub, tmp_path):
    done = cli("doctor", "--data", tmp_path / "new", "--url", hub.url)
    for what in ("python", "compiled", "data directory", "free space", "sync", "open files",
                 "java", "spark", "jars", "hub"):  # fmt: skip
        assert what in done.out
    assert "will be made" in done.out
    assert not (tmp_path / "new").exists()
    findings = cli("doctor", "--data", tmp_path, "--url", hub.url, "--json").json["findings"]
    assert all(finding["advice"] or finding["state"] == "ok" for finding in findings)


def test_doctor_without_a_hub_only_warns(cli, tmp_path):
    report = cli("doctor", "--data", tmp_path, "--json").json
    assert report["ok"] is True
    assert report["findings"][-1]["state"] == "warning"
    assert "penstock serve" in report["findings"][-1]["advice"]


def test_doctor_tells_problems_and_ends_with_1(cli, tmp_path):
    (tmp_path / "file").write_text("")
    done = cli("doctor", "--data", tmp_path / "file", code=1)
    assert "is not writable" in done.out
    (tmp_path / "bad.toml").write_text("[hub]\nnonsense = 1\n")
    done = cli("doctor", "--config", tmp_path / "bad.toml", code=1)
    assert "penstock check" in done.err


def test_doctor_tells_which_java_it_would_take(no_java, fake_java, monkeypatch):
    assert doctor._java().state == "warning"
    assert "penstock[java]" in doctor._java().advice
    monkeypatch.setenv("JAVA_HOME", str(fake_java("old", "1.8.0_392")))
    assert doctor._java().state == "warning"
    monkeypatch.setenv("PATH", str(fake_java("new", "21.0.2") / "bin"), prepend=":")
    found = doctor._java()
    assert found.state == "ok"
    assert found.found.startswith("version 21 in ")
    assert "JAVA_HOME" in found.found


def test_doctor_tells_what_spark_lacks(monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_JARS", str(tmp_path))
    monkeypatch.setattr(metadata, "version", lambda name: "4.2.0")
    spark, jars = doctor._spark()
    assert (spark.state, spark.found) == ("ok", "PySpark 4.2.0")
    assert jars.state == "warning"
    assert f"delta 0 of 2, kafka 0 of 4 in {tmp_path}" in jars.found
    assert "penstock jars --set delta" in jars.advice
    monkeypatch.setattr(metadata, "version", lambda name: "4.1.3")
    assert next(doctor._spark()).state == "warning"

    def nothing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", nothing)
    assert [each.found for each in doctor._spark()] == ["not installed"]


# -- jars ------------------------------------------------------------------------------------------


def test_jars_come_once_and_are_told(cli, fake_jars):
    first = cli("jars")
    assert "fetching 3 jars" in first.err
    assert first.out.count("fetched") == 3
    assert str(fake_jars.folder) in first.out
    fake_jars.unplug()
    again = cli("jars", "--set", "delta", "--json").json
    assert again["folder"] == str(fake_jars.folder)
    assert [each["fetched"] for each in again["jars"]] == [False, False]
    assert "fetching" not in cli("jars").err


def test_jars_that_cannot_come_say_why(cli, fake_jars):
    fake_jars.unplug()
    done = cli("jars", "--set", "kafka", code=1)
    assert "error (jars-missing)" in done.err
    assert "no network today" in done.err
    assert "delta, kafka" in cli("jars", "--set", "avro", code=2).err.replace("'", "")


def test_bench_measures_and_cleans_up(cli, tmp_path):
    figures = cli("bench", "--dir", tmp_path, "--seconds", "0.1", "--json").json
    assert set(figures) == {"raw", "append", "ratio", "read"}
    assert all(figure > 0 for figure in figures.values())
    assert "durable append" in cli("bench", "--dir", tmp_path, "--seconds", "0.1").out
    assert list(tmp_path.iterdir()) == []


def test_the_version(cli):
    assert penstock.__version__ in cli("version").out
    assert cli("version", "--json").json["version"] == penstock.__version__
    assert cli("--version").out == f"penstock {penstock.__version__}\n"


def test_check_shows_values_and_mistakes(cli, tmp_path):
    assert "http.listen" in cli("check", "--data", "here").out
    assert cli("check", "--data", "here", "--json").json["values"]["hub.data"]["value"] == "here"
    (tmp_path / "bad.toml").write_text("[hub]\nnonsense = 1\n")
    done = cli("check", "--config", tmp_path / "bad.toml", code=2)
    assert "bad.toml:2" in done.err
    found = cli("check", "--config", tmp_path / "bad.toml", "--json", code=2).json
    assert found["ok"] is False


# -- help ------------------------------------------------------------------------------------------


def commands(command, path=()):
    yield path
    for name in getattr(command, "commands", {}):
        yield from commands(command.commands[name], (*path, name))


@pytest.mark.parametrize("path", list(commands(typer.main.get_command(app))), ids=" ".join)
def test_help_teaches_with_examples_on_lines_of_their_own(cli, path):
    text = cli(*path, "--help").out
    lines = [line.strip() for line in text.splitlines()]
    own = "penstock " + " ".join(path)
    if path != ("user",):
        assert any(line.startswith(own.strip()) for line in lines), text
    assert "```" not in text


def test_unknown_commands_and_options_are_wrong_usage(cli):
    assert "No such command" in cli("strems", code=2).err
    assert "No such option" in cli("read", "x", "--nonsense", code=2).err
    assert "Missing" in cli("read", code=2).err


def test_completion_knows_the_commands(cli):
    from typer.testing import CliRunner

    environment = {
        "_PENSTOCK_COMPLETE": "complete_bash",
        "COMP_WORDS": "penstock str",
        "COMP_CWORD": "1",
    }
    done = CliRunner().invoke(app, [], prog_name="penstock", env=environment)
    assert done.stdout.split() == ["streams"]
