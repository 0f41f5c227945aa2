"""A file of SQL as a pipeline: streams are views, and statements fill streams and tables.

    from penstock.spark.sql import SqlPipeline

    with SqlPipeline(spark, "totals.sql", hub=HubAddress("http://127.0.0.1:7470")) as pipeline:
        pipeline.start()
        print(pipeline.wait())

Each statement with a target is a query of its own with its own checkpoint, and exactly once: it can
be killed at any point and goes on where it was. With the trigger available-now, statements run one
after the other, so that one can read what another has written; else all run at once.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from penstock import limits
from penstock.errors import BadSetting, BadStatement, PenstockError, QueryFailed
from penstock.log.names import check_stream_name
from penstock.spark import views
from penstock.spark.progress import Board, Summary
from penstock.spark.running import reason
from penstock.spark.statements import AsItIs, IntoStream, IntoTable, Place, read_file
from penstock.spark.table import local_path
from penstock.spark.targets import ParquetWriter, UpdateWriter, as_records
from penstock.spark.triggers import Trigger
from penstock.spark.views import HubAddress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Writer: TypeAlias = UpdateWriter | ParquetWriter
_LOOK_S: Final = 0.2
_STOP_S: Final = 30.0
_NEEDS_MODE: Final = "STREAMING_OUTPUT_MODE"
_AGGREGATE: Final = (
    "the query aggregates, so that a row changes when more comes, and only appended rows can be "
    "kept: add a watermark (FROM orders WATERMARK timestamp DELAY OF INTERVAL 10 MINUTES, grouped "
    "by window(timestamp, '1 hour')), or write it to a stream or a Delta table"
)


@dataclass
class Job:
    """One statement with a target, and the query that runs it."""

    statement: IntoStream | IntoTable
    label: str
    """How it is named in what is shown."""
    checkpoint: str
    frame: DataFrame
    target: str
    """The stream, or where the table is."""
    query: StreamingQuery | None = None
    writer: Writer | None = None
    seen: int = -1
    """The last batch that was reported."""


class SqlPipeline:
    """Runs a file of SQL."""

    def __init__(
        self,
        spark: SparkSession,
        file: str | Path,
        *,
        hub: HubAddress,
        trigger: Trigger | None = None,
        checkpoints: str | Path | None = None,
        variables: Mapping[str, str] | None = None,
        batch_records: int | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`checkpoints` is by default a directory beside the file, named after it."""
        self._spark = spark
        self._file = Path(file)
        self._hub = hub
        self._trigger = trigger or Trigger()
        self._say = say
        self._options = (
            {} if batch_records is None else {"maxOffsetsPerTrigger": str(batch_records)}
        )
        self._statements = read_file(self._file, variables)
        given = str(checkpoints or self._file.absolute().with_suffix(".checkpoints"))
        local = local_path(given)
        self._checkpoints = given.rstrip("/") if local is None else str(local)
        self._jobs: list[Job] = []
        self._stopping = threading.Event()
        self._now = False
        self._earliest: dict[str, dict[str, int]] = {}
        self.board = Board()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- before anything runs ----------------------------------------------------------------------

    def start(self) -> None:
        """Check every statement, make the streams that are missing, and start."""
        with self._hub.client() as client:
            there = client.streams()
        names = views.view_names(there)
        targets = {
            each: _stream_of(each, names)
            for each in self._statements
            if isinstance(each, IntoStream)
        }
        everything = sorted({*there, *targets.values()})
        wanted = views.mentioned(views.view_names(everything), self._text())
        for number, statement in enumerate(self._statements):
            if isinstance(statement, AsItIs):
                if statement.view is None:
                    self._run(statement)
                continue
            target = targets[statement] if isinstance(statement, IntoStream) else None
            label, checkpoint = self._names(statement, target)
            self._make_views(number, wanted, everything, checkpoint)
            self._jobs.append(self._job(statement, label, checkpoint, target))
            self.board.of(label)
        self._make_views(len(self._statements), wanted, everything, None)
        self._look(sorted(wanted & set(there)))
        self._make_streams([each for each in targets.values() if each not in there])
        for job in self._jobs:
            self._remember(job)
        if self._trigger.interval_s is not None:
            for job in self._jobs:
                self._start(job)

    def _look(self, streams: list[str]) -> None:
        """Note where streams begin, to tell how many records a first batch has read."""
        if streams:
            with self._hub.client() as client:
                for stream, partitions in client.look(streams).items():
                    self._earliest[stream] = {
                        str(number): each.earliest for number, each in enumerate(partitions)
                    }

    def _make_views(
        self, before: int, streams: Iterable[str], everything: list[str], checkpoint: str | None
    ) -> None:
        """The streams as views whose group is the statement's, and the file's views on them."""
        group = {} if checkpoint is None else {"group": group_name(checkpoint)}
        frames = {
            stream: views.read_stream(self._spark, stream, self._hub, {**self._options, **group})
            for stream in streams
        }
        for name, stream in views.view_names(everything).items():
            if stream in frames:
                views.make_view(frames[stream], name)
        for each in self._statements[:before]:
            if isinstance(each, AsItIs) and each.view is not None:
                self._spark.sql(f"DROP VIEW IF EXISTS {each.view}")
                self._run(each)

    def _job(
        self, statement: IntoStream | IntoTable, label: str, checkpoint: str, stream: str | None
    ) -> Job:
        frame = self._frame(statement)
        if not frame.isStreaming:
            raise BadStatement(
                f"{statement.place}: the query reads no stream, so it would never end or always "
                "repeat: read at least one stream by its name"
            )
        if stream is None:
            assert isinstance(statement, IntoTable)
            missing = [each for each in statement.partitioned if each not in frame.columns]
            if missing:
                raise BadStatement(
                    f"{statement.place}: PARTITIONED BY ({missing[0]}): the query has no such "
                    f"column, but {', '.join(frame.columns)}"
                )
            return Job(statement, label, checkpoint, frame, self._location(statement))
        assert isinstance(statement, IntoStream)
        try:
            records, note = as_records(frame, statement.columns)
        except BadSetting as error:
            raise BadStatement(f"{statement.place}: {error}") from None
        if note:
            self._say(f"{label}: {note}")
        return Job(statement, label, checkpoint, records, stream)

    def _frame(self, statement: IntoStream | IntoTable) -> DataFrame:
        from pyspark.errors import PySparkException

        try:
            frame = self._spark.sql(statement.query)
            frame.columns  # noqa: B018 - through Spark Connect, only this makes Spark look at it
        except PySparkException as error:
            raise self._explained(error, statement.place) from None
        return frame

    def _run(self, statement: AsItIs) -> None:
        from pyspark.errors import PySparkException

        try:
            self._spark.sql(statement.text).collect()
        except PySparkException as error:
            raise self._explained(error, statement.place) from None

    def _explained(self, error: Exception, place: Place) -> BadStatement:
        """What Spark says of a statement, at the line it means."""
        text = str(error).strip()
        found = re.search(r"\bline (\d+),? pos \d+", text)
        if found is not None:
            place = Place(place.file, int(found[1]))
        text = re.split(r"\n\n?== SQL|\n['+]|\nJVM stacktrace", text)[0]
        text = re.sub(r"\s*(?:SQLSTATE: \w+)?;? *\(?line \d+,? pos \d+\)?;?$", "", text)
        text = re.sub(r"\s*SQLSTATE: \w+;?", "", text).strip()
        if "TABLE_OR_VIEW_NOT_FOUND" in text:
            with self._hub.client() as client:
                there = client.streams()
            named = ", ".join(f"`{each}`" for each in there[:20]) or "none yet"
            text = f"{text.splitlines()[0]}\nStreams are: {named}"
        return BadStatement(f"{place}: {text}")

    def _text(self) -> str:
        return "\n".join(
            each.text if isinstance(each, AsItIs) else each.query for each in self._statements
        )

    def _names(self, statement: IntoStream | IntoTable, stream: str | None) -> tuple[str, str]:
        """What a statement is called, and its checkpoint: after its target, and its turn there."""
        name = statement.target if stream is None else stream
        label = f"table {name}" if stream is None else name
        kind = "table" if stream is None else "stream"
        folder = f"{kind}-{re.sub(r'[^A-Za-z0-9._-]', '_', name)}"
        taken = {each.checkpoint for each in self._jobs}
        turn = 1
        while (
            checkpoint := f"{self._checkpoints}/{folder}{'' if turn == 1 else f'-{turn}'}"
        ) in taken:
            turn += 1
        return label if turn == 1 else f"{label} ({turn})", checkpoint

    def _location(self, statement: IntoTable) -> str:
        """Where a table is: what the statement says, from the file's own directory."""
        given = statement.location or f"tables/{statement.target}"
        if "://" in given or given.startswith("file:"):
            local = local_path(given)
            if local is None and statement.form == "parquet":
                raise BadStatement(
                    f"{statement.place}: {given} is no path of this machine, and a Parquet table "
                    "needs a file system with atomic renames: say USING delta"
                )
            return given if local is None else str(local)
        return str(self._file.absolute().parent / given)

    def _make_streams(self, names: list[str]) -> None:
        if not names:
            return
        with self._hub.client() as client:
            for name in dict.fromkeys(names):
                client.create_stream(name)
                self._say(f"made stream {name}, partitions: 1")

    def _remember(self, job: Job) -> None:
        """Keep the statement beside its checkpoint, and tell if it was another one."""
        local = local_path(job.checkpoint)
        if local is None:
            return
        file = local.with_name(local.name + ".sql")
        text = job.statement.text
        if local.exists() and file.exists() and file.read_text().split() != text.split():
            self._say(
                f"{job.statement.place}: the statement is not the one that {local} was made for "
                f"({file.name}). Spark goes on from there: filters and columns may change, but it "
                f"refuses other streams, groups or joins. To begin anew, delete {local}"
                + ("" if isinstance(job.statement, IntoStream) else " and the table")
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    # -- running -----------------------------------------------------------------------------------

    def _start(self, job: Job) -> None:
        from pyspark.errors import PySparkException

        entry = self.board.of(job.label)
        try:
            try:
                job.query = self._started(job, "append")
            except PySparkException as error:
                mode = self._other_mode(job)
                if _NEEDS_MODE not in str(error) or mode is None:
                    raise
                self._say(f"{job.label}: the query aggregates, {_MODES[mode]}")
                job.query = self._started(job, mode)
        except PySparkException as error:
            entry.state = "failed"
            if _NEEDS_MODE in str(error):
                raise BadStatement(f"{job.statement.place}: {_AGGREGATE}") from None
            raise self._explained(error, job.statement.place) from None
        entry.state = "running"

    def _other_mode(self, job: Job) -> str | None:
        if isinstance(job.statement, IntoStream):
            return "update"
        return "complete" if job.statement.form == "delta" else None

    def _started(self, job: Job, mode: str) -> StreamingQuery:
        writer = (
            job.frame.writeStream.queryName(
                f"{job.label} {sha256(job.checkpoint.encode()).hexdigest()[:8]}"
            )
            .outputMode(mode)
            .option("checkpointLocation", job.checkpoint)
        )
        if self._trigger.interval_s is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self._trigger.interval_s:g} seconds")
        return self._into(job, writer, mode).start()

    def _into(self, job: Job, writer: DataStreamWriter, mode: str) -> DataStreamWriter:
        statement = job.statement
        if isinstance(statement, IntoStream):
            if mode == "update":
                job.writer = UpdateWriter(job.target, self._hub, job.checkpoint)
                return writer.foreachBatch(job.writer)
            options = {**self._hub.options, "topic": job.target}
            return writer.format("penstock").options(**options)
        if statement.form == "delta":
            if statement.partitioned:
                writer = writer.partitionBy(*statement.partitioned)
            return writer.format("delta").option("path", job.target)
        job.writer = ParquetWriter(
            Path(job.target), statement.partitioned, self._hub, job.checkpoint
        )
        return writer.foreachBatch(job.writer)

    def wait(self) -> Summary:
        """Until all queries have ended; `QueryFailed` if one fails, which stops the others."""
        try:
            if self._trigger.interval_s is None:
                for job in self._jobs:
                    if self._stopping.is_set():
                        break
                    self._start(job)
                    self._wait_for([job])
            else:
                self._wait_for(self._jobs)
        finally:
            self.stop()
        return self.board.summary()

    def _wait_for(self, jobs: list[Job]) -> None:
        left = list(jobs)
        while left and not self._stopping.wait(_LOOK_S):
            left = [job for job in left if not self._ended(job)]

    def ask_to_stop(self) -> None:
        """Let `wait` stop the queries once their batches have ended; twice: at once."""
        self._now = self._stopping.is_set()
        self._stopping.set()

    def _ended(self, job: Job) -> bool:
        """Report what is new of a query; raises what it failed with."""
        assert job.query is not None
        active = job.query.isActive
        self._report(job)
        if active:
            return False
        entry = self.board.of(job.label)
        error = job.query.exception()
        if error is not None:
            entry.state = "failed"
            entry.error = reason(error)[0]
            raise QueryFailed(f"{job.statement.place}: {job.label} failed: {entry.error}")
        if entry.state == "running":
            entry.state = "done"
        return True

    def _report(self, job: Job) -> None:
        assert job.query is not None
        for progress in job.query.recentProgress:
            told = as_dict(progress)
            number = int(told.get("batchId") or 0)
            if number > job.seen:
                job.seen = number
                self.board.report(job.label, merged(told, self._earliest))

    def stop(self) -> None:
        """Stop what still runs. What a batch has not finished is done again by the next run."""
        deadline = time.monotonic() + _STOP_S
        for job in self._jobs:
            if job.query is not None and job.query.isActive:
                while self._busy(job.query) and time.monotonic() < deadline and not self._now:
                    time.sleep(_LOOK_S / 4)
                self._report(job)
                job.query.stop()
                self.board.of(job.label).state = "stopped"
            if job.writer is not None:
                job.writer.close()

    def _busy(self, query: StreamingQuery) -> bool:
        """Whether a batch runs. Those of available-now follow each other without a pause."""
        return self._trigger.interval_s is not None and bool(query.status["isTriggerActive"])


_MODES: Final = {
    "update": "so each change of a group becomes a record of its own",
    "complete": "so the table is written anew with each batch",
}


def _stream_of(statement: IntoStream, names: Mapping[str, str]) -> str:
    """The stream a statement means: one that is there, or a new one."""
    lower = {name.lower(): stream for name, stream in names.items()}
    try:
        return lower.get(statement.target.lower()) or check_stream_name(statement.target)
    except PenstockError as error:
        raise BadStatement(f"{statement.place}: {error}") from None


def group_name(checkpoint: str) -> str:
    """The group whose positions tell how far a statement is."""
    name = f"sql:{checkpoint}"
    if len(name.encode()) > limits.GROUP_NAME_BYTES_MAX:
        name = f"sql:{sha256(checkpoint.encode()).hexdigest()[:32]}"
    return name


def as_dict(progress: Any) -> dict[str, Any]:
    """A report of Spark's as plain data: it is a dict already through Spark Connect."""
    found = json.loads(progress.json) if hasattr(progress, "json") else progress
    return dict(found)


def merged(
    progress: Mapping[str, Any], earliest: Mapping[str, Mapping[str, int]]
) -> dict[str, Any]:
    """A report whose sources are added up, for a join reads several.

    A first batch has no start: it began at `earliest`, by stream and partition.
    """
    total: dict[str, dict[str, Any]] = {"startOffset": {}, "endOffset": {}, "latestOffset": {}}
    for source in progress.get("sources") or []:
        for name, offsets in total.items():
            told = source.get(name)
            told = json.loads(told) if isinstance(told, str) else told
            if isinstance(told, Mapping):
                offsets |= told
            elif name == "startOffset":
                offsets |= {
                    stream: earliest[stream] for stream in streams_of(source) if stream in earliest
                }
    return {**progress, "sources": [total]}


def streams_of(source: Mapping[str, Any]) -> list[str]:
    """The streams whose offsets a source reports."""
    told = source.get("endOffset")
    told = json.loads(told) if isinstance(told, str) else told
    return list(told) if isinstance(told, Mapping) else []
