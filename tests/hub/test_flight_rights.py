"""Who may do what through Flight: every call with every right, tokens, and TLS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
import requests
import trustme
from pyarrow import flight

from penstock.errors import Forbidden, HubUnreachable, Unauthorized
from penstock.flight import wire
from penstock.flight.client import FlightClient
from penstock.hub.users import Grant, Users
from penstock.log import Batch
from penstock.testing.hub import TestHub
from tests.hub.conftest import config
from tests.hub.test_rights import RIGHTS, quick
from tests.hub.test_tls import Files, files

__all__ = ["files"]

VALUE = pa.record_batch({"value": [b"v"]})
STAGED = pa.RecordBatch.from_pylist([{"topic": "mine", "value": b"v"}], schema=wire.STAGED)


def stage(client: FlightClient) -> None:
    with client.stage("w", 0) as stager:
        stager.write(STAGED)
        stager.finish()


def described(client: FlightClient) -> None:
    by_path = flight.FlightDescriptor.for_path("mine")
    with client._told():
        client._client.get_flight_info(by_path, client._options(None))
        client._client.get_schema(by_path, client._options(None))


CALLS: list[tuple[str, Callable[[FlightClient], Any], str]] = [
    ("info", lambda client: client.info(), ""),
    ("look all", lambda client: client.look(), ""),
    ("look", lambda client: client.look(["mine"]), "read"),
    ("describe", described, "read"),
    ("read", lambda client: list(client.read("mine", 0, 0, 1)), "read"),
    ("index_at", lambda client: client.index_at("mine", 0), "read"),
    ("positions", lambda client: client.positions("g", "mine"), "read"),
    ("save", lambda client: client.save_positions("g", {"mine": {0: 0}}), "read"),
    ("append", lambda client: client.append("mine", VALUE), "write"),
    ("stage", stage, "write"),
    ("create", lambda client: client.create_stream("mine.new"), "admin"),
]


@pytest.fixture(scope="module")
def hub() -> Iterator[TestHub]:
    with TestHub() as hub:
        quick(hub.hub.users)
        hub.hub.users.add("root", [Grant("admin")])
        yield hub


@pytest.fixture(scope="module")
def tokens(hub: TestHub) -> dict[str, str]:
    users = hub.hub.users
    found = {"root": users.rotate("root")}
    for right in ("read", "write", "admin"):
        for where, pattern in (("mine", "mi*"), ("other", "yours.*")):
            found[f"{right}-{where}"] = users.add(
                f"{right}-{where}", [Grant.parse(f"{right}:{pattern}")]
            )
    return found


def given(hub: TestHub) -> None:
    for name in ("mine.new", "mine"):
        if name in hub.log.streams():
            hub.log.delete_stream(name)
    hub.log.create_stream("mine")
    hub.log.append("mine", Batch.of([b"v"]))


@pytest.mark.parametrize(("name", "call", "needed"), CALLS, ids=[call[0] for call in CALLS])
@pytest.mark.parametrize("where", ["mine", "other"])
@pytest.mark.parametrize("right", ["read", "write", "admin"])
def test_a_call_takes_its_right_on_the_streams_name(
    hub: TestHub,
    tokens: dict[str, str],
    name: str,
    call: Callable[[FlightClient], Any],
    needed: str,
    right: str,
    where: str,
) -> None:
    given(hub)
    with FlightClient(hub.url, tokens[f"{right}-{where}"]) as client:
        if needed == "" or (where == "mine" and needed in RIGHTS[right]):
            call(client)
        else:
            with pytest.raises(Forbidden, match=f"no right to {needed}"):
                call(client)


@pytest.mark.parametrize(("name", "call", "needed"), CALLS, ids=[call[0] for call in CALLS])
@pytest.mark.parametrize("token", [None, "pst_root_0123", "nonsense"])
def test_no_call_is_open_without_a_valid_token(
    hub: TestHub,
    name: str,
    call: Callable[[FlightClient], Any],
    needed: str,
    token: str | None,
) -> None:
    given(hub)
    with FlightClient(hub.flight_url, token) as client, pytest.raises(Unauthorized, match="token"):
        call(client)
    with pytest.raises(Unauthorized, match="token"):
        FlightClient(hub.url, token)


def test_streams_are_told_only_to_who_may_read_them(hub: TestHub, tokens: dict[str, str]) -> None:
    given(hub)
    with FlightClient(hub.url, tokens["read-mine"]) as client:
        assert list(client.look()) == client.streams() == ["mine"]
        assert client.info().data is None
    with FlightClient(hub.url, tokens["read-other"]) as client:
        assert client.look() == {}
        listed = client._client.list_flights(options=client._options(None))
        assert list(listed) == []
    with FlightClient(hub.url, tokens["root"]) as client:
        assert client.info()[1:3] == ("root", str(hub.data.resolve()))


def test_publishing_takes_a_right_to_write_something(hub: TestHub, tokens: dict[str, str]) -> None:
    given(hub)
    with FlightClient(hub.url, tokens["read-mine"]) as client:
        with pytest.raises(Forbidden):
            client.publish("w", 0, [])
        with pytest.raises(Forbidden):
            client.discard("w", 0)
    with FlightClient(hub.url, tokens["write-mine"]) as client:
        client.discard("w", 0)


def test_only_bearer_tokens_are_known(hub: TestHub, tokens: dict[str, str]) -> None:
    client = flight.FlightClient(hub.flight_url)
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Basic cm9vdDp4")])
    with pytest.raises(flight.FlightUnauthenticatedError, match="bearer"):
        list(client.do_action(flight.Action("info", b""), options))


def test_refused_calls_are_counted_and_free_their_place(
    hub: TestHub, tokens: dict[str, str]
) -> None:
    with FlightClient(hub.flight_url, "nonsense") as client, pytest.raises(Unauthorized):
        client.info()
    assert hub.hub.doors[1].connections == 0
    text = requests.get(
        hub.url + "/metrics", headers={"Authorization": f"Bearer {tokens['root']}"}, timeout=30
    ).text
    assert 'penstock_rejected_total{door="flight",reason="unauthorized"}' in text


# -- TLS -------------------------------------------------------------------------------------------


def test_a_hub_with_tls_has_it_on_this_door_too(
    files: Files, start: Callable[..., TestHub]
) -> None:
    hub = start(files.config())
    assert hub.flight_url.startswith("grpc+tls://")
    with FlightClient(hub.url, ca=str(files.trusted)) as client:
        client.create_stream("s")
        client.append("s", VALUE)
        assert sum(batch.num_rows for batch in client.read("s", 0, 0, 1)) == 1
    plain = hub.flight_url.replace("grpc+tls", "grpc")
    with FlightClient(plain) as client, pytest.raises(HubUnreachable):
        client.info()
    with FlightClient(hub.flight_url) as stranger, pytest.raises(HubUnreachable):
        stranger.info()


def test_new_files_are_used_for_new_connections(
    files: Files, start: Callable[..., TestHub]
) -> None:
    hub = start(files.config())
    door = hub.hub.doors[1]
    before = hub.flight_url
    with FlightClient(hub.url, ca=str(files.trusted)) as client:
        client.create_stream("s")
        appender = client.appender("s")
        appender.write(VALUE)
        assert appender.flush().records == 1
        other = trustme.CA()
        other.cert_pem.write_to_path(files.trusted)
        files._replace(authority=other).issue()
        assert hub.hub.tls.reload()
        hub.call(door.renew_tls)
        assert hub.flight_url == before
        appender.write(VALUE)
        assert appender.flush().records == 1
        appender.close()
    with FlightClient(hub.url, ca=str(files.trusted)) as client:
        assert client.look()["s"][0].end == 2


def test_with_tls_and_users_the_door_may_listen_for_others(files: Files, tmp_path: Any) -> None:
    data = tmp_path / "data"
    token = Users(data).add("root", [Grant("admin")])
    exposed = config(
        tls={"certificate": str(files.certificate), "key": str(files.key)},
        flight={"listen": "0.0.0.0:0"},
    )
    with TestHub(data, exposed) as hub:
        with FlightClient(hub.url, token, str(files.trusted)) as client:
            assert client.info().user == "root"
        with pytest.raises(Unauthorized):
            FlightClient(hub.url, None, str(files.trusted))
        hub.hub.users.remove("root")
        with pytest.raises(Unauthorized):
            FlightClient(hub.url, token, str(files.trusted))
