"""Where the rows of a SQL statement go: records of a stream, or a table.

What is called for each batch runs beside the driver, through Spark Connect in a process of the
server. It arrives there pickled, so it holds plain data and makes all else itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import BadSetting, PipelineError
from penstock.spark.files import read_json
from penstock.spark.table import Table, sync_checkpoint
from penstock.spark.views import HubAddress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

RECORD: Final = ("key", "value", "headers", "timestamp", "partition")
"""Columns that make a record."""

_AS_READ: Final = ("topic", "offset", "timestampType")
"""Columns of rows as they were read; they say where a record was, not where it goes."""


def as_records(frame: DataFrame, columns: Sequence[str] = ()) -> tuple[DataFrame, str]:
    """Rows as the sink takes them, and a sentence about what became of them (or nothing).

    With a column `value`, columns are those of a record. Without, each row becomes a JSON object of
    its columns; one named `key` is the record's key instead.
    """
    if columns:
        if len(columns) != len(frame.columns):
            raise BadSetting(
                f"the list names {len(columns)} columns ({', '.join(columns)}), but the query has "
                f"{len(frame.columns)} ({', '.join(frame.columns)})"
            )
        frame = frame.toDF(*columns)
    known = {name.lower(): name for name in (*RECORD, *_AS_READ)}
    names = [known.get(name.lower(), name) for name in frame.columns]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise BadSetting(f"two columns have the name {double[0]}: rename one with AS")
    frame = frame.toDF(*names)
    if "value" not in names:
        return _json_records(frame, [name for name in names if name != "key"])
    strange = [name for name in names if name not in known.values()]
    if strange:
        raise BadSetting(
            f"column {strange[0]} is none of a record's ({', '.join(RECORD)}): leave it out, or "
            "leave value out, and all columns become fields of a JSON value"
        )
    # A partition beside an offset is where the record was; alone, it is where it shall go.
    wanted = [
        name for name in names if name in RECORD and not (name == "partition" and "offset" in names)
    ]
    return _texts(frame.select(*wanted)), ""


def _json_records(frame: DataFrame, fields: list[str]) -> tuple[DataFrame, str]:
    from pyspark.sql import functions as F

    if not fields:
        raise BadSetting("a record needs a value: select a column value, or columns for a JSON one")
    value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in fields))).alias("value")
    keys = [F.col("key")] if "key" in frame.columns else []
    named = ", ".join(fields[:6]) + (", ..." if len(fields) > 6 else "")
    return _texts(frame.select(*keys, value)), f"values are JSON objects of {named}"


def _texts(frame: DataFrame) -> DataFrame:
    """Key and value as text or bytes, whatever they were."""
    from pyspark.sql import functions as F

    fields = {field.name: field.dataType for field in frame.schema.fields}
    return frame.select(*(
        _text(name, kind) if name in ("key", "value") else F.col(name)
        for name, kind in fields.items()
    ))  # fmt: skip


def _text(name: str, kind: DataType) -> Any:
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

    if isinstance(kind, StringType | BinaryType):
        return F.col(name)
    if isinstance(kind, StructType | ArrayType | MapType):
        return F.to_json(name).alias(name)
    return F.col(name).cast("string").alias(name)


class UpdateWriter:
    """Writes each batch of a query in update mode to a stream, once.

    The sink for streams takes only what is appended. A batch of changes is appended too, as a
    transaction named after the query and the batch.
    """

    def __init__(self, stream: str, hub: HubAddress, checkpoint: str) -> None:
        self._stream = stream
        self._hub = hub
        self._checkpoint = checkpoint

    def __call__(self, batch: DataFrame, number: int) -> None:
        query = query_id(batch, self._checkpoint, number)
        options = {
            **self._hub.options,
            "topic": self._stream,
            "txnAppId": f"sql:{query}",
            "txnVersion": str(number),
        }
        batch.write.format("penstock").mode("append").options(**options).save()

    def close(self) -> None:
        """Nothing is held."""


class ParquetWriter:
    """Adds each batch of a query to a Parquet table, once; any reader of Parquet can read it."""

    def __init__(
        self, path: Path, partitioned: Sequence[str], hub: HubAddress, checkpoint: str
    ) -> None:
        self._path = path
        self._partitioned = tuple(partitioned)
        self._hub = hub
        self._checkpoint = checkpoint
        self._table: Table | None = None

    def __getstate__(self) -> Mapping[str, Any]:
        return {**self.__dict__, "_table": None}

    def __call__(self, batch: DataFrame, number: int) -> None:
        if self._table is None:
            with self._hub.client() as client:
                hub = client.info().data_id or ""
            table = Table(self._path.parent, self._path.name)
            table.open(hub)
            self._table = table
        query = query_id(batch, self._checkpoint, number)
        staged = self._table.begin(query, number)
        if staged is not None:
            writer = batch.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            if self._partitioned:
                writer = writer.partitionBy(*self._partitioned)
            writer.parquet(f"file://{staged}")
            self._table.commit(query, number, staged)

    def close(self) -> None:
        """Let others have the table."""
        if self._table is not None:
            self._table.close()
            self._table = None


def query_id(batch: DataFrame, checkpoint: str, number: int) -> str:
    """The id in a query's checkpoint; what the batch holds is on disk when it returns."""
    if "://" in checkpoint:
        import json

        row = batch.sparkSession.read.text(f"{checkpoint}/metadata", wholetext=True).head()
        found = None if row is None else json.loads(row[0])
    else:
        sync_checkpoint(Path(checkpoint), number)
        found = read_json(Path(checkpoint, "metadata"))
    if found is None or not isinstance(found.get("id"), str):
        raise PipelineError(f"{checkpoint}/metadata is not there, though Spark writes it first")
    return str(found["id"])
