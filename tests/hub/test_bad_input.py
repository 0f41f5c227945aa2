"""Whatever is wrong with a request has a status, a code and a sentence of its own."""

from __future__ import annotations

import gzip
import http.client
import io
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc

from penstock import limits
from penstock.errors import BadSetting, PenstockError
from penstock.hub import http as http_module
from penstock.log import Batch
from penstock.testing.hub import TestHub
from tests.hub.conftest import api, code_of, config

JSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture(scope="module")
def hub() -> Iterator[TestHub]:
    with TestHub(config=config(http={"body_bytes_max": 100_000})) as hub:
        hub.log.create_stream("s")
        hub.log.append("s", Batch.of([b"v"] * 5))
        yield hub


def arrow(**columns: Any) -> bytes:
    sink = io.BytesIO()
    table = pa.table(columns)
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def post(hub: TestHub, kind: str, body: bytes, query: str = "", **headers: str) -> Any:
    return api(
        hub, "POST", f"/streams/s/records{query}", data=body,
        headers={"Content-Type": kind, **headers},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "body", "status", "code", "words"),
    [
        (JSON, b'{"value":"a"}\n{"value"\n', 400, "bad-format", "line 2"),
        (JSON, b'{"value":1}\n\n{"valu":2}\n', 400, "bad-format", "line 3"),
        (JSON, b"[1]", 400, "bad-format", "line 1"),
        (JSON, b'{"value":"\xff"}', 400, "bad-format", "line 1"),
        (JSON, b'{"value":"\\ud800"}', 400, "bad-format", "line 1"),
        (JSON, b'{"value":NaN}', 400, "bad-format", "line 1"),
        (JSON, b'{"key":"k"}', 400, "bad-format", "neither value nor value64"),
        (JSON, b'{"value64":"*"}', 400, "bad-format", "line 1 has bad base64"),
        (JSON, b'{"value":1,"key64":"\xc3\xa4"}', 400, "bad-format", "line 1 has bad base64"),
        (JSON, b'{"value":1,"timestamp":"noon"}', 400, "bad-format", "neither microseconds"),
        (JSON, b'{"value":1,"timestamp":1e400}', 400, "bad-format", "line 1"),
        (JSON, b'{"value":1,"timestamp":99999999999999999999}', 400, "bad-batch", "timestamps"),
        (JSON, b'{"value":1,"id":1}\n{"value":1}', 400, "bad-batch", "one for each record"),
        (JSON, b'{"value":1,"id":-1}', 400, "bad-batch", "from 0 to 2**64 - 1"),
        (JSON, b'{"value":1,"id":1}', 400, "bad-batch", "without the name"),
        (JSON, b"", 400, "bad-batch", "no records"),
        (JSON, b'{"value":' + b"[" * 5_000 + b"]" * 5_000 + b"}", 400, "bad-format", ""),
        (ARROW, b"nonsense", 400, "bad-format", "not an Arrow IPC stream"),
        (ARROW, b"", 400, "bad-format", "not an Arrow IPC stream"),
        (ARROW, arrow(value=[b"v"] * 99)[:-200], 400, "bad-format", "not an Arrow IPC stream"),
        (ARROW, arrow(values=[b"v"]), 400, "bad-batch", "needed is value"),
        (ARROW, arrow(value=[1]), 400, "bad-batch", "must be binary or string"),
        (ARROW, arrow(value=[None, b"v"]), 400, "bad-batch", "cannot be null"),
        (ARROW, arrow(value=[b"v"], timestamp=["x"]), 400, "bad-batch", "cannot be appended"),
        (ARROW, arrow(value=[b"v"], headers=[7]), 400, "bad-batch", "cannot be appended"),
        (ARROW, arrow(value=[b"v"], id=["x"]), 400, "bad-batch", "ids must be"),
        (ARROW, arrow(value=pa.array([], pa.binary())), 400, "bad-batch", "no records"),
        ("text/csv", b"", 400, "bad-format", "header line"),
        ("text/csv", b"just,some\ntext,here\n", 400, "bad-batch", "needed is value"),
        ("text/csv", b"value,value\na,b\n", 400, "bad-format", "each may be there once"),
        ("text/csv", b"key,value\na\n", 400, "bad-format", "not CSV"),
        ("text/plain", b"", 400, "bad-batch", "no records"),
        ("application/xml", b"<v/>", 400, "bad-format", "application/x-ndjson"),
        ("", b"v", 400, "bad-format", "content type"),
        (JSON, b'{"value":"' + b"x" * 100_000 + b'"}', 413, "batch-too-large", "100000 bytes"),
    ],
    ids=lambda each: repr(each)[:40],
)
def test_records_that_cannot_be_taken(
    hub: TestHub, kind: str, body: bytes, status: int, code: str, words: str
) -> None:
    answer = post(hub, kind, body)
    assert code_of(answer) == (status, code), answer.text
    assert words in answer.json()["error"]["message"]
    assert hub.log.bounds("s", 0) == (0, 5)


def test_damaged_arrow_never_breaks_anything(hub: TestHub) -> None:
    hub.log.create_stream("flipped")
    good = arrow(value=[b"one", b"two", b""], key=[b"k", None, b""], id=[1, 2, 3])
    rng = random.Random(7)
    for _ in range(300):
        body = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        answer = api(
            hub, "POST", "/streams/flipped/records?producer=p", data=bytes(body),
            headers={"Content-Type": ARROW},
        )  # fmt: skip
        assert answer.status_code in (200, 400, 413, 422), answer.text
    hub.log.delete_stream("flipped")


def test_a_record_over_the_limit(start: Callable[..., TestHub]) -> None:
    hub = start()
    hub.log.create_stream("s")
    answer = post(hub, "text/plain", b"x" * 600_000)
    assert code_of(answer) == (413, "record-too-large")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "truncated"),
        (b"\xff", "malformed"),
        (b"[]", "object"),
        (b'{"name":"x","partition":1}', "partition"),
        (b'{"name":7}', "str"),
        (b'{"name":"x","partitions":99999999999999999999}', "partitions"),
        (b"", "truncated"),
    ],
)
def test_json_that_is_not_what_is_expected(hub: TestHub, body: bytes, words: str) -> None:
    answer = api(hub, "POST", "/streams", data=body)
    assert code_of(answer) == (400, "bad-format")
    assert words in answer.json()["error"]["message"]


RECORDS = "/streams/s/partitions/0/records"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "words"),
    [
        ("GET", "/nowhere", None, 404, "unknown-route", "openapi.json"),
        ("GET", "/streams/s/records", None, 405, "wrong-method", "only POST"),
        ("DELETE", "/info", None, 405, "wrong-method", "GET"),
        ("GET", "/streams/nowhere", None, 404, "unknown-stream", "nowhere"),
        ("GET", "/streams/%F0%9F%9A%B0", None, 404, "unknown-stream", "streams are: s"),
        ("GET", "/streams/s/partitions/1/records", None, 404, "unknown-partition", "0 to 0"),
        ("GET", "/streams/s/partitions/-1/records", None, 404, "unknown-partition", "0 to 0"),
        ("GET", "/streams/s/partitions/x/records", None, 400, "bad-format", "whole number"),
        ("GET", "/streams/s/partitions/%C2%B2/records", None, 400, "bad-format", "whole number"),
        ("GET", RECORDS + "?from=x", None, 400, "bad-format", "from is 'x'"),
        ("GET", RECORDS + "?from=-1", None, 400, "bad-format", "from 0 to"),
        ("GET", RECORDS + "?from=1_0", None, 400, "bad-format", "whole number"),
        ("GET", RECORDS + "?from=6", None, 416, "index-out-of-range", "the end is 5"),
        ("GET", RECORDS + "?from=99999999999999999999999", None, 400, "bad-format", "whole"),
        ("GET", RECORDS + "?limit=0", None, 400, "bad-format", "from 1 to 1000000"),
        ("GET", RECORDS + "?max_bytes=-1", None, 400, "bad-format", "from 0 to"),
        ("GET", RECORDS + "?wait=nan", None, 400, "bad-format", "from 0.0 to 60.0"),
        ("GET", RECORDS + "?wait=soon", None, 400, "bad-format", "a number"),
        ("GET", RECORDS + "?below=zero", None, 400, "bad-format", "error or earliest"),
        ("GET", RECORDS + "?from=0&time=0", None, 400, "bad-format", "from and time exclude"),
        ("GET", RECORDS + "?time=noon", None, 400, "bad-format", "ISO 8601"),
        ("GET", RECORDS + "?time=" + "9" * 30, None, 400, "bad-format", "ISO 8601"),
        ("GET", "/streams/s/tail?from=noon", None, 400, "bad-format", "latest, earliest"),
        ("GET", "/streams/s/tail?partition=%C2%B2", None, 400, "bad-format", "number"),
        ("GET", "/streams/s/tail?partition=1", None, 404, "unknown-partition", "0 to 0"),
        ("GET", "/groups?group=nobody", None, 404, "unknown-group", "nobody"),
        ("DELETE", "/groups/nobody/streams/s", None, 404, "unknown-group", "nobody"),
        ("PUT", "/groups/" + "g" * 256 + "/streams/s", None, 400, "bad-name", "at most 255"),
        ("POST", "/streams", {"name": "s"}, 409, "stream-exists", "'s'"),
        ("POST", "/streams", {"name": "a/b"}, 400, "bad-name", "letters, digits"),
        ("POST", "/streams", {"name": "t", "partitions": 0}, 422, "too-many", "1024"),
        ("POST", "/streams", {"name": "t", "settings": {"segment_bytes": 1}}, 400,
         "bad-setting", "segment_bytes"),
        ("POST", "/streams", {"name": "t", "settings": {"retention_seconds": 1e300}}, 400,
         "bad-setting", "retention_seconds"),
        ("POST", "/streams", {"name": "t", "settings": {"retention_bytes": 10**30}}, 400,
         "bad-setting", "retention_bytes"),
        ("PUT", "/groups/g/streams/s/positions", {"positions": {"0": 6}}, 416,
         "index-out-of-range", "the end, 5"),
        ("PUT", "/groups/g/streams/s/positions", {"positions": {"x": 1}}, 400, "bad-format", ""),
        ("POST", "/groups/g/streams/s/reset", {"to": "noon"}, 400, "bad-format", "noon"),
        ("POST", "/streams/s/partitions/0/trim", {"before": 2**70}, 400, "bad-format", "before"),
    ],
    ids=lambda each: str(each)[:50],
)  # fmt: skip
def test_requests_that_cannot_be(
    hub: TestHub, method: str, path: str, body: Any, status: int, code: str, words: str
) -> None:
    answer = api(hub, method, path, json=body)
    assert code_of(answer) == (status, code), answer.text
    assert words in answer.json()["error"]["message"]


def test_a_position_backwards_is_a_conflict(hub: TestHub) -> None:
    path = "/groups/back/streams/s/positions"
    assert api(hub, "PUT", path, json={"positions": {"0": 3}}).status_code == 200
    assert code_of(api(hub, "PUT", path, json={"positions": {"0": 2}})) == (
        409,
        "position-backwards",
    )


def test_a_format_that_cannot_be_given(hub: TestHub) -> None:
    answer = api(hub, "GET", RECORDS, headers={"Accept": "image/png"})
    assert code_of(answer) == (400, "bad-format")
    assert "text/csv" in answer.text


def test_records_that_were_dropped_are_gone(start: Callable[..., TestHub]) -> None:
    hub = start()
    small = {"segment_bytes": limits.SEGMENT_BYTES_MIN}
    api(hub, "POST", "/streams", json={"name": "t", "settings": small})
    for _ in range(5):
        hub.log.append("t", Batch.of([b"x" * 2_000] * 10))
        hub.log.checkpoint()
    earliest = hub.log.trim("t", 0, 40)
    answer = api(hub, "GET", "/streams/t/partitions/0/records?from=0")
    assert code_of(answer) == (410, "index-trimmed")
    assert answer.json()["error"]["earliest"] == earliest > 0


# -- bodies ----------------------------------------------------------------------------------------


def connect(hub: TestHub) -> tuple[str, int]:
    host, port = hub.url.removeprefix("http://").split(":")
    return host, int(port)


def test_a_body_over_the_limit_without_a_length(hub: TestHub) -> None:
    connection = http.client.HTTPConnection(*connect(hub), timeout=30)
    connection.request(
        "POST", "/api/v1/streams/s/records", iter([b"x" * 60_000] * 3),
        {"Content-Type": "text/plain"}, encode_chunked=True,
    )  # fmt: skip
    answer = connection.getresponse()
    assert answer.status == 413
    assert b"batch-too-large" in answer.read()
    connection.close()


def test_a_body_that_unpacks_beyond_the_limit(hub: TestHub) -> None:
    packed = gzip.compress(b"x" * 10_000_000)
    answer = post(hub, "text/plain", packed, **{"Content-Encoding": "gzip"})
    assert code_of(answer) == (413, "batch-too-large")


def test_a_body_that_is_not_packed_as_it_says(hub: TestHub) -> None:
    answer = post(hub, "text/plain", b"nonsense", **{"Content-Encoding": "gzip"})
    assert code_of(answer) == (400, "bad-format")


def test_a_packed_body_is_taken(start: Callable[..., TestHub]) -> None:
    hub = start()
    hub.log.create_stream("s")
    answer = post(hub, "text/plain", gzip.compress(b"a\nb\n"), **{"Content-Encoding": "gzip"})
    assert answer.json()["count"] == 2


def test_a_body_that_comes_too_slowly(start: Callable[..., TestHub]) -> None:
    hub = start(config(http={"body_seconds_max": 0.05}))
    hub.log.create_stream("s")
    with socket.create_connection(connect(hub), timeout=30) as slow:
        slow.sendall(
            b"POST /api/v1/streams/s/records HTTP/1.1\r\nHost: x\r\n"
            b"Content-Type: text/plain\r\nContent-Length: 100\r\n\r\nsome"
        )
        answer = slow.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"too-slow" in answer
    assert hub.log.bounds("s", 0) == (0, 0)


def test_bodies_wait_for_room_and_are_all_taken(
    start: Callable[..., TestHub], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_BODIES_BYTES_MAX", 1_000)
    hub = start()
    hub.log.create_stream("s")
    with socket.create_connection(connect(hub), timeout=30) as first:
        first.sendall(
            b"POST /api/v1/streams/s/records HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
            b"Content-Length: 1000\r\n\r\n" + b"x" * 999
        )
        with socket.create_connection(connect(hub), timeout=30) as second:
            second.sendall(
                b"POST /api/v1/streams/s/records HTTP/1.1\r\nHost: x\r\n"
                b"Content-Type: text/plain\r\nContent-Length: 4\r\n\r\nabcd"
            )
            assert api(hub, "GET", "/info").status_code == 200
            first.sendall(b"x")
            assert first.recv(10_000).startswith(b"HTTP/1.1 200 ")
            assert second.recv(10_000).startswith(b"HTTP/1.1 200 ")
    assert hub.log.bounds("s", 0) == (0, 2)


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=lambda each: repr(each[:30]),
)
def test_what_is_not_http_is_refused(hub: TestHub, sent: bytes) -> None:
    with socket.create_connection(connect(hub), timeout=30) as peer:
        peer.sendall(sent)
        assert peer.recv(10_000).startswith(b"HTTP/1.")


# -- starting --------------------------------------------------------------------------------------


def test_a_port_in_use_is_named(hub: TestHub, start: Callable[..., TestHub]) -> None:
    taken = hub.url.removeprefix("http://")
    with pytest.raises(BadSetting, match=f"cannot listen on {taken}.*http.listen"):
        start(config(http={"listen": taken}))


def test_an_address_that_is_none_is_named(start: Callable[..., TestHub]) -> None:
    with pytest.raises(BadSetting, match="host:port"):
        start(config(http={"listen": "nowhere"}))


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises((PenstockError, OSError), match="file"), TestHub(tmp_path / "file"):
        pass


def test_a_data_directory_that_another_hub_owns(hub: TestHub) -> None:
    with pytest.raises(PenstockError) as caught, TestHub(hub.data):
        pass
    assert caught.value.code == "data-directory-in-use"


def test_every_error_of_penstock_has_a_status() -> None:
    def below(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
        yield kind
        for each in kind.__subclasses__():
            yield from below(each)

    for kind in below(PenstockError):
        assert any(each in http_module.STATUS for each in kind.__mro__)
