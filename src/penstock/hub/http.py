"""The HTTP door: the hub's API, described by `openapi.json`.

Handlers are thin: they read the request, ask for the right, call the log, and shape the answer.
Every error of `errors.py` has one status here, and answers look alike:

    {"error": {"code": "unknown-stream", "message": "there is no stream 'x'; streams are: ..."}}
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import numpy as np
import structlog
from aiohttp import web

import penstock
from penstock import limits
from penstock.errors import (
    BadBatch,
    BadFormat,
    BadSetting,
    BatchTooLarge,
    DiskFull,
    DoorClosed,
    Forbidden,
    IndexOutOfRange,
    IndexTrimmed,
    LimitExceeded,
    LocalError,
    LogBusy,
    LogClosed,
    PenstockError,
    PositionBackwards,
    RecordTooLarge,
    StreamExists,
    Unauthorized,
    UnknownGroup,
    UnknownPartition,
    UnknownSession,
    UnknownStream,
    UnknownUser,
)
from penstock.hub import formats
from penstock.hub.hub import Door, split_address
from penstock.hub.openapi import document
from penstock.hub.requests import (
    ByteBudget,
    NewStream,
    Positions,
    Reset,
    StreamChange,
    Trim,
    WallarooDebug,
    WallarooRewind,
    path_partition,
    path_session,
    query_bool,
    query_float,
    query_int,
    query_time,
    too_large,
)
from penstock.hub.tail import tail_events
from penstock.hub.users import Right, User, require
from penstock.hub.wallaroo import WallarooApi
from penstock.log import ResetTo, StreamInfo

if TYPE_CHECKING:
    from penstock.hub.hub import Hub

logger = structlog.get_logger("penstock.http")
_quiet = logging.getLogger("penstock.http.server")
"""aiohttp's own. `_errors` sees all that handlers raise, what is left is peers that break HTTP."""
_quiet.setLevel(logging.CRITICAL)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HUB: Final = web.AppKey("hub", object)
USER: Final = web.RequestKey("penstock.user", User)

STATUS: Final[dict[type[PenstockError], int]] = {
    Unauthorized: 401,
    Forbidden: 403,
    UnknownStream: 404,
    UnknownPartition: 404,
    UnknownGroup: 404,
    UnknownUser: 404,
    UnknownSession: 404,
    DoorClosed: 404,
    StreamExists: 409,
    PositionBackwards: 409,
    IndexTrimmed: 410,
    IndexOutOfRange: 416,
    RecordTooLarge: 413,
    BatchTooLarge: 413,
    LimitExceeded: 422,
    LocalError: 400,
    LogBusy: 503,
    LogClosed: 503,
    DiskFull: 507,
    PenstockError: 500,
}


def status_of(error: PenstockError) -> int:
    """The status of the nearest class above the error's that has one."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return 500


class HttpDoor(Door):
    """aiohttp on one port."""

    name = "http"

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._wallaroo = WallarooApi(hub)
        self._bodies = ByteBudget(limits.HTTP_BODIES_BYTES_MAX)
        self._stopping = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._address = ""

    @property
    def address(self) -> str:
        return self._address

    @property
    def connections(self) -> int:
        server = self._runner.server if self._runner is not None else None
        return 0 if server is None else len(server.connections)

    async def open(self) -> None:
        host, port = split_address(self._hub.config.http.listen)
        context = self._hub.ssl_context()
        app = web.Application(
            middlewares=[self._errors, self._who],
            client_max_size=self._hub.config.http.body_bytes_max,
        )
        app.add_routes(self._routes())
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            logger=_quiet,
            keepalive_timeout=limits.HTTP_KEEPALIVE_S,
            max_line_size=limits.HTTP_HEADERS_BYTES_MAX,
            max_field_size=limits.HTTP_HEADERS_BYTES_MAX,
            shutdown_timeout=self._hub.config.hub.stop_seconds,
        )
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                self._connected, host, port, ssl=context, backlog=1024
            )
        except OSError as error:
            raise BadSetting(
                f"cannot listen on {host}:{port} ({error.strerror or error}): is another hub "
                "running? Stop it, or choose another port with http.listen"
            ) from None
        real = self._listener.sockets[0].getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self._address = f"{'https' if context else 'http'}://{shown}:{real}"

    def _connected(self) -> asyncio.Protocol:
        """Who serves a new connection: aiohttp, up to the limit."""
        assert self._runner is not None
        server = self._runner.server
        if self._stopping.is_set() or server is None:
            return _Crowded()
        if self.connections >= self._hub.config.http.connections_max:
            self._hub.metrics.rejected("http", "too-many-connections")
            return _Crowded()
        return server()

    async def close(self, seconds: float) -> None:
        self._stopping.set()
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _routes(self) -> list[web.RouteDef]:
        v1 = "/api/v1"
        stream = v1 + "/streams/{stream:[^/]+}"
        partition = stream + "/partitions/{partition:[^/]+}"
        group = v1 + "/groups/{group:[^/]+}/streams/{stream:[^/]+}"
        return [
            web.get("/healthz", self._healthz),
            web.get("/readyz", self._readyz),
            web.get("/metrics", self._metrics),
            web.get(v1 + "/info", self._info),
            web.get(v1 + "/openapi.json", self._openapi),
            web.get(v1 + "/streams", self._list_streams),
            web.post(v1 + "/streams", self._create_stream),
            web.get(stream, self._describe_stream),
            web.patch(stream, self._change_stream),
            web.delete(stream, self._delete_stream),
            web.post(stream + "/records", self._append),
            web.get(stream + "/tail", self._tail),
            web.get(stream + "/producers/{producer:[^/]+}", self._producer),
            web.get(partition, self._describe_partition),
            web.get(partition + "/records", self._read),
            web.post(partition + "/trim", self._trim),
            web.get(v1 + "/groups", self._list_groups),
            web.get(group, self._describe_group),
            web.put(group, self._register_group),
            web.delete(group, self._drop_group),
            web.put(group + "/positions", self._save_positions),
            web.post(group + "/reset", self._reset_group),
            web.get(v1 + "/wallaroo/sessions", self._wallaroo_sessions),
            web.delete(v1 + "/wallaroo/sessions/{session:[^/]+}", self._wallaroo_close),
            web.post(v1 + "/wallaroo/sessions/{session:[^/]+}/debug", self._wallaroo_debug),
            web.get(v1 + "/wallaroo/streams", self._wallaroo_streams),
            web.post(v1 + "/wallaroo/rewind", self._wallaroo_rewind),
        ]

    # -- around every handler --------------------------------------------------------------------

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except PenstockError as error:
            more = {"earliest": error.earliest} if isinstance(error, IndexTrimmed) else {}
            return self._refuse(status_of(error), error.code, str(error), **more)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return self._refuse(
                error.status, _HTTP_CODES.get(error.status, "http"), _explain(error)
            )
        except TimeoutError:
            return self._refuse(408, "too-slow", "the request took too long to arrive")
        except (ConnectionResetError, asyncio.CancelledError):
            raise
        except Exception:
            logger.exception("a request failed", path=request.path)
            return self._refuse(
                500, "internal", "this is a bug in Penstock; its log has the details"
            )

    def _refuse(self, status: int, code: str, message: str, **more: int) -> web.Response:
        self._hub.metrics.rejected("http", code)
        headers = {}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if status == 503:
            headers["Retry-After"] = "1"
        return _json({"error": {"code": code, "message": message, **more}}, status, headers)

    @web.middleware
    async def _who(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in _OPEN_PATHS:
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            if token and scheme.lower() != "bearer":
                raise Unauthorized("only bearer tokens are known: 'Authorization: Bearer <token>'")
            users = self._hub.users
            if users.is_cached(token or None):
                request[USER] = users.authenticate(token or None)
            else:
                request[USER] = await self._hub.authenticate(token or None)
        return await handler(request)

    # -- the hub ---------------------------------------------------------------------------------

    async def _healthz(self, request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        failed = self._hub.log.failed
        if failed is not None:
            return _json({"status": "stopped", "reason": str(failed)}, 503)
        if not self._hub.ready:
            return _json({"status": "starting or stopping"}, 503)
        return _json({"status": "ready"})

    async def _metrics(self, request: web.Request) -> web.Response:
        body = await self._hub.run(self._hub.metrics.render)
        return web.Response(body=body, headers={"Content-Type": _PROMETHEUS})

    async def _info(self, request: web.Request) -> web.Response:
        build = penstock.build_info()
        return _json(
            {
                "version": build.version,
                "compiled": sorted(build.compiled),
                "user": _user(request).name,
                "doors": {door.name: door.address for door in self._hub.doors},
                "streams": len(self._hub.log.streams()),
                "buffered_bytes": self._hub.log.buffered_bytes,
            }
        )

    async def _openapi(self, request: web.Request) -> web.Response:
        return _json(document())

    # -- streams ---------------------------------------------------------------------------------

    async def _list_streams(self, request: web.Request) -> web.Response:
        user = _user(request)
        names = [name for name in self._hub.log.streams() if user.may("read", name)]
        return _json({"streams": await self._hub.run(self._describe_all, names)})

    def _describe_all(self, names: list[str]) -> list[StreamInfo]:
        found = []
        for name in names:
            with contextlib.suppress(UnknownStream):  # deleted meanwhile
                found.append(self._hub.log.describe(name))
        return found

    async def _create_stream(self, request: web.Request) -> web.Response:
        wanted = await self._decode(request, NewStream)
        require(_user(request), "admin", wanted.name)
        info = await self._hub.run(
            self._hub.log.create_stream, wanted.name, wanted.partitions, wanted.settings
        )
        return _json(info, 201)

    async def _describe_stream(self, request: web.Request) -> web.Response:
        stream = self._stream(request, "read")
        return _json(await self._hub.run(self._hub.log.describe, stream))

    async def _change_stream(self, request: web.Request) -> web.Response:
        stream = self._stream(request, "admin")
        change = await self._decode(request, StreamChange)
        log = self._hub.log
        info = await self._hub.run(log.describe, stream)
        if change.settings is not None:
            info = await self._hub.run(log.change_settings, stream, change.settings)
        if change.partitions is not None:
            info = await self._hub.run(log.add_partitions, stream, change.partitions)
        return _json(info)

    async def _delete_stream(self, request: web.Request) -> web.Response:
        stream = self._stream(request, "admin")
        await self._hub.run(self._hub.log.delete_stream, stream)
        return web.Response(status=204)

    # -- records ---------------------------------------------------------------------------------

    async def _append(self, request: web.Request) -> web.Response:
        stream = self._stream(request, "write")
        partition = query_int(request, "partition", None)
        drop = query_bool(request, "drop_resent", True)
        kind = formats.media_type(request.headers.get("Content-Type", ""))
        producer = request.query.get("producer")
        async with self._body(request) as body:
            now = self._hub.log.now()
            if len(body) <= _PARSE_INLINE_BYTES:
                batch, ids = formats.parse(kind, body, now)
            else:
                batch, ids = await self._hub.run(formats.parse, kind, body, now)
            if batch.count == 0:
                raise BadBatch("the body has no records")
            first = query_int(request, "first_id", None, 0, 2**64 - batch.count)
            if first is not None:
                if ids is not None:
                    raise BadFormat("first_id and a column of ids exclude each other: give one")
                ids = np.arange(batch.count, dtype=np.uint64) + np.uint64(first)
            done = await self._hub.append(
                "http", stream, batch, partition,
                producer=producer, ids=ids, drop_resent=producer is not None and drop,
            )  # fmt: skip
        runs = [
            {"partition": self._hub.log.partition_number(pid), "first": first, "count": count}
            for pid, first, count in done.runs()
        ]
        told = {"stream": stream, "count": done.count, "dropped": done.dropped, "runs": runs}
        if query_bool(request, "indexes", False):
            told["indexes"] = done.indexes().tolist()
        return _json(told)

    async def _producer(self, request: web.Request) -> web.Response:
        stream = self._stream(request, "read")
        producer, log = request.match_info["producer"], self._hub.log
        told = [
            {"partition": number, "last_id": log.last_id(producer, stream, number)}
            for number in range(len(log.all_bounds(stream)))
        ]
        return _json({"producer": producer, "stream": stream, "partitions": told})

    async def _describe_partition(self, request: web.Request) -> web.Response:
        stream, partition = self._stream(request, "read"), path_partition(request)
        log = self._hub.log
        index = query_int(request, "index", None, 0)
        wait = query_float(request, "wait", 0.0, 0.0, limits.READ_WAIT_S_MAX)
        moment = query_time(request)
        earliest, end = log.bounds(stream, partition)
        if index is not None and wait and index >= end:
            await self._wait(stream, partition, index, wait)
            earliest, end = log.bounds(stream, partition)
        told = {"number": partition, "earliest": earliest, "end": end}
        if moment is not None:
            told["index_at"] = await self._hub.run(log.index_at, stream, partition, moment)
        return _json(told)

    async def _wait(self, stream: str, partition: int, index: int, seconds: float) -> None:
        """Wait for a record; the end of the hub ends it."""
        waiting = asyncio.ensure_future(self._hub.log.wait_async(stream, partition, index, seconds))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise LogClosed("the hub is stopping")
            waiting.result()
        finally:
            waiting.cancel()
            stopping.cancel()

    async def _read(self, request: web.Request) -> web.Response:
        stream, partition = self._stream(request, "read"), path_partition(request)
        render = formats.choose(request.headers.get("Accept", "*/*"))
        limit = query_int(request, "limit", 1_000, 1, limits.READ_RECORDS_MAX)
        max_bytes = query_int(request, "max_bytes", 8 * limits.MIB, 0, limits.READ_BYTES_MAX)
        wait = query_float(request, "wait", 0.0, 0.0, limits.READ_WAIT_S_MAX)
        below = request.query.get("below", "error")
        if below not in ("error", "earliest"):
            raise BadFormat(f"below is {below!r:.50}: use error or earliest")
        start = await self._hub.run(self._start, request, stream, partition)
        log = self._hub.log
        if wait and start >= log.bounds(stream, partition)[1]:
            await self._wait(stream, partition, start, wait)
        batches = await self._hub.run(
            log.read, stream, partition, start, limit, max_bytes, below=below
        )
        body = await self._hub.run(formats.RENDERERS[render], partition, batches)
        following = batches[-1].column(0)[-1].as_py() + 1 if batches else start
        earliest, end = log.bounds(stream, partition)
        headers = {
            "Content-Type": render,
            "Penstock-Next-Index": str(following),
            "Penstock-End-Index": str(end),
            "Penstock-Earliest-Index": str(earliest),
        }
        return web.Response(body=body, headers=headers)

    def _start(self, request: web.Request, stream: str, partition: int) -> int:
        """Where to read from: `from` an index, `time`, or the `last` so many; else the earliest."""
        log = self._hub.log
        given = [name for name in ("from", "time", "last") if name in request.query]
        if len(given) > 1:
            raise BadFormat(f"{' and '.join(given)} exclude each other: give one")
        earliest, end = log.bounds(stream, partition)
        moment = query_time(request)
        if moment is not None:
            return log.index_at(stream, partition, moment)
        if "last" in request.query:
            return max(earliest, end - (query_int(request, "last", 0, 0) or 0))
        start = query_int(request, "from", None, 0)
        return earliest if start is None else start

    async def _tail(self, request: web.Request) -> web.StreamResponse:
        stream = self._stream(request, "read")
        return await tail_events(self._hub, request, stream, self._stopping)

    async def _trim(self, request: web.Request) -> web.Response:
        stream, partition = self._stream(request, "admin"), path_partition(request)
        wanted = await self._decode(request, Trim)
        earliest = await self._hub.run(self._hub.log.trim, stream, partition, wanted.before)
        return _json({"earliest": earliest})

    # -- groups ----------------------------------------------------------------------------------

    async def _list_groups(self, request: web.Request) -> web.Response:
        user = _user(request)
        lags = await self._hub.run(
            self._hub.log.lags, request.query.get("group"), request.query.get("stream")
        )
        return _json({"groups": [lag for lag in lags if user.may("read", lag.stream)]})

    async def _describe_group(self, request: web.Request) -> web.Response:
        stream = self._stream(request, "read")
        group, log = request.match_info["group"], self._hub.log
        told = [
            {"partition": number, "position": log.position(group, stream, number)}
            for number in range(len(log.all_bounds(stream)))
        ]
        return _json({"group": group, "stream": stream, "partitions": told})

    async def _register_group(self, request: web.Request) -> web.Response:
        stream = self._stream(request, "write")
        group = request.match_info["group"]
        await self._hub.run(self._hub.log.register_group, group, stream)
        return _json({"groups": await self._hub.run(self._hub.log.lags, group, stream)}, 201)

    async def _drop_group(self, request: web.Request) -> web.Response:
        stream = self._stream(request, "admin")
        await self._hub.run(self._hub.log.drop_group, request.match_info["group"], stream)
        return web.Response(status=204)

    async def _save_positions(self, request: web.Request) -> web.Response:
        stream = self._stream(request, "read")
        wanted = await self._decode(request, Positions)
        group = request.match_info["group"]
        await self._hub.run(self._hub.log.save_positions, group, stream, wanted.positions)
        return _json({"groups": await self._hub.run(self._hub.log.lags, group, stream)})

    async def _reset_group(self, request: web.Request) -> web.Response:
        stream = self._stream(request, "write")
        wanted = await self._decode(request, Reset)
        moves = await self._hub.run(
            self._hub.log.reset,
            request.match_info["group"],
            stream,
            ResetTo(wanted.to, wanted.value),
            wanted.partitions,
            dry_run=wanted.dry_run,
        )
        return _json({"moves": moves, "dry_run": wanted.dry_run})

    # -- Wallaroo's connectors -------------------------------------------------------------------

    async def _wallaroo_sessions(self, request: web.Request) -> web.Response:
        return _json({"sessions": self._wallaroo.sessions(_user(request))})

    async def _wallaroo_streams(self, request: web.Request) -> web.Response:
        return _json({"streams": self._wallaroo.streams(_user(request))})

    async def _wallaroo_close(self, request: web.Request) -> web.Response:
        self._wallaroo.close(_user(request), path_session(request))
        return web.Response(status=204)

    async def _wallaroo_debug(self, request: web.Request) -> web.Response:
        number = path_session(request)
        wanted = await self._decode(request, WallarooDebug)
        return _json(self._wallaroo.debug(_user(request), number, wanted))

    async def _wallaroo_rewind(self, request: web.Request) -> web.Response:
        wanted = await self._decode(request, WallarooRewind)
        return _json(await self._wallaroo.rewind(_user(request), wanted))

    # -- reading requests ------------------------------------------------------------------------

    def _stream(self, request: web.Request, right: Right) -> str:
        """The stream of the path, if the user has this right on it."""
        stream = request.match_info["stream"]
        require(_user(request), right, stream)
        return stream

    @contextlib.asynccontextmanager
    async def _body(self, request: web.Request) -> AsyncIterator[bytes]:
        """The request's body, while it counts against the memory for bodies."""
        most = self._hub.config.http.body_bytes_max
        length = request.content_length
        if length is not None and length > most:
            raise too_large(most)
        # A compressed body is counted by what it may grow to, as one of unknown length is.
        known = length is not None and "Content-Encoding" not in request.headers
        held = length if known and length is not None else most
        async with self._bodies.take(held):
            try:
                async with asyncio.timeout(self._hub.config.http.body_seconds_max):
                    body = await request.read()
            except web.HTTPRequestEntityTooLarge:
                raise too_large(most) from None
            except web.RequestPayloadError as error:
                raise BadFormat(f"the body cannot be read: {error}") from None
            yield body

    async def _decode(self, request: web.Request, kind: type[msgspec.Struct]) -> Any:
        async with self._body(request) as body:
            try:
                return msgspec.json.decode(body, type=kind)
            except formats.JSON_ERRORS as error:
                raise BadFormat(f"the body is not what is expected: {error}") from None


_PARSE_INLINE_BYTES: Final = 256 * limits.KIB
"""A body up to this size is parsed at once, in less time than another thread takes to start."""


class _Crowded(asyncio.Protocol):
    """Says that there are too many connections, and hangs up."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's is none by name
        error = {
            "code": "too-many-connections",
            "message": "try again later (http.connections_max)",
        }
        body = msgspec.json.encode({"error": error})
        transport.write(
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            b"Retry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        transport.close()


_OPEN_PATHS: Final = {"/healthz", "/readyz", "/api/v1/openapi.json"}
_PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
_HTTP_CODES: Final = {404: "unknown-route", 405: "wrong-method", 413: "body-too-large"}


def _explain(error: web.HTTPException) -> str:
    if error.status == 404:
        return "there is no such route: /api/v1/openapi.json lists them"
    if isinstance(error, web.HTTPMethodNotAllowed):
        return (
            f"{error.method} is not possible here, only {', '.join(sorted(error.allowed_methods))}"
        )
    return error.text or error.reason


def _user(request: web.Request) -> User:
    return request[USER]


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value),
        status=status,
        headers=headers,
        content_type="application/json",
    )
