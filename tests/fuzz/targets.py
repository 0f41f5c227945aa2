"""What is fuzzed: a target takes any bytes and must not fail; its seeds are good ones to spoil."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import SegmentDamaged, SegmentMissing
from penstock.log import Batch
from penstock.log import frame as fr
from penstock.log.disk import RealDisk
from penstock.log.schema import record_batch
from penstock.log.segment import SegmentFile, encode_batch, stream_head


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


TARGETS: dict[str, Target] = {
    "frame": Target(fuzz_frame, lambda: [_frame_bytes(mixed=False), _frame_bytes(mixed=True)]),
    "segment": Target(fuzz_segment, lambda: [_segment_bytes()]),
}
