"""kill -9 of a log under load, again and again in one data directory, and a judge.

20 rounds, or as many as `PENSTOCK_CRASH_ROUNDS` says; `PENSTOCK_CRASH_SEED` repeats a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

import pytest

from penstock.errors import DataDirectoryInUse
from penstock.limits import KIB
from penstock.log import Batch, StreamSettings, open_log
from penstock.testing import Attempt, Ledger, check_log
from tests.crash import child

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3_600)]

ROUNDS = int(os.environ.get("PENSTOCK_CRASH_ROUNDS", "20"))
SEED = int(os.environ.get("PENSTOCK_CRASH_SEED", str(time.time_ns() % 1_000_000)))
ROUNDS_PER_DIRECTORY = 20
"""Then a new data directory: every round reads all there is."""

ROOT = Path(__file__).parents[2]
Victim = Literal["hub", "writer", "both"]


class Child:
    """A running child and what it said."""

    def __init__(self, data: Path, round_: int, seed: int, ledger: Ledger) -> None:
        self._ledger = ledger
        self._attempts: dict[str, Attempt] = {}
        self._changed = threading.Condition()
        self._confirmed = 0
        self.wrong: str | None = None
        self.ready = False
        self.writer: int | None = None
        self.restarts = 0
        self._answers = 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.child", str(data), str(round_), str(seed)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    @property
    def confirmed(self) -> int:
        return self._confirmed

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith(b"\n"):
                break
            said = json.loads(line)
            with self._changed:
                self._take(said)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _take(self, said: dict[str, Any]) -> None:
        if "try_" in said:
            values = [
                child.value(said["sender"], said["number"] + row)
                for row in range(len(said["where"]))
            ]
            self._attempts[said["try_"]] = self._ledger.sending(
                said["stream"], said["where"], values, producer=said["producer"], ids=said["ids"],
                drop_resent=said["producer"] is not None,
            )  # fmt: skip
        elif "ok" in said:
            attempt = self._attempts.pop(said["ok"])
            self._ledger.confirmed(attempt, said["indexes"])
            self._confirmed += len(said["indexes"])
        elif "save" in said:
            self._ledger.saving("reader", said["stream"], said["partition"], said["save"])
        elif "saved" in said:
            self._ledger.saved("reader", said["stream"], said["partition"])
        elif "ready" in said:
            self.ready = True
            self.writer = said["writer"]
        elif "restarts" in said:
            self.writer, self.restarts = said["writer"], said["restarts"]
            self._answers += 1
        else:
            self.wrong = said["wrong"]

    def wait_for(self, condition: Any, seconds: float = 30.0) -> None:
        """Wait until the child has said what makes `condition()` true."""
        with self._changed:
            came = self._changed.wait_for(
                lambda: condition() or self.wrong or self.process.poll() is not None, seconds
            )
        assert self.wrong is None, self.wrong
        assert came, "the child stands still"
        assert condition(), f"the child ended by itself: {self.process.poll()}"

    def ask(self) -> None:
        """Learn the writer's process id and how often it was started again."""
        assert self.process.stdin is not None
        before = self._answers
        self.process.stdin.write(b"?\n")
        self.process.stdin.flush()
        self.wait_for(lambda: self._answers > before)

    def kill_writer(self) -> None:
        """Kill the segment writer, and see that appends go on and it is started again."""
        self.ask()
        restarts, pid, confirmed = self.restarts, self.writer, self.confirmed
        assert pid is not None
        kill(pid)
        self.wait_for(lambda: self.confirmed > confirmed + 100)
        deadline = time.monotonic() + 30
        while self.restarts == restarts or self.writer == pid:
            assert time.monotonic() < deadline, "the writer was not started again"
            time.sleep(0.02)
            self.ask()

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        """Hear it out, once it is dead."""
        self.process.wait(30)
        self._thread.join(30)
        assert not self._thread.is_alive()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def play(data: Path, round_: int, ledger: Ledger, pick: random.Random) -> int:
    """Start the child, let it work, and kill something. Returns the kills."""
    victim: Victim = pick.choice(["hub", "hub", "writer", "both"])
    running = Child(data, round_, pick.randrange(1_000_000), ledger)
    kills = 1
    try:
        running.wait_for(lambda: running.ready)
        enough = pick.choice([0, 1, 50, 500, 3_000])
        running.wait_for(lambda: running.confirmed >= enough)
        time.sleep(pick.random() * 0.05)
        if victim == "writer":
            running.kill_writer()
            kills += 1
        elif victim == "both":
            running.ask()
            if running.writer is not None:
                kill(running.writer)
                kills += 1
            time.sleep(pick.random() * 0.02)
    finally:
        running.kill()
    assert running.wrong is None, running.wrong
    return kills


def test_nothing_confirmed_is_lost_however_often_processes_are_killed(tmp_path: Path) -> None:
    pick = random.Random(SEED)
    kills = confirmed = 0
    data, ledger = tmp_path, Ledger()
    for round_ in range(ROUNDS):
        if round_ % ROUNDS_PER_DIRECTORY == 0:
            data, ledger = tmp_path / str(round_), Ledger()
            for stream in child.STREAMS:
                ledger.creating(stream)
        try:
            kills += play(data, round_, ledger, pick)
            with open_log(data, child.SETTINGS, writer=pick.choice(["inline", "process"])) as log:
                report = check_log(log, ledger)
                for stream in log.streams():  # a child killed at once may not have come that far
                    ledger.created(stream)
                for stream in child.STREAMS.keys() - set(log.streams()):
                    ledger.creating(stream)
        except BaseException as error:
            error.add_note(f"round {round_} of PENSTOCK_CRASH_SEED={SEED}, in {data}")
            raise
        if (round_ + 1) % ROUNDS_PER_DIRECTORY == 0 or round_ + 1 == ROUNDS:
            confirmed += report.confirmed
            print(f"\n{round_ + 1} rounds, {kills} kills, {confirmed} records kept (seed {SEED})")
    assert confirmed > 0
    if out := os.environ.get("PENSTOCK_CRASH_OUT"):
        # The checker raises on the first record that is lost or doubled, so both are none here.
        result = {"rounds": ROUNDS, "kills": kills, "confirmed": confirmed, "lost": 0, "doubled": 0}
        Path(out).parent.mkdir(exist_ok=True)
        Path(out).write_text(json.dumps(result) + "\n")


def test_a_data_directory_in_use_is_not_taken_from_its_owner(tmp_path: Path) -> None:
    ledger = Ledger()
    running = Child(tmp_path / "data", 0, SEED, ledger)
    try:
        running.wait_for(lambda: running.confirmed > 10)
        with pytest.raises(DataDirectoryInUse, match=str(running.process.pid)):
            open_log(tmp_path / "data", child.SETTINGS)
    finally:
        running.kill()


def test_streams_can_be_deleted_while_the_writer_writes_them(tmp_path: Path) -> None:
    settings = child.SETTINGS
    batch = Batch.of([child.value("x", number) for number in range(300)])
    with open_log(tmp_path / "data", settings) as log:
        log.create_stream("kept")
        for number in range(40):
            name = f"short-{number % 3}"
            log.create_stream(name, 4, StreamSettings(segment_bytes=64 * KIB))
            for row in range(8):
                log.append(name, batch, row % 4)
                log.append("kept", batch, 0)
            log.delete_stream(name)
        assert log.failed is None
        log.checkpoint()
        assert log.streams() == ["kept"]
        assert log.bounds("kept", 0) == (0, 40 * 8 * 300)
