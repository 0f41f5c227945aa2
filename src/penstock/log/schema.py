"""The record as Arrow columns: what reads give, and what a segment file holds.

The record is Kafka's: key (or none), value, timestamp in microseconds, headers (usually none),
and the index the log gave it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

HEADERS: Final = pa.list_(
    pa.struct([pa.field("name", pa.utf8(), False), pa.field("value", pa.binary(), False)])
)
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        pa.field("index", pa.int64(), False),
        pa.field("timestamp", TIMESTAMP, False),
        pa.field("key", pa.binary(), True),
        pa.field("value", pa.binary(), False),
        pa.field("headers", HEADERS, False),
    ]
)


def no_headers(count: int) -> pa.Array:
    """A headers column of `count` empty lists."""
    return pa.ListArray.from_arrays(
        pa.array(np.zeros(count + 1, np.int32)), pa.array([], type=HEADERS.value_type), type=HEADERS
    )


def record_batch(first_index: int, columns: Sequence[pa.Array]) -> pa.RecordBatch:
    """Records with indexes from `first_index` on; `columns` are all of the schema's but `index`."""
    count = len(columns[0])
    index = pa.array(np.arange(first_index, first_index + count, dtype=np.int64))
    return pa.RecordBatch.from_arrays([index, *columns], schema=SCHEMA)
