from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock import limits
from penstock.errors import BadSetting
from penstock.log import LogSettings, StreamSettings, small_log


def test_the_defaults_make_sense() -> None:
    assert LogSettings().check() == LogSettings()
    assert StreamSettings().check() == StreamSettings()
    assert small_log().journal_bytes < LogSettings().journal_bytes


@pytest.mark.parametrize(
    "bad",
    [
        {"retention_seconds": -1.0},
        {"retention_seconds": float("nan")},
        {"retention_bytes": -1},
        {"retention_records": -1},
        {"segment_bytes": limits.SEGMENT_BYTES_MIN - 1},
        {"segment_bytes": limits.SEGMENT_BYTES_MAX + 1},
        {"compression": "gzip"},
    ],
    ids=str,
)
def test_a_stream_setting_out_of_range_is_named(bad: dict[str, Any]) -> None:
    ((name, value),) = bad.items()
    with pytest.raises(BadSetting, match=f"{name} is '?{value}'?: "):
        StreamSettings(**bad).check()


@pytest.mark.parametrize(
    "good",
    [
        {"retention_seconds": 0.0},
        {"retention_bytes": 0},
        {"retention_records": 0},
        {"segment_bytes": limits.SEGMENT_BYTES_MIN},
        {"segment_bytes": limits.SEGMENT_BYTES_MAX},
        {"compression": "zstd"},
        {"compression": "none"},
    ],
    ids=str,
)
def test_a_stream_setting_at_its_edge_is_taken(good: dict[str, Any]) -> None:
    assert StreamSettings(**good).check() == StreamSettings(**good)


@pytest.mark.parametrize(
    "bad",
    [
        {"journal_bytes": limits.JOURNAL_BYTES_MIN - 4096},
        {"journal_bytes": limits.JOURNAL_BYTES_MAX + 4096},
        {"journal_bytes": limits.JOURNAL_BYTES_DEFAULT + 1},
        {"checkpoint_bytes": limits.JOURNAL_BYTES_DEFAULT // 4 + 1},
        {"checkpoint_bytes": 0},
        {"record_bytes_max": limits.GROUP_BYTES_MAX},
        {"record_bytes_max": 0},
        {"checkpoint_seconds": 0.0},
        {"buffer_bytes": 0},
        {"relaxed_sync_seconds": 0.0},
        {"group_stale_seconds": 0.0},
        {"group_stale_seconds": float("nan")},
        {"linger_seconds": -0.001},
        {"retention_check_seconds": -1.0},
        {"durability": "none"},
    ],
    ids=str,
)
def test_a_log_setting_out_of_range_is_named(bad: dict[str, Any]) -> None:
    ((name, value),) = bad.items()
    with pytest.raises(BadSetting, match=f"{name} is '?{value}'?: "):
        LogSettings(**bad).check()


def test_the_smallest_journal_can_be_had() -> None:
    small_log(
        journal_bytes=limits.JOURNAL_BYTES_MIN,
        checkpoint_bytes=limits.JOURNAL_BYTES_MIN // 4,
        record_bytes_max=limits.JOURNAL_BYTES_MIN // 4 - limits.FRAME_BYTES_MAX,
    )


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="retention_days"):
        msgspec.json.decode(b'{"retention_days": 3}', type=StreamSettings)
    with pytest.raises(TypeError):
        small_log(journal_size=3)


def test_stream_settings_are_stored_as_what_differs_from_the_default() -> None:
    assert msgspec.json.encode(StreamSettings()) == b"{}"
    settings = StreamSettings(retention_records=5, compression="zstd")
    assert msgspec.json.decode(msgspec.json.encode(settings), type=StreamSettings) == settings
