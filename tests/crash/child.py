"""The process that is killed: `python -m tests.crash.child <data> <round> <seed>`.

Several threads append and say on standard output what they are about to send, and what was
confirmed, one JSON object a line, each written at once: a line that was written is not lost by a
kill. The parent can rebuild every record from what was said.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.errors import LogClosed, PositionBackwards
from penstock.limits import KIB, MIB
from penstock.log import Batch, EmbeddedLog, LogSettings, StreamSettings, open_log

SETTINGS = LogSettings(
    journal_bytes=4 * MIB,
    checkpoint_bytes=128 * KIB,
    buffer_bytes=1 * MIB,
    record_bytes_max=64 * KIB,
    linger_seconds=0.001,
    retention_check_seconds=0.0,
)
STREAMS = {"orders": 3, "events": 2}
THREADS = 4


def value(sender: str, number: int) -> bytes:
    """A record that nobody else sends: its length and bytes follow from its number."""
    head = b"%s %d " % (sender.encode(), number)
    return head + bytes([number % 251]) * (number * 7919 % 700)


def say(**what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def prepare(log: EmbeddedLog) -> None:
    for stream, partitions in STREAMS.items():
        if stream not in log.streams():
            log.create_stream(stream, partitions, StreamSettings(segment_bytes=64 * KIB))


def send(log: EmbeddedLog, name: str, seed: int) -> None:
    """Append for ever: to one partition or to several, with and without a producer's name."""
    pick = random.Random(seed)
    number = 0
    producer = name.split(".")[0]
    while True:
        stream = pick.choice(list(STREAMS))
        partitions = STREAMS[stream]
        count = pick.choice([1, 1, 3, 20, 100])
        where = [pick.randrange(partitions)] * count
        if pick.random() < 0.3:
            where = [pick.randrange(partitions) for _ in range(count)]
        named = pick.random() < 0.6
        attempt = f"{name}:{number}"
        ids = None
        if named:
            known = [log.last_id(producer, stream, each) or 0 for each in range(partitions)]
            ids = [*range(max(known) + 1, max(known) + 1 + count)]
        batch = Batch.of([value(name, number + row) for row in range(count)])
        say(try_=attempt, stream=stream, sender=name, number=number, where=where,
            producer=producer if named else None, ids=ids)  # fmt: skip
        target = np.array([log.locate(stream, each) for each in where], np.uint32)
        appended = log.submit(
            target, batch, producer=producer if named else None, ids=ids, drop_resent=named,
            wait_for_room=True,
        ).result()  # fmt: skip
        say(ok=attempt, indexes=appended.indexes().tolist())
        number += count


def read(log: EmbeddedLog, seed: int) -> None:
    """Follow the streams, see that nothing is torn or out of order, and save how far it got."""
    pick = random.Random(seed)
    while True:
        stream = pick.choice(list(STREAMS))
        partition = pick.randrange(STREAMS[stream])
        start = log.position("reader", stream, partition) or 0
        index = start
        for row_index, row_value in rows(log, stream, partition, start):
            assert row_index == index, f"{stream}/{partition}: {row_index} where {index} should be"
            sender, number, _ = row_value.split(b" ", 2)
            assert row_value == value(sender.decode(), int(number)), f"torn: {row_value[:60]!r}"
            index += 1
        say(save=index, stream=stream, partition=partition)
        try:
            log.save_positions("reader", stream, {partition: index})
        except PositionBackwards:
            raise AssertionError("only this thread moves the position") from None
        say(saved=index, stream=stream, partition=partition)
        pick_from = max(0, index - 500)
        if index > pick_from:
            at = pick.randrange(pick_from, index)
            first = next(iter(rows(log, stream, partition, at, 1)))
            assert first[0] == at


def rows(
    log: EmbeddedLog, stream: str, partition: int, start: int, most: int = 5_000
) -> Iterator[tuple[int, bytes]]:
    for batch in log.read(stream, partition, start, max_records=most):
        yield from zip(
            batch.column("index").to_pylist(), batch.column("value").to_pylist(), strict=True
        )


def obey(log: EmbeddedLog) -> None:
    """Until standard input ends: each line asks for the writer's process id and the restarts."""
    for _ in sys.stdin:
        say(writer=log.writer_pid, restarts=log._checkpoints.link.restarts)


def run(log: EmbeddedLog, work: Any, *arguments: Any) -> None:
    try:
        work(log, *arguments)
    except LogClosed:
        pass
    except BaseException as error:  # noqa: BLE001
        say(wrong="".join(traceback.format_exception(error)))
        time.sleep(0.2)  # for other threads to say what happened to them
        os._exit(3)


def main() -> None:
    data, round_, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    log = open_log(data, SETTINGS)
    prepare(log)
    say(ready=True, writer=log.writer_pid)
    jobs: list[tuple[Any, ...]] = [
        (send, f"p{thread}.{round_}", 1_000 * seed + thread) for thread in range(THREADS)
    ]
    jobs.append((read, seed))
    for job in jobs:
        threading.Thread(target=run, args=(log, *job), daemon=True).start()
    obey(log)
    os._exit(0)


if __name__ == "__main__":
    main()
