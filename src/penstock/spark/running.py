"""An archive that runs: which streams have a query now, how each ended, and what comes next.

One thread starts queries, watches them and starts them again. Spark reports their progress from
threads of its own.
"""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from penstock import limits
from penstock.errors import (
    BadSetting,
    HubUnreachable,
    LogClosed,
    PenstockError,
    QueryFailed,
    UnknownGroup,
    UnknownStream,
)
from penstock.flight.client import Bounds
from penstock.spark.batches import COLUMNS, BatchWriter, Format, Target, hub_options
from penstock.spark.fetch import client, forget, patiently
from penstock.spark.options import HubOptions
from penstock.spark.parse import DEAD, ddl
from penstock.spark.progress import Board, StreamProgress, Summary
from penstock.spark.triggers import Trigger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_S: Final = 5.0
"""How often new streams are looked for."""

_TURN_S: Final = 0.25
_TOLD_S_MAX: Final = 10.0
"""How long the last report of a query may take to come after its end."""

_RETRIES_MAX: Final = 8
_RETRY_S_MAX: Final = 60.0
_TOO_SLOW: Final = "Python worker failed to connect back"
"""What Spark says of a Python process that a busy machine did not start within 10 seconds."""

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
    turn: bool = False
    """Whether the query ends by itself, so that others have their turn."""

    ends: list[int] = field(default_factory=list)
    """Of the partitions, when it was last started."""


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
        if not self._endless and self._idle():
            self._look()
        elif time.monotonic() - self._looked >= _LOOK_S:
            self._look_if_there()
        now = time.monotonic()
        for job in self._jobs.values():
            if len(self._running()) >= limits.ARCHIVE_QUERIES_MAX or self._starting():
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

    def _starting(self) -> bool:
        """Whether as many queries start as may at once.

        Each starts a Python process, which Spark gives 10 seconds to answer.
        """
        starting = [
            job
            for job in self._running()
            if job.query is not None and job.query.status["message"].startswith("Initializing")
        ]
        return len(starting) >= limits.ARCHIVE_STARTS_MAX

    def _idle(self) -> bool:
        return all(job.ended for job in self._jobs.values())

    def _look_if_there(self) -> None:
        """Find new streams; what it means that the hub is away, the queries decide."""
        self._looked = time.monotonic()
        try:
            self._take(client(self.plan.hub).look(list(self.plan.names) or None, self.plan.pattern))
        except (HubUnreachable, LogClosed):
            forget(self.plan.hub)

    def _look(self) -> None:
        """Find the streams that match now."""
        plan = self.plan
        self._looked = time.monotonic()
        self._take(
            patiently(plan.hub, lambda hub: hub.look(list(plan.names) or None, plan.pattern))
        )

    def _take(self, found: dict[str, list[Bounds]]) -> None:
        plan = self.plan
        for stream, bounds in found.items():
            self._ends[stream] = [each.end for each in bounds]
            if stream in self._jobs:
                continue
            if plan.parse and stream.endswith(DEAD):
                if plan.names:
                    raise BadSetting(f"{stream} holds what does not parse: archive it without")
                continue
            self._jobs[stream] = _Job(stream, self.board.of(stream))
            self.board.begins(stream, {at: each.earliest for at, each in enumerate(bounds)})

    # -- one query ---------------------------------------------------------------------------------

    def _begin(self, job: _Job) -> None:
        job.turn = self._in_turns
        if job.turn and job.ends == self._ends[job.stream]:
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
            job.query = self._start(job, job.writer)
        except PenstockError as error:
            self._fail(job, str(error), type(error).__name__)
        else:
            job.run = str(job.query.runId)
            job.entry.state = "running"
            job.entry.error = None

    def _start(self, job: _Job, writer: BatchWriter) -> StreamingQuery:
        plan = self.plan
        options = {
            "subscribe": job.stream,
            "group": plan.group,
            **hub_options(plan.hub),
            **plan.options,
        }
        cores = self._cores()
        if len(job.ends) < cores and self._backlog(job) >= limits.ARCHIVE_SPLIT_RECORDS:
            options["minPartitions"] = str(cores)
        rows = self._spark.readStream.format("penstock").schema(COLUMNS).options(**options).load()
        name = f"archive {job.stream} to {plan.to}"
        self._streams[name] = job.stream
        writing = (
            rows.writeStream.queryName(name)
            .option("checkpointLocation", writer.target.checkpoint)
            .foreachBatch(writer)
        )
        if plan.trigger.interval_s is None or job.turn:
            writing = writing.trigger(availableNow=True)
        else:
            writing = writing.trigger(
                processingTime=f"{plan.trigger.interval_s * 1000:.0f} milliseconds"
            )
        return writing.start()

    def _backlog(self, job: _Job) -> int:
        """About how many records there are to read."""
        plan = self.plan
        try:
            at = patiently(plan.hub, lambda hub: hub.positions(plan.group, job.stream))
        except UnknownGroup:
            at = {}
        return sum(job.ends) - sum(at.values())

    def _cores(self) -> int:
        if not self._classic:
            return 1
        return int(self._spark.sparkContext.defaultParallelism)

    def _watch(self, job: _Job) -> None:
        """See whether a query has ended, and how."""
        assert job.query is not None
        assert job.writer is not None
        job.entry.dead = max(job.entry.dead, job.writer.dead)
        if self._in_turns and not job.turn:  # it was started before there were so many
            self._end(job, time.monotonic() + limits.ARCHIVE_STOP_S_MAX)
            job.ends = []
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

    def _fail(self, job: _Job, message: str, kind: str) -> None:
        if job.writer is not None:
            job.writer.close()
        job.query = None
        job.entry.error = message
        if job.entry.batches > job.batches:
            job.failures = 0
        job.batches = job.entry.batches
        job.failures += 1
        again = self._endless or _TOO_SLOW in message
        if not again or kind in _NO_RETRY or job.failures > _RETRIES_MAX:
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
