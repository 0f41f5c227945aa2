"""Where the Flight door is, found from the one address a user knows: the hub's HTTP address."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import os
import ssl
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from penstock.errors import BadSetting, HubUnreachable, Unauthorized
from penstock.flight import wire

DEFAULT_URL: Final = "http://127.0.0.1:7470"
_ANSWER_BYTES_MAX: Final = 1024 * 1024
_ASK_S_MAX: Final = 30.0


class Address(NamedTuple):
    """What it takes to call a Flight door."""

    location: str
    token: str | None
    roots: bytes | None
    """The certificates to trust, as PEM; None without TLS."""


def find(url: str | None, token: str | None, ca: str | None) -> Address:
    """The Flight door of a hub; what is not given comes from the environment."""
    url = url or os.environ.get("PENSTOCK_URL") or DEFAULT_URL
    token = token or os.environ.get("PENSTOCK_TOKEN") or None
    ca = ca or os.environ.get("PENSTOCK_CA") or None
    parts = _split(url)
    if token and not (token.isascii() and token.isprintable()):
        raise BadSetting("the token has characters that no token has: look at PENSTOCK_TOKEN")
    location = url.rstrip("/")
    if parts.scheme in ("http", "https"):
        location = _ask(parts, url, token, ca)
    return Address(location, token, _roots(ca) if location.startswith("grpc+tls") else None)


def _split(url: str) -> SplitResult:
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        port = parts.port  # raises if it is none
        is_http = parts.scheme in ("http", "https")
        is_grpc = parts.scheme in ("grpc", "grpc+tls") and port is not None
        if parts.hostname and (is_http or is_grpc):
            return parts
    raise BadSetting(
        f"{url!r:.100} is no hub's address: write {DEFAULT_URL}, or grpc://host:port of its "
        "Flight door (https and grpc+tls with TLS)"
    )


def _ask(parts: SplitResult, url: str, token: str | None, ca: str | None) -> str:
    """The address of the Flight door, as the HTTP API tells it."""
    host = parts.hostname or ""
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        try:
            context = ssl.create_default_context(cafile=ca)
        except OSError as error:
            raise BadSetting(f"the CA file {ca} cannot be used: {error}") from None
        connection = http.client.HTTPSConnection(
            host, parts.port or 443, timeout=_ASK_S_MAX, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, parts.port or 80, timeout=_ASK_S_MAX)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", parts.path.rstrip("/") + "/api/v1/info", headers=headers)
        answer = connection.getresponse()
        body = answer.read(_ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise HubUnreachable(
            f"no hub answers at {url} ({error}): start it with: penstock serve"
        ) from None
    finally:
        connection.close()
    told = wire.decode(body)
    if answer.status == 401:
        raise Unauthorized(told.get("error", {}).get("message", "the token is not valid"))
    if answer.status != 200:
        raise HubUnreachable(f"the hub at {url} does not answer as it should: {answer.status}")
    found = told.get("doors", {}).get("flight")
    if not found:
        raise HubUnreachable(
            f"the hub at {url} has no Flight door open: set flight.enabled, and look at its log"
        )
    return _reachable(found, host)


def _reachable(found: str, host: str) -> str:
    """The door's address as this machine can use it.

    A door that listens on all addresses is at the host the user named; so is one on this machine,
    which certificates often know by another name.
    """
    parts = urlsplit(found)
    own = parts.hostname or ""
    if own in ("0.0.0.0", "::") or (_is_loopback(own) and _is_loopback(host)):
        own = host
    shown = f"[{own}]" if ":" in own else own
    return f"{parts.scheme}://{shown}:{parts.port}"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _roots(ca: str | None) -> bytes | None:
    path = ca or ssl.get_default_verify_paths().cafile
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadSetting(f"the CA file {path} cannot be used: {error}") from None
