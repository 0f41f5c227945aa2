"""Live tail: records as server-sent events, as they are committed.

Each event is a record as JSON. Its `id` names the last index sent of every partition that is
tailed, as `<partition>:<index>` (-1: none yet) joined by commas, so a client that reconnects with
`Last-Event-ID` misses nothing. A reader that does not keep up is not buffered for: it gets the
records later, and one that takes nothing at all is closed.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from aiohttp import web

from penstock import limits
from penstock.errors import BadFormat, PenstockError
from penstock.hub import formats

if TYPE_CHECKING:
    from penstock.hub.hub import Hub

_READ_RECORDS = 500
_INDEX: Final = re.compile(r"[0-9]{1,18}")
_LAST: Final = re.compile(r"([0-9]{1,9}):(-1|[0-9]{1,18})")
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
        asyncio.create_task(_follow(hub, response, writing, stream, partition, starts))
        for partition in starts
    ]
    tasks.append(asyncio.create_task(_beat(response, writing)))
    tasks.append(asyncio.create_task(_until(stopping)))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        errors = [task.exception() for task in done]
        if any(isinstance(error, TimeoutError) for error in errors):
            _hang_up(request)
        for error in errors:
            if isinstance(error, PenstockError):
                event = formats.encode_error(error)
                async with asyncio.timeout(limits.TAIL_END_S_MAX), writing:
                    await response.write(b"event: error\ndata: " + event + b"\n\n")
                break  # every partition tells the same
    except TimeoutError:
        pass  # `_end` will not get through either, and hangs up
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await _end(request, response)
    return response


async def _end(request: web.Request, response: web.StreamResponse) -> None:
    """End the answer; hang up on a client that does not even take that."""
    try:
        async with asyncio.timeout(limits.TAIL_END_S_MAX):
            await response.write_eof()
    except (TimeoutError, ConnectionResetError):
        _hang_up(request)


def _hang_up(request: web.Request) -> None:
    """Close without waiting for what was written to be taken: it never would be."""
    if request.transport is not None:
        request.transport.abort()


def _starts(hub: Hub, request: web.Request, stream: str) -> dict[int, int]:
    """Where to begin in each partition asked for."""
    count = len(hub.log.all_bounds(stream))
    chosen = request.query.get("partition")
    if chosen is not None and not _INDEX.fullmatch(chosen):
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
        elif _INDEX.fullmatch(since):
            starts[number] = min(max(int(since), earliest), end)
        else:
            raise BadFormat(f"from is {since!r:.30}: use latest, earliest or an index")
    for each in request.headers.get("Last-Event-ID", "").split(","):
        found = _LAST.fullmatch(each.strip())
        if found and int(found[1]) in starts:
            earliest, end = hub.log.bounds(stream, int(found[1]))
            starts[int(found[1])] = min(max(int(found[2]) + 1, earliest), end)
    return starts


async def _follow(
    hub: Hub,
    response: web.StreamResponse,
    writing: asyncio.Lock,
    stream: str,
    partition: int,
    nexts: dict[int, int],
) -> None:
    """Send the records of one partition; `nexts` has the next index of each."""
    while True:
        start = nexts[partition]
        end = await hub.log.wait_async(stream, partition, start, limits.TAIL_HEARTBEAT_S)
        if end <= start:
            continue
        async with writing:  # before reading: so one tail never holds more than one read
            await _write(response, await hub.run(_next_events, hub, stream, partition, nexts))


def _next_events(hub: Hub, stream: str, partition: int, nexts: dict[int, int]) -> bytes:
    """The next records as events. Nothing else of them is held while they are sent."""
    others = b"".join(
        b",%d:%d" % (number, following - 1)
        for number, following in nexts.items()
        if number != partition
    )
    events = []
    for batch in hub.log.read(
        stream,
        partition,
        nexts[partition],
        _READ_RECORDS,
        limits.TAIL_READ_BYTES,
        below="earliest",
    ):
        first = batch.column(0)[0].as_py()
        events += [
            b"id: %d:%d%s\ndata: %s\n\n" % (partition, index, others, record)
            for index, record in enumerate(formats.json_records(partition, [batch]), first)
        ]
        nexts[partition] = first + batch.num_rows
    return b"".join(events)


async def _beat(response: web.StreamResponse, writing: asyncio.Lock) -> None:
    while True:
        await asyncio.sleep(limits.TAIL_HEARTBEAT_S)
        async with writing:
            await _write(response, b": still here\n\n")


async def _until(stopping: asyncio.Event) -> None:
    await stopping.wait()


async def _write(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(limits.TAIL_WRITE_S_MAX):
        await response.write(data)
