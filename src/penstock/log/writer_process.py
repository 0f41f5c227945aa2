"""The segment writer as a process of its own.

Inside the hub's process it would halve the hub: most of its work is Python under the same lock.
It talks to its log over a socket it inherits, in length-prefixed MessagePack. When the socket
closes, the log is gone, and the writer exits at once: it still holds the data directory's lock,
and the next owner waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from penstock import limits
from penstock.errors import PenstockError
from penstock.log.disk import RealDisk
from penstock.log.writer import (
    Advance,
    Begin,
    Broken,
    DiskHasRoom,
    DiskIsFull,
    DropPartitions,
    FromWriter,
    LetGo,
    Recorded,
    SegmentWriter,
    Stop,
    ToWriter,
)

_FULL_RETRY_S = 0.5
_SEAL_NICENESS = 15
"""Sealing compresses; it must not take the processor from appends."""


def send_message(sock: socket.socket, message: Any) -> None:
    """Send one message, whole."""
    body = msgspec.msgpack.encode(message)
    sock.sendall(len(body).to_bytes(4, "little") + body)


def receive_messages(sock: socket.socket, kind: Any) -> Iterator[Any]:
    """Messages until the other side is gone."""
    decoder = msgspec.msgpack.Decoder(kind)
    with sock.makefile("rb") as stream:
        while len(head := stream.read(4)) == 4:
            size = int.from_bytes(head, "little")
            assert size <= limits.WRITER_MESSAGE_BYTES_MAX
            body = stream.read(size)
            if len(body) < size:
                return
            yield decoder.decode(body)


class _Driver:
    """Three threads: one receives, one (the main one) writes, one seals."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._writer: SegmentWriter | None = None
        self._committed = 0
        self._force = False
        self._stopping = False
        self._orders: list[ToWriter] = []

    def run(self) -> int:
        threading.Thread(target=self._receive, daemon=True).start()
        with self._changed:
            while self._writer is None:
                self._changed.wait()
        threading.Thread(target=self._seal, daemon=True).start()
        while True:
            with self._changed:
                while not (self._orders or self._stopping or self._committed or self._force):
                    self._changed.wait()
                if self._stopping:
                    return 0
                orders, self._orders = self._orders, []
                committed, self._committed = self._committed, 0
                force, self._force = self._force, False
            for order in orders:
                self._obey(order)
            if orders:
                with self._changed:
                    self._changed.notify_all()
            if committed:
                self._advance(committed, force)

    def _receive(self) -> None:
        try:
            self._receive_all()
        finally:
            if not self._stopping:
                os._exit(1)  # the log was killed: leave no half of it running

    def _receive_all(self) -> None:
        for message in receive_messages(self._sock, ToWriter):
            with self._changed:
                if isinstance(message, Begin):
                    self._writer = SegmentWriter(RealDisk(), message)
                elif isinstance(message, Advance):
                    self._committed = message.committed
                    self._force = self._force or message.force
                elif isinstance(message, Stop):
                    self._stopping = True
                else:
                    self._orders.append(message)
                self._changed.notify_all()

    def _obey(self, order: ToWriter) -> None:
        assert self._writer is not None
        self._writer.obey(order)
        if isinstance(order, DropPartitions):
            self._tell(LetGo(order.pids))
        elif isinstance(order, Recorded):
            with self._changed:
                self._changed.notify_all()  # there may be something to seal

    def _advance(self, committed: int, force: bool) -> None:
        assert self._writer is not None
        full = False
        while True:
            try:
                for checkpoint in self._writer.advance(committed, force):
                    self._tell(checkpoint)
                break
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    self._broken(f"writing segments failed: {error}")
                if not full:
                    self._tell(DiskIsFull(str(error)))
                full = True
                with self._changed:
                    if self._stopping:
                        return
                    self._changed.wait(_FULL_RETRY_S)
                    orders, self._orders = self._orders, []
                for order in orders:  # deleting a stream may be what makes room
                    self._obey(order)
            except PenstockError as error:
                self._broken(str(error))
        if full:
            self._tell(DiskHasRoom())

    def _seal(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _SEAL_NICENESS)
        assert self._writer is not None
        while True:
            self._writer.find_unsealed()
            try:
                sealed = self._writer.seal_one()
            except (OSError, PenstockError) as error:
                self._broken(f"sealing a segment failed: {error}")
            if sealed is not None:
                self._tell(sealed)
                continue
            with self._changed:
                self._changed.wait(5.0)

    def _broken(self, message: str) -> NoReturn:
        self._tell(Broken(message))
        os._exit(1)

    def _tell(self, message: FromWriter) -> None:
        with self._sending:
            send_message(self._sock, message)


def main() -> int:
    """Run until the log says stop, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the log, which then tells us
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        return _Driver(socket.socket(fileno=int(sys.argv[1]))).run()
    return 1


def run() -> None:
    """Run as a process. No clean-up: only files outlive it, and those are as they should be."""
    os._exit(main())
