"""What the archive does with each batch of a query.

Spark calls it beside the driver: in this process, or through Spark Connect in one of the server's.
There it arrives pickled, so what it needs to know is plain data, and all else it makes itself when
the first batch comes. Nothing it learns comes back.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock import limits
from penstock.errors import BadSetting, PipelineError, TableForeign
from penstock.spark.fetch import patiently
from penstock.spark.files import Lock, make_directory, read_json, write_json
from penstock.spark.options import HubOptions
from penstock.spark.table import Table, claim, internal, local_path, sync_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Format = Literal["parquet", "delta"]
FORMATS: Final = ("parquet", "delta")

COLUMNS: Final = (
    "key BINARY, value BINARY, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""What the archive reads of a record. The source gives what it is asked for and no more."""

_DATE: Final = "date_from_unix_date(CAST(floor(unix_micros(timestamp) / 86400000000) AS INT))"
"""The day in UTC, whatever time zone the session has."""

_SETTINGS: Final = {
    # Else the rows of a task are sorted by date before they are written.
    "spark.sql.maxConcurrentOutputFileWriters": str(limits.ARCHIVE_WRITERS_MAX),
    # Spark's default is 96 bits wide, has no statistics, and other writers do not write it.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Of the query's own session: the user's stays as it is."""

_WAIT_MS: Final = 600_000
_WRITER: Final = {
    # No file beside the data, and one rename less: nobody reads a staging directory half-written.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
}


@dataclass(frozen=True)
class Target:
    """Where one stream goes, and how."""

    stream: str
    to: str
    form: Format
    hub: HubOptions
    parse: bool = False
    schema: str | None = None
    """DDL, if it is given."""

    @property
    def local(self) -> Path | None:
        """The archive's directory, if it is a path of this file system."""
        return local_path(self.to)

    @property
    def path(self) -> str:
        """Where the table is."""
        return f"{self.to.rstrip('/')}/{self.stream}"

    @property
    def checkpoint(self) -> str:
        local = self.local
        if local is not None:
            return str(internal(local.absolute(), self.stream) / "checkpoint")
        return f"{self.to.rstrip('/')}/_penstock/{self.stream}/checkpoint"


class BatchWriter:
    """Adds the batches of one query to one table, each once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.schema: StructType | None = None
        """Of parsed values, once it is known."""

        self.dead = 0
        """Records that did not parse."""

        self.stopping = threading.Event()
        self.idle = threading.Event()
        self._table: Table | None = None
        self._lock: Lock | None = None
        self._query: str | None = None
        self._open = False
        self._first = True

    def __getstate__(self) -> dict[str, Any]:
        return {"target": self.target}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def open(self, spark: SparkSession) -> None:
        """Take the table, finish what a killed process left, and pin the schema."""
        if self._open:
            return
        target, local = self.target, self.target.local
        hub = patiently(target.hub, lambda hub: hub.info()).data_id or ""
        try:
            if local is None:
                self._check_remote()
            elif target.form == "parquet":
                self._table = Table(local, target.stream)
                self._table.open(hub)
            else:
                claim(local, hub, "delta")
                directory = internal(local, target.stream)
                make_directory(directory)
                self._lock = Lock(directory / "lock", f"another process archives to {target.path}")
                self._lock.take()
            if target.parse:
                self.schema = self._pin(spark)
        except BaseException:
            self.close()
            raise
        self._open = True

    def close(self) -> None:
        """Let others have the table."""
        if self._table is not None:
            self._table.close()
        if self._lock is not None:
            self._lock.give_back()
        self._table = self._lock = self._query = None
        self._open = False
        self._first = True

    def __call__(self, batch: DataFrame, number: int) -> None:
        spark = batch.sparkSession
        if self.stopping.is_set():
            self._wait_for_the_end(spark)
        self.open(spark)
        for key, value in _SETTINGS.items():
            spark.conf.set(key, value)
        query = self._query_id(spark)
        if self.target.form == "parquet":
            self._add_parquet(batch, query, number)
        else:
            self._add_delta(batch, query, number)
        self._first = False

    # -- formats -----------------------------------------------------------------------------------

    def _add_parquet(self, batch: DataFrame, query: str, number: int) -> None:
        assert self._table is not None
        staged = self._table.begin(query, number)
        if staged is None:
            return

        def write(rows: DataFrame) -> None:
            rows.write.partitionBy("date").options(**_WRITER).parquet(f"file://{staged}")

        # Dead letters go first: once the batch counts, a repeat would not come here.
        self._write(batch, query, number, write, look_first=False)
        self._table.commit(query, number, staged)

    def _add_delta(self, batch: DataFrame, query: str, number: int) -> None:
        def write(rows: DataFrame) -> None:
            (
                rows.write.format("delta")
                .mode("append")
                .partitionBy("date")
                .option("txnAppId", f"penstock:{query}")
                .option("txnVersion", str(number))
                .save(self.target.path)
            )

        if self.target.local is not None:
            sync_checkpoint(Path(self.target.checkpoint), number)
        # Delta skips a batch that it has, and then counts nothing: only the first can be such.
        self._write(batch, query, number, write, look_first=self._first)

    def _write(
        self, batch: DataFrame, query: str, number: int, write: Any, *, look_first: bool
    ) -> None:
        """Write what parses with `write`, and the rest as dead letters."""
        from pyspark.sql import functions as F
        from pyspark.sql.observation import Observation

        from penstock.spark import parse

        dated = batch.withColumn("date", F.expr(_DATE))
        if self.schema is None:
            write(dated)
            return
        rows = parse.parsed(dated, self.schema)
        if look_first:
            bad = rows.where("bad").count()
            if bad:
                self._bury(rows, query, number)
            write(_columns(parse.good(rows)))
        else:
            seen = Observation()
            counted = rows.observe(seen, F.count_if(F.col("bad")).alias("bad"))
            write(_columns(parse.good(counted)))
            bad = int(seen.get["bad"])
            if bad:
                self._bury(rows, query, number)
        self.dead += bad

    def _bury(self, rows: DataFrame, query: str, number: int) -> None:
        from penstock.spark import parse

        assert self.schema is not None
        target = self.target
        topic = patiently(target.hub, lambda hub: parse.make_dead(hub, target.stream))
        options = {
            "topic": topic,
            "txnAppId": f"archive:{query}",
            "txnVersion": str(number),
            **hub_options(target.hub),
        }
        letters = parse.dead_letters(rows, self.schema, target.stream)
        letters.write.format("penstock").mode("append").options(**options).save()

    # -- beginnings and ends -----------------------------------------------------------------------

    def _check_remote(self) -> None:
        if self.target.form == "parquet":
            raise BadSetting(
                f"{self.target.to} is no path of this machine: Parquet tables need a file system "
                "with atomic renames. Say --format delta"
            )
        if self.target.parse and self.target.schema is None:
            raise BadSetting(
                f"no file can be kept beside {self.target.to} that pins an inferred schema: "
                "give one with --schema"
            )

    def _pin(self, spark: SparkSession) -> StructType:
        from penstock.spark import parse

        target, local = self.target, self.target.local
        if local is None:
            assert target.schema is not None
            return parse.read_schema(target.schema)
        file = internal(local, target.stream) / "schema.json"
        return patiently(
            target.hub,
            lambda hub: parse.pinned(spark, file, target.schema, hub, target.stream),
        )

    def _query_id(self, spark: SparkSession) -> str:
        """The id in Spark's checkpoint: another checkpoint is another query, from batch 0 on."""
        if self._query is None:
            file = f"{self.target.checkpoint}/metadata"
            if self.target.local is not None:
                found = read_json(Path(file))
            else:
                import json

                row = spark.read.text(file, wholetext=True).head()
                found = None if row is None else json.loads(row[0])
            if found is None or not isinstance(found.get("id"), str):
                raise PipelineError(f"{file} is not there, though Spark writes it first")
            if self.target.form == "delta" and self.target.local is not None:
                self._check_query(found["id"])
            self._query = found["id"]
        return self._query

    def _check_query(self, query: str) -> None:
        """Remember which query writes to a Delta table; refuse another."""
        assert self.target.local is not None
        file = internal(self.target.local, self.target.stream) / "state.json"
        known = read_json(file)
        if known is None:
            write_json(file, {"version": 1, "query": query})
        elif known.get("query") != query:
            raise TableForeign(
                f"{self.target.path} was written by query {known.get('query')}, but this is query "
                f"{query}, which begins anew: its rows would be there twice. Give another "
                f"directory, or move {self.target.path} and {file.parent} away"
            )

    def _wait_for_the_end(self, spark: SparkSession) -> None:
        """Begin no batch any more. The wait is one that Spark's stop interrupts, without noise."""
        self.idle.set()
        jvm: Any = spark._jvm
        jvm.java.lang.Thread.sleep(_WAIT_MS)
        raise PipelineError("the query was not stopped")


def hub_options(hub: HubOptions) -> dict[str, str]:
    """The hub as options of the source and the sink."""
    options = {
        "penstock.url": hub.url,
        "penstock.token": hub.token,
        "penstock.ca": hub.ca,
        "penstock.timeout": f"{hub.timeout_s:g}",
    }
    return {name: value for name, value in options.items() if value is not None}


def _columns(rows: DataFrame) -> DataFrame:
    return rows.select("key", "value", "partition", "offset", "timestamp", "headers", "date")
