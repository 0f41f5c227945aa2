"""`penstock groups`: lag, positions, and resets that are looked at first."""

from __future__ import annotations

import pytest

from penstock.config import Config
from penstock.log import Batch, small_log
from penstock.testing.hub import TestHub
from tests.cli.conftest import Cli


@pytest.fixture
def filled(hub, wide):
    for partition in range(3):
        hub.log.append(
            wide,
            Batch.of([b"x"] * 100, timestamps=[1_000_000 * n for n in range(100)]),
            partition,
        )
    return wide


def positions(hub: TestHub, stream: str) -> list[int | None]:
    return [hub.log.position("g", stream, number) for number in range(3)]


def test_without_groups_it_says_so():
    with TestHub() as empty:
        assert "no groups" in Cli(empty.url)("groups").err
        assert Cli(empty.url)("groups", "--json").json == []


def test_a_registered_group_is_listed_with_its_lag(cli, filled):
    assert len(cli("groups", "register", "g", filled, "--json").json) == 3
    cli("groups", "save", "g", filled, "0=40", "2=100")
    rows = cli("groups", "--stream", filled).out.splitlines()[1:]
    assert [row.split()[2:6] for row in rows] == [
        ["0", "40", "100", "60"],
        ["1", "0", "100", "100"],
        ["2", "100", "100", "0"],
    ]
    assert all("registered" in row and "stale" not in row for row in rows)
    found = cli("groups", "--group", "g", "--stream", filled, "--json").json
    assert [each["records"] for each in found] == [60, 100, 0]
    assert found[0]["seconds"] > 0


def test_a_stale_group_is_marked():
    config = Config(log=small_log(group_stale_seconds=1e-9))
    with TestHub(config=config) as hub:
        hub.log.create_stream("s")
        hub.log.append("s", Batch.of([b"x"]))
        cli = Cli(hub.url)
        cli("groups", "register", "g", "s")
        assert "stale" in cli("groups").out


def test_positions_are_saved_forward_only(cli, hub, filled):
    cli("groups", "save", "g", filled, "0=50")
    done = cli("groups", "save", "g", filled, "0=40", code=2)
    assert "error (position-backwards)" in done.err
    assert hub.log.position("g", filled, 0) == 50
    assert "PARTITION=POSITION" in cli("groups", "save", "g", filled, "0:4", code=2).err


def test_a_reset_shows_what_moves_and_asks(cli, hub, filled):
    cli("groups", "save", "g", filled, "0=50", "1=60", "2=70")
    done = cli("groups", "reset", "g", filled, "--to", "earliest", stdin="n\n", code=1)
    assert [row.split() for row in done.out.splitlines()[:4]] == [
        ["partition", "before", "after", "difference"],
        ["0", "50", "0", "-50"],
        ["1", "60", "0", "-60"],
        ["2", "70", "0", "-70"],
    ]
    assert "Move group g" in done.err
    assert positions(hub, filled) == [50, 60, 70]
    cli("groups", "reset", "g", filled, "--to", "earliest", stdin="y\n")
    assert positions(hub, filled) == [0, 0, 0]


def test_a_dry_run_changes_nothing(cli, hub, filled):
    cli("groups", "save", "g", filled, "0=50")
    done = cli("groups", "reset", "g", filled, "--to", "latest", "--dry-run", "--json").json
    assert done["dry_run"] is True
    assert done["moves"][0] == {"partition": 0, "before": 50, "after": 100}
    assert hub.log.position("g", filled, 0) == 50


@pytest.mark.parametrize(
    ("to", "after"),
    [
        ("latest", 100),
        ("earliest", 0),
        ("30", 30),
        ("+7", 57),
        ("-7", 43),
        ("-1000", 0),
        ("1970-01-01T00:00:20", 20),
        ("1970-01-01T01:00:20+01:00", 20),
    ],
)
def test_a_reset_goes_anywhere(cli, hub, filled, to, after):
    cli("groups", "save", "g", filled, "0=50", "1=50")
    words = ("groups", "reset", "g", filled, "--to", to, "--partition", 0, "--partition", 2)
    done = cli(*words, "--yes", "--json").json
    assert done["dry_run"] is False
    assert positions(hub, filled)[:2] == [after, 50]


def test_a_reset_in_a_script_has_to_say_yes(cli, hub, filled):
    cli("groups", "save", "g", filled, "0=50")
    assert "--yes" in cli("groups", "reset", "g", filled, "--to", "0", "--json", code=2).err
    cli("groups", "reset", "g", filled, "--to", "0", stdin="", code=1)  # nobody answers
    assert hub.log.position("g", filled, 0) == 50


def test_a_reset_to_nowhere_says_what_is_possible(cli, filled):
    done = cli("groups", "reset", "g", filled, "--to", "yesterday", code=2)
    assert "earliest, latest, an index" in done.err


def test_a_dropped_group_is_forgotten(cli, hub, filled):
    cli("groups", "register", "g", filled)
    cli("groups", "drop", "g", filled, stdin="n\n", code=1)
    assert hub.log.lags("g", filled)
    assert cli("groups", "drop", "g", filled, "--yes", "--json").json["dropped"] == "g"
    assert not hub.log.lags(stream=filled)
    assert "error (unknown-group)" in cli("groups", "drop", "g", filled, "--yes", code=2).err
