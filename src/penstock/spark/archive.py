"""The archive: streams into tables, exactly once, one query for each stream.

    from penstock.spark.archive import archive

    with archive(spark, streams="orders.*", to="/data/tables") as running:
        print(running.wait())

It can be stopped or killed at any point and started again: it goes on where it was. A stream that
comes later and matches the pattern joins.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from penstock import limits
from penstock.errors import BadSetting, PenstockError, QueryFailed, UnknownStream
from penstock.spark.batches import (
    COLUMNS,
    FORMATS,
    BatchWriter,
    Format,
    Target,
    hub_options,
)
from penstock.spark.fetch import patiently
from penstock.spark.options import Given, HubOptions
from penstock.spark.parse import DEAD, ddl, read_schema, schema_text
from penstock.spark.progress import Board, StreamProgress, Summary
from penstock.spark.table import local_path
from penstock.spark.triggers import Trigger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_NAMES: Final = re.compile(r"[A-Za-z0-9._,\s-]+")
_LOOK_S: Final = 5.0
"""How often new streams are looked for."""

_TURN_S: Final = 0.25
_TOLD_S_MAX: Final = 10.0
"""How long the last report of a query may take to come after its end."""

_RETRIES_MAX: Final = 8
_RETRY_S_MAX: Final = 60.0
_NO_RETRY: Final = ("TableForeign", "BadSetting", "DataLost", "Unauthorized", "Forbidden")
"""Errors that trying again does not mend."""


@dataclass(frozen=True)
class Plan:
    """What is archived, and how."""

    names: tuple[str, ...]
    pattern: str | None
    to: str
    form: Format
    trigger: Trigger
    hub: HubOptions
    group: str
    parse: bool
    schema: str | None
    options: dict[str, str]
    """Further options of the source."""


def archive(
    spark: SparkSession,
    *,
    streams: str | Sequence[str],
    to: str | Path,
    format: str = "parquet",  # noqa: A002 - as Spark calls it
    trigger: str = "available-now",
    parse: Literal["json"] | None = None,
    schema: str | None = None,
    group: str | None = None,
    url: str | None = None,
    token: str | None = None,
    ca: str | None = None,
    batch_records: int | None = None,
    batch_bytes: int | None = None,
    fail_on_data_loss: bool = True,
) -> Archive:
    """Archive streams to tables in the directory `to`; returns at once, with a handle.

    `streams` are names, or a regular expression that must match a whole name. `trigger` is
    "available-now" (what is there, then end) or an interval such as "processing 10s". With
    `parse="json"` values become columns of `schema` (DDL or a file; inferred once if not given).
    The hub's address, token and CA come from PENSTOCK_URL, PENSTOCK_TOKEN and PENSTOCK_CA if they
    are not given.
    """
    names, pattern = chosen(streams)
    if format not in FORMATS:
        raise BadSetting(f"there is no format {format!r}: it is {' or '.join(FORMATS)}")
    if parse not in (None, "json"):
        raise BadSetting(f"values cannot be parsed as {parse!r}: only as json")
    if schema is not None and parse is None:
        raise BadSetting("a schema is of use only with parse='json' (--parse json)")
    local = local_path(str(to))
    place = str(to) if local is None else str(local)
    options = {
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "maxBytesPerTrigger": str(batch_bytes or limits.ARCHIVE_BATCH_BYTES_DEFAULT),
    }
    if batch_records is not None:
        options["maxOffsetsPerTrigger"] = str(batch_records)
    given = {"penstock.url": url, "penstock.token": token, "penstock.ca": ca}
    hub = HubOptions.of(Given({k: v for k, v in given.items() if v is not None}, list(given)))
    plan = Plan(
        names=names,
        pattern=pattern,
        to=place,
        form="delta" if format == "delta" else "parquet",
        trigger=Trigger.of(trigger),
        hub=hub,
        group=group or group_name(place),
        parse=parse is not None,
        schema=None if schema is None else schema_text(schema),
        options=options,
    )
    if plan.schema is not None:
        read_schema(plan.schema)
    running = Archive(spark, plan)
    running.start()
    return running


def chosen(streams: str | Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    """Names, or a pattern: text is a pattern if it has characters that no name has."""
    if not isinstance(streams, str):
        names = tuple(dict.fromkeys(streams))
    elif _NAMES.fullmatch(streams):
        names = tuple(dict.fromkeys(re.split(r"[,\s]+", streams.strip(", \t\n"))))
    else:
        try:
            re.compile(streams)
        except re.error as error:
            raise BadSetting(
                f"streams is {streams!r}: neither names nor a regular expression ({error})"
            ) from None
        return (), streams
    if not names or not all(names):
        raise BadSetting("which streams? Give names, or a pattern such as 'orders.*'")
    return names, None


def group_name(to: str) -> str:
    """The group whose positions tell how far the archive at `to` is."""
    name = f"archive:{to}"
    if len(name.encode()) > limits.GROUP_NAME_BYTES_MAX:
        name = f"archive:{sha256(to.encode()).hexdigest()[:32]}"
    return name


@dataclass
class _Job:
    """One stream, and the query that archives it now."""

    stream: str
    entry: StreamProgress
    query: StreamingQuery | None = None
    writer: BatchWriter | None = None
    run: str = ""
    failures: int = 0
    batches: int = 0
    """As many as there were at the last failure."""

    due: float = 0.0
    """When it may be started."""

    ended: bool = False
    ends: list[int] = field(default_factory=list)
    """Of the partitions, when it was last started in turn."""


class Archive:
    """An archive that runs. Use it as a context manager, or call `stop`."""

    def __init__(self, spark: SparkSession, plan: Plan) -> None:
        self.board = Board()
        self.plan = plan
        self._spark = spark
        self._classic = not type(spark).__module__.startswith("pyspark.sql.connect")
        self._jobs: dict[str, _Job] = {}
        self._ends: dict[str, list[int]] = {}
        self._looked = -_LOOK_S
        self._wake = threading.Event()
        self._stopping = False
        self._now = False
        self._error: BaseException | None = None
        self._reports = _listener(self)
        self._streams: dict[str, str] = {}
        self._finished: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="penstock-archive", daemon=True)

    def start(self) -> None:
        """Look at the hub, take the tables, and start the queries."""
        self._look()
        if not self._jobs and self.plan.pattern is None:
            raise UnknownStream(f"there is no stream {', '.join(self.plan.names)}")
        self._spark.streams.addListener(self._reports)
        self._thread.start()

    @property
    def active(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    @property
    def progress(self) -> list[StreamProgress]:
        """How far each stream is."""
        return self.board.streams()

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, however it ends, or for so long."""
        self._thread.join(timeout)

    def wait(self, timeout: float | None = None) -> Summary:
        """Wait for its end; `QueryFailed` if a stream failed, `TimeoutError` if it goes on."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the archive still runs after {timeout:g} s")
        if self._error is not None:
            raise self._error
        summary = self.board.summary()
        if summary.failed:
            told = "; ".join(f"{each.stream}: {each.error}" for each in summary.failed)
            raise QueryFailed(told)
        return summary

    def stop(self, now: bool = False) -> None:
        """Let the batches that run end and begin no others; with `now`, do not wait for them."""
        self._stopping = True
        self._now = self._now or now
        self._wake.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join()

    # -- the loop ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._step():
                self._wake.wait(_TURN_S)
                self._wake.clear()
        except BaseException as error:  # noqa: BLE001 - told by `wait`, in the caller's thread
            self._error = error
            self._now = True
            self._stop_all()
        finally:
            self._spark.streams.removeListener(self._reports)
            for job in self._jobs.values():
                if job.writer is not None:
                    job.writer.close()

    def _step(self) -> bool:
        """Returns whether there is more to do."""
        for job in self._running():
            self._watch(job)
        if self._stopping:
            self._stop_all()
            return False
        if any(job.entry.state == "failed" for job in self._jobs.values()) and self._endless:
            self._stopping = True
            return True
        if time.monotonic() - self._looked >= _LOOK_S or (not self._endless and self._idle()):
            self._look()
        now = time.monotonic()
        for job in self._jobs.values():
            if len(self._running()) >= limits.ARCHIVE_QUERIES_MAX:
                break
            if job.query is None and not job.ended and job.due <= now:
                self._begin(job)
        return self._endless or not self._idle()

    @property
    def _endless(self) -> bool:
        return self.plan.trigger.interval_s is not None

    @property
    def _in_turns(self) -> bool:
        """More streams than queries: each has its query now and then."""
        return self._endless and len(self._jobs) > limits.ARCHIVE_QUERIES_MAX

    def _running(self) -> list[_Job]:
        return [job for job in self._jobs.values() if job.query is not None]

    def _idle(self) -> bool:
        return all(job.ended for job in self._jobs.values())

    def _look(self) -> None:
        """Find the streams that match now."""
        plan = self.plan
        found = patiently(
            plan.hub,
            lambda hub: hub.look(list(plan.names) or None, plan.pattern),
        )
        self._looked = time.monotonic()
        for stream, bounds in found.items():
            self._ends[stream] = [each.end for each in bounds]
            if stream in self._jobs:
                continue
            if plan.parse and stream.endswith(DEAD):
                if plan.names:
                    raise BadSetting(f"{stream} holds what does not parse: archive it without")
                continue
            self._jobs[stream] = _Job(stream, self.board.of(stream))

    # -- one query ---------------------------------------------------------------------------------

    def _begin(self, job: _Job) -> None:
        turns = self._in_turns
        if turns and job.ends == self._ends[job.stream]:
            return
        job.ends = self._ends[job.stream]
        plan = self.plan
        target = Target(job.stream, plan.to, plan.form, plan.hub, plan.parse, plan.schema)
        job.writer = BatchWriter(target)
        try:
            if self._classic:  # else only the server can, with the first batch
                job.writer.open(self._spark)
                if job.writer.schema is not None:
                    job.entry.schema = ddl(job.writer.schema)
            job.query = self._start(job, job.writer, turns)
        except PenstockError as error:
            self._fail(job, str(error), type(error).__name__)
        else:
            job.run = str(job.query.runId)
            job.entry.state = "running"
            job.entry.error = None

    def _start(self, job: _Job, writer: BatchWriter, turns: bool) -> StreamingQuery:
        plan = self.plan
        options = {
            "subscribe": job.stream,
            "group": plan.group,
            **hub_options(plan.hub),
            **plan.options,
        }
        cores = self._cores()
        if not self._endless and len(job.ends) < cores:
            options["minPartitions"] = str(cores)
        rows = self._spark.readStream.format("penstock").schema(COLUMNS).options(**options).load()
        name = f"archive {job.stream} to {plan.to}"
        self._streams[name] = job.stream
        writing = (
            rows.writeStream.queryName(name)
            .option("checkpointLocation", writer.target.checkpoint)
            .foreachBatch(writer)
        )
        if plan.trigger.interval_s is None or turns:
            writing = writing.trigger(availableNow=True)
        else:
            writing = writing.trigger(processingTime=f"{plan.trigger.interval_s * 1000:.0f} ms")
        return writing.start()

    def _cores(self) -> int:
        if not self._classic:
            return 1
        return int(self._spark.sparkContext.defaultParallelism)

    def _watch(self, job: _Job) -> None:
        """See whether a query has ended, and how."""
        assert job.query is not None
        assert job.writer is not None
        job.entry.dead = max(job.entry.dead, job.writer.dead)
        if self._in_turns and self.plan.trigger.interval_s is not None and not job.due:
            self._calm(job)  # it is one of those that were started before there were so many
        if job.query.isActive:
            return
        error = job.query.exception()
        self._hear_the_rest(job)
        job.writer.close()
        job.query = None
        if error is None:
            job.entry.state = "done"
            job.ended = not self._endless
            job.due = time.monotonic() + (self.plan.trigger.interval_s or 0)
        else:
            self._fail(job, *reason(error))

    def _calm(self, job: _Job) -> None:
        """Stop a query after its batch, so that others have their turn."""
        assert job.query is not None
        job.due = time.monotonic()
        self._end(job, time.monotonic() + limits.ARCHIVE_STOP_S_MAX)

    def _fail(self, job: _Job, message: str, kind: str) -> None:
        if job.writer is not None:
            job.writer.close()
        job.query = None
        job.entry.error = message
        if job.entry.batches > job.batches:
            job.failures = 0
        job.batches = job.entry.batches
        job.failures += 1
        if not self._endless or kind in _NO_RETRY or job.failures > _RETRIES_MAX:
            job.entry.state = "failed"
            job.ended = True
            return
        job.entry.state = "retrying"
        job.ends = []
        job.due = time.monotonic() + min(2.0 ** (job.failures - 1), _RETRY_S_MAX)

    def _hear_the_rest(self, job: _Job) -> None:
        """Wait for the last report: it comes after the end, through another thread."""
        deadline = time.monotonic() + _TOLD_S_MAX
        while job.run not in self._finished and time.monotonic() < deadline:
            time.sleep(0.01)

    # -- the end -----------------------------------------------------------------------------------

    def _stop_all(self) -> None:
        running = self._running()
        for job in running:
            assert job.writer is not None
            job.writer.stopping.set()
        deadline = time.monotonic() + limits.ARCHIVE_STOP_S_MAX
        for job in running:
            self._end(job, deadline)
            if job.query is not None:
                self._hear_the_rest(job)
                job.query = None
            if job.entry.state == "running":
                job.entry.state = "stopped"

    def _end(self, job: _Job, deadline: float) -> None:
        """Stop a query once its batch has ended."""
        assert job.query is not None
        assert job.writer is not None
        job.writer.stopping.set()
        before = job.entry.batches
        while not self._now and time.monotonic() < deadline and job.query.isActive:
            if job.writer.idle.is_set() or not job.query.status["isTriggerActive"]:
                break
            if not self._classic and job.entry.batches > before:
                break
            time.sleep(0.05)
        job.query.stop()

    # -- reports, from Spark's threads -------------------------------------------------------------

    def hear(self, name: str, progress: dict[str, Any]) -> None:
        """A query's progress."""
        stream = self._streams.get(name)
        if stream is not None:
            self.board.report(stream, progress)

    def hear_end(self, run: str) -> None:
        """A query has ended, and has told all."""
        self._finished.add(run)
        self._wake.set()


def _listener(running: Archive) -> Any:
    """What Spark calls with the progress of queries; made here, for it needs PySpark."""
    import json

    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Reports(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            pass

        def onQueryProgress(self, event: Any) -> None:
            running.hear(str(event.progress.name), json.loads(event.progress.json))

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            running.hear_end(str(event.runId))

    return Reports()


_OURS: Final = re.compile(r"penstock\.errors\.(\w+): ((?:.|\n)*?)(?:\n\s*\n|\n\tat |\n\s+File |\Z)")


def reason(error: BaseException) -> tuple[str, str]:
    """What a query failed with, in one sentence, and the class of the error."""
    text = str(error)
    ours = _OURS.search(text)
    if ours is not None:
        return ours[2].strip(), ours[1]
    line = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return line.strip()[: limits.ARCHIVE_ERROR_CHARS_MAX], type(error).__name__
