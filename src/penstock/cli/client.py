"""The hub's HTTP API as the command line uses it: plain, synchronous, one connection."""

from __future__ import annotations

import contextlib
import http.client
import ssl
from collections.abc import Iterator
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from penstock.errors import BadSetting, HubUnreachable, PenstockError

DEFAULT_URL = "http://127.0.0.1:7470"


class Refused(PenstockError):
    """The hub said no; `code` and message are its own."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code  # type: ignore[misc]


class Event(NamedTuple):
    """A server-sent event."""

    name: str
    id: str
    data: str


class Client:
    """Talks to one hub."""

    def __init__(
        self, url: str = DEFAULT_URL, token: str | None = None, ca: str | None = None
    ) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise BadSetting(f"{url!r:.100} is no hub's address: write {DEFAULT_URL}")
        if token and not (token.isascii() and token.isprintable()):
            raise BadSetting("the token has characters that no token has: look at PENSTOCK_TOKEN")
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        if parts.scheme == "https":
            try:
                context = ssl.create_default_context(cafile=ca)
            except OSError as error:
                raise BadSetting(f"--ca {ca} cannot be used: {error}") from None
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, port or 443, timeout=60, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(parts.hostname, port or 80, timeout=60)

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
            # A body too large is refused before it is sent; the reason can then still be read.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._connection.request(method, target, body, {**self._headers, **(headers or {})})
            response = self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise self._unreachable(error) from None
        if response.status >= 400:
            raise _refused(response)
        return response

    def fetch(self, method: str, path: str, **more: Any) -> tuple[bytes, http.client.HTTPMessage]:
        """The whole body of the answer, and its headers."""
        response = self.request(method, path, **more)
        try:
            return response.read(), response.headers
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise self._unreachable(error) from None

    def json(self, method: str, path: str, value: Any = None, **query: Any) -> Any:
        """Send and receive JSON."""
        body = None if value is None else msgspec.json.encode(value)
        headers = {} if body is None else {"Content-Type": "application/json"}
        data = self.fetch(method, path, query=query, body=body, headers=headers)[0]
        return msgspec.json.decode(data) if data else None

    def events(self, path: str, *, last: str = "", **query: Any) -> Iterator[Event]:
        """Server-sent events until the hub ends them; `last` is where to go on behind."""
        headers = {"Last-Event-ID": last} if last else {}
        response = self.request("GET", path, query=query, headers=headers)
        found: dict[str, str] = {}
        try:
            for line in response:
                text = line.decode().rstrip("\r\n")
                if text:
                    name, _, value = text.partition(": ")
                    found[name] = value
                else:  # only an event that came whole counts
                    if "data" in found:
                        yield Event(found.get("event", ""), found.get("id", ""), found["data"])
                    found = {}
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            self._connection.close()

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _unreachable(self, error: Exception) -> HubUnreachable:
        return HubUnreachable(
            f"no hub answers at {self._url} ({str(error) or type(error).__name__}): start one with "
            "`penstock serve`, or say where it is with --url or PENSTOCK_URL"
        )


def stream_path(stream: str, *more: str | int) -> str:
    """The path of a stream, or of something of it."""
    return "/".join(["/api/v1/streams", quote(stream, safe=""), *map(str, more)])


def group_path(group: str, stream: str, *more: str) -> str:
    """The path of a group on a stream, or of something of it."""
    path = ["/api/v1/groups", quote(group, safe=""), "streams", quote(stream, safe="")]
    return "/".join([*path, *more])


def _refused(response: http.client.HTTPResponse) -> Refused:
    data = response.read()
    try:
        error = msgspec.json.decode(data)["error"]
        return Refused(response.status, str(error["code"]), str(error["message"]))
    except (msgspec.MsgspecError, KeyError, TypeError):
        return Refused(response.status, "http", f"status {response.status}: {data[:200]!r}")
