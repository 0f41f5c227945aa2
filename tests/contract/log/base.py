"""What the parts of the contract share: an open log, fresh names, and where records lie."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import pytest

from penstock import limits
from penstock.log import Batch, Log, StreamSettings, now_us

_numbers = itertools.count(1)


class OpenLog(Protocol):
    """Opens the log kept at `place`; the same one again after it was closed."""

    def __call__(
        self,
        place: str,
        *,
        clock: Callable[[], int] = now_us,
        group_stale_seconds: float = 3600.0,
    ) -> Log: ...


class Clock:
    """Microseconds that pass when told to."""

    def __init__(self, now: int = 1_700_000_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += int(seconds * 1_000_000)


class Where(NamedTuple):
    """Where the records of a test lie when they are read: the way to them differs."""

    name: str
    settings: StreamSettings
    checkpoint_after: Callable[[int, int], bool]
    """Told the number of an append and how many there are."""

    def fill(self, log: Log, stream: str, batches: Sequence[Batch], partition: int = 0) -> None:
        for number, batch in enumerate(batches):
            log.append(stream, batch, partition)
            if self.checkpoint_after(number + 1, len(batches)):
                log.checkpoint()


LARGE = StreamSettings()
SMALL = StreamSettings(segment_bytes=limits.SEGMENT_BYTES_MIN)

JOURNAL = Where("journal", LARGE, lambda number, of: False)
GROWING = Where("growing", LARGE, lambda number, of: number == of)
SEALED = Where("sealed", SMALL, lambda number, of: True)
MIXED = Where("mixed", SMALL, lambda number, of: number <= of // 2)


class Base:
    """The fixtures. A subclass says how its log is opened."""

    @pytest.fixture(scope="class")
    @classmethod
    def open_log(cls) -> OpenLog:
        raise NotImplementedError("a subclass says how its log is opened")

    @pytest.fixture(scope="class")
    @classmethod
    def log(cls, open_log: OpenLog) -> Log:
        """One log for all tests that need no log of their own: they use fresh names."""
        return open_log("shared")

    @pytest.fixture(scope="class")
    @classmethod
    def clock(cls) -> Clock:
        return Clock()

    @pytest.fixture(scope="class")
    @classmethod
    def clocked(cls, open_log: OpenLog, clock: Clock) -> Log:
        """One log for all tests in which time passes; a group is stale after a minute."""
        return open_log("clocked", clock=clock, group_stale_seconds=60.0)

    @pytest.fixture
    def name(self) -> str:
        """A name that no other test uses."""
        return f"s{next(_numbers)}"

    @pytest.fixture
    def stream(self, log: Log, name: str) -> str:
        """A stream of one partition in the shared log."""
        return log.create_stream(name).name

    @pytest.fixture(params=[JOURNAL, GROWING, SEALED, MIXED], ids=lambda where: where.name)
    def where(self, request: pytest.FixtureRequest) -> Where:
        found: Where = request.param
        return found
