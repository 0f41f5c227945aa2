"""Values as JSON: the schema that a stream's values have for good, and the records without it.

A schema is given, or inferred once from the first records of the stream, and then pinned in a file
beside the table: a table's columns do not change because other records came first. What does not
parse becomes a dead letter, a record of `<stream>.dlq` with the reason in its headers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from penstock import limits
from penstock.errors import BadSetting, Forbidden, StreamExists, TableForeign
from penstock.flight.client import FlightClient
from penstock.spark.files import make_directory, read_json, write_json

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DEAD: Final = ".dlq"
_CORRUPT: Final = "_penstock_corrupt"
_START: Final = "TRIM(LEADING ' \t\r\n' FROM CAST(raw AS STRING))"
_END: Final = "TRIM(TRAILING ' \t\r\n' FROM CAST(raw AS STRING))"
_OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
}


# -- the schema ------------------------------------------------------------------------------------


def schema_text(given: str) -> str:
    """A schema as DDL; `given` is DDL itself, or the name of a file that holds it."""
    text = given.strip()
    if not any(each in text for each in " :\n"):
        try:
            text = Path(text).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise BadSetting(
                f"the schema {given!r} is neither DDL, as in 'id BIGINT, name STRING', nor a file "
                f"that can be read ({error.strerror})"
            ) from None
    return text


def read_schema(text: str) -> StructType:
    """A schema from DDL, or from the JSON that Spark writes of one."""
    try:
        if text.startswith("{"):
            found: DataType = StructType.fromJson(json.loads(text))
        else:
            found = DataType.fromDDL(text)
    except Exception as error:  # noqa: BLE001 - Spark raises whatever its parser does
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise BadSetting(
            f"the schema {text!r:.200} cannot be read: {reason}. Write it as in "
            "'id BIGINT, name STRING, at TIMESTAMP'"
        ) from None
    if not isinstance(found, StructType) or not found.fields:
        raise BadSetting(f"the schema {text!r:.200} has no columns")
    return found


def ddl(schema: StructType) -> str:
    """A schema as people write it."""
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)


def pinned(
    spark: SparkSession, file: Path, given: str | None, hub: FlightClient, stream: str
) -> StructType:
    """The schema of a stream's table: what the file says, else what is given, else inferred."""
    found = read_json(file)
    wanted = None if given is None else read_schema(given)
    if found is not None:
        there = StructType.fromJson(found["schema"])
        if wanted is not None and wanted.jsonValue() != there.jsonValue():
            raise TableForeign(
                f"the table has the schema {ddl(there)}, and given is {ddl(wanted)}: a table's "
                "schema stays as it is. Leave --schema out, or give another directory"
            )
        return there
    schema = wanted or infer(spark, hub, stream)
    make_directory(file.parent)
    write_json(
        file, {"version": 1, "inferred": wanted is None, "ddl": ddl(schema),
               "schema": schema.jsonValue()},
    )  # fmt: skip
    return schema


def infer(spark: SparkSession, hub: FlightClient, stream: str) -> StructType:
    """The schema that the first records of a stream have together."""
    sample = list(_objects(hub, stream))
    if not sample:
        raise BadSetting(
            f"no schema can be inferred: none of the first records of {stream} is a JSON object. "
            "Give one with --schema 'id BIGINT, name STRING'"
        )
    text = F.lit(f"[{','.join(sample)}]")
    told = spark.range(1).select(F.schema_of_json(text)).head()
    assert told is not None
    found = DataType.fromDDL(told[0])
    assert isinstance(found, ArrayType)
    schema = _storable(found.elementType)
    assert isinstance(schema, StructType)
    return schema


def _storable(kind: DataType) -> DataType:
    """The type with text in the place of objects that were always empty: no table holds those."""
    if isinstance(kind, ArrayType):
        return ArrayType(_storable(kind.elementType))
    if not isinstance(kind, StructType):
        return kind
    if not kind.fields:
        return StringType()
    return StructType([StructField(each.name, _storable(each.dataType)) for each in kind.fields])


def _objects(hub: FlightClient, stream: str) -> Iterator[str]:
    """The JSON objects among the first records of each partition, as text."""
    (bounds,) = hub.look([stream]).values()
    each = max(1, limits.PARSE_SAMPLE_RECORDS // max(1, len(bounds)))
    left = limits.PARSE_SAMPLE_BYTES
    for number, (first, end, _bytes) in enumerate(bounds):
        if first == end:
            continue
        for batch in hub.read(stream, number, first, min(end, first + each), ["value"]):
            for value in batch.column("value"):
                text = value.as_py()
                left -= len(text)
                if left < 0:
                    return
                if (found := _object(text)) is not None:
                    yield found


def _object(value: bytes) -> str | None:
    try:
        found: Any = json.loads(value)
    except ValueError:
        return None
    return json.dumps(found) if isinstance(found, dict) and found else None


# -- rows ------------------------------------------------------------------------------------------


def parsed(rows: DataFrame, schema: StructType) -> DataFrame:
    """Rows with `value` parsed, and `bad` where it does not parse; `raw` is the value as it was."""
    text = F.col("value").cast("string")
    result = rows.withColumn("raw", F.col("value")).withColumn("value", _from_json(text, schema))
    raw = F.col("raw").cast("string")
    bad = (
        F.col("value").isNull()
        | F.col(f"value.{_CORRUPT}").isNotNull()
        # Spark reads the first object and forgets what follows, and replaces what is not UTF-8.
        | ~F.endswith(F.expr(_END), F.lit("}"))
        | ~F.is_valid_utf8(raw)
    )
    return result.withColumn("bad", bad)


def good(rows: DataFrame) -> DataFrame:
    """Those of `parsed` that go into the table."""
    return rows.where(~F.col("bad")).withColumn("value", F.col("value").dropFields(_CORRUPT))


def dead_letters(rows: DataFrame, schema: StructType, stream: str) -> DataFrame:
    """Those of `parsed` that do not parse, as records: as they were, with the reason in headers."""
    origin: dict[str, Column] = {
        "penstock.reason": _reason(schema),
        "penstock.stream": F.lit(stream),
        "penstock.partition": F.col("partition").cast("string"),
        "penstock.offset": F.col("offset").cast("string"),
    }
    told = F.array(
        *(
            F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))
            for name, value in origin.items()
        )
    )
    headers = F.when(F.col("headers").isNull(), told).otherwise(F.concat(F.col("headers"), told))
    return rows.where("bad").select(
        "key", F.col("raw").alias("value"), "timestamp", headers.alias("headers")
    )


def make_dead(hub: FlightClient, stream: str) -> str:
    """The stream for dead letters of `stream`, made if it is missing."""
    name = stream + DEAD
    if name in hub.streams():
        return name
    try:
        hub.create_stream(name)
    except StreamExists:
        pass
    except Forbidden as error:
        raise Forbidden(
            f"{error}. Records of {stream} that do not parse need the stream {name}: have it made "
            f"with `penstock streams create {name}`"
        ) from None
    return name


def _from_json(text: Column, schema: StructType) -> Column:
    checked = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    return F.from_json(text, checked, _OPTIONS)


def _reason(schema: StructType) -> Column:
    """Why a value does not parse. Costs a look at each column, but only for dead letters."""
    text = F.col("raw").cast("string")
    one = [
        F.when(
            _from_json(text, StructType([field]))[_CORRUPT].isNotNull(),
            F.lit(f"{field.name} is not {field.dataType.simpleString()}"),
        )
        for field in schema.fields[: limits.PARSE_REASON_COLUMNS]
    ]
    whole = F.expr(_END)
    return (
        F.when(~F.is_valid_utf8(text), F.lit("the value is not UTF-8"))
        .when(whole == "", F.lit("the value is empty"))
        .when(F.try_parse_json(text).isNull(), F.lit("the value is not JSON"))
        .when(~F.startswith(F.expr(_START), F.lit("{")),
              F.lit("the value is not a JSON object"))
        .when(~F.endswith(whole, F.lit("}")), F.lit("something follows the JSON object"))
        .otherwise(F.coalesce(F.nullif(F.concat_ws(", ", *one), F.lit("")),
                              F.lit("the value does not fit the schema")))
    )  # fmt: skip
