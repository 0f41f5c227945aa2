"""Metrics in Prometheus' conventions, computed when they are asked for.

Labels are bounded: at most `METRIC_STREAMS_MAX` streams are named, the rest is `_other`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

import penstock
from penstock import limits
from penstock.errors import UnknownStream
from penstock.log.stats import Histogram

if TYPE_CHECKING:
    from penstock.hub.hub import Hub


class Metrics(Collector):
    """Counts what doors do, and reads the rest off the log."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._lock = threading.Lock()
        self._appended: dict[tuple[str, str], list[int]] = {}
        self._rejected: dict[tuple[str, str], int] = {}
        self._named: set[str] = set()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    # -- counting --------------------------------------------------------------------------------

    def appended(self, door: str, stream: str, records: int, nbytes: int) -> None:
        with self._lock:
            counts = self._appended.setdefault((door, self._label(stream)), [0, 0])
            counts[0] += records
            counts[1] += nbytes

    def rejected(self, door: str, reason: str) -> None:
        """`reason` is an error's code: there are few."""
        with self._lock:
            self._rejected[door, reason] = self._rejected.get((door, reason), 0) + 1

    def _label(self, stream: str) -> str:
        if stream not in self._named:
            if len(self._named) >= limits.METRIC_STREAMS_MAX:
                return "_other"
            self._named.add(stream)
        return stream

    # -- telling ---------------------------------------------------------------------------------

    def render(self) -> bytes:
        """The text Prometheus reads."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield self._counter("penstock_records_appended", "Records stored", 0)
        yield self._counter("penstock_appended_bytes", "Bytes handed to the log", 1)
        rejected = CounterMetricFamily(
            "penstock_rejected", "Requests refused", labels=["door", "reason"]
        )
        connections = GaugeMetricFamily("penstock_connections", "Open connections", labels=["door"])
        with self._lock:
            for (door, reason), count in self._rejected.items():
                rejected.add_metric([door, reason], count)
        for each in self._hub.doors:
            connections.add_metric([each.name], each.connections)
        yield rejected
        yield connections
        for each in list(self._hub.doors):
            yield from each.metrics()
        yield from self._log_metrics()
        yield from self._stream_metrics()
        build = penstock.build_info()
        yield InfoMetricFamily(
            "penstock_build",
            "What is running",
            value={"version": build.version, "compiled": str(len(build.compiled))},
        )

    def _counter(self, name: str, text: str, which: int) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=["door", "stream"])
        with self._lock:
            for (door, stream), counts in self._appended.items():
                family.add_metric([door, stream], counts[which])
        return family

    def _log_metrics(self) -> Iterator[Metric]:
        log = self._hub.log
        stats = log.stats
        yield _histogram("penstock_commit_duration_seconds", "Group commits", stats.commit)
        yield _histogram("penstock_fsync_duration_seconds", "Journal syncs", stats.sync)
        yield GaugeMetricFamily(
            "penstock_buffered_bytes", "Handed over and not on disk", log.buffered_bytes
        )
        yield GaugeMetricFamily(
            "penstock_journal_used_bytes",
            "Journal that is not in segments yet",
            log.committed_lsn - log.checkpoint_lsn,
        )
        yield CounterMetricFamily(
            "penstock_segment_writer_restarts", "Deaths of the segment writer", log.writer_restarts
        )

    def _stream_metrics(self) -> Iterator[Metric]:
        ends = GaugeMetricFamily(
            "penstock_stream_end_index", "Index after the last", labels=["stream", "partition"]
        )
        earliest = GaugeMetricFamily(
            "penstock_stream_earliest_index", "First index kept", labels=["stream", "partition"]
        )
        log = self._hub.log
        for name, number, (first, end) in islice(self._bounds(), limits.METRIC_PARTITIONS_MAX):
            ends.add_metric([name, str(number)], end)
            earliest.add_metric([name, str(number)], first)
        yield ends
        yield earliest
        labels = ["consumergroup", "topic", "partition"]
        lag = GaugeMetricFamily("penstock_group_lag", "Records not read yet", labels=labels)
        seconds = GaugeMetricFamily(
            "penstock_group_lag_seconds", "Age of the next unread record", labels=labels
        )
        for each in log.lags()[: limits.METRIC_PARTITIONS_MAX]:
            where = [each.group, each.stream, str(each.partition)]
            lag.add_metric(where, each.records)
            seconds.add_metric(where, each.seconds)
        yield lag
        yield seconds

    def _bounds(self) -> Iterator[tuple[str, int, tuple[int, int]]]:
        for name in self._hub.log.streams()[: limits.METRIC_STREAMS_MAX]:
            with contextlib.suppress(UnknownStream):  # deleted meanwhile
                for number, bounds in enumerate(self._hub.log.all_bounds(name)):
                    yield name, number, bounds


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text)
    total = 0
    buckets = []
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        total += count
        buckets.append((str(bound), float(total)))
    buckets.append(("+Inf", float(total + histogram.counts[-1])))
    family.add_metric([], buckets=buckets, sum_value=histogram.sum)
    return family
