"""A Spark session with everything Penstock needs: local, on a cluster, or through Spark Connect.

    from penstock.spark.session import spark_session

    spark = spark_session()                                   # on this machine
    spark = spark_session(master="spark://host:7077")         # a cluster
    spark = spark_session(remote="sc://host:15002")           # Spark Connect

Any other session works with the source too, if Java finds Python's packages. This one knows the
traps: it runs workers on this Python, keeps local checkpoints fast, and stays quiet.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from penstock.errors import BadSetting, SparkMissing, SparkUnreachable
from penstock.spark import jars
from penstock.spark.cache import keep_file
from penstock.spark.java import use_java
from penstock.spark.package import package_zip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT_MANAGER: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""Spark's default starts a process for every rename of a local file: 3 times the latency. This one
needs a file system that renames atomically, so object stores keep the default."""

DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

_ALWAYS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Dates of partitions and times in SQL must not depend on where a machine stands.
    "spark.sql.session.timeZone": "UTC",
}
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Fixed for the life of a stateful checkpoint, so not the machine's number of cores.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER,
}
_LISTS: Final = ("spark.jars", "spark.submit.pyFiles", "spark.sql.extensions")
"""Settings that hold lists: the caller's items are added to ours."""

_LOG4J: Final = """\
# What Spark says in sessions made by Penstock.
status = error
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
# These warn of what is as it should be.
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.adaptive.name = org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream
logger.adaptive.level = error
logger.truncated.name = org.apache.spark.sql.catalyst.util.SparkStringUtils
logger.truncated.level = error
"""
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_CONNECT_PORT: Final = 15_002
_CLUSTER_PORT: Final = 7_077
_PROBE_SECONDS: Final = 5.0
"""Spark's own clients retry for minutes before they say that nobody is there."""


def spark_session(
    app: str = "penstock",
    *,
    master: str | None = None,
    remote: str | None = None,
    delta: bool = False,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session that runs, else a new one.

    `master` is where it runs (`local[*]` if neither it, nor `remote`, nor SPARK_REMOTE, nor
    spark-submit says otherwise), `remote` a Spark Connect server, or `local[...]` for one in this
    process. `delta` adds Delta Lake. `conf` are Spark's settings; they win over those made here.
    """
    _need_pyspark()
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    # An error of SQL is raised; it need not be printed as JSON, with its stack, as well.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel("CRITICAL")

    given = dict(conf or {})
    master, remote = _where(master, remote)
    running = SparkSession.getActiveSession()
    if running is not None:
        return _fitting(running, master, delta, given)
    if remote is not None and not remote.startswith("local"):
        _probe(remote)
        builder = SparkSession.builder.remote(remote).appName(app)
        return _fitting(builder.getOrCreate(), None, delta, given)
    builder = SparkSession.builder.appName(app)
    if remote is not None:
        _claim_connect_port()
        builder = builder.remote(remote)
        given.setdefault("spark.connect.grpc.binding.address", "127.0.0.1")
    else:
        master = master or _submitted_master() or "local[*]"
        _probe(master)
        builder = builder.master(master)
    for key, value in _settings(master or "local", delta, given).items():
        builder = builder.config(key, value)
    _prepare_environment(local=_is_local(master or "local"))
    return builder.getOrCreate()


def _need_pyspark() -> None:
    try:
        import pyspark.sql  # noqa: F401
    except ImportError as error:
        raise SparkMissing(
            f"PySpark cannot be imported ({error}). Type: pip install 'penstock[spark]'"
        ) from error


def _where(master: str | None, remote: str | None) -> tuple[str | None, str | None]:
    if master is None and remote is None:
        return None, os.environ.get("SPARK_REMOTE")
    if master is not None and remote is not None:
        raise BadSetting(f"a session has a master ({master}) or is remote ({remote}), not both")
    if master is not None and "SPARK_REMOTE" in os.environ:
        raise BadSetting(
            f"SPARK_REMOTE is set to {os.environ['SPARK_REMOTE']}, and Spark would go there "
            f"instead of to {master}: unset it, or name no master"
        )
    if master is not None and master.startswith("sc://"):
        raise BadSetting(f"{master} is a Spark Connect server: give it as remote, not as master")
    return master, remote


def _submitted_master() -> str | None:
    """The master that spark-submit, which started this program, was told."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return SparkConf().get("spark.master")


def _is_local(master: str) -> bool:
    return master.startswith("local") and not master.startswith("local-cluster")


def _prepare_environment(*, local: bool) -> None:
    """What Spark reads from the environment only, when it starts its processes."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started them
        return
    use_java()
    # Else workers run whatever `python3` is, which need not have the packages of this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Meant for the `pyspark` command, and often no Python (jupyter); Spark plans sources with it.
    os.environ.pop("PYSPARK_DRIVER_PYTHON", None)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        return
    # What is shipped reaches executors only, but the driver too runs sources, in Pythons of its
    # own, and these are the executors' if PYSPARK_PYTHON says so.
    known = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    if str(package_zip()) not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([*known, str(package_zip())])


def _settings(master: str, delta: bool, given: Mapping[str, str]) -> dict[str, str]:
    settings = {**_ALWAYS, _JAVA_OPTIONS: f"-Dlog4j2.configurationFile={_log4j()}"}
    if _is_local(master):
        settings |= _LOCAL
    else:
        settings["spark.submit.pyFiles"] = str(package_zip())
    if delta:
        settings |= DELTA
        settings["spark.jars"] = ",".join(map(str, jars.paths("delta")))
    for key, value in given.items():
        ours = settings.get(key)
        if ours is None or key not in (*_LISTS, _JAVA_OPTIONS):
            settings[key] = value
        elif value not in ours:
            settings[key] = (" " if key == _JAVA_OPTIONS else ",").join((ours, value))
    return settings


def _log4j() -> str:
    name = hashlib.sha256(_LOG4J.encode()).hexdigest()[:16]
    return keep_file(f"log4j2-{name}.properties", _LOG4J.encode()).as_uri()


def _fitting(
    running: SparkSession, master: str | None, delta: bool, given: Mapping[str, str]
) -> SparkSession:
    """A session that is there already, if it can do what is asked."""
    there = running.conf.get("spark.master", "")
    if master is not None and there != master:
        raise BadSetting(f"a session on {there} runs: stop it before one on {master} is made")
    if delta and DELTA["spark.sql.extensions"] not in (
        running.conf.get("spark.sql.extensions", "") or ""
    ):
        needed = ", ".join(f"{key}={value}" for key, value in DELTA.items())
        names = " and ".join(each.file for each in jars.JARS["delta"])
        raise BadSetting(
            "the Spark session, or the server behind it, runs without Delta: start it with "
            f"{needed} and, in spark.jars, {names} (`penstock jars` fetches them)"
        )
    for key, value in given.items():
        if running.conf.isModifiable(key):
            running.conf.set(key, value)
    return running


def _probe(address: str) -> None:
    """Fail now if nobody listens: Spark's clients try for minutes before they say so."""
    scheme, _, rest = address.partition("://")
    default = {"sc": _CONNECT_PORT, "spark": _CLUSTER_PORT}.get(scheme)
    if default is None:  # local, yarn, k8s: Spark knows where they are
        return
    tried = []
    for each in rest.split("/")[0].split(","):
        try:
            place = urlsplit(f"//{each}")
            host, port = place.hostname or "", place.port or default
        except ValueError as error:
            raise BadSetting(f"{address} is no address of Spark: {error}") from error
        try:
            socket.create_connection((host, port), _PROBE_SECONDS).close()
        except OSError as error:
            tried.append(f"{host}:{port} ({error.strerror or error})")
        else:
            return
    what = "Spark Connect server" if scheme == "sc" else "Spark master"
    raise SparkUnreachable(
        f"no {what} answers at {', '.join(tried)}: start it, or correct the address {address}"
    )


def _claim_connect_port() -> None:
    """Spark looks for its own local Connect server on one fixed port, whoever listens there."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", _CONNECT_PORT)) == 0:
            raise BadSetting(
                f"another program, perhaps another Spark, listens on port {_CONNECT_PORT}, which a "
                f"local Connect session needs: stop it, or use it (sc://localhost:{_CONNECT_PORT})"
            )
