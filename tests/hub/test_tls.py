"""TLS: with files that are read again when they change, and kept when the new ones are bad."""

from __future__ import annotations

import datetime
import gc
import os
import socket
import ssl
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import requests
import structlog
import trustme

from penstock.config import Config, TlsSettings
from penstock.errors import BadSetting
from penstock.hub import hub as hub_module
from penstock.hub.tls import Tls
from penstock.hub.users import Grant, Users
from penstock.testing.hub import TestHub
from tests.hub.conftest import config
from tests.records import eventually


@pytest.fixture(autouse=True)
def half_closed() -> Iterator[None]:
    """asyncio leaves connections whose peer does not say goodbye; they go before they are told."""
    yield
    with warnings.catch_warnings(action="ignore"):
        gc.collect()


class Files(NamedTuple):
    authority: trustme.CA
    certificate: Path
    key: Path
    trusted: Path

    def issue(self, expires: datetime.datetime | None = None) -> trustme.LeafCert:
        """Put a new pair into the files, and return it."""
        leaf = self.authority.issue_cert("localhost", "127.0.0.1", not_after=expires)
        self.certificate.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        self.key.write_bytes(leaf.private_key_pem.bytes())
        return leaf

    def settings(self) -> TlsSettings:
        return TlsSettings(str(self.certificate), str(self.key))

    def config(self) -> Config:
        return config(tls={"certificate": str(self.certificate), "key": str(self.key)})


@pytest.fixture
def files(tmp_path: Path) -> Files:
    found = Files(trustme.CA(), tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem")
    found.authority.cert_pem.write_to_path(found.trusted)
    found.issue()
    return found


def shown_serial(hub: TestHub) -> bytes:
    """The certificate a new connection is shown."""
    host, port = hub.url.removeprefix("https://").split(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((host, int(port)), timeout=30) as plain,
        context.wrap_socket(plain) as secure,
    ):
        shown = secure.getpeercert(binary_form=True)
        assert shown is not None
        return shown


def test_a_hub_serves_https(files: Files, start: Callable[..., TestHub]) -> None:
    hub = start(files.config())
    assert hub.url.startswith("https://")
    answer = requests.get(hub.url + "/readyz", verify=str(files.trusted), timeout=30)
    assert answer.status_code == 200


def test_plain_http_gets_no_answer_from_https(files: Files, start: Callable[..., TestHub]) -> None:
    hub = start(files.config())
    with pytest.raises(requests.ConnectionError):
        requests.get(hub.url.replace("https", "http") + "/readyz", timeout=30)


def test_old_versions_of_tls_are_refused(files: Files) -> None:
    context = Tls(files.settings()).context()
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_client_that_speaks_only_old_tls_is_refused(
    files: Files, start: Callable[..., TestHub]
) -> None:
    hub = start(files.config())
    host, port = hub.url.removeprefix("https://").split(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with warnings.catch_warnings(action="ignore"):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with (
        socket.create_connection((host, int(port)), timeout=30) as plain,
        pytest.raises((ssl.SSLError, ConnectionResetError)),
    ):
        context.wrap_socket(plain)


def test_with_tls_and_users_a_hub_may_listen_for_others(files: Files, tmp_path: Path) -> None:
    data = tmp_path / "data"
    token = Users(data).add("root", [Grant("admin")])
    exposed = config(
        tls={"certificate": str(files.certificate), "key": str(files.key)},
        http={"listen": "0.0.0.0:0"},
    )
    with TestHub(data, exposed) as hub:
        url = hub.url.replace("0.0.0.0", "127.0.0.1") + "/api/v1/info"
        headers = {"Authorization": f"Bearer {token}"}
        assert requests.get(url, verify=str(files.trusted), timeout=30).status_code == 401
        answer = requests.get(url, headers=headers, verify=str(files.trusted), timeout=30)
        assert answer.json()["user"] == "root"
        hub.hub.users.remove("root")
        assert requests.get(url, verify=str(files.trusted), timeout=30).status_code == 401


def test_new_files_are_used_for_new_connections(
    files: Files, start: Callable[..., TestHub]
) -> None:
    hub = start(files.config())
    before = shown_serial(hub)
    files.issue()
    assert hub.hub.tls.reload()
    assert not hub.hub.tls.reload()
    assert shown_serial(hub) != before


def expired(files: Files) -> None:
    files.issue(datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1))


def broken(files: Files) -> None:
    files.certificate.write_text("nonsense")


def truncated(files: Files) -> None:
    files.certificate.write_bytes(files.certificate.read_bytes()[:200])


def of_another_key(files: Files) -> None:
    before = files.key.read_bytes()
    files.issue()
    files.key.write_bytes(before)


def gone(files: Files) -> None:
    files.key.unlink()


def with_a_password(files: Files) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )


SPOILT = [expired, broken, truncated, of_another_key, gone, with_a_password]


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda each: each.__name__)
def test_bad_new_files_leave_the_old_in_use_and_are_reported_once(
    files: Files,
    start: Callable[..., TestHub],
    spoil: Callable[[Files], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub_module, "_RELOAD_S", 0.01)
    hub = start(files.config())
    before = shown_serial(hub)
    with structlog.testing.capture_logs() as logs:
        spoil(files)
        eventually(lambda: logs)
        assert shown_serial(hub) == before
        files.key.unlink(missing_ok=True)
        os.utime(files.certificate)
        files.issue()
        eventually(lambda: logs[-1]["event"] == "new TLS files are in use")
    assert logs[0]["event"] == "new TLS files are not used"
    assert "TLS files" in logs[0]["reason"]
    assert shown_serial(hub) != before


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda each: each.__name__)
def test_a_hub_does_not_start_with_bad_files(
    files: Files, start: Callable[..., TestHub], spoil: Callable[[Files], None]
) -> None:
    spoil(files)
    with pytest.raises(BadSetting, match="TLS files"):
        start(files.config())


def test_certificates_of_the_far_future_are_not_expired(files: Files) -> None:
    files.issue(datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC))
    assert Tls(files.settings()).context() is not None
