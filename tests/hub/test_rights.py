"""Who may do what: every route with every right, and every way a token can be wrong."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import argon2
import pytest
import requests
import structlog

from penstock.hub.http import HttpDoor
from penstock.hub.logs import hide_secrets
from penstock.hub.users import Grant, Users
from penstock.log import Batch
from penstock.testing.hub import TestHub
from tests.hub.conftest import api, code_of, config

RECORD = {"data": b"v\n", "headers": {"Content-Type": "text/plain"}}
ROUTES: list[tuple[str, str, dict[str, Any], str]] = [
    # method, path, request, the right it takes ("" : any user)
    ("GET", "/info", {}, ""),
    ("GET", "/streams", {}, ""),
    ("GET", "/groups", {}, ""),
    ("POST", "/streams", {"json": {"name": "mine.new"}}, "admin"),
    ("GET", "/streams/mine", {}, "read"),
    ("PATCH", "/streams/mine", {"json": {}}, "admin"),
    ("POST", "/streams/mine/records", RECORD, "write"),
    ("GET", "/streams/mine/tail?partition=7", {}, "read"),
    ("GET", "/streams/mine/producers/p", {}, "read"),
    ("GET", "/streams/mine/partitions/0", {}, "read"),
    ("GET", "/streams/mine/partitions/0/records", {}, "read"),
    ("POST", "/streams/mine/partitions/0/trim", {"json": {"before": 0}}, "admin"),
    ("GET", "/groups/g/streams/mine", {}, "read"),
    ("PUT", "/groups/g/streams/mine", {}, "write"),
    ("PUT", "/groups/g/streams/mine/positions", {"json": {"positions": {"0": 0}}}, "read"),
    ("POST", "/groups/g/streams/mine/reset", {"json": {"to": "latest", "dry_run": True}}, "write"),
    ("DELETE", "/groups/g/streams/mine", {}, "admin"),
    ("DELETE", "/streams/mine", {}, "admin"),
]
RIGHTS = {
    "read": ["read"],
    "write": ["write"],
    "admin": ["read", "write", "admin"],
}


def quick(users: Users) -> None:
    """argon2 that costs little: there are many users in these tests."""
    users._hasher = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


@pytest.fixture(scope="module")
def hub() -> Iterator[TestHub]:
    with TestHub() as hub:
        quick(hub.hub.users)
        hub.hub.users.add("root", [Grant("admin")])
        yield hub


@pytest.fixture(scope="module")
def tokens(hub: TestHub) -> dict[str, str]:
    """A user of each right on matching names, and on others."""
    users = hub.hub.users
    found = {"root": users.rotate("root")}
    for right in ("read", "write", "admin"):
        for where, pattern in (("mine", "mi*"), ("other", "yours.*")):
            found[f"{right}-{where}"] = users.add(
                f"{right}-{where}", [Grant.parse(f"{right}:{pattern}")]
            )
    return found


def given(hub: TestHub) -> None:
    """The stream and the group that the routes name."""
    log = hub.log
    for name in ("mine.new", "mine"):
        if name in log.streams():
            log.delete_stream(name)
    log.create_stream("mine")
    log.append("mine", Batch.of([b"v"]))
    log.register_group("g", "mine")


@pytest.mark.parametrize(
    ("method", "path", "request_", "needed"), ROUTES, ids=lambda each: str(each)[:60]
)
@pytest.mark.parametrize("where", ["mine", "other"])
@pytest.mark.parametrize("right", ["read", "write", "admin"])
def test_a_route_takes_its_right_on_the_streams_name(
    hub: TestHub,
    tokens: dict[str, str],
    method: str,
    path: str,
    request_: dict[str, Any],
    needed: str,
    right: str,
    where: str,
) -> None:
    given(hub)
    answer = api(hub, method, path, token=tokens[f"{right}-{where}"], **request_)
    if needed == "" or (where == "mine" and needed in RIGHTS[right]):
        allowed = (200, 201, 204) if "partition=7" not in path else (404,)
        assert answer.status_code in allowed, answer.text
    else:
        assert code_of(answer) == (403, "forbidden")
        assert f"no right to {needed} 'mine" in answer.text


@pytest.mark.parametrize(
    ("method", "path", "request_", "needed"), ROUTES, ids=lambda each: str(each)[:60]
)
@pytest.mark.parametrize("token", [None, "pst_root_0123", "nonsense"])
def test_no_route_is_open_without_a_valid_token(
    hub: TestHub, method: str, path: str, request_: dict[str, Any], needed: str, token: str | None
) -> None:
    given(hub)
    answer = api(hub, method, path, token=token, **request_)
    assert code_of(answer) == (401, "unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_the_table_above_has_every_route(hub: TestHub) -> None:
    """But those for Wallaroo's connectors, whose rights are in test_wallaroo_api.py."""
    door = hub.hub.doors[0]
    assert isinstance(door, HttpDoor)
    open_to_all = {"/healthz", "/readyz", "/metrics", "/api/v1/openapi.json"}
    routes = {
        (route.method, re.sub(r"\{.*?\]\+\}", "*", route.path))
        for route in door._routes()
        if route.path not in open_to_all and "/wallaroo/" not in route.path
    }
    tabled = {
        (
            method,
            "/api/v1"
            + re.sub(
                "/producers/p$", "/producers/*", re.sub(r"/(mine|0|g)(?=/|$)", "/*", path)
            ).split("?")[0],
        )
        for method, path, _, _ in ROUTES
    }
    assert tabled == routes


def test_probes_and_the_description_need_no_token_but_metrics_do(
    hub: TestHub, tokens: dict[str, str]
) -> None:
    for path in ("/healthz", "/readyz", "/api/v1/openapi.json"):
        assert requests.get(hub.url + path, timeout=30).status_code == 200
    assert requests.get(hub.url + "/metrics", timeout=30).status_code == 401
    headers = {"Authorization": f"Bearer {tokens['read-other']}"}
    assert requests.get(hub.url + "/metrics", headers=headers, timeout=30).status_code == 200


def test_lists_show_only_what_one_may_read(hub: TestHub, tokens: dict[str, str]) -> None:
    given(hub)
    for token, seen in (("read-mine", ["mine"]), ("write-mine", []), ("admin-other", [])):
        streams = api(hub, "GET", "/streams", token=tokens[token]).json()["streams"]
        groups = api(hub, "GET", "/groups", token=tokens[token]).json()["groups"]
        assert [each["name"] for each in streams] == seen
        assert [each["stream"] for each in groups] == seen


# -- tokens ----------------------------------------------------------------------------------------


@pytest.fixture
def users(tmp_path: Path) -> Users:
    users = Users(tmp_path)
    quick(users)
    return users


def test_a_rotated_token_is_void_at_once(hub: TestHub) -> None:
    users = hub.hub.users
    old = users.add("turning", [Grant("read")])
    assert api(hub, "GET", "/info", token=old).json()["user"] == "turning"
    new = users.rotate("turning")
    assert code_of(api(hub, "GET", "/info", token=old)) == (401, "unauthorized")
    assert api(hub, "GET", "/info", token=new).status_code == 200


def test_a_removed_users_token_is_void_at_once(hub: TestHub) -> None:
    token = hub.hub.users.add("leaving", [Grant("read")])
    assert api(hub, "GET", "/info", token=token).status_code == 200
    hub.hub.users.remove("leaving")
    assert code_of(api(hub, "GET", "/info", token=token)) == (401, "unauthorized")


def test_a_secret_is_only_good_for_its_own_user(hub: TestHub, tokens: dict[str, str]) -> None:
    secret = tokens["read-mine"].rpartition("_")[2]
    assert code_of(api(hub, "GET", "/info", token=f"pst_root_{secret}")) == (401, "unauthorized")


@pytest.mark.parametrize(
    "header", ["Basic cm9vdDpyb290", "Token {}", "{}", "Bearer", "bearer  {}", "Bearer {} {}"]
)
def test_only_a_bearer_token_counts(hub: TestHub, tokens: dict[str, str], header: str) -> None:
    headers = {"Authorization": header.replace("{}", tokens["root"])}
    assert code_of(api(hub, "GET", "/info", headers=headers)) == (401, "unauthorized")


@pytest.mark.parametrize("token", [b"pst_root_\xff\xfe", b"\xed\xa0\x80", b"pst__", b"_" * 5000])
def test_bytes_that_are_no_token_are_refused(hub: TestHub, token: bytes) -> None:
    headers: dict[str, Any] = {"Authorization": b"Bearer " + token}
    assert code_of(api(hub, "GET", "/info", headers=headers)) == (401, "unauthorized")


@pytest.mark.parametrize("token", ["pst_nobody_00", "pst_somebody_00", "x"])
def test_an_unknown_user_costs_as_much_as_a_wrong_secret(
    users: Users, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    users.add("somebody", [Grant("read")])
    verified = []

    class Counting(argon2.PasswordHasher):
        def verify(self, hash: str | bytes, password: str | bytes) -> Any:  # noqa: A002
            verified.append(hash)
            return super().verify(hash, password)

    users._hasher = Counting(time_cost=1, memory_cost=8, parallelism=1)
    with pytest.raises(Exception, match="the token is not valid"):
        users.authenticate(token)
    assert len(verified) == 1


def test_a_hash_that_is_none_lets_nobody_in(tmp_path: Path, users: Users) -> None:
    token = users.add("u", [Grant("read")])
    path = tmp_path / "users.json"
    stored = json.loads(path.read_text())
    stored[0]["hash"] = "nonsense"
    path.write_text(json.dumps(stored))
    with pytest.raises(Exception, match="the token is not valid"):
        Users(tmp_path).authenticate(token)


def test_users_are_kept_for_the_owner_alone_and_as_argon2id_hashes(
    tmp_path: Path, users: Users
) -> None:
    token = users.add("somebody", [Grant.parse("write:a.*")])
    token = users.rotate("somebody")
    path = tmp_path / "users.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert token.rpartition("_")[2] not in text
    (stored,) = json.loads(text)
    assert stored["hash"].startswith("$argon2id$")
    assert set(stored) == {"name", "hash", "grants", "created_at", "rotated_at"}


def test_a_broken_users_file_changes_nothing_for_a_running_hub(
    tmp_path: Path, users: Users
) -> None:
    token = users.add("somebody", [Grant("read")])
    (tmp_path / "users.json").write_text("[{")
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            users._looked_at = -1.0
            assert users.authenticate(token).name == "somebody"
    assert [each["event"] for each in logs] == ["the new users are not used"]


def test_where_others_reach_the_hub_removing_the_last_user_does_not_open_it(
    users: Users,
) -> None:
    users.required = True
    token = users.add("last", [Grant("admin")])
    users.remove("last")
    for given in (None, token):
        with pytest.raises(Exception, match="token"):
            users.authenticate(given)


# -- secrets ---------------------------------------------------------------------------------------


def test_tokens_are_in_no_log_and_no_error(
    hub: TestHub, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tokens["root"]
    secret = token.rpartition("_")[2]

    def broken() -> list[str]:
        raise RuntimeError(f"something with {token} in it")

    monkeypatch.setattr(hub.hub.log, "streams", broken)
    with structlog.testing.capture_logs(
        processors=[structlog.processors.format_exc_info, hide_secrets]
    ) as logs:
        answer = api(hub, "GET", "/streams", token=token)
        wrong = api(hub, "GET", "/streams", token=token[:-1] + "x")
    assert code_of(answer) == (500, "internal")
    assert code_of(wrong) == (401, "unauthorized")
    assert secret not in answer.text
    assert secret[:-1] not in wrong.text
    assert "pst_..." in str(logs)
    assert secret not in str(logs)


def test_logs_for_a_terminal_show_no_local_variables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    from penstock.hub.logs import set_up_logs

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    before = structlog.get_config()
    try:
        set_up_logs("info")

        def fail(token: str) -> None:
            raise ValueError(token)

        try:
            fail("pst_root_00ff00ff")
        except ValueError:
            structlog.get_logger().exception("it failed")
    finally:
        structlog.configure(**before)
    shown = capsys.readouterr().err
    assert "it failed" in shown
    assert "ValueError" in shown
    assert "00ff00ff" not in shown


# -- where it listens ------------------------------------------------------------------------------


def test_listening_for_others_takes_tls_and_users(start: Callable[..., TestHub]) -> None:
    with pytest.raises(Exception, match=r"without TLS .* and users .*--insecure"):
        start(config(http={"listen": "0.0.0.0:0"}))


def test_listening_for_others_can_be_insisted_on(start: Callable[..., TestHub]) -> None:
    hub = start(config(http={"listen": "0.0.0.0:0"}, hub={"insecure": True}))
    port = hub.url.rpartition(":")[2]
    answer = requests.get(f"http://127.0.0.1:{port}/api/v1/info", timeout=30)
    assert answer.json()["user"] == "everybody"
