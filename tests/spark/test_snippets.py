"""The PySpark of the README and of docs/spark.md runs as it stands, against a real hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.log import Batch
from penstock.testing.hub import TestHub

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def snippets(name: str) -> list[str]:
    """All of Spark's page; of the README what `tests/unit/test_readme.py` leaves out."""
    found = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    return [each for each in found if name != "README.md" or "spark" in each]


@pytest.mark.parametrize("page", ["README.md", "docs/spark.md"])
def test_the_snippets_run(
    page: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = snippets(page)
    assert found
    monkeypatch.chdir(tmp_path)
    with TestHub() as hub:
        for stream in ("orders", "loud"):
            hub.log.create_stream(stream, 2)
        hub.log.append("orders", Batch.of([b"one", b"two"], keys=[b"a", b"b"]))
        names: dict[str, object] = {}
        for snippet in found:
            text = snippet.replace("http://127.0.0.1:7470", hub.url)
            # Spark's side of relative paths is where Java was started.
            text = text.replace('"checkpoints/', f'"{tmp_path}/checkpoints/')
            exec(compile(text, page, "exec"), names)
        loud = [
            value
            for number in range(2)
            for batch in hub.log.read("loud", number, 0)
            for value in batch.column("value").to_pylist()
        ]
        assert sorted(loud) == [b"ONE", b"TWO"]
