"""The segment writer as a process: it may be slow, die, or come too late for a stream."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import limits
from penstock.log import Batch, EmbeddedLog, StreamSettings, open_log, small_log
from penstock.log.writer import Advance
from penstock.log.writer_process import send_message
from tests.records import eventually, numbered, padded, read_all

SMALL = StreamSettings(segment_bytes=limits.SEGMENT_BYTES_MIN)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with open_log(tmp_path / "data", small_log(), writer="process") as log:
        yield log


def running_writer(log: EmbeddedLog) -> int:
    """Its process id, once it has shown that it works."""
    log.checkpoint()  # at once, if nothing is new
    eventually(lambda: log.writer_pid is not None)
    pid = log.writer_pid
    assert pid is not None
    return pid


def test_a_killed_writer_is_replaced_and_nothing_is_lost_or_doubled(log: EmbeddedLog) -> None:
    log.create_stream("s", settings=SMALL)
    for turn in range(2):
        log.append("s", numbered(20, turn * 60))
        first = running_writer(log)
        log.append("s", numbered(20, turn * 60 + 20))
        os.kill(first, signal.SIGKILL)
        log.append("s", numbered(20, turn * 60 + 40))
        eventually(lambda before=first: log.writer_pid not in (None, before))  # type: ignore[misc]
        log.checkpoint()
        assert read_all(log, "s") == [padded(number) for number in range(turn * 60 + 60)]
    assert log.failed is None


def test_appends_go_on_without_a_writer_until_the_ring_is_full(log: EmbeddedLog) -> None:
    log.create_stream("s")
    pid = running_writer(log)
    os.kill(pid, signal.SIGSTOP)
    try:
        for start in range(0, 1_000, 100):
            log.append("s", numbered(100, start))
        assert len(read_all(log, "s")) == 1_000
    finally:
        os.kill(pid, signal.SIGCONT)
    for start in range(1_000, 4_000, 100):
        log.append("s", numbered(100, start))
    assert log.committed_lsn > log.settings.journal_bytes
    assert read_all(log, "s") == [padded(number) for number in range(4_000)]


def test_deleting_streams_while_they_are_written_stops_nothing(log: EmbeddedLog) -> None:
    log.create_stream("kept")
    for turn in range(25):
        log.create_stream("gone", partitions=8, settings=SMALL)
        for start in range(3):
            log.append("kept", numbered(10, turn * 30 + start * 10))
            for partition in range(8):
                log.append("gone", numbered(30), partition)
        log.delete_stream("gone")
        assert log.failed is None
    log.checkpoint()
    assert read_all(log, "kept") == [padded(number) for number in range(750)]


def test_segments_left_unsealed_are_sealed_by_the_next_writer(tmp_path: Path) -> None:
    left = tmp_path / "left"
    with open_log(tmp_path / "data", small_log(), writer="inline") as log:
        log.create_stream("s", settings=SMALL)
        while log.checkpoint_lsn == 0:  # no checkpoint that is asked for: those seal too
            log.append("s", numbered(100))
        shutil.copytree(log.data, left)
    directory = left / "streams" / "s" / "0"
    assert len(list(directory.glob("*.arrows"))) > 1
    assert not list(directory.glob("*.arrow"))
    with open_log(left, small_log(), writer="process") as log:
        eventually(lambda: len(list(directory.glob("*.arrows"))) == 1)
        assert len(read_all(log, "s")) % 100 == 0


def test_a_log_with_a_process_can_be_read_by_one_without(tmp_path: Path) -> None:
    with open_log(tmp_path, small_log(), writer="process") as log:
        log.create_stream("s", settings=SMALL)
        log.append("s", numbered(50))
    with open_log(tmp_path, small_log(), writer="inline") as log:
        log.append("s", numbered(50, 50))
        assert read_all(log, "s") == [padded(number) for number in range(100)]
    with open_log(tmp_path, small_log(), writer="process") as log:
        log.append("s", Batch.of([b"last"]))
        assert len(read_all(log, "s")) == 101


def test_closing_ends_the_process(tmp_path: Path) -> None:
    log = open_log(tmp_path, small_log(), writer="process")
    log.create_stream("s")
    log.append("s", Batch.of([b"v"]))
    pid = running_writer(log)
    log.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_writer_whose_log_is_gone_exits_even_with_messages_unread(tmp_path: Path) -> None:
    with open_log(tmp_path / "data", small_log(), writer="inline") as log:
        log.create_stream("s")
        log.append("s", numbered(20))
        begin, partitions, committed = log._checkpoints._snapshot()
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", "from penstock.log.writer_process import run; run()",
                 str(theirs.fileno())], pass_fds=[theirs.fileno()],
            )  # fmt: skip
        for message in (begin, *partitions, Advance(committed, force=True)):
            send_message(ours, message)
        ours.recv(1, socket.MSG_PEEK)  # its checkpoint has come; closing now resets the connection
        send_message(ours, Advance(committed, force=True))
        ours.close()
        assert process.wait(20) == 1
