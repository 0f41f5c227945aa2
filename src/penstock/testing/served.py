"""`penstock serve` as a process of its own, for tests that kill it.

hub = ServedHub(tmp_path)
hub.start()
hub.request("POST", "/api/v1/streams", b'{"name": "orders"}')
hub.end(signal.SIGKILL)
hub.start()                 # the same port, the same data
"""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path


class ServedHub:
    """A hub on ports of this machine that stay its own over restarts."""

    def __init__(self, data: str | Path, settings: Mapping[str, str] | None = None) -> None:
        """`settings` are `section.key` to text, as for `--set`."""
        self._data = data
        self._settings = dict(settings or {})
        with socket.socket() as probe, socket.socket() as other:
            probe.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
            self.flight_port: int = other.getsockname()[1]
        self._settings.setdefault("flight.listen", f"127.0.0.1:{self.flight_port}")
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it; returns the seconds until it was ready."""
        began = time.perf_counter()
        settings = [word for each in self._settings.items() for word in ("--set", "=".join(each))]
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from penstock.cli import main; main()", "serve",
             "--data", str(self._data), "--listen", f"127.0.0.1:{self.port}", *settings],
        )  # fmt: skip
        while self.request("GET", "/readyz")[0] != 200:
            if self.process.poll() is not None:
                raise RuntimeError(f"the hub ended with {self.process.returncode}")
            time.sleep(0.005)
        return time.perf_counter() - began

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send it a signal and wait for its end; returns the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = "application/x-ndjson",
    ) -> tuple[int, bytes]:
        """Status and body of the answer; status 0 if nobody answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, {"Content-Type": content_type})
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()
