"""How a log and its segment writer are tied together: as two processes, or inline in one.

Both forms run the same `SegmentWriter` and deliver the same messages.
"""

from __future__ import annotations

import errno
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from penstock import limits
from penstock.errors import PenstockError
from penstock.log.disk import Disk
from penstock.log.writer import (
    AddPartition,
    Advance,
    Begin,
    Broken,
    DiskHasRoom,
    DiskIsFull,
    DropPartitions,
    FromWriter,
    LetGo,
    SegmentWriter,
    Stop,
    ToWriter,
)
from penstock.log.writer_process import receive_messages, send_message

_RUN_WRITER = "from penstock.log.writer_process import run; run()"

Snapshot = Callable[[], tuple[Begin, Iterable[AddPartition], int]]
"""What a writer that starts must be told: where to begin, all partitions, the committed lsn."""


class WriterLink(ABC):
    """The log's end. Messages from the writer go to the handler it was made with."""

    restarts = 0

    @abstractmethod
    def send(self, message: ToWriter) -> None: ...

    @abstractmethod
    def drop(self, pids: list[int]) -> None:
        """Return when the writer no longer touches these partitions, which the log forgot."""

    @abstractmethod
    def advance(self, committed: int, *, force: bool = False) -> None:
        """Tell how far the journal is committed; cheap, and never waits in the process form."""

    @abstractmethod
    def close(self) -> None: ...

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """The writer's process id."""


class InlineWriter(WriterLink):
    """The writer in the log's own threads: for tests with a fake disk, and for tiny logs."""

    def __init__(
        self, disk: Disk, snapshot: Snapshot, handle: Callable[[FromWriter], None]
    ) -> None:
        self._lock = threading.RLock()
        self._handle = handle
        begin, partitions, committed = snapshot()
        self._writer = SegmentWriter(disk, begin)
        self._full = False
        self._broken = False
        for partition in partitions:
            self._writer.add(partition)
        self._writer.find_unsealed()
        self._committed = committed

    @property
    def pid(self) -> int | None:
        return None

    def send(self, message: ToWriter) -> None:
        with self._lock:
            self._writer.obey(message)

    def drop(self, pids: list[int]) -> None:
        with self._lock:
            self._writer.drop(pids)

    def advance(self, committed: int, *, force: bool = False) -> None:
        with self._lock:
            if self._broken:
                return  # a sync that failed must not be tried again
            try:
                for checkpoint in self._writer.advance(committed, force):
                    self._handle(checkpoint)
                while force and (sealed := self._writer.seal_one()) is not None:
                    self._handle(sealed)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    self._full = True
                    self._handle(DiskIsFull(str(error)))
                    return
                self._broken = True
                self._handle(Broken(f"writing segments failed: {error}"))
                return
            except PenstockError as error:
                self._broken = True
                self._handle(Broken(str(error)))
                return
            if self._full:
                self._full = False
                self._handle(DiskHasRoom())

    def close(self) -> None:
        with self._lock:
            self._writer.close()


class ProcessWriter(WriterLink):
    """The writer as a child process that is started again whenever it dies."""

    def __init__(
        self, snapshot: Snapshot, handle: Callable[[FromWriter], None], lock_fd: int | None
    ) -> None:
        self._snapshot = snapshot
        self._handle = handle
        self._lock_fd = lock_fd
        self._outbox: queue.SimpleQueue[ToWriter | None] = queue.SimpleQueue()
        self._outbox_lock = threading.Lock()
        self._dropping: dict[int, threading.Event] = {}
        self._advance_lock = threading.Lock()
        self._committed = 0
        self._force = False
        self._advance_queued = False
        self._closing = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._supervise, name="penstock-writer", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    def send(self, message: ToWriter) -> None:
        with self._outbox_lock:
            self._outbox.put(message)

    def drop(self, pids: list[int]) -> None:
        gone = threading.Event()
        with self._outbox_lock:
            self._dropping[pids[0]] = gone
            self._outbox.put(DropPartitions(pids))
        deadline = time.monotonic() + limits.CLOSE_S_MAX
        while not gone.wait(0.05):
            if self._closing.is_set() or time.monotonic() > deadline:
                break
        self._dropping.pop(pids[0], None)

    def advance(self, committed: int, *, force: bool = False) -> None:
        with self._advance_lock:
            self._committed = max(self._committed, committed)
            self._force = self._force or force
            if self._advance_queued:
                return
            self._advance_queued = True
        self._outbox.put(Advance(0))

    def close(self) -> None:
        self._closing.set()
        self._outbox.put(Stop())
        self._thread.join(limits.CLOSE_S_MAX)

    def _supervise(self) -> None:
        pause = 0.05
        while not self._closing.is_set():
            began = time.monotonic()
            self._run_once()
            if self._closing.is_set():
                return
            self.restarts += 1
            lived = time.monotonic() - began
            pause = 0.05 if lived > 10 else min(pause * 2, limits.WRITER_RESTART_S_MAX)
            self._closing.wait(pause)

    def _run_once(self) -> None:
        """Start the process, and deliver its messages until it ends."""
        ours, theirs = socket.socketpair()
        kept = [theirs.fileno()] + ([] if self._lock_fd is None else [self._lock_fd])
        command = [sys.executable, "-c", _RUN_WRITER, str(theirs.fileno())]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=kept, stdin=subprocess.DEVNULL, env=environment
            )
        with ours:
            with self._outbox_lock:  # whatever is sent from now on comes after what it changes
                self._outbox = queue.SimpleQueue()
                begin, partitions, committed = self._snapshot()
                self._outbox.put(begin)
                for partition in partitions:
                    self._outbox.put(partition)
                for gone in list(self._dropping.values()):
                    gone.set()  # this writer never hears of them
            sender = threading.Thread(target=self._send_all, args=(ours, self._outbox), daemon=True)
            sender.start()
            with self._advance_lock:
                self._advance_queued = False
            self.advance(committed)
            if self._closing.is_set():
                self._outbox.put(Stop())
            try:
                for message in receive_messages(ours, FromWriter):
                    if isinstance(message, LetGo):
                        if (dropping := self._dropping.get(message.pids[0])) is not None:
                            dropping.set()
                        continue
                    if isinstance(message, Broken):
                        self._closing.set()  # the log stops: a new writer would find the same
                    self._handle(message)
            except ConnectionResetError:
                pass  # it died with messages unread
            self._outbox.put(None)
            sender.join()
        try:
            self._process.wait(limits.CLOSE_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send_all(self, sock: socket.socket, outbox: queue.SimpleQueue[ToWriter | None]) -> None:
        """Send what is put into `outbox`: with a queue between, nobody waits for the writer."""
        try:
            while (message := outbox.get()) is not None:
                if isinstance(message, Advance):
                    with self._advance_lock:
                        message = Advance(self._committed, self._force)
                        self._force = False
                        self._advance_queued = False
                send_message(sock, message)
        except (BrokenPipeError, ConnectionResetError):
            return  # it died; the supervisor starts it again and tells it everything anew
