"""The hub's HTTP API as the command line uses it: plain, synchronous, one connection."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from penstock.errors import BadSetting, LogError, PenstockError

DEFAULT_URL = "http://127.0.0.1:7470"


class HubUnreachable(LogError):
    """No hub answers."""

    code = "hub-unreachable"


class Refused(PenstockError):
    """The hub said no; `code` and message are its own."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code  # type: ignore[misc]


class Client:
    """Talks to one hub."""

    def __init__(
        self, url: str = DEFAULT_URL, token: str | None = None, ca: str | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadSetting(f"{url!r:.100} is no hub's address: write {DEFAULT_URL}")
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=ca)
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, parts.port or 443, timeout=60, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(
                parts.hostname, parts.port or 80, timeout=60
            )

    def request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, Any] | None = None,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        """One request; an error answer is raised as `Refused`."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = path + ("?" + urlencode(given) if given else "")
        try:
            self._connection.request(method, target, body, {**self._headers, **(headers or {})})
            response = self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise HubUnreachable(
                f"no hub answers at {self._url} ({error}): start one with `penstock serve`, or "
                "say where it is with --url or PENSTOCK_URL"
            ) from None
        if response.status >= 400:
            raise _refused(response)
        return response

    def json(self, method: str, path: str, value: Any = None, **query: Any) -> Any:
        """Send and receive JSON."""
        body = None if value is None else msgspec.json.encode(value)
        headers = {} if body is None else {"Content-Type": "application/json"}
        response = self.request(method, path, query=query, body=body, headers=headers)
        data = response.read()
        return msgspec.json.decode(data) if data else None

    def events(self, path: str, **query: Any) -> Iterator[tuple[str, bytes]]:
        """Server-sent events: (event name or "", data)."""
        response = self.request("GET", path, query=query)
        self._connection.sock.settimeout(60)
        name = ""
        for line in response:
            line = line.rstrip(b"\r\n")
            if line.startswith(b"event: "):
                name = line[7:].decode()
            elif line.startswith(b"data: "):
                yield name, line[6:]
            elif not line:
                name = ""

    def close(self) -> None:
        self._connection.close()


def stream_path(stream: str, *more: str | int) -> str:
    """The path of a stream, or of something of it."""
    return "/".join(["/api/v1/streams", quote(stream, safe=""), *map(str, more)])


def _refused(response: http.client.HTTPResponse) -> Refused:
    data = response.read()
    try:
        error = msgspec.json.decode(data)["error"]
        return Refused(response.status, str(error["code"]), str(error["message"]))
    except (msgspec.MsgspecError, KeyError, TypeError):
        return Refused(response.status, "http", f"status {response.status}: {data[:200]!r}")
