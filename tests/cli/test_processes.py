"""Commands as real processes: pipes, signals, ports and directories in use."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.log import Batch
from penstock.testing.served import ServedHub
from tests.cli.conftest import Cli, command, start

pytestmark = pytest.mark.slow

SMALL = {
    "log.journal_bytes": "4194304",
    "log.checkpoint_bytes": "524288",
    "log.record_bytes_max": "524288",
}
SETTINGS = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedHub]:
    hub = ServedHub(tmp_path / "data", SMALL)
    hub.start()
    yield hub
    hub.end(signal.SIGKILL)


def test_a_pipe_that_is_closed_early_ends_read_well(hub, stream):
    for _ in range(10):
        hub.log.append(stream, Batch.of([b"x" * 100] * 10_000))
    reading = start("read", stream, "--url", hub.url)
    assert reading.stdout is not None
    assert reading.stdout.readline().startswith(b'{"partition":0,"index":0,')
    reading.stdout.close()
    assert reading.stderr is not None
    assert reading.stderr.read() == b""
    reading.stderr.close()
    assert reading.wait(60) == 0


def test_a_pipe_nobody_reads_ends_a_list_well(hub):
    listing = start("streams", "--json", "--url", hub.url)
    assert listing.stdout is not None
    listing.stdout.close()
    assert listing.stderr is not None
    assert listing.stderr.read() == b""
    listing.stderr.close()
    assert listing.wait(60) == 0


def test_read_and_write_make_a_pipe(hub, stream):
    hub.log.append(stream, Batch.of([b"%d" % n for n in range(1000)]))
    hub.log.create_stream(stream + "-copy")
    reading = start("read", stream, "--url", hub.url)
    writing = subprocess.run(
        command("write", stream + "-copy", "--url", hub.url, "--json"),
        stdin=reading.stdout, capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    reading.communicate()
    assert b'"records": 1000' in writing.stdout
    assert hub.log.bounds(stream + "-copy", 0) == (0, 1000)


def test_ctrl_c_ends_tail(hub, stream):
    hub.log.append(stream, Batch.of([b"seen"]))
    tailing = start("tail", stream, "--from", "earliest", "--format", "lines", "--url", hub.url)
    assert tailing.stdout is not None
    assert tailing.stdout.readline() == b"seen\n"
    tailing.send_signal(signal.SIGINT)
    _, err = tailing.communicate(timeout=60)
    assert tailing.returncode == 130
    assert err.strip() == b""


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_tail_goes_on_when_the_hub_restarts(served, end):
    cli = Cli(served.url)
    cli("streams", "create", "orders", "--partitions", 2)
    tailing = start("tail", "orders", "--from", "earliest", "--format", "lines",
                    "--url", served.url)  # fmt: skip
    assert tailing.stdout is not None
    cli("write", "orders", "--format", "lines", "--partition", 0, stdin="one\ntwo\n")
    assert [tailing.stdout.readline() for _ in range(2)] == [b"one\n", b"two\n"]
    served.end(end)
    served.start()
    cli("write", "orders", "--format", "lines", "--partition", 0, stdin="three\n")
    assert tailing.stdout.readline() == b"three\n"
    cli("write", "orders", "--format", "lines", "--partition", 1, stdin="four\n")
    assert tailing.stdout.readline() == b"four\n"
    tailing.send_signal(signal.SIGINT)
    out, _ = tailing.communicate(timeout=60)
    assert out == b""


def test_a_producer_goes_on_when_the_hub_restarts(served):
    Cli(served.url)("streams", "create", "orders")
    writing = start("write", "orders", "--format", "lines", "--batch", 1, "--producer", "p",
                    "--first-id", 0, "--json", "--url", served.url,
                    stdin=subprocess.PIPE)  # fmt: skip
    tailing = start("tail", "orders", "--from", "earliest", "--format", "lines",
                    "--url", served.url)  # fmt: skip
    assert writing.stdin is not None
    assert tailing.stdout is not None
    writing.stdin.write(b"one\ntwo\n")
    writing.stdin.flush()
    assert [tailing.stdout.readline() for _ in range(2)] == [b"one\n", b"two\n"]
    served.end(signal.SIGKILL)
    served.start()
    _, err = writing.communicate(b"three\n", timeout=120)
    assert writing.returncode == 0, err
    tailing.send_signal(signal.SIGINT)
    tailing.communicate(timeout=60)
    assert Cli(served.url)("read", "orders", "--format", "lines").data == b"one\ntwo\nthree\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_serve_cleanly(served, tmp_path, number):
    cli = Cli(served.url)
    cli("streams", "create", "orders")
    cli("write", "orders", "--format", "lines", stdin="kept\n")
    assert served.end(number) == 0
    report = cli("verify", tmp_path / "data", "--json").json
    assert (report["ok"], report["records"]) == (True, 1)


def test_a_port_in_use_is_told(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            command("serve", "--data", tmp_path / "data", "--listen", address, *SETTINGS),
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert b"error (bad-setting): cannot listen on" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_data_directory_in_use_is_told(hub):
    done = subprocess.run(
        command("serve", "--data", hub.data, "--listen", "127.0.0.1:0", *SETTINGS),
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert b"error (data-directory-in-use)" in done.stderr
    assert b"Traceback" not in done.stderr


def test_an_open_address_without_tls_and_users_is_refused(tmp_path):
    done = subprocess.run(
        command("serve", "--data", tmp_path / "data", "--listen", "0.0.0.0:0", *SETTINGS),
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert b"--insecure" in done.stderr


def on_terminal(*words: str | Path | int) -> tuple[int, str]:
    """The exit code of a command on a terminal, and what is seen there."""
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        command(*words), stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while True:
        try:
            data = os.read(ours, 65_536)
        except OSError:  # the other side is closed
            break
        if not data:
            break
        seen += data
    os.close(ours)
    return running.wait(60), seen.decode()


def test_on_a_terminal_long_work_has_a_bar_and_tables_fit(hub, stream, tmp_path):
    hub.log.append(stream, Batch.of([b"x"] * 100))
    code, seen = on_terminal("read", stream, "--url", hub.url, "--to", tmp_path / "out.csv")
    assert code == 0
    assert f"reading {stream}" in seen
    assert "100/" in seen
    code, seen = on_terminal("write", stream, tmp_path / "out.csv", "--url", hub.url)
    assert code == 0
    assert "wrote 100 records" in seen
    code, seen = on_terminal("streams", "--url", hub.url)
    assert code == 0
    assert stream in seen


def test_arrow_is_not_shown_on_a_terminal(hub, stream):
    code, seen = on_terminal("read", stream, "--url", hub.url, "--format", "arrow")
    assert code == 2
    assert "not for a terminal" in seen
