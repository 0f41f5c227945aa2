"""Counters of the log, each written by one thread only."""

from __future__ import annotations

from bisect import bisect_left

_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Histogram:
    """Durations in seconds: how many were at most each bound, and how many above all."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = _BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds


class LogStats:
    """What the commit thread counts."""

    def __init__(self) -> None:
        self.commits = 0
        self.records = 0
        self.bytes = 0
        self.commit = Histogram()
        self.sync = Histogram()
        self.ring_full_seconds = 0.0
