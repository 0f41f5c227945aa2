"""Records of a range, from the segments where they are on this machine, else through Flight.

Exactly the records asked for, or an error. Spark's Python workers serve one task after the other,
so connections are kept for the next one.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from penstock import limits
from penstock.errors import (
    DataLost,
    HubUnreachable,
    IndexOutOfRange,
    IndexTrimmed,
    LogClosed,
    PenstockError,
    RemoteError,
    UnknownPartition,
    UnknownStream,
)
from penstock.flight.client import FlightClient
from penstock.spark.offsets import Loss, Range
from penstock.spark.options import HubOptions

T = TypeVar("T")
logger: Final = logging.getLogger("penstock.spark")

_AWAY: Final = (HubUnreachable, LogClosed)
"""What a hub that is being restarted answers, or does not."""

_clients: Final[dict[tuple[int, HubOptions], FlightClient]] = {}
_directories: Final[dict[tuple[int, HubOptions], Path | None]] = {}


# -- the hub ---------------------------------------------------------------------------------------


def client(hub: HubOptions) -> FlightClient:
    """This process' connection to a hub."""
    key = (os.getpid(), hub)
    if key not in _clients:
        _clients[key] = FlightClient(hub.url, hub.token, hub.ca)
    return _clients[key]


def forget(hub: HubOptions) -> None:
    """Close the connection: the next one asks anew where the hub's doors are."""
    old = _clients.pop((os.getpid(), hub), None)
    _directories.pop((os.getpid(), hub), None)
    if old is not None:
        old.close()


class Patience:
    """Pauses between attempts to reach a hub that is away, until the time is up."""

    def __init__(self, hub: HubOptions) -> None:
        self._hub = hub
        self.renew()

    def renew(self) -> None:
        """It answered: all the time again."""
        self._since: float | None = None
        self._pause = 0.05

    def wait(self, error: PenstockError) -> None:
        """Sleep a little; raises the error if that has been done for long enough."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            logger.warning("the hub at %s is away, waiting for it: %s", self._hub.url, error)
        left = self._since + self._hub.timeout_s - now
        if left <= 0:
            raise HubUnreachable(
                f"{error} (waited {self._hub.timeout_s:g} s, as the option penstock.timeout says)"
            ) from None
        forget(self._hub)
        time.sleep(min(self._pause, left))
        self._pause = min(2 * self._pause, limits.SPARK_RETRY_S_MAX)


def patiently(hub: HubOptions, call: Callable[[FlightClient], T]) -> T:
    """Call the hub, and try again while it is away, for as long as the options say."""
    patience = Patience(hub)
    while True:
        try:
            return call(client(hub))
        except _AWAY as error:
            patience.wait(error)


# -- losses ----------------------------------------------------------------------------------------


def data_lost(losses: Sequence[Loss]) -> DataLost:
    """What to say of records that are gone."""
    shown = "; ".join(map(str, losses[:10]))
    more = f" and {len(losses) - 10} more" if len(losses) > 10 else ""
    return DataLost(
        f"data was lost: {shown}{more}. To go on without it, and have it counted, set the option "
        "failOnDataLoss to false; to start anew, use another checkpoint and startingOffsets"
    )


def warn_lost(loss: Loss) -> None:
    """Tell of a gap that is skipped."""
    logger.warning(
        "data lost: stream=%s partition=%d from=%d to=%s records=%d reason=%r",
        loss.stream, loss.partition, loss.start, loss.end or "?", loss.records, loss.why,
    )  # fmt: skip


# -- records ---------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """What a task asks the hub for."""

    hub: HubOptions
    columns: tuple[str, ...]
    fail_on_data_loss: bool


def records(wanted: Wanted, each: Range) -> Iterator[pa.RecordBatch]:
    """The records of a range, as few large batches of the log's columns."""
    return gathered(_pieces(wanted, each))


def _pieces(wanted: Wanted, each: Range) -> Iterator[pa.RecordBatch]:
    at = each.start
    patience = Patience(wanted.hub)
    if each.records >= limits.SPARK_DIRECT_RECORDS_MIN:
        for batch in _from_segments(wanted, each):
            at += batch.num_rows
            yield batch
    while at < each.end:
        try:
            reading = client(wanted.hub).read(
                each.stream, each.partition, at, each.end, wanted.columns
            )
            for batch in reading:
                at += batch.num_rows
                patience.renew()
                yield batch
        except _AWAY as error:
            patience.wait(error)
        except (IndexTrimmed, UnknownStream, UnknownPartition, IndexOutOfRange) as error:
            at = _past_loss(wanted, each, at, error)


def _past_loss(wanted: Wanted, each: Range, at: int, error: PenstockError) -> int:
    """Where to go on after records that are gone."""
    end = each.end
    if isinstance(error, IndexTrimmed):
        end = min(max(error.earliest, at + 1), each.end)
    loss = Loss(each.stream, each.partition, at, end, str(error))
    if wanted.fail_on_data_loss:
        raise data_lost([loss]) from None
    warn_lost(loss)
    return end


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Small batches put together: what a batch costs, it costs however small it is."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        nbytes = batch.nbytes
        if held and (
            rows + batch.num_rows > limits.SPARK_BATCH_RECORDS
            or size + nbytes > limits.SPARK_BATCH_BYTES
        ):
            yield _joined(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        size += nbytes
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


# -- segments --------------------------------------------------------------------------------------


def _from_segments(wanted: Wanted, each: Range) -> Iterator[pa.RecordBatch]:
    """As much of the range, from its start on, as is in segments on this machine."""
    data = _data_directory(wanted.hub)
    if data is None:
        return
    from penstock.log.direct import DirectReader

    reader = DirectReader(data, each.stream, each.partition)
    at = each.start
    while at < each.end:
        try:
            batches = reader.read(
                at,
                min(limits.SPARK_BATCH_RECORDS, each.end - at),
                limits.SPARK_BATCH_BYTES,
            )
        except (OSError, PenstockError) as error:
            logger.info("reading %s from the hub instead of segments: %s", each, error)
            return
        if not batches:
            return  # the rest is in the journal yet
        for batch in batches:
            if batch.column("index")[0].as_py() != at:
                raise RemoteError(f"a segment of {each.stream}/{each.partition} has no record {at}")
            at += batch.num_rows
            yield batch.select(wanted.columns)


def _data_directory(hub: HubOptions) -> Path | None:
    """The hub's data directory, if it is on this machine and segments can be read here."""
    key = (os.getpid(), hub)
    if key not in _directories:
        _directories[key] = _find_directory(hub)
    return _directories[key]


def _find_directory(hub: HubOptions) -> Path | None:
    try:
        from penstock.log.direct import DirectReader  # noqa: F401 - needs more than Arrow
    except ImportError:
        return None
    info: Any = patiently(hub, lambda hub: hub.info())
    return None if info.data is None or not _is_here(info.data, info.data_id) else Path(info.data)


def _is_here(data: str, data_id: str | None) -> bool:
    """Whether it is the hub's directory, and not one of another machine under the same name."""
    try:
        own = (Path(data) / "id").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return False
    return own == data_id
