"""What is fuzzed: a target takes any bytes and must not fail; its seeds are good ones to spoil."""

from __future__ import annotations

import contextlib
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock import limits
from penstock.errors import SegmentDamaged, SegmentMissing
from penstock.log import Batch
from penstock.log import frame as fr
from penstock.log.disk import RealDisk
from penstock.log.schema import record_batch
from penstock.log.segment import SegmentFile, encode_batch, stream_head
from penstock.protocols.wallaroo import wire as wallaroo


class Target(NamedTuple):
    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]


def _sample(rows: int = 7) -> Batch:
    return Batch.of(
        [b"value %d" % n * n for n in range(rows)],
        keys=[None if n % 3 else b"k%d" % n for n in range(rows)],
        timestamps=list(range(rows)),
        headers=[[("name", b"v" * n)] if n % 2 else [] for n in range(rows)],
    )


def _frame_bytes(*, mixed: bool) -> bytes:
    batch = _sample()
    slots = (np.arange(batch.count) % 3).astype(np.uint16) if mixed else None
    runs = 3 if mixed else 1
    pids = np.arange(5, 5 + runs, dtype=np.uint32)
    counts = np.bincount(slots).astype(np.uint32) if slots is not None else None
    if counts is None:
        counts = np.array([batch.count], np.uint32)
    longs = np.zeros(runs, np.int64)
    parts = fr.frame_parts(
        fr.Body(batch, slots), 128, 64, 3, 1_000, pids, counts, longs, longs - 1,
        longs.astype(np.uint64), b"producer",
    )  # fmt: skip
    return b"".join(map(bytes, parts))


def fuzz_frame(data: bytes) -> None:
    """Bytes are a whole frame, or none; a whole one decodes."""
    frame = fr.parse_head(data, 128)
    if frame is None or frame.flags & fr.PAD:
        return
    body = data[frame.head_length : frame.head_length + frame.body_length]
    if fr.body_is_whole(frame, body):
        for column in fr.body_columns(frame, body):
            assert len(column) == frame.rows


def _segment_bytes() -> bytes:
    batch = _sample(50)
    columns = fr.body_columns(*_parsed(batch))
    parts, _ = encode_batch(record_batch(17, columns))
    more, _ = encode_batch(record_batch(17 + batch.count, columns))
    return b"".join([stream_head("s", 0), *map(bytes, parts), *map(bytes, more)])


def _parsed(batch: Batch) -> tuple[fr.Frame, bytes]:
    one = np.array([1], np.int64)
    parts = fr.frame_parts(
        fr.Body(batch, None), 0, 0, 1, 0, one.astype(np.uint32),
        np.array([batch.count], np.uint32), one, one, None, b"",
    )  # fmt: skip
    data = b"".join(map(bytes, parts))
    frame = fr.parse_head(data, 0)
    assert frame is not None
    return frame, data[frame.head_length :]


_directory = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))


def fuzz_segment(data: bytes) -> None:
    """A spoiled segment gives its first records unchanged and then a clear error, or the end."""
    path = _directory / "00000000000000000017.arrows"
    path.write_bytes(data)
    try:
        file = SegmentFile(RealDisk(), path)
        for batch in file.batches():
            assert isinstance(batch, pa.RecordBatch)
            batch.validate(full=True)
        file.close()
    except (SegmentDamaged, SegmentMissing):
        pass


_WALLAROO = [
    (wallaroo.Role.WORKER, None),
    *((role, dialect) for role in wallaroo.Role for dialect in wallaroo.Dialect),
]
"""The first byte of an input chooses one of these."""


def fuzz_wallaroo(data: bytes) -> None:
    """Any bytes are frames and at most one error, the same whole and in parts, in little memory."""
    role, dialect = _WALLAROO[(data[0] if data else 0) % len(_WALLAROO)]
    data = data[1:]
    tracemalloc.start()
    try:
        whole = _wallaroo_frames(wallaroo.Decoder(role, dialect).receive(data))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 * len(data) + 256 * 1024, f"{peak} bytes of memory for {len(data)}"
    parts = wallaroo.Decoder(role, dialect)
    given = [each for at in range(0, len(data), 7) for each in parts.receive(data[at : at + 7])]
    assert _wallaroo_frames(given) == whole
    assert parts.held <= max(2 * len(data), 2 * limits.WALLAROO_FIRST_READ_BYTES)


def _wallaroo_frames(given: list[wallaroo.Received]) -> list[object]:
    frames: list[object] = []
    for each in given:
        if isinstance(each, wallaroo.Messages):
            each.check()
            frames += each.rows()
        elif isinstance(each, wallaroo.WireError):
            assert each is given[-1]
            frames.append(str(each))
        else:
            frames.append(each)
            with contextlib.suppress(wallaroo.WireError):
                if isinstance(each, wallaroo.Greeting):
                    each.hello()
                elif isinstance(each, wallaroo.Notify):
                    each.text()
    return frames


def _wallaroo_seeds() -> list[bytes]:
    return [
        bytes([number]) + _wallaroo_bytes(role, dialect or wallaroo.Dialect.SPEC)
        for number, (role, dialect) in enumerate(_WALLAROO)
    ]


def _wallaroo_bytes(role: wallaroo.Role, dialect: wallaroo.Dialect) -> bytes:
    shipped = dialect is wallaroo.Dialect.SHIPPED
    frames: list[wallaroo.Frame]
    if role is wallaroo.Role.CONNECTOR:
        frames = [wallaroo.Ok(200), wallaroo.Ack(10, ((7, 3), (8, 500))), wallaroo.Error("no")]
        if shipped:
            frames[1:1] = [wallaroo.NotifyAck(True, 7, 3), wallaroo.Restart("127.0.0.1:7101")]
        else:
            frames[1:1] = [wallaroo.Nack(1, 7, 3)]
    else:
        frames = [
            wallaroo.Hello("0.0.1", b"cookie", "program", "instance"),
            wallaroo.Notify(7, b"orders", 3),
            *(wallaroo.Message(7, number, b"x" * (number % 4)) for number in range(6)),
            *(wallaroo.Message(7, number, b"equal") for number in range(40)),
            wallaroo.Message(7, 9, b"at", time=1_000, key=b"k" if shipped else None),
        ]
        if shipped:
            frames.append(wallaroo.EndOfStream(7))
        else:
            frames.append(wallaroo.Message(7, 10, flags=wallaroo.BOUNDARY | wallaroo.EOS))
    return b"".join(wallaroo.encode(frame, dialect) for frame in frames)


TARGETS: dict[str, Target] = {
    "frame": Target(fuzz_frame, lambda: [_frame_bytes(mixed=False), _frame_bytes(mixed=True)]),
    "segment": Target(fuzz_segment, lambda: [_segment_bytes()]),
    "wallaroo": Target(fuzz_wallaroo, _wallaroo_seeds),
}
