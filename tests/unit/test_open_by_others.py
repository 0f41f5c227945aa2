"""Segment files are plain Arrow: other tools open them without Penstock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock import limits
from penstock.log import Batch, StreamSettings, open_log, small_log
from tests.records import padded

HEAD = """
import sys
from pathlib import Path
import pyarrow as pa
from pyarrow import ipc
directory = Path(sys.argv[1])
"""
TAIL = """
assert not any(name.partition(".")[0] == "penstock" for name in sys.modules)
print("read")
"""


def without_penstock(script: str, directory: Path) -> None:
    """Run `script` in a process of its own that must not import Penstock."""
    ran = subprocess.run(
        [sys.executable, "-c", HEAD + script + TAIL, str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "read\n"


@pytest.fixture(scope="module", params=["lz4", "zstd", "none"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition of 100 records: sealed segments, and one that grows."""
    data: Path = tmp_path_factory.mktemp("data")
    settings = StreamSettings(segment_bytes=limits.SEGMENT_BYTES_MIN, compression=request.param)
    with open_log(data, small_log(), writer="inline") as log:
        log.create_stream("orders", settings=settings)
        for start in range(0, 100, 5):
            numbers = range(start, start + 5)
            log.append(
                "orders",
                Batch.of(
                    [padded(number) for number in numbers],
                    keys=[b"even" if number % 2 == 0 else None for number in numbers],
                    timestamps=[number * 1_000_000 for number in numbers],
                    headers=[[("n", b"%d" % number)] for number in numbers],
                ),
            )
            log.checkpoint()
    partition = data / "streams" / "orders" / "0"
    assert len(list(partition.glob("*.arrow"))) > 3
    assert len(list(partition.glob("*.arrows"))) == 1
    return partition


def test_a_growing_segment_is_an_arrow_stream(directory: Path) -> None:
    without_penstock(
        """
(path,) = directory.glob("*.arrows")
table = ipc.open_stream(path).read_all()
table.validate(full=True)
first = int(path.stem)
assert table["index"].to_pylist() == list(range(first, 100)), table["index"]
assert table["value"][0].as_py().startswith(b"record %d " % first)
assert table["key"].to_pylist() == [None if n % 2 else b"even" for n in range(first, 100)]
assert table["headers"][0].as_py() == [{"name": "n", "value": b"%d" % first}]
assert table.schema.metadata[b"penstock.stream"] == b"orders"
assert table.schema.metadata[b"penstock.partition"] == b"0"
""",
        directory,
    )


def test_a_sealed_segment_is_an_arrow_file(directory: Path) -> None:
    without_penstock(
        """
found = []
for path in sorted(directory.glob("*.arrow")):
    with ipc.open_file(path) as reader:
        table = reader.read_all()
    table.validate(full=True)
    assert table["index"][0].as_py() == int(path.stem)
    assert table.schema.metadata[b"penstock.format"] == b"1"
    found.extend(table["index"].to_pylist())
assert found == list(range(len(found))) and len(found) > 50
""",
        directory,
    )


def test_a_partition_is_an_arrow_dataset(directory: Path) -> None:
    without_penstock(
        """
import pyarrow.dataset as ds
files = sorted(map(str, directory.glob("*.arrow")))
dataset = ds.dataset(files, format="ipc")
table = dataset.to_table(filter=ds.field("key") == b"even", columns=["index", "timestamp"])
assert table["index"].to_pylist() == list(range(0, dataset.count_rows(), 2))
assert table.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
""",
        directory,
    )


def test_duckdb_queries_a_partition_through_arrow(directory: Path) -> None:
    without_penstock(
        """
import duckdb
import pyarrow.dataset as ds
orders = ds.dataset(sorted(map(str, directory.glob("*.arrow"))), format="ipc")
(path,) = directory.glob("*.arrows")
newest = ipc.open_stream(path).read_all()
with duckdb.connect() as db:
    count, low, high, keys, bytes_ = db.execute('''
        SELECT count(*), min("index"), max("index"), count(key), sum(octet_length(value))
        FROM (SELECT "index", key, value FROM orders UNION ALL
              SELECT "index", key, value FROM newest)''').fetchone()
    assert (count, low, high, keys, bytes_) == (100, 0, 99, 50, 200_000)
    (header,) = db.execute('SELECT headers[1].value FROM newest ORDER BY "index" DESC').fetchone()
    assert header == b"99"
""",
        directory,
    )
