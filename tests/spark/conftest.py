"""One Spark session and one hub for all tests in this folder, which are all marked `spark`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.spark import jars
from penstock.spark.session import spark_session
from penstock.testing.hub import TestHub

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HERE = Path(__file__).parent
_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def delta_jars() -> list[Path]:
    """Delta's jars, fetched if they are not there."""
    jars.fetch(["delta"])
    return jars.paths("delta")


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, delta_jars: list[Path]
) -> Iterator[SparkSession]:
    """A classic session on two cores, with Delta. Tests must not stop it."""
    session = spark_session(
        "penstock-tests",
        master="local[2]",
        delta=True,
        conf={
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def hub() -> Iterator[TestHub]:
    """A hub in this process. Tests that kill it take `penstock.testing.served` instead."""
    with TestHub() as hub:
        yield hub


@pytest.fixture
def new_stream(hub: TestHub, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Makes a stream that no other test has; call it with the number of partitions."""
    test = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:60]

    def create(partitions: int = 1, name: str = test) -> str:
        stream = f"{name}-{next(_numbers)}"
        hub.log.create_stream(stream, partitions)
        return stream

    return create
