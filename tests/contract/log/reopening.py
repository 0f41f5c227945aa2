"""Closing and opening again: everything is kept, and a closed log says that it is closed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import LogClosed
from penstock.log import Batch, Log, ResetTo, StreamSettings
from tests.contract.log.base import SMALL, Base, OpenLog, Where
from tests.records import numbered, padded, read_all, rows


class Reopening(Base):
    def test_records_survive(self, open_log: OpenLog, name: str, where: Where) -> None:
        with open_log(name) as log:
            log.create_stream(name, partitions=2, settings=where.settings)
            where.fill(log, name, [numbered(5, start) for start in range(0, 40, 5)], partition=1)
        for turn in range(2):
            with open_log(name) as log:
                assert log.bounds(name, 1) == (0, 40 + turn)
                assert read_all(log, name, 1)[:40] == [padded(number) for number in range(40)]
                assert log.append(name, Batch.of([b"more"]), 1).first_index == 40 + turn

    def test_streams_and_settings_survive(self, open_log: OpenLog, name: str) -> None:
        settings = StreamSettings(retention_seconds=5.0, retention_read=True, compression="none")
        with open_log(name) as log:
            log.create_stream("a", partitions=3, settings=settings)
            log.create_stream("b")
            log.create_stream("c")
            log.delete_stream("b")
            log.add_partitions("c", 2)
            log.change_settings("c", SMALL)
            described = [log.describe(stream) for stream in log.streams()]
        with open_log(name) as log:
            assert log.streams() == ["a", "c"]
            assert [log.describe(stream) for stream in log.streams()] == described
            assert log.describe("a").settings == settings
            assert len(log.describe("c").partitions) == 2

    def test_positions_and_registrations_survive(self, open_log: OpenLog, name: str) -> None:
        with open_log(name) as log:
            log.create_stream(name, partitions=2)
            log.append(name, numbered(9), 0)
            log.register_group("g", name)
            log.save_positions("g", name, {0: 7})
            log.save_positions("h", name, {0: 9})
            log.reset("h", name, ResetTo.index(2))
            log.register_group("dropped", name)
            log.drop_group("dropped")
            lags = log.lags()
        with open_log(name) as log:
            assert log.position("g", name, 0) == 7
            assert log.position("h", name, 0) == 2
            assert log.position("g", name, 1) is None
            kept = [(lag.group, lag.position, lag.registered) for lag in log.lags()]
            assert kept == [(lag.group, lag.position, lag.registered) for lag in lags]

    def test_what_was_trimmed_stays_trimmed(self, open_log: OpenLog, name: str) -> None:
        with open_log(name) as log:
            log.create_stream(name, settings=SMALL)
            for start in range(0, 50, 10):
                log.append(name, numbered(10, start))
                log.checkpoint()
            earliest = log.trim(name, 0, 35)
            assert earliest > 0
        with open_log(name) as log:
            assert log.bounds(name, 0) == (earliest, 50)
            assert read_all(log, name) == [padded(number) for number in range(earliest, 50)]

    def test_every_column_survives(self, open_log: OpenLog, name: str) -> None:
        batch = Batch.of(
            [b"v", b""],
            keys=[b"k", None],
            timestamps=[1, -1],
            headers=[[("h", b"1")], []],
        )
        with open_log(name) as log:
            log.create_stream(name)
            log.append(name, batch)
            before = rows(log.read(name, 0, 0))
        with open_log(name) as log:
            assert rows(log.read(name, 0, 0)) == before

    def test_closing_confirms_what_was_handed_over(self, open_log: OpenLog, name: str) -> None:
        log = open_log(name)
        log.create_stream(name)
        target = log.locate(name, 0)
        receipts = [log.submit(target, Batch.of([b"%d" % number])) for number in range(50)]
        log.close()
        assert [receipt.result().first_index for receipt in receipts] == list(range(50))
        with open_log(name) as log:
            assert read_all(log, name) == [b"%d" % number for number in range(50)]

    def test_closing_twice_is_no_error(self, open_log: OpenLog, name: str) -> None:
        log = open_log(name)
        log.close()
        log.close()

    def test_a_closed_log_refuses(self, open_log: OpenLog, name: str) -> None:
        log: Log = open_log(name)
        log.create_stream(name)
        log.append(name, numbered(5))
        target = log.locate(name, 0)
        log.register_group("g", name)
        log.close()
        for ask in (
            lambda: log.create_stream("new"),
            lambda: log.change_settings(name, SMALL),
            lambda: log.add_partitions(name, 2),
            lambda: log.delete_stream(name),
            lambda: log.append(name, Batch.of([b"v"])),
            lambda: log.submit(target, Batch.of([b"v"])),
            lambda: log.read(name, 0, 0),
            lambda: log.wait(name, 0, 5, 60.0),
            lambda: log.index_at(name, 0, 0),
            lambda: log.register_group("g", name),
            lambda: log.drop_group("g"),
            lambda: log.save_positions("g", name, {0: 1}),
            lambda: log.reset("g", name, ResetTo.latest()),
            lambda: log.trim(name, 0, 1),
        ):
            with pytest.raises(LogClosed):
                ask()

    def test_closing_ends_a_wait(self, open_log: OpenLog, name: str) -> None:
        log = open_log(name)
        log.create_stream(name)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(log.wait, name, 0, 0, 60.0)
            log.close()
            with pytest.raises(LogClosed):
                waiting.result()
