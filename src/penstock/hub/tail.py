"""Live tail: records as server-sent events, as they are committed.

Each event is a record as JSON, with `id: <partition>:<index>`; a client that reconnects with
`Last-Event-ID` goes on behind it. A reader that does not keep up is not buffered for: it gets the
records later, and one that takes nothing at all is closed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from penstock import limits
from penstock.errors import BadFormat, PenstockError
from penstock.hub import formats

if TYPE_CHECKING:
    from penstock.hub.hub import Hub

_READ_RECORDS = 500
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}


async def tail_events(
    hub: Hub, request: web.Request, stream: str, stopping: asyncio.Event
) -> web.StreamResponse:
    """Answer with events until the client goes, or the hub stops."""
    starts = _starts(hub, request, stream)
    response = web.StreamResponse(headers=_HEADERS)
    await response.prepare(request)
    writing = asyncio.Lock()
    tasks = [
        asyncio.create_task(_follow(hub, response, writing, stream, partition, start))
        for partition, start in starts.items()
    ]
    tasks.append(asyncio.create_task(_beat(response, writing)))
    tasks.append(asyncio.create_task(_until(stopping)))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            error = task.exception()
            if isinstance(error, PenstockError):
                event = formats.encode_error(error)
                await _write(response, writing, b"event: error\ndata: " + event + b"\n\n")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return response


def _starts(hub: Hub, request: web.Request, stream: str) -> dict[int, int]:
    """Where to begin in each partition asked for."""
    count = len(hub.log.all_bounds(stream))
    chosen = request.query.get("partition")
    if chosen is not None and not chosen.isdigit():
        raise BadFormat(f"partition is {chosen!r:.30}: it must be a number")
    numbers = range(count) if chosen is None else [int(chosen)]
    since = request.query.get("from", "latest")
    starts = {}
    for number in numbers:
        earliest, end = hub.log.bounds(stream, number)
        if since == "latest":
            starts[number] = end
        elif since == "earliest":
            starts[number] = earliest
        elif since.isdigit():
            starts[number] = min(max(int(since), earliest), end)
        else:
            raise BadFormat(f"from is {since!r:.30}: use latest, earliest or an index")
    last = request.headers.get("Last-Event-ID", "")
    for each in filter(None, last.split(",")):
        partition, _, index = each.partition(":")
        if partition.isdigit() and index.isdigit() and int(partition) in starts:
            earliest, end = hub.log.bounds(stream, int(partition))
            starts[int(partition)] = min(max(int(index) + 1, earliest), end)
    return starts


async def _follow(
    hub: Hub,
    response: web.StreamResponse,
    writing: asyncio.Lock,
    stream: str,
    partition: int,
    start: int,
) -> None:
    while True:
        end = await hub.log.wait_async(stream, partition, start, limits.TAIL_HEARTBEAT_S)
        if end <= start:
            continue
        batches = await hub.run(
            hub.log.read, stream, partition, start, _READ_RECORDS, limits.MIB, below="earliest"
        )
        events = []
        for batch in batches:
            first = batch.column(0)[0].as_py()
            events += [
                b"id: %d:%d\ndata: %s\n\n" % (partition, index, record)
                for index, record in enumerate(formats.json_records(partition, [batch]), first)
            ]
            start = first + batch.num_rows
        await _write(response, writing, b"".join(events))


async def _beat(response: web.StreamResponse, writing: asyncio.Lock) -> None:
    while True:
        await asyncio.sleep(limits.TAIL_HEARTBEAT_S)
        await _write(response, writing, b": still here\n\n")


async def _until(stopping: asyncio.Event) -> None:
    await stopping.wait()


async def _write(response: web.StreamResponse, writing: asyncio.Lock, data: bytes) -> None:
    async with asyncio.timeout(limits.TAIL_WRITE_S_MAX), writing:
        await response.write(data)
