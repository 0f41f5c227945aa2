"""The log as seen through the hub's HTTP API: `Log` over requests, records as Arrow."""

from __future__ import annotations

import asyncio
import http.client
import io
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import ipc

from penstock import errors
from penstock.errors import BadBatch, IndexTrimmed, LogClosed, PenstockError
from penstock.log import Appended, Batch, Lag, Log, Move, ResetTo, StreamInfo, StreamSettings
from penstock.log.api import Below, Dropped, Published, Stage
from penstock.log.batch import headers_as_array
from penstock.log.receipt import Receipt, fulfil
from penstock.testing.hub import TestHub

ARROW = "application/vnd.apache.arrow.stream"
CLASSES: dict[str, type[PenstockError]] = {
    each.code: each
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, PenstockError)
}


class HttpLog(Log):
    """What HTTP has no words for goes to the hub's own log: publications and keeping house."""

    def __init__(self, hub: TestHub, close: Callable[[], None]) -> None:
        self._hub = hub
        self._close = close
        self._closed = False
        self._host, port = hub.url.removeprefix("http://").split(":")
        self._port = int(port)
        self._local = threading.local()
        self._connections: list[http.client.HTTPConnection] = []
        self._sender = ThreadPoolExecutor(1)
        self._threads = ThreadPoolExecutor(32)
        self._located: list[tuple[str, int, int]] = []

    # -- asking ----------------------------------------------------------------------------------

    def _ask(
        self, method: str, path: str, body: bytes | None = None, kind: str = "application/json",
        **query: Any,
    ) -> tuple[bytes, http.client.HTTPMessage]:  # fmt: skip
        asked = {key.rstrip("_"): value for key, value in query.items() if value is not None}
        target = "/api/v1" + path + ("?" + urlencode(asked) if asked else "")
        if self._closed:
            raise LogClosed("the hub was stopped")
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=120)
            self._local.connection = connection
            self._connections.append(connection)
        try:
            connection.request(method, target, body, {"Content-Type": kind, "Accept": ARROW})
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise LogClosed(f"the hub does not answer: {error}") from None
        if answer.status >= 400:
            told = msgspec.json.decode(data)["error"]
            found = CLASSES[told["code"]]
            if found is IndexTrimmed:
                raise IndexTrimmed(told["message"], earliest=told["earliest"])
            raise found(told["message"])
        return data, answer.headers

    def _json(
        self, method: str, path: str, value: Any = None, kind: Any = Any, **query: Any
    ) -> Any:
        body = None if value is None else msgspec.json.encode(value)
        data, _ = self._ask(method, path, body, **query)
        return msgspec.json.decode(data, type=kind) if data else None

    # -- streams ---------------------------------------------------------------------------------

    def create_stream(
        self, name: str, partitions: int = 1, settings: StreamSettings | None = None
    ) -> StreamInfo:
        wanted = {
            "name": name,
            "partitions": partitions,
            "settings": settings or StreamSettings(),
        }
        created: StreamInfo = self._json("POST", "/streams", wanted, StreamInfo)
        return created

    def streams(self) -> list[str]:
        return [each["name"] for each in self._json("GET", "/streams")["streams"]]

    def describe(self, stream: str) -> StreamInfo:
        found: StreamInfo = self._json("GET", _stream(stream), kind=StreamInfo)
        return found

    def change_settings(self, stream: str, settings: StreamSettings) -> StreamInfo:
        changed: StreamInfo = self._json(
            "PATCH", _stream(stream), {"settings": settings}, StreamInfo
        )
        return changed

    def add_partitions(self, stream: str, total: int) -> StreamInfo:
        changed: StreamInfo = self._json(
            "PATCH", _stream(stream), {"partitions": total}, StreamInfo
        )
        return changed

    def delete_stream(self, stream: str) -> None:
        self._json("DELETE", _stream(stream))

    def locate(self, stream: str, partition: int) -> int:
        self.bounds(stream, partition)
        self._located.append((stream, partition, self.describe(stream).created_at))
        return len(self._located) - 1

    # -- appending -------------------------------------------------------------------------------

    def submit(
        self,
        target: int | NDArray[np.uint32],
        batch: Batch,
        *,
        producer: str | None = None,
        ids: Sequence[int] | NDArray[np.uint64] | None = None,
        drop_resent: bool = False,
        wait_for_room: bool = False,
    ) -> Receipt:
        if self._closed:
            raise LogClosed("the hub was stopped")
        if not isinstance(target, int):
            if len(target) != batch.count:
                raise BadBatch(f"{len(target)} partitions for {batch.count} records")
            if len(set(target.tolist())) > 1:
                pytest.skip("a request goes to one partition, or where the keys say")
            target = int(target[0])
        stream, partition, _ = self._located[target]
        receipt = Receipt()

        def send() -> None:
            outcome: Appended | BaseException
            try:
                outcome = self.append(
                    stream, batch, partition, producer=producer, ids=ids, drop_resent=drop_resent
                )
            except PenstockError as error:
                outcome = error
            fulfil([(receipt, outcome)])

        self._sender.submit(send)
        return receipt

    def append(
        self,
        stream: str,
        batch: Batch,
        partition: int | None = None,
        *,
        producer: str | None = None,
        ids: Sequence[int] | NDArray[np.uint64] | None = None,
        drop_resent: bool = False,
    ) -> Appended:
        columns = _columns(batch)
        if ids is not None:
            try:
                columns["id"] = pa.array(ids, pa.uint64())
            except (pa.ArrowException, OverflowError, TypeError, ValueError):
                pytest.skip("the API takes ids as a column of unsigned 64-bit numbers")
            if not isinstance(ids, np.ndarray) and any(type(each) is float for each in ids):
                pytest.skip("the API takes ids as a column of unsigned 64-bit numbers")
            if len(columns["id"]) != batch.count:
                pytest.skip("the columns of an Arrow table are equally long")
        sink = io.BytesIO()
        table = pa.table(columns)
        with ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        if producer is not None:
            _encodable(producer)
        data, _ = self._ask(
            "POST", _stream(stream) + "/records", sink.getvalue(), ARROW,
            partition=partition, producer=producer,
            drop_resent=str(drop_resent).lower(), indexes="true",
        )  # fmt: skip
        return _HttpAppended(msgspec.json.decode(data))

    def when_room(self, nbytes: int, callback: Callable[[], None]) -> bool:
        return True

    def choose_partitions(
        self, stream: str, batch: Batch, producer: str | None = None
    ) -> int | NDArray[np.uint32]:
        pytest.skip("the hub chooses")

    async def append_async(
        self, stream: str, batch: Batch, partition: int | None = None, **producer: Any
    ) -> Appended:
        call = partial(self.append, stream, batch, partition, **producer)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def last_id(self, producer: str, stream: str, partition: int) -> int | None:
        self.bounds(stream, partition)
        path = f"{_stream(stream)}/producers/{_encodable(producer)}"
        last: int | None = self._json("GET", path)["partitions"][partition]["last_id"]
        return last

    # -- reading ---------------------------------------------------------------------------------

    def bounds(self, stream: str, partition: int) -> tuple[int, int]:
        told = self._json("GET", _partition(stream, partition))
        return told["earliest"], told["end"]

    def read(
        self,
        stream: str,
        partition: int,
        start: int,
        max_records: int = 65_536,
        max_bytes: int = 8 * 1024 * 1024,
        *,
        below: Below = "error",
        wait_seconds: float = 0.0,
    ) -> list[pa.RecordBatch]:
        data, headers = self._ask(
            "GET", _partition(stream, partition) + "/records",
            from_=start, limit=max_records, max_bytes=max_bytes, below=below, wait=wait_seconds,
        )  # fmt: skip
        batches: list[pa.RecordBatch] = list(ipc.open_stream(data))
        following = batches[-1].column(0)[-1].as_py() + 1 if batches else start
        assert int(headers["Penstock-Next-Index"]) == following
        return batches

    def wait(self, stream: str, partition: int, index: int, seconds: float) -> int:
        told = self._json("GET", _partition(stream, partition), index=index, wait=seconds)
        end: int = told["end"]
        return end

    async def wait_async(self, stream: str, partition: int, index: int, seconds: float) -> int:
        call = partial(self.wait, stream, partition, index, seconds)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def index_at(self, stream: str, partition: int, timestamp: int) -> int:
        index: int = self._json("GET", _partition(stream, partition), time=timestamp)["index_at"]
        return index

    # -- groups ----------------------------------------------------------------------------------

    def register_group(self, group: str, stream: str) -> None:
        self._json("PUT", _group(group, stream))

    def drop_group(self, group: str, stream: str | None = None) -> None:
        names = [stream] if stream else dict.fromkeys(lag.stream for lag in self.lags(group))
        for name in names:
            self._json("DELETE", _group(group, name))

    def position(self, group: str, stream: str, partition: int) -> int | None:
        told = self._json("GET", _group(group, stream))["partitions"]
        position: int | None = told[partition]["position"]
        return position

    def save_positions(self, group: str, stream: str, positions: Mapping[int, int]) -> None:
        self._json("PUT", _group(group, stream) + "/positions", {"positions": dict(positions)})

    def lags(self, group: str | None = None, stream: str | None = None) -> list[Lag]:
        told = self._json("GET", "/groups", group=group, stream=stream)
        return msgspec.convert(told["groups"], list[Lag])

    def reset(
        self,
        group: str,
        stream: str,
        to: ResetTo,
        partitions: Sequence[int] | None = None,
        *,
        dry_run: bool = False,
    ) -> list[Move]:
        wanted = {
            "to": to.kind, "value": to.value, "partitions": partitions, "dry_run": dry_run,
        }  # fmt: skip
        told = self._json("POST", _group(group, stream) + "/reset", wanted)
        return msgspec.convert(told["moves"], list[Move])

    # -- keeping house ---------------------------------------------------------------------------

    def trim(self, stream: str, partition: int, before: int) -> int:
        told = self._json("POST", _partition(stream, partition) + "/trim", {"before": before})
        earliest: int = told["earliest"]
        return earliest

    def apply_retention(self) -> list[Dropped]:
        return self._hub.log.apply_retention()

    def stage(self, writer: str, epoch: int) -> Stage:
        return self._hub.log.stage(writer, epoch)

    def publish(self, writer: str, epoch: int, parts: Sequence[str]) -> Published:
        return self._hub.log.publish(writer, epoch, parts)

    def discard(self, writer: str, epoch: int) -> None:
        self._hub.log.discard(writer, epoch)

    def notes(self, owner: str) -> dict[str, bytes]:
        return self._hub.log.notes(owner)

    def put_notes(self, owner: str, notes: Mapping[str, bytes | None]) -> None:
        self._hub.log.put_notes(owner, notes)

    def checkpoint(self) -> None:
        self._hub.log.checkpoint()

    def close(self) -> None:
        if not self._closed:
            self._sender.shutdown()
            self._close()
            self._closed = True
            self._threads.shutdown(wait=False)
            for connection in self._connections:
                connection.close()


class _HttpAppended(Appended):
    """Where records went, as the API told it."""

    __slots__ = ("_indexes",)

    def __init__(self, told: dict[str, Any]) -> None:
        self._indexes = np.array(told["indexes"], np.int64)
        self.count = told["count"]
        self.dropped = told["dropped"]
        self.first_index = told["runs"][0]["first"] if told["runs"] else -1

    def indexes(self) -> NDArray[np.int64]:
        return self._indexes


def _columns(batch: Batch) -> dict[str, pa.Array]:
    values = pa.Array.from_buffers(
        pa.binary(),
        batch.count,
        [None, pa.py_buffer(batch.values.offsets), pa.py_buffer(batch.values.data)],
    )
    columns = {"value": values}
    if batch.keys is not None:
        columns["key"] = batch.key_array()
    if batch.timestamps is not None:
        columns["timestamp"] = pa.array(batch.timestamps)
    if batch.headers is not None:
        columns["headers"] = headers_as_array(batch.headers, batch.count)
    return columns


def _encodable(name: str) -> str:
    """A name as a part of a path; some cannot be."""
    if not name:
        pytest.skip("a path has no empty parts")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        pytest.skip("a path is UTF-8")


def _stream(stream: str) -> str:
    return f"/streams/{_encodable(stream)}"


def _partition(stream: str, partition: int) -> str:
    return f"{_stream(stream)}/partitions/{partition}"


def _group(group: str, stream: str) -> str:
    return f"/groups/{_encodable(group)}/streams/{_encodable(stream)}"
