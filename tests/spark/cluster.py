"""Spark's own servers, from the pip package: a standalone cluster, a Connect server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from penstock.spark.java import use_java

START_SECONDS_MAX = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def spark_home() -> Path:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def server_environment(**more: str) -> dict[str, str]:
    """For servers of Spark: this Java, and nothing of what a session in this process has set."""
    use_java()
    ours = ("PYSPARK_", "SPARK_", "_PYSPARK_", "PYTHONPATH")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    return {**kept, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1", **more}


@contextmanager
def server(log: Path, *words: str, environment: dict[str, str]) -> Iterator[None]:
    """A program of Spark that runs until the block ends, and all that it starts with it."""
    command = [str(spark_home() / "bin" / words[0]), *words[1:]]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=environment, stdout=file, stderr=file, start_new_session=True
        )
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for_text(log: Path, text: str, count: int = 1) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while log.read_text(errors="replace").count(text) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {text!r} in: {log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.1)


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[str]:
    """A standalone cluster with workers of one core each; gives its `spark://` address."""
    environment = server_environment()
    port, log = free_port(), folder / "master.log"
    address = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    with ExitStack() as stack:
        words = ["spark-class", f"{deploy}.master.Master", "--host", "127.0.0.1",
                 "--port", str(port), "--webui-port", "0"]  # fmt: skip
        stack.enter_context(server(log, *words, environment=environment))
        wait_for_text(log, "I have been elected leader")
        for number in range(workers):
            words = ["spark-class", f"{deploy}.worker.Worker", "--host", "127.0.0.1",
                     "--cores", "1", "--memory", "1g", "--webui-port", "0",
                     "--work-dir", str(folder / f"work-{number}"), address]  # fmt: skip
            own = folder / f"worker-{number}.log"
            stack.enter_context(server(own, *words, environment=environment))
        wait_for_text(log, "Registering worker", workers)
        yield address


@contextmanager
def connect_server(folder: Path, **settings: str) -> Iterator[str]:
    """A Spark Connect server that has the package; gives its `sc://` address."""
    port = free_port()
    confs = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        **settings,
    }
    words = [word for key, value in confs.items() for word in ("--conf", f"{key}={value}")]
    log = folder / "connect.log"
    with server(
        log,
        *("spark-submit", "--master", "local[2]", *words),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
        environment=server_environment(PYSPARK_PYTHON=sys.executable),
    ):
        wait_for_text(log, "Spark Connect server started at")
        yield f"sc://127.0.0.1:{port}"


def bare_python(folder: Path, *packages: str) -> Path:
    """A Python that can import these packages of this one, and no other: not Penstock."""
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for package in packages:
        found = find_spec(package)
        assert found is not None
        assert found.origin is not None
        above = Path(found.origin).parent.parent
        for path in above.glob(f"{package}*"):
            (site / path.name).symlink_to(path)
    return folder / "bin" / "python"


def run_driver(program: str, *words: str, seconds: float = 240.0, **environment: str) -> str:
    """Run a program with a session of its own; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**server_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
