"""`penstock connect`: files and made-up messages, sent to a hub, ended and begun again."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.config import Config, WallarooSettings
from penstock.log import small_log
from penstock.testing.hub import TestHub
from tests.cli.conftest import Cli, start
from tests.records import eventually, read_all


@pytest.fixture(scope="module")
def open_hub() -> Iterator[TestHub]:
    """A hub with a door for connectors, who have to know its cookie."""
    door = WallarooSettings(listen="127.0.0.1:0", cookie="secret")
    with TestHub(config=Config(log=small_log(), wallaroo=door)) as hub:
        yield hub


@pytest.fixture
def to(open_hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PENSTOCK_COOKIE", "secret")
    return open_hub.wallaroo.address.removeprefix("wallaroo://")


@pytest.fixture
def connect(to: str) -> Cli:
    return Cli(to)


def stored(hub: TestHub, stream: str, instance: str = "1") -> list[bytes]:
    name = f"connect.{instance}.{stream}"
    return read_all(hub.log, name) if name in hub.log.streams() else []


def test_a_file_is_sent_and_sent_on(open_hub, connect, to, tmp_path):
    path = tmp_path / "app.log"
    path.write_bytes(b"one\ntwo\n")
    words = ("connect", "file", path, "--to", to, "--instance", "1")
    first = connect(*words, "--json").json
    assert (first["sent"], first["acked"], first["repeated"]) == (2, 2, 0)
    assert (first["connections"], first["stopped"]) == (1, False)
    with path.open("ab") as file:
        file.write(b"three\n")
    assert "1 messages sent and acked" in connect(*words).err
    assert "0 messages sent and acked" in connect(*words).err
    assert stored(open_hub, "app") == [b"one", b"two", b"three"]


@pytest.mark.parametrize("dialect", ["spec", "shipped"])
def test_the_name_of_a_file_tells_its_format(open_hub, connect, to, tmp_path, dialect):
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    (tmp_path / "rows.jsonl").write_text('{"x": 1}\n')
    for name in ("rows.csv", "rows.jsonl"):
        connect(
            "connect", "file", tmp_path / name, "--to", to, "--instance", dialect,
            "--stream", name, "--dialect", dialect,
        )  # fmt: skip
    assert stored(open_hub, "rows.csv", dialect) == [b'{"a":"1","b":"2"}']
    assert stored(open_hub, "rows.jsonl", dialect) == [b'{"x": 1}']


def test_generated_messages_are_counted_over_all_streams(open_hub, connect, to):
    words = ("connect", "generate", "--to", to, "--instance", "1", "--stream", "made")
    done = connect(*words, "--count", 10, "--streams", 3, "--size", 5, "--json").json
    assert done["acked"] == 10
    assert stored(open_hub, "made-0") == [b"00001", b"00002", b"00003", b"00004"]
    assert [len(stored(open_hub, f"made-{number}")) for number in range(3)] == [4, 3, 3]
    connect(*words, "--count", 3, "--streams", 3, "--size", 5)
    assert stored(open_hub, "made-0")[-1] == b"00005"


def test_a_rate_is_kept(connect, to):
    words = ("connect", "generate", "--to", to, "--instance", "rate", "--json")
    done = connect(*words, "--rate", "0.2k/s", "--count", 60, "--streams", 2).json
    assert 0.2 < done["seconds"] < 5


def test_a_wrong_cookie_is_told_with_its_own_code(connect, to, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_COOKIE", "wrong")
    path = tmp_path / "app.log"
    path.touch()
    outcome = connect("connect", "file", path, "--to", to, code=3)
    assert "refuses the cookie" in outcome.err
    assert "wrong" not in outcome.err


@pytest.mark.parametrize(
    ("words", "why", "code"),
    [
        (("file", "nowhere.log"), "is no file", 2),
        (("generate", "--rate", "fast"), "write messages a second", 2),
        (("generate", "--rate", "0"), "write messages a second", 2),
        (("generate", "--count", "2", "--streams", "3"), "at least one for each", 2),
        (("generate", "--to", "nowhere"), "is no address", 2),
        (("generate", "--ca", "nowhere.pem"), "no PEM file", 2),
        (("generate", "--to", "127.0.0.1:1", "--give-up", "0.1"), "no worker at", 1),
    ],
)
def test_mistakes_are_told(cli, words, why, code):
    assert why in cli("connect", *words, code=code).err


def test_what_connectors_take_from_the_environment_does_not_disturb_a_hub(cli, monkeypatch):
    monkeypatch.setenv("PENSTOCK_COOKIE", "secret")
    monkeypatch.setenv("PENSTOCK_WORKER", "127.0.0.1:1")
    cli("check")
    assert "no worker at 127.0.0.1:1" in cli("connect", "generate", "--give-up", "0", code=1).err


def test_a_bad_record_is_told_with_its_place(connect, to, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"{}\n{oops\n")
    outcome = connect("connect", "file", path, "--to", to, code=2)
    assert "no JSON at byte 3" in outcome.err


def test_ctrl_c_ends_following_well_once_all_is_acked(open_hub, to, tmp_path):
    path = tmp_path / "live.log"
    path.write_bytes(b"one\n")
    process = start("connect", "file", path, "--follow", "--to", to, "--instance", "1")
    eventually(lambda: stored(open_hub, "live") == [b"one"])
    with path.open("ab") as file:
        file.write(b"two\n")
    eventually(lambda: stored(open_hub, "live") == [b"one", b"two"])
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert b"2 messages sent and acked" in err
    assert out == b""


def test_ctrl_c_before_the_end_says_so_with_its_code(open_hub, to):
    process = start(
        "connect", "generate", "--rate", "100/s", "--count", "100000", "--to", to, "--instance",
        "early", "--json",
    )  # fmt: skip
    eventually(lambda: len(stored(open_hub, "generated", "early")) > 20)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    done = msgspec.json.decode(out)
    assert done["stopped"]
    assert done["sent"] == done["acked"] == len(stored(open_hub, "generated", "early"))


def test_without_a_worker_it_waits_and_says_so(tmp_path: Path):
    path = tmp_path / "a.log"
    path.touch()
    process = start("connect", "file", path, "--follow", "--to", "127.0.0.1:1")
    assert process.stderr is not None
    assert b"nobody answers at 127.0.0.1:1" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert time.monotonic() - began < 20
