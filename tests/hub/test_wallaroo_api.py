"""What operators see of connectors, and do to them: by the API and the command line."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.hub.users import Grant
from penstock.protocols.wallaroo.wire import (
    BOUNDARY,
    U64_MAX,
    Ack,
    Dialect,
    Error,
    Message,
    Messages,
    Nack,
    Notify,
    Restart,
)
from penstock.testing.hub import TestHub
from tests.hub.conftest import api, code_of
from tests.hub.test_rights import quick
from tests.hub.test_wallaroo import BOTH, SHIPPED, SPEC, Connect, connect, opened, stored, until

__all__ = ["connect"]  # a fixture


@pytest.fixture
def hub() -> Iterator[TestHub]:
    with TestHub(config=opened(debug=True)) as hub:
        yield hub


def get(hub: TestHub, what: str, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api(hub, "GET", f"/wallaroo/{what}", **more).json()[what]
    return found


def rewind(hub: TestHub, ref: int | None, stream: int = 7, **more: Any) -> Any:
    body = {"program": "prog", "instance": "inst", "stream": stream, "ref": ref}
    return api(hub, "POST", "/wallaroo/rewind", json=body, **more)


def debug(hub: TestHub, session: int, **wanted: Any) -> Any:
    return api(hub, "POST", f"/wallaroo/sessions/{session}/debug", json=wanted)


# -- looking ---------------------------------------------------------------------------------------


def test_sessions_and_streams_are_listed(hub: TestHub, connect: Connect) -> None:
    assert get(hub, "sessions") == get(hub, "streams") == []
    peer = connect(hub)
    peer.hello("prög", "inst")
    peer.open(7, "a/b")
    peer.write(7, [1, 2, U64_MAX])
    peer.send(Message(7, 5, b"", BOUNDARY))
    peer.wait_acked(7, 5)
    (session,) = get(hub, "sessions")
    assert session["program"] == "prög"
    assert session["dialect"] == "spec"
    assert session["state"] == "streaming"
    assert session["stored"] == 3
    assert session["credits"] == session["window"] == 1000
    assert session["unsettled"] == 0
    (stream,) = get(hub, "streams")
    assert stream == {
        "program": "prög", "instance": "inst", "id": 7, "name": "a/b",
        "stream": "pr-xc3-xb6g.inst.a-x2fb", "partition": 0, "session": session["session"],
        "state": "open", "last": 5, "last_stable": 5, "acked": 5, "ref": 5, "nacks": 0,
    }  # fmt: skip
    peer.close()
    until(lambda: not get(hub, "sessions"))
    (stream,) = get(hub, "streams")
    assert (stream["state"], stream["session"], stream["ref"]) == ("known", None, 5)


def test_the_command_line_shows_and_does_it_too(hub: TestHub, connect: Connect) -> None:
    run = CliRunner()
    peer = connect(hub)
    peer.hello()
    peer.open(7)
    peer.write(7, [1, 2, 3])

    def penstock(*words: str) -> str:
        done = run.invoke(app, ["wallaroo", *words, "--url", hub.url])
        assert done.exit_code == 0, done.output
        return done.output

    assert "prog" in penstock("sessions")
    assert "prog.inst.s7" in penstock("streams")
    (session,) = json.loads(penstock("sessions", "--json"))
    penstock("debug", str(session["session"]), "--stutter", "0.1")
    assert "goes on from after message 2" in penstock(
        "rewind", "prog", "inst", "7", "--ref", "2", "--yes"
    )
    assert peer.wait(Nack).ref == 2
    assert json.loads(penstock("rewind", "prog", "inst", "7", "--yes", "--json"))["ref"] is None
    penstock("close", str(session["session"]))
    until(lambda: not get(hub, "sessions"))
    missing = run.invoke(app, ["wallaroo", "close", "999", "--url", hub.url])
    assert missing.exit_code != 0


# -- rewinding -------------------------------------------------------------------------------------


def test_a_connector_of_the_spec_is_asked_for_a_stream_again(
    hub: TestHub, connect: Connect
) -> None:
    peer = connect(hub)
    peer.hello()
    peer.open(7)
    peer.open(8)
    peer.write(7, [1, 2, 3])
    answer = rewind(hub, 1)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["state"], answer.json()["ref"]) == ("reset", 1)
    nack = peer.wait(Nack)
    assert (nack.stream, nack.ref) == (7, 1)
    peer.send(Message(7, 4, b"still on its way"))
    peer.open(7, ref=1)
    peer.write(7, [2, 3, 4])
    peer.write(8, [1])
    assert stored(hub) == [b"1", b"2", b"3", b"2", b"3", b"4"]


def test_a_rewind_without_a_session_is_told_by_the_next_hello(
    hub: TestHub, connect: Connect
) -> None:
    with connect(hub) as peer:
        peer.hello()
        peer.open(7)
        peer.write(7, [1, 2, 3])
    until(lambda: not hub.wallaroo.connections)
    assert rewind(hub, 2).json()["ref"] == 2
    peer = connect(hub)
    assert peer.hello().points == ((7, 2),)
    peer.open(7, ref=2)
    peer.write(7, [3])  # the id that the log had last
    peer.close()
    assert connect(hub).hello().points == ((7, 3),)
    assert rewind(hub, None).json()["ref"] is None
    assert connect(hub).hello().points == ()


def test_a_shipped_connector_is_cut_off_and_stores_again_what_it_sends_again(
    hub: TestHub, connect: Connect
) -> None:
    peer = connect(hub, SHIPPED)
    peer.hello()
    peer.open(7)
    peer.write(7, [1, 2, 3, 4])
    assert rewind(hub, 2).json()["ref"] == 2
    with contextlib.suppress(ConnectionError):
        while peer.hear():
            pass
    peer = connect(hub, SHIPPED)
    peer.hello()
    assert peer.open(7) == 2
    peer.send(Messages.of(7, [2, 3, 4], [b"2", b"3", b"4"]))
    peer.wait_acked(7, 4)
    peer.close()
    assert stored(hub) == [b"1", b"2", b"3", b"4", b"3", b"4"]
    peer = connect(hub, SHIPPED)
    peer.hello()
    assert peer.open(7) == 4  # the rewind is over
    peer.send(Messages.of(7, [4, 5], [b"4", b"5"]))
    peer.wait_acked(7, 5)
    assert stored(hub)[6:] == [b"5"]


@BOTH
def test_a_rewind_in_the_middle_of_a_flood_loses_nothing(
    hub: TestHub, connect: Connect, dialect: Dialect
) -> None:
    peer = connect(hub, dialect)
    peer.hello()
    peer.open(7)
    ids = range(1, 501)
    with contextlib.suppress(ConnectionError):
        peer.send(Messages.of(7, ids[:150], [b"%d" % number for number in ids[:150]]))
    assert rewind(hub, 100).status_code == 200
    if dialect is SHIPPED:
        peer = connect(hub, dialect)
        peer.hello()
        assert peer.open(7) == 100
    else:
        peer.wait(Nack)
        peer.open(7, ref=100)
    peer.write(7, ids[100:])
    found = [int(each) for each in stored(hub)]
    assert found[-400:] == list(range(101, 501))
    assert found[:-400] == list(range(1, len(found) - 399))


def test_what_cannot_be_rewound_is_told(hub: TestHub, connect: Connect) -> None:
    assert code_of(rewind(hub, 1)) == (404, "unknown-stream")
    assert code_of(rewind(hub, 2**64)) == (400, "bad-format")
    assert code_of(rewind(hub, 1, stream=2**64)) == (400, "bad-format")


# -- closing and faults ----------------------------------------------------------------------------


def test_a_session_is_closed_and_may_come_back(hub: TestHub, connect: Connect) -> None:
    peer = connect(hub)
    peer.hello()
    (session,) = get(hub, "sessions")
    path = f"/wallaroo/sessions/{session['session']}"
    assert api(hub, "DELETE", path).status_code == 204
    with contextlib.suppress(ConnectionError):
        assert peer.hear() == []
    until(lambda: not hub.wallaroo.connections)
    assert code_of(api(hub, "DELETE", path)) == (404, "unknown-session")
    assert code_of(api(hub, "DELETE", "/wallaroo/sessions/x")) == (400, "bad-format")
    connect(hub).hello()


def test_acks_stutter_on_demand(hub: TestHub, connect: Connect) -> None:
    peer = connect(hub)
    peer.hello()
    peer.open(7)
    peer.write(7, [1])
    (session,) = get(hub, "sessions")
    assert debug(hub, session["session"], stutter_seconds=1.0).json()["stutter_seconds"] == 1.0
    began = time.monotonic()
    peer.write(7, [2])
    assert time.monotonic() - began > 0.7
    debug(hub, session["session"], stutter_seconds=0)
    time.sleep(1.1)
    peer.write(7, [3])


def test_credits_are_held_on_demand(hub: TestHub, connect: Connect) -> None:
    peer = connect(hub)
    peer.hello()
    peer.open(7)
    (session,) = get(hub, "sessions")
    number = session["session"]
    assert debug(hub, number, hold_credits=True).json()["hold_credits"]
    before = peer.credits
    peer.write(7, range(1, 101))
    assert peer.credits == before - 100
    debug(hub, number, hold_credits=False)
    peer.write(7, [101])
    assert peer.credits == 1000


@pytest.mark.parametrize(
    ("dialect", "wanted", "heard"),
    [
        (SPEC, {"force": "nack", "stream": 7, "ref": 3}, Nack(1, 7, 3)),
        (SPEC, {"force": "error", "text": "on purpose"}, Error("on purpose")),
        (SHIPPED, {"force": "error", "text": "on purpose"}, Error("on purpose")),
        (SHIPPED, {"force": "restart"}, Restart("")),
        (SHIPPED, {"force": "restart", "text": "127.0.0.1:9"}, Restart("127.0.0.1:9")),
        (SPEC, {"force": "restart"}, None),
        (SPEC, {"force": "cut"}, None),
        (SHIPPED, {"force": "cut"}, None),
    ],
)
def test_faults_are_forced_on_demand(
    hub: TestHub, connect: Connect, dialect: Dialect, wanted: Any, heard: Any
) -> None:
    peer = connect(hub, dialect)
    peer.hello()
    peer.open(7)
    until(lambda: get(hub, "streams"))
    (session,) = get(hub, "sessions")
    answer = debug(hub, session["session"], **wanted)
    assert answer.status_code == 200, answer.text
    if heard is not None:
        assert peer.wait(type(heard)) == heard
    if wanted["force"] != "nack":
        with contextlib.suppress(ConnectionError):
            while peer.hear():
                pass
    else:
        peer.send(Notify(7, b"s7", 3))
        peer.write(7, [4])


def test_a_nack_that_cannot_be_is_told(hub: TestHub, connect: Connect) -> None:
    peer = connect(hub, SHIPPED)
    peer.hello()
    peer.open(7)
    (session,) = get(hub, "sessions")
    number = session["session"]
    assert code_of(debug(hub, number, force="nack")) == (400, "bad-format")
    assert code_of(debug(hub, number, force="nack", stream=7)) == (400, "bad-request")
    assert code_of(debug(hub, number, force="nothing")) == (400, "bad-format")
    assert code_of(debug(hub, 999, force="cut")) == (404, "unknown-session")


def test_faults_are_not_made_unless_that_is_switched_on(
    start: Callable[..., TestHub], connect: Connect
) -> None:
    hub = start(opened())
    connect(hub).hello()
    (session,) = get(hub, "sessions")
    assert code_of(debug(hub, session["session"], force="cut")) == (400, "bad-setting")


# -- rights ----------------------------------------------------------------------------------------

OTHERS: list[tuple[str, str, Any]] = [
    ("GET", "/wallaroo/sessions", None),
    ("GET", "/wallaroo/streams", None),
    ("DELETE", "/wallaroo/sessions/1", None),
    ("POST", "/wallaroo/sessions/1/debug", {"hold_credits": False}),
    ("POST", "/wallaroo/rewind", {"program": "prog", "instance": "inst", "stream": 7, "ref": 1}),
]


def test_connectors_are_in_the_hands_of_who_has_rights_on_their_streams(
    hub: TestHub, connect: Connect
) -> None:
    peer = connect(hub)
    peer.hello()
    peer.open(7)
    peer.write(7, [1, 2])
    users = hub.hub.users
    quick(users)
    tokens = {
        name: users.add(name.replace(":", "-").replace("*", "x"), [Grant.parse(name)])
        for name in ("read:prog.*", "write:prog.*", "read:other", "admin:prog.inst.*")
    }
    for method, path, body in OTHERS:
        assert code_of(api(hub, method, path, json=body)) == (401, "unauthorized")
    for name, sees in (("read:prog.*", 1), ("write:prog.*", 0), ("read:other", 0)):
        token = tokens[name]
        assert len(get(hub, "sessions", token=token)) == sees
        assert len(get(hub, "streams", token=token)) == sees
        for method, path, body in OTHERS[2:]:
            assert code_of(api(hub, method, path, json=body, token=token)) == (403, "forbidden")
    for method, path, body in reversed(OTHERS):
        answer = api(hub, method, path, json=body, token=tokens["admin:prog.inst.*"])
        assert answer.status_code in (200, 204), answer.text
    assert any(isinstance(each, (Nack, Ack)) for each in peer.heard)
