"""A connector for tests: a blocking socket, and frames as they are written and read."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence
from typing import Any, Self, TypeVar

from penstock.protocols.wallaroo.wire import (
    Ack,
    Decoder,
    Dialect,
    EndOfStream,
    Error,
    Hello,
    Message,
    Messages,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Role,
    encode,
    encode_messages,
)

T = TypeVar("T")


class Peer:
    """Speaks as a connector does. What it hears is kept; credits and acks are counted."""

    def __init__(
        self,
        port: int,
        dialect: Dialect = Dialect.SPEC,
        *,
        context: ssl.SSLContext | None = None,
        receive_buffer: int | None = None,
    ) -> None:
        self.dialect = dialect
        plain = socket.socket()
        if receive_buffer is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        plain.settimeout(30)
        try:
            plain.connect(("127.0.0.1", port))
        except OSError:
            plain.close()
            raise
        self.socket: socket.socket = plain
        if context is not None:
            self.socket = context.wrap_socket(plain, server_hostname="localhost")
        self.heard: list[Any] = []
        self.acked: dict[int, int] = {}
        self.credits = 0
        self._decoder = Decoder(Role.CONNECTOR, dialect)

    def send(self, *frames: Any) -> Self:
        for frame in frames:
            if isinstance(frame, bytes):
                self.socket.sendall(frame)
            elif isinstance(frame, Messages):
                self.credits -= len(frame)
                self.socket.sendall(encode_messages(frame, self.dialect))
            else:
                self.credits -= isinstance(frame, (Notify, Message, EndOfStream))
                self.socket.sendall(encode(frame, self.dialect))
        return self

    def hear(self) -> list[Any]:
        """What comes next; nothing at the end of the connection."""
        while True:
            data = self.socket.recv(1 << 16)
            got: list[Any] = list(self._decoder.receive(data))
            for each in got:
                if isinstance(each, (Ok, Ack, Nack)):
                    self.credits += each.credits
                if isinstance(each, Ack):
                    self.acked.update(each.points)
            self.heard += got
            if got or not data:
                return got

    def listen(self) -> None:
        """Hear something, or raise because there is nobody any more."""
        if not self.hear():
            raise ConnectionError(f"the hub is gone: {self.heard[-3:]}")

    def wait(self, kind: type[T]) -> T:
        """The next frame of this kind."""
        at = len(self.heard)
        while True:
            for each in self.heard[at:]:
                if isinstance(each, kind):
                    return each
            at = len(self.heard)
            self.listen()

    def refused(self) -> str:
        """The reason of the ERROR that ends the connection."""
        while True:
            try:
                got = self.hear()
            except ConnectionResetError:
                got = []
            if not got:
                (error,) = [each for each in self.heard if isinstance(each, Error)]
                return error.reason

    def hello(self, program: str = "prog", instance: str = "inst", cookie: bytes = b"") -> Ok:
        self.send(Hello("0.0.1", cookie, program, instance))
        return self.wait(Ok)

    def open(self, stream: int, name: str | None = None, ref: int = 0) -> int | None:
        """Introduce a stream; returns where to go on, in the shipped dialect."""
        self.send(Notify(stream, (name or f"s{stream}").encode(), ref))
        if self.dialect is not Dialect.SHIPPED:
            return None
        answer = self.wait(NotifyAck)
        assert answer.success, answer
        return answer.ref

    def write(
        self, stream: int, ids: Sequence[int], payloads: Sequence[bytes] | None = None
    ) -> None:
        """Send messages, as many as credits allow at a time, and wait until all are acked."""
        payloads = payloads or [b"%d" % number for number in ids]
        at = 0
        while at < len(ids):
            while self.credits < 1:
                self.listen()
            count = min(self.credits, len(ids) - at, 1000)
            part = slice(at, at + count)
            self.send(Messages.of(stream, ids[part], payloads[part]))
            at += count
        self.wait_acked(stream, ids[-1])

    def wait_acked(self, stream: int, number: int, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while self.acked.get(stream) != number:
            assert time.monotonic() < deadline, f"{number} is not acked: {self.acked}"
            self.listen()

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
