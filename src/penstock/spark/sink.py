"""The sink `penstock`: rows of an epoch become visible together and once.

Tasks stage their rows on the hub, in parts that are on disk when the hub names them. The driver
publishes the parts of all tasks under the name of the writer and the number of the epoch; the hub
does that once, however often Spark repeats the epoch or the commit. What tasks staged that failed
or were repeated is never named, and so never seen.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock import limits
from penstock.errors import BadSetting, PenstockError
from penstock.flight.client import FlightClient
from penstock.flight.wire import HEADERS, STAGED
from penstock.spark.fetch import client, patiently
from penstock.spark.options import SINK_OPTIONS, SPARK_SINK_OPTIONS, Given, HubOptions

_TEXT: Final = (StringType(), BinaryType())
_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_COLUMNS: Final[dict[str, tuple[DataType, ...]]] = {
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "key": _TEXT,
    "value": _TEXT,
    "timestamp": (TimestampType(),),
    "headers": (ArrayType(_HEADER),),
}
_IGNORED: Final = ("offset", "timestampType")
"""Columns of the source that mean nothing here: rows that were read can be written as they are."""

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class SinkOptions:
    """Everything that can be said about writing."""

    hub: HubOptions
    topic: str | None
    app: str | None
    version: int | None
    checkpoint: str

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SinkOptions:
        given = Given(options, SINK_OPTIONS, SPARK_SINK_OPTIONS)
        app, version = given.text("txnAppId"), given.whole("txnVersion", 0, 2**62)
        if (app is None) != (version is None):
            raise BadSetting("options txnAppId and txnVersion belong together: give both or none")
        return cls(
            HubOptions.of(given),
            given.text("topic"),
            app,
            version,
            _one_spelling(given.text("checkpointLocation") or ""),
        )


def _one_spelling(location: str) -> str:
    """Declarative pipelines name one checkpoint `file:/x` in a run and `file:///x` in the next."""
    if not location.startswith("file:/"):
        return location
    return "/" + location.removeprefix("file:").lstrip("/")


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task staged."""

    writer: str
    epoch: int
    task: int
    parts: tuple[str, ...]


class _Sink:
    """What both writers share: checking columns, staging, publishing."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SinkOptions.of(options)
        check_columns(schema, self._options.topic)

    def _stage(self, writer: str, epoch: int, batches: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        chunks = Chunks(self._options.hub, writer, epoch)
        for batch in batches:
            if batch.num_rows:
                chunks.add(as_staged(batch, self._options.topic))
        return Staged(writer, epoch, task, tuple(chunks.finish()))

    def _publish(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = sorted(
            (each for each in messages if isinstance(each, Staged)), key=lambda each: each.task
        )
        if not staged:
            return
        parts = [part for each in staged for part in each.parts]
        patiently(
            self._options.hub,
            lambda hub: hub.publish(staged[0].writer, staged[0].epoch, parts),
        )

    def _discard(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Best effort: what is never published, the hub removes by itself."""
        staged = next((each for each in messages if isinstance(each, Staged)), None)
        if staged is not None:
            with contextlib.suppress(PenstockError):
                client(self._options.hub).discard(staged.writer, staged.epoch)


class BatchSink(_Sink, DataSourceArrowWriter):
    """`df.write.format("penstock")`. With txnAppId and txnVersion, repeating it changes nothing."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise BadSetting("a stream can only be appended to: use mode('append')")
        super().__init__(options, schema)
        if self._options.app is not None and self._options.version is not None:
            self._writer, self._epoch = f"txn:{self._options.app}", self._options.version
        else:
            self._writer, self._epoch = f"batch:{uuid.uuid4()}", 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return self._stage(self._writer, self._epoch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._publish(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._discard(messages)


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("penstock")`.

    The writer is named after the query and its checkpoint: a full refresh begins again at epoch 0
    under another checkpoint, and is another writer.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise BadSetting("a stream can only be appended to: use outputMode('append')")
        super().__init__(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY_ID)
        epoch = None if context is None else context.getLocalProperty(_BATCH_ID)
        if query is None or epoch is None:
            raise BadSetting("this is not a task of a streaming query: use df.write for a batch")
        writer = f"query:{query}:{self._options.checkpoint}"
        if len(writer.encode()) > limits.WRITER_NAME_BYTES_MAX:
            writer = f"query:{query}"  # its id is of this checkpoint only
        return self._stage(writer, int(epoch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._publish(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._discard(messages)


class Chunks:
    """Stages rows in parts of bounded size; what is not on disk yet is kept, to be sent again."""

    def __init__(self, hub: HubOptions, writer: str, epoch: int) -> None:
        self._hub = hub
        self._writer = writer
        self._epoch = epoch
        self._kept: list[pa.RecordBatch] = []
        self._bytes = 0
        self._parts: list[str] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self._kept.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= limits.SPARK_PART_BYTES:
            self._send()

    def finish(self) -> list[str]:
        """The names of all parts, in order."""
        if self._kept:
            self._send()
        return self._parts

    def _send(self) -> None:
        def stage(hub: FlightClient) -> str:
            with hub.stage(self._writer, self._epoch) as stager:
                for batch in self._kept:
                    stager.write(batch)
                return stager.finish()

        self._parts.append(patiently(self._hub, stage))
        self._kept.clear()
        self._bytes = 0


# -- columns -------------------------------------------------------------------------------------


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise if rows with these columns cannot be written."""
    names = schema.fieldNames()
    valid = ", ".join(_COLUMNS)
    for field in schema.fields:
        if field.name in _IGNORED:
            continue
        types = _COLUMNS.get(field.name)
        if types is None:
            raise BadSetting(
                f"column {field.name!r} cannot be written to a stream: the columns are {valid}. "
                "Select those, or put the others into value, as with to_json(struct(*))"
            )
        if not any(_same(field.dataType, each) for each in types):
            allowed = " or ".join(each.simpleString() for each in types)
            raise BadSetting(
                f"column {field.name!r} is {field.dataType.simpleString()}: it has to be {allowed}"
            )
    if "value" not in names:
        raise BadSetting(f"there is no column 'value': needed is value, allowed are {valid}")
    if "topic" not in names and topic is None:
        raise BadSetting("which stream? Set the option topic, or add a column topic")


def _same(given: DataType, wanted: DataType) -> bool:
    """Whether they are the same but for what may be null."""
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        return _same(given.elementType, wanted.elementType)
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        return given.fieldNames() == wanted.fieldNames() and all(
            _same(one.dataType, other.dataType)
            for one, other in zip(given.fields, wanted.fields, strict=True)
        )
    if isinstance(wanted, StringType):
        return isinstance(given, StringType)  # of any collation
    return given == wanted


def as_staged(batch: pa.RecordBatch, topic: str | None) -> pa.RecordBatch:
    """The rows as the hub takes them. The option `topic` goes before a column of that name."""
    count = batch.num_rows
    columns: dict[str, pa.Array] = {}
    for name in batch.schema.names:
        if name in _COLUMNS:
            column = batch.column(name)
            columns[name] = _headers(column) if name == "headers" else _cast(column, name)
    if topic is not None:
        columns["topic"] = pa.repeat(pa.scalar(topic, pa.utf8()), count)
    for name in ("topic", "value"):
        if columns[name].null_count:
            raise BadSetting(
                f"column {name!r} is null in {columns[name].null_count} of {count} rows: a record "
                f"needs one. Leave such rows out, or use coalesce({name}, ...)"
            )
    fields = [field for field in STAGED if field.name in columns]
    return pa.RecordBatch.from_arrays(
        [columns[field.name] for field in fields], schema=pa.schema(fields)
    )


def _cast(column: pa.Array, name: str) -> pa.Array:
    kind = STAGED.field(name).type
    return column if column.type == kind else column.cast(kind)


def _headers(column: pa.Array) -> pa.Array:
    """Kafka's headers have a key and a value, the log's a name and a value; null becomes none."""
    flat = column.flatten()
    counts = pc.fill_null(pc.list_value_length(column), 0)
    ends = pc.cumulative_sum(counts)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
    if flat.null_count or flat.field("key").null_count:
        raise BadSetting("a header has no key: leave such headers out with filter(headers, ...)")
    pair = [flat.field("key").cast(pa.utf8()), pc.fill_null(flat.field("value"), b"")]
    entries = pa.StructArray.from_arrays(pair, fields=list(HEADERS.value_type))
    return pa.ListArray.from_arrays(offsets, entries, type=HEADERS)
