"""Which batches of an archive are of one date."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.flight.client import FlightClient
from penstock.log import Batch
from penstock.spark.dates import put_under_date, seems_one_date
from penstock.testing.hub import TestHub

DAY_US = 86_400_000_000
FIRST_US = 20_454 * DAY_US  # 2026-01-01


def write(file: Path, moments_us: list[int]) -> None:
    file.parent.mkdir(exist_ok=True)
    kind = pa.timestamp("us", tz="UTC")
    pq.write_table(pa.table({"timestamp": pa.array(moments_us, kind)}), file)


def test_files_of_one_date_go_under_it(tmp_path: Path) -> None:
    write(tmp_path / "one.parquet", [FIRST_US, FIRST_US + DAY_US - 1])
    write(tmp_path / "two.parquet", [FIRST_US + 5])
    write(tmp_path / "none.parquet", [])
    (tmp_path / "_SUCCESS").touch()
    assert put_under_date(tmp_path)
    found = sorted(each.name for each in (tmp_path / "date=2026-01-01").iterdir())
    assert found == ["one.parquet", "two.parquet"]


@pytest.mark.parametrize(
    "moments",
    [[FIRST_US, FIRST_US + DAY_US], [FIRST_US - 1, FIRST_US], [2**62, 2**62], [-(2**62)]],
)
def test_files_of_several_dates_or_beyond_the_calendar_stay(
    tmp_path: Path, moments: list[int]
) -> None:
    write(tmp_path / "one.parquet", moments)
    assert not put_under_date(tmp_path)
    assert (tmp_path / "one.parquet").exists()


def test_files_that_do_not_tell_stay(tmp_path: Path) -> None:
    table = pa.table({"timestamp": pa.array([FIRST_US], pa.timestamp("us", tz="UTC"))})
    pq.write_table(table, tmp_path / "one.parquet", write_statistics=False)
    assert not put_under_date(tmp_path)


def test_a_batch_without_files_is_under_its_date(tmp_path: Path) -> None:
    assert put_under_date(tmp_path)


@pytest.fixture(scope="module")
def client() -> Iterator[FlightClient]:
    with TestHub() as hub, FlightClient(hub.url) as client:
        hub.log.create_stream("orders", 2)
        for partition in range(2):
            moments = [FIRST_US + n * DAY_US // 10 for n in range(20)]
            hub.log.append("orders", Batch.of([b"x"] * 20, timestamps=moments), partition)
        yield client


def note(checkpoint: Path, batch: int, ends: dict[str, int]) -> None:
    """As Spark notes it."""
    file = checkpoint / "offsets" / str(batch)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("v1\n{}\n" + json.dumps({"orders": ends}))


def test_the_ends_of_a_batch_tell_its_date(client: FlightClient, tmp_path: Path) -> None:
    note(tmp_path, 0, {"0": 10})
    note(tmp_path, 1, {"0": 15})
    note(tmp_path, 2, {"0": 20, "1": 5})
    note(tmp_path, 3, {"0": 20, "1": 10})
    note(tmp_path, 4, {"0": 20, "1": 11})
    note(tmp_path, 5, {"0": 20, "1": 11})
    told = [seems_one_date(client, tmp_path, "orders", batch) for batch in range(6)]
    assert told == [True, True, False, True, True, False]


def test_what_is_hard_to_say_is_not_said(client: FlightClient, tmp_path: Path) -> None:
    assert not seems_one_date(client, tmp_path, "orders", 0)
    note(tmp_path, 0, {"7": 1})
    note(tmp_path, 1, {"0": 99})
    assert not seems_one_date(client, tmp_path, "orders", 1)
