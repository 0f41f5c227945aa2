"""`penstock streams`."""

from __future__ import annotations

import pytest

from penstock.log import Batch
from penstock.testing.hub import TestHub
from tests.cli.conftest import Cli


def test_without_streams_it_says_how_to_make_one():
    with TestHub() as empty:
        done = Cli(empty.url)("streams")
        assert "penstock streams create" in done.err
        assert Cli(empty.url)("streams", "--json").json == []


def test_the_list_shows_counts_ranges_and_settings(cli, hub, wide):
    hub.log.append(wide, Batch.of([b"x"] * 1500), 1)
    cli("streams", "set", wide, "--retention-seconds", "36h")
    row = next(line for line in cli("streams").out.splitlines() if line.startswith(wide + " "))
    assert row.split()[1:3] == ["3", "1,500"]
    assert "0..0 0..1500 0..0" in row
    assert "retention_seconds=1.5 d" in row
    listed = {info["name"]: info for info in cli("streams", "--json").json}
    assert listed[wide]["partitions"][1]["end"] == 1500


def test_a_stream_is_made_with_all_its_settings(cli, hub):
    info = cli(
        "streams", "create", "made", "--partitions", 2, "--retention-seconds", "7d",
        "--retention-bytes", "10GiB", "--retention-records", 5000, "--retention-read",
        "--segment-bytes", "1MiB", "--compression", "zstd", "--json",
    ).json  # fmt: skip
    assert len(info["partitions"]) == 2
    settings = hub.log.describe("made").settings
    assert settings.retention_seconds == 7 * 86_400
    assert settings.retention_bytes == 10 * 2**30
    assert settings.retention_records == 5000
    assert settings.retention_read is True
    assert settings.segment_bytes == 2**20
    assert settings.compression == "zstd"


def test_a_name_that_is_taken_is_refused_with_the_hubs_message(cli, stream):
    done = cli("streams", "create", stream, code=2)
    assert done.err.startswith("error (stream-exists)")
    assert stream in done.err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--retention-seconds", "soon", "whole number"),
        ("--retention-bytes", "10 days", "kib/mib"),
        ("--retention-records", "-1", "--retention-records is '-1'"),
        ("--segment-bytes", "none", "--segment-bytes is 'none'"),
        ("--partitions", "0", "greater than or equal to 1"),
        ("--compression", "brotli", "lz4"),
    ],
)
def test_a_wrong_setting_is_wrong_usage(cli, option, value, message):
    assert message in cli("streams", "create", "never", option, value, code=2).err


def test_a_setting_the_hub_refuses_says_what_is_allowed(cli):
    done = cli("streams", "create", "never", "--segment-bytes", 1, code=2)
    assert "error (bad-setting)" in done.err
    assert "16384" in done.err


def test_show_has_a_row_for_each_partition(cli, wide):
    assert len(cli("streams", "show", wide).out.splitlines()) == 2 + 3
    assert cli("streams", "show", wide, "--json").json["name"] == wide


def test_set_keeps_what_is_not_named_and_unsets_with_none(cli, hub, stream):
    cli("streams", "set", stream, "--retention-seconds", "60", "--retention-records", "9")
    changed = cli("streams", "set", stream, "--retention-seconds", "none", "--json").json
    assert "retention_seconds" not in changed["settings"]
    assert hub.log.describe(stream).settings.retention_records == 9
    cli("streams", "set", stream, "--retention-read")
    cli("streams", "set", stream, "--no-retention-read")
    assert hub.log.describe(stream).settings.retention_read is False
    assert "name a setting" in cli("streams", "set", stream, code=2).err


def test_partitions_are_added_and_never_taken(cli, stream):
    info = cli("streams", "add-partitions", stream, 3, "--json").json
    assert len(info["partitions"]) == 3
    assert "error (" in cli("streams", "add-partitions", stream, 2, code=2).err


def test_delete_asks_and_takes_no_for_an_answer(cli, hub, stream):
    assert "Delete stream" in cli("streams", "delete", stream, stdin="n\n", code=1).err
    assert stream in hub.log.streams()
    cli("streams", "delete", stream, stdin="y\n")
    assert stream not in hub.log.streams()


def test_delete_with_yes_does_not_ask(cli, hub, stream):
    assert "--yes" in cli("streams", "delete", stream, "--json", code=2).err
    assert cli("streams", "delete", stream, "--yes", "--json").json["deleted"] == stream
    assert stream not in hub.log.streams()


def test_trim_drops_whole_segments(cli, hub):
    cli("streams", "create", "trimmed", "--segment-bytes", "16KiB")
    for _ in range(8):
        hub.log.append("trimmed", Batch.of([bytes(1000)] * 20))
        hub.log.checkpoint()
    done = cli("streams", "trim", "trimmed", "--before", 100, "--yes", "--json").json
    assert 0 < done["earliest"] <= 100
    assert hub.log.bounds("trimmed", 0)[0] == done["earliest"]


def test_trim_of_several_partitions_needs_one(cli, wide):
    done = cli("streams", "trim", wide, "--before", 1, "--yes", code=2)
    assert "--partition" in done.err
    cli("streams", "trim", wide, "--before", 0, "--partition", 2, "--yes")


def test_an_option_before_the_subcommand_is_not_lost_silently(cli, stream):
    done = cli("streams", "--json", "show", stream, code=2)
    assert "write --json behind 'show'" in done.err
