"""TLS for every door, with files that are read again when they change."""

from __future__ import annotations

import ssl
from pathlib import Path

from penstock.config import TlsSettings
from penstock.errors import BadSetting


class Tls:
    """Certificate and key. New connections get the newest; a bad new pair leaves the old in use."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._context: ssl.SSLContext | None = None
        self._stamp: tuple[float, float] | None = None
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
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            self._context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise BadSetting(
                f"the TLS files {certificate} and {key} cannot be used: {error}. They must be PEM, "
                "and belong together"
            ) from None
        self._stamp = stamp

    def _stamp_now(self) -> tuple[float, float]:
        try:
            return (
                Path(str(self._settings.certificate)).stat().st_mtime,
                Path(str(self._settings.key)).stat().st_mtime,
            )
        except OSError as error:
            raise BadSetting(f"the TLS files cannot be read: {error}") from None
