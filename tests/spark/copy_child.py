"""A driver that copies one stream to another until it is told to finish; it is there to be killed.

    python -m tests.spark.copy_child URL FROM TO CHECKPOINT once|on [REMOTE]

Says `batch <number>` for each batch Spark has committed.
"""

from __future__ import annotations

import sys
import time

from penstock.spark.session import spark_session


def main() -> None:
    url, source, target, checkpoint, how, *remote = sys.argv[1:]
    if remote:
        spark = spark_session(remote=remote[0])
    else:
        spark = spark_session(  # a task may fail a few times, as on a cluster
            master="local[2,8]", conf={"spark.driver.memory": "512m"}
        )
    rows = (
        spark.readStream.format("penstock")
        .option("penstock.url", url)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 5_000)
        .option("group", "copy")
        .load()
    )
    writer = (
        rows.select("key", "value", "partition")
        .writeStream.format("penstock")
        .option("penstock.url", url)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
    )
    query = (writer.trigger(availableNow=True) if how == "once" else writer).start()
    said = -1
    while query.isActive:
        progress = query.lastProgress
        if progress and progress["batchId"] > said and progress["sources"][0]["numInputRows"]:
            said = progress["batchId"]
            print(f"batch {said}", flush=True)
        time.sleep(0.02)
    query.awaitTermination()


if __name__ == "__main__":
    main()
