"""The durable log. It knows no protocol.

with open_log("data") as log:
    log.create_stream("orders", partitions=4)
    log.append("orders", Batch.of([b"one", b"two"], keys=[b"a", b"b"]))
    for batch in log.read("orders", 0, 0):
        print(batch.to_pylist())
"""

from penstock.log.api import (
    Dropped,
    Lag,
    Log,
    Move,
    PartitionInfo,
    Published,
    ResetTo,
    Stage,
    StreamInfo,
)
from penstock.log.batch import Batch, BinaryColumn, HeaderColumn
from penstock.log.embedded import EmbeddedLog, now_us, open_log
from penstock.log.receipt import Appended, Receipt
from penstock.log.schema import SCHEMA
from penstock.log.settings import LogSettings, StreamSettings, small_log

__all__ = [
    "SCHEMA",
    "Appended",
    "Batch",
    "BinaryColumn",
    "Dropped",
    "EmbeddedLog",
    "HeaderColumn",
    "Lag",
    "Log",
    "LogSettings",
    "Move",
    "PartitionInfo",
    "Published",
    "Receipt",
    "ResetTo",
    "Stage",
    "StreamInfo",
    "StreamSettings",
    "now_us",
    "open_log",
    "small_log",
]
