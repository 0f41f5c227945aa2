"""`penstock bench`: what the log does on this disk, in a few seconds."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from penstock.cli.options import JsonOption
from penstock.cli.output import progress, show_json, show_table
from penstock.errors import BadSetting
from penstock.log import Batch, BinaryColumn, EmbeddedLog, open_log

_RECORD_BYTES: Final = 100
_BATCH: Final = 1_000
_ROUNDS: Final = 3


def bench(
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            exists=True,
            file_okay=False,
            writable=True,
            help="Where to measure: choose the disk of your data. Default: the temporary one.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=600, help="How long to append, and to write raw.")
    ] = 3.0,
    json: JsonOption = False,
) -> None:
    """Measure durable appends and reads against what the disk gives.

    Appends batches of 1,000 records of 100 bytes, each confirmed before the next, and writes the
    same bytes to a plain growing file with fdatasync. Uses a directory of its own, removed at
    the end.

    Examples:

        penstock bench --dir /var/lib
        penstock bench --seconds 10 --json
    """
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=directory) as own:
            figures = _measure(Path(own), seconds)
    except OSError as error:
        raise BadSetting(f"cannot measure there: {error}") from None
    if json:
        show_json(figures)
        return
    raw, append, read = (figures[name] for name in ("raw", "append", "read"))
    rows = [
        ("raw write + fdatasync", f"{raw:,.0f}", _megabytes(raw), ""),
        ("durable append", f"{append:,.0f}", _megabytes(append), f"{figures['ratio']:.2f} of raw"),
        ("read", f"{read:,.0f}", _megabytes(read), ""),
    ]
    show_table(("figure", "records/s>", "MB/s>", ""), rows, "")


def _measure(directory: Path, seconds: float) -> dict[str, float]:
    offsets = np.arange(0, _RECORD_BYTES * _BATCH + 1, _RECORD_BYTES, dtype=np.int32)
    # Random bytes do not compress: the worst case.
    batch = Batch(BinaryColumn(offsets, os.urandom(_RECORD_BYTES * _BATCH)))
    raws, appends = [], []
    with open_log(directory / "data") as log, progress("measuring", 2 * _ROUNDS + 1) as bar:
        log.create_stream("bench")
        _append_for(log, batch, seconds / _ROUNDS / 2)  # warm up
        for _ in range(_ROUNDS):  # in turns: a disk is not as fast all the time
            raws.append(_raw_for(directory / "raw", seconds / _ROUNDS))
            bar.advance(bar.task_ids[0])
            appends.append(_append_for(log, batch, seconds / _ROUNDS))
            bar.advance(bar.task_ids[0])
        read = _read_all(log, seconds)
    raw, append = sorted(raws)[_ROUNDS // 2], sorted(appends)[_ROUNDS // 2]
    return {"raw": raw, "append": append, "ratio": append / raw, "read": read}


def _append_for(log: EmbeddedLog, batch: Batch, seconds: float) -> float:
    target = log.locate("bench", 0)
    began, count = time.perf_counter(), 0
    while True:
        log.submit(target, batch, wait_for_room=True).result()
        count += batch.count
        if (took := time.perf_counter() - began) >= seconds:
            return count / took


def _raw_for(path: Path, seconds: float) -> float:
    block = os.urandom(_RECORD_BYTES * _BATCH)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    began, count = time.perf_counter(), 0
    try:
        while True:
            os.write(fd, block)
            os.fdatasync(fd)
            count += _BATCH
            if (took := time.perf_counter() - began) >= seconds:
                return count / took
    finally:
        os.close(fd)
        path.unlink()


def _read_all(log: EmbeddedLog, seconds: float) -> float:
    """Read what was appended, from segments, at most for so long."""
    log.checkpoint()
    began, (at, end) = time.perf_counter(), log.bounds("bench", 0)
    first, took = at, 0.0
    while at < end and took < seconds:
        for batch in log.read("bench", 0, at):
            at += batch.num_rows
        took = time.perf_counter() - began
    return (at - first) / took


def _megabytes(records: float) -> str:
    return f"{records * _RECORD_BYTES / 1e6:,.1f}"
