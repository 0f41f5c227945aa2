"""The archive: streams into tables, exactly once, one query for each stream.

    from penstock.spark.archive import archive

    with archive(spark, streams="orders.*", to="/data/tables") as running:
        print(running.wait())

It can be stopped or killed at any point and started again: it goes on where it was. A stream that
comes later and matches the pattern joins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from penstock import limits
from penstock.errors import BadSetting
from penstock.spark.batches import FORMATS
from penstock.spark.options import Given, HubOptions
from penstock.spark.parse import read_schema, schema_text
from penstock.spark.running import Archive, Plan
from penstock.spark.table import local_path
from penstock.spark.triggers import Trigger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Archive", "archive", "chosen", "group_name"]

_NAMES: Final = re.compile(r"[A-Za-z0-9._,\s-]+")


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
    if isinstance(streams, str) and not streams.strip(", \t\n"):
        names: tuple[str, ...] = ()
    elif not isinstance(streams, str):
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
