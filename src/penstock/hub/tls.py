"""TLS for every door, with files that are read again when they change."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

from penstock.config import TlsSettings
from penstock.errors import BadSetting


class Tls:
    """Certificate and key. New connections get the newest; a bad new pair leaves the old in use."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._context: ssl.SSLContext | None = None
        self._stamp: list[tuple[int, int, int]] | None = None
        self.problem: str | None = None
        """Why the newest files are not in use."""
        if settings.certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.minimum_version = ssl.TLSVersion.TLSv1_2
            self._load()

    def context(self) -> ssl.SSLContext | None:
        """The context to listen with; None without TLS."""
        return self._context

    def reload(self) -> bool:
        """Read the files again if they changed; True if new ones are in use now."""
        if self._context is None:
            return False
        try:
            if self._stamp_now() == self._stamp:
                return False
            self._load()
        except BadSetting as error:
            self.problem = str(error)
            return False
        self.problem = None
        return True

    def _load(self) -> None:
        assert self._context is not None
        certificate, key = str(self._settings.certificate), str(self._settings.key)
        try:
            stamp = self._stamp_now()
            # Into a context of its own first: a bad pair must not spoil the one in use.
            trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            trial.load_cert_chain(certificate, key, password=_no_password)
            _check_date(Path(certificate))
            self._context.load_cert_chain(certificate, key, password=_no_password)
        except (OSError, ValueError) as error:
            raise BadSetting(
                f"the TLS files {certificate} and {key} cannot be used: {error}. They must be PEM, "
                "and belong together"
            ) from None
        self._stamp = stamp

    def _stamp_now(self) -> list[tuple[int, int, int]]:
        try:
            found = [
                Path(str(path)).stat() for path in (self._settings.certificate, self._settings.key)
            ]
        except OSError as error:
            raise BadSetting(f"the TLS files cannot be read: {error}") from None
        return [(each.st_mtime_ns, each.st_size, each.st_ino) for each in found]


def _no_password() -> str:
    """Asked for when the key has a password; without this OpenSSL would ask the terminal."""
    raise ValueError("the key has a password; Penstock takes keys without one")


def _check_date(certificate: Path) -> None:
    """Raise `ValueError` if the first certificate of a PEM file is over: OpenSSL would serve it."""
    text = certificate.read_text(encoding="ascii")
    begin = text.index("-----BEGIN CERTIFICATE-----")
    end_line = "-----END CERTIFICATE-----"
    end = text.index(end_line, begin) + len(end_line)
    over = _not_after(ssl.PEM_cert_to_DER_cert(text[begin:end]))
    if over < time.strftime("%Y%m%d%H%M%SZ", time.gmtime()):
        raise ValueError(f"the certificate expired at {over}")


def _not_after(der: bytes) -> str:
    """The end of a certificate's validity as YYYYMMDDHHMMSSZ (RFC 5280, 4.1)."""
    _, body, _ = _element(der, 0)  # Certificate
    _, at, _ = _element(der, body)  # TBSCertificate
    tag, _, after = _element(der, at)
    if tag == 0xA0:  # version
        at = after
    for _ in ("serialNumber", "signature", "issuer"):
        _, _, at = _element(der, at)
    _, at, _ = _element(der, at)  # Validity
    _, _, at = _element(der, at)  # notBefore
    tag, start, end = _element(der, at)
    time_text = der[start:end].decode("ascii")
    if tag == 0x17:  # UTCTime has two digits of the year
        time_text = ("20" if time_text[:2] < "50" else "19") + time_text
    return time_text


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag, begin and end of the content of the DER element at `at`."""
    try:
        tag, length = der[at], der[at + 1]
        begin = at + 2
        if length & 0x80:
            begin += length & 0x7F
            length = int.from_bytes(der[at + 2 : begin], "big")
    except IndexError:
        raise ValueError("the certificate ends within an element") from None
    return tag, begin, begin + length
