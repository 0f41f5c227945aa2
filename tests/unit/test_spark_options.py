from __future__ import annotations

import pickle

import pytest

from penstock import limits
from penstock.errors import BadSetting
from penstock.spark.offsets import EARLIEST, LATEST
from penstock.spark.options import SOURCE_OPTIONS, URL_DEFAULT, SourceOptions, refuse_foreign


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_URL", "PENSTOCK_TOKEN", "PENSTOCK_CA"):
        monkeypatch.delenv(name, raising=False)


def read(mode: str | None = None, **more: str) -> SourceOptions:
    options = {"subscribe": "orders"} | {
        name.replace("_", "."): each for name, each in more.items()
    }
    return SourceOptions.of(options, mode)  # type: ignore[arg-type]


def test_little_has_to_be_said() -> None:
    options = read("stream")
    assert options.streams.names == ("orders",)
    assert options.hub.url == URL_DEFAULT
    assert options.hub.timeout_s == limits.SPARK_TIMEOUT_DEFAULT_S
    assert options.starting == LATEST
    assert options.fail_on_data_loss
    assert not options.headers
    assert not options.low_latency
    assert read("batch").starting == EARLIEST
    assert read("batch").ending == LATEST


def test_names_come_in_any_case() -> None:
    options = SourceOptions.of(
        {
            "SUBSCRIBE": "a, b,a",
            "failondataloss": "False",
            "INCLUDEHEADERS": "true",
            "Latency": "LOW",
        }
    )
    assert options.streams.names == ("a", "b")
    assert not options.fail_on_data_loss
    assert options.headers
    assert options.low_latency


def test_unknown_options_are_refused_with_the_valid_ones_and_a_guess() -> None:
    with pytest.raises(
        BadSetting, match=r"startingofset \(did you mean startingOffsets\?\)"
    ) as raised:
        read(startingofset="earliest")
    assert all(name in str(raised.value) for name in SOURCE_OPTIONS)
    with pytest.raises(BadSetting, match=r"unknown options qqq, topik \(did you mean topic\?\)"):
        refuse_foreign({"topik": "x", "qqq": "1", "subscribe": "x"})


def test_a_table_of_the_catalogue_is_refused_with_what_to_do_instead() -> None:
    options = {"owner": "me", "provider": "penstock", "subscribe": "a", "option.subscribe": "a"}
    with pytest.raises(BadSetting, match="CREATE TEMPORARY VIEW"):
        refuse_foreign(options)


def test_a_path_is_refused() -> None:
    with pytest.raises(BadSetting, match="subscribe"):
        read(path="orders")


def test_exactly_one_way_says_which_streams() -> None:
    with pytest.raises(BadSetting, match="given is none"):
        SourceOptions.of({})
    with pytest.raises(BadSetting, match="given are subscribe and assign"):
        read(assign='{"a": [0]}')


def test_a_pattern() -> None:
    assert SourceOptions.of({"subscribePattern": "orders.*"}).streams.pattern == "orders.*"
    with pytest.raises(BadSetting, match="not a regular expression"):
        SourceOptions.of({"subscribePattern": "orders("})


def test_assigned_partitions() -> None:
    streams = SourceOptions.of({"assign": '{"a": [0, 2], "b": [1]}'}).streams
    assert streams.names == ("a", "b")
    assert streams.has("a", 2)
    assert not streams.has("a", 1)


@pytest.mark.parametrize(
    "text", ["a", "{}", "[1]", '{"a": 1}', '{"a": []}', '{"a": [-1]}', '{"a": [true]}']
)
def test_other_assignments_are_refused(text: str) -> None:
    with pytest.raises(BadSetting, match="option assign has to be like"):
        SourceOptions.of({"assign": text})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "many"),
        ("maxBytesPerTrigger", "1e6"),
        ("minPartitions", "-1"),
        ("includeHeaders", "yes"),
        ("failOnDataLoss", "0"),
        ("latency", "none"),
        ("startingTimestamp", "2026-01-01"),
        ("penstock.timeout", "soon"),
        ("penstock.url", "localhost:7470"),
        ("group", "  "),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(BadSetting, match=name):
        SourceOptions.of({"subscribe": "a", name: value})


@pytest.mark.parametrize(
    ("mode", "name", "value"),
    [
        ("stream", "endingOffsets", "latest"),
        ("stream", "endingTimestamp", "5"),
        ("batch", "startingOffsets", "latest"),
        ("batch", "startingOffsets", '{"a": {"0": -1}}'),
        ("batch", "endingOffsets", "earliest"),
        ("batch", "endingOffsets", '{"a": {"0": -2}}'),
    ],
)
def test_what_makes_no_sense_in_a_mode_is_refused_there_only(
    mode: str, name: str, value: str
) -> None:
    with pytest.raises(BadSetting, match=name):
        SourceOptions.of({"subscribe": "a", name: value}, mode)  # type: ignore[arg-type]
    SourceOptions.of({"subscribe": "a", name: value})


def test_offsets_and_timestamps_contradict() -> None:
    with pytest.raises(BadSetting, match="startingOffsets and startingTimestamp contradict"):
        read(startingOffsets="earliest", startingTimestamp="5")


def test_times_are_kept_in_microseconds() -> None:
    assert read(startingTimestamp="1700000000123").starting_us == 1_700_000_000_123_000


def test_the_environment_fills_in_what_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URL", "https://hub:7470/")
    monkeypatch.setenv("PENSTOCK_TOKEN", "secret")
    monkeypatch.setenv("PENSTOCK_CA", "/etc/ca.pem")
    hub = read().hub
    assert (hub.url, hub.token, hub.ca) == ("https://hub:7470", "secret", "/etc/ca.pem")
    assert read(penstock_url="grpc://other:1", penstock_token="mine").hub.token == "mine"


def test_a_token_is_never_shown_but_travels() -> None:
    options = read(penstock_token="secret")
    assert "secret" not in repr(options)
    assert pickle.loads(pickle.dumps(options)).hub.token == "secret"  # noqa: S301
