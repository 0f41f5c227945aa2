"""A connector, the hub, an archive on Spark: an ack of `processed` means that Spark has it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds

from penstock.clients import Chunk, Connector
from penstock.spark.archive import archive
from penstock.testing.hub import TestHub
from tests.hub.conftest import config
from tests.spark.queries import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = "feed.1.readings"
COUNT = 3_000


class Readings:
    """Messages 1 to `COUNT`; notes with each ack how far Spark's group was at that moment."""

    name = "readings"

    def __init__(self, hub: TestHub) -> None:
        self._hub = hub
        self.acks: list[tuple[int, int]] = []

    async def reset(self, position: int | None) -> None:
        self._at = position or 0

    async def __aiter__(self) -> AsyncIterator[Any]:
        while self._at < COUNT:
            ids = range(self._at + 1, self._at + 101)
            self._at = ids[-1]
            yield Chunk.of([b"%d" % number for number in ids], ids)

    def acked(self, position: int) -> None:
        self.acks.append((position, self._hub.log.position("spark", STREAM, 0) or 0))


def test_a_message_is_acked_when_spark_has_committed_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    wallaroo = {"listen": "127.0.0.1:0", "ack": "processed", "group": "spark"}
    with TestHub(config=config(wallaroo=wallaroo)) as hub:
        source = Readings(hub)

        async def connect() -> None:
            async with Connector(hub.wallaroo.address, program="feed", instance="1") as connector:
                await connector.run([source])

        feed = threading.Thread(target=lambda: asyncio.run(connect()), daemon=True)
        feed.start()
        until(lambda: STREAM in hub.log.streams() and hub.log.bounds(STREAM, 0)[1] == COUNT)
        time.sleep(1.0)
        assert source.acks == [], "all is on disk, and nothing is processed"

        archive(
            spark, streams=STREAM, to=tmp_path, group="spark", url=hub.url, batch_records=1_000
        ).wait()
        feed.join(60)
        assert not feed.is_alive()
        assert source.acks[-1][0] == COUNT
        assert all(position >= acked for acked, position in source.acks)
        table = ds.dataset(tmp_path / STREAM, format="parquet", partitioning="hive").to_table()
        rows = table.sort_by("offset").column("value").to_pylist()
        assert rows == [b"%d" % number for number in range(1, COUNT + 1)]
