"""Reading: from anywhere, within limits, waiting at the end, and by time."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import IndexOutOfRange, IndexTrimmed, UnknownStream
from penstock.log import Batch, Log
from tests.contract.log.base import SMALL, Base, Where
from tests.records import indexes, numbered, padded, read_all, values

LONG = 60.0
"""Seconds to wait for what comes at once; only a broken log needs them all."""


class Reading(Base):
    @pytest.fixture
    def filled(self, log: Log, name: str, where: Where) -> str:
        """A stream of 40 records in 8 appends."""
        log.create_stream(name, settings=where.settings)
        where.fill(log, name, [numbered(5, start) for start in range(0, 40, 5)])
        return name

    @pytest.fixture
    def trimmed(self, log: Log, name: str) -> tuple[str, int]:
        """A stream whose first records were dropped, and its earliest index."""
        log.create_stream(name, settings=SMALL)
        for start in range(0, 100, 10):
            log.append(name, numbered(10, start))
            log.checkpoint()
        earliest = log.trim(name, 0, 60)
        assert 0 < earliest <= 60
        return name, earliest

    def test_a_read_begins_anywhere(self, log: Log, filled: str) -> None:
        for start in range(40):
            found = log.read(filled, 0, start)
            assert indexes(found) == list(range(start, 40))
            assert values(found) == [padded(number) for number in range(start, 40)]

    def test_a_read_gives_at_most_so_many_records(self, log: Log, filled: str) -> None:
        for count in (1, 2, 5, 7, 39, 40):
            assert indexes(log.read(filled, 0, 0, max_records=count)) == list(range(count))
        assert indexes(log.read(filled, 0, 37, max_records=10)) == [37, 38, 39]

    def test_a_read_gives_at_most_so_many_bytes(self, log: Log, filled: str) -> None:
        found = log.read(filled, 0, 3, max_bytes=10_000)
        assert 1 <= len(indexes(found)) <= 5
        assert indexes(found)[0] == 3

    @pytest.mark.parametrize("max_bytes", [0, 1, 2_000])
    def test_a_read_gives_at_least_one_record(self, log: Log, filled: str, max_bytes: int) -> None:
        for start in (0, 4, 23, 39):
            assert indexes(log.read(filled, 0, start, max_bytes=max_bytes)) == [start]

    def test_small_steps_give_the_same_as_one_large_read(self, log: Log, filled: str) -> None:
        assert read_all(log, filled, step=3) == [padded(number) for number in range(40)]

    def test_at_the_end_there_is_nothing(self, log: Log, filled: str) -> None:
        assert log.read(filled, 0, 40) == []

    def test_past_the_end_is_an_error(self, log: Log, filled: str) -> None:
        with pytest.raises(IndexOutOfRange, match="the end is 40"):
            log.read(filled, 0, 41)

    def test_below_the_earliest_is_an_error_that_names_it(
        self, log: Log, trimmed: tuple[str, int]
    ) -> None:
        name, earliest = trimmed
        with pytest.raises(IndexTrimmed, match=str(earliest)) as caught:
            log.read(name, 0, 0)
        assert caught.value.earliest == earliest
        assert log.bounds(name, 0) == (earliest, 100)

    def test_below_the_earliest_can_mean_from_there_on(
        self, log: Log, trimmed: tuple[str, int]
    ) -> None:
        name, earliest = trimmed
        found = log.read(name, 0, 0, below="earliest")
        assert indexes(found) == list(range(earliest, 100))
        assert values(found) == [padded(number) for number in range(earliest, 100)]

    def test_an_empty_partition_reads_as_nothing(self, log: Log, stream: str) -> None:
        assert log.bounds(stream, 0) == (0, 0)
        assert log.read(stream, 0, 0) == []
        with pytest.raises(IndexOutOfRange):
            log.read(stream, 0, 1)

    def test_large_records_come_whole(self, log: Log, name: str, where: Where) -> None:
        log.create_stream(name, settings=where.settings)
        given = [bytes([number]) * 200_000 for number in range(6)]
        where.fill(log, name, [Batch.of([value]) for value in given])
        assert values(log.read(name, 0, 0)) == given
        assert indexes(log.read(name, 0, 2, max_bytes=1)) == [2]

    # -- following -------------------------------------------------------------------------------

    def test_a_reader_at_the_end_is_woken_by_an_append(self, log: Log, filled: str) -> None:
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(log.read, filled, 0, 40, wait_seconds=LONG)
            log.append(filled, Batch.of([b"new"]))
            assert values(reading.result()) == [b"new"]

    def test_waiting_returns_the_end(self, log: Log, stream: str) -> None:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(log.wait, stream, 0, 1, LONG)
            log.append(stream, Batch.of([b"a"]))
            log.append(stream, Batch.of([b"b"]))
            assert waiting.result() == 2

    def test_waiting_for_what_is_there_does_not_wait(self, log: Log, filled: str) -> None:
        assert log.wait(filled, 0, 39, LONG) == 40
        assert asyncio.run(log.wait_async(filled, 0, 39, LONG)) == 40

    def test_waiting_in_vain_returns_the_end(self, log: Log, filled: str) -> None:
        assert log.wait(filled, 0, 40, 0.01) == 40
        assert asyncio.run(log.wait_async(filled, 0, 40, 0.01)) == 40
        assert log.read(filled, 0, 40, wait_seconds=0.01) == []

    def test_coroutines_at_the_end_are_woken_by_an_append(self, log: Log, stream: str) -> None:
        async def follow() -> list[int]:
            followers = [asyncio.create_task(log.wait_async(stream, 0, 0, LONG)) for _ in range(20)]
            await asyncio.sleep(0)
            await log.append_async(stream, Batch.of([b"a"]))
            return await asyncio.gather(*followers)

        assert asyncio.run(follow()) == [1] * 20

    def test_a_follower_that_gives_up_disturbs_nobody(self, log: Log, stream: str) -> None:
        async def follow() -> int:
            leaver = asyncio.create_task(log.wait_async(stream, 0, 0, LONG))
            stayer = asyncio.create_task(log.wait_async(stream, 0, 0, LONG))
            await asyncio.sleep(0)
            leaver.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaver
            await log.append_async(stream, Batch.of([b"a"]))
            return await stayer

        assert asyncio.run(follow()) == 1

    def test_records_of_another_partition_wake_nobody_for_good(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=2)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(log.wait, name, 1, 0, LONG)
            log.append(name, Batch.of([b"a"]), 0)
            assert not waiting.done()
            log.append(name, Batch.of([b"b"]), 1)
            assert waiting.result() == 1

    def test_deleting_a_stream_wakes_who_waits_there(self, log: Log, stream: str) -> None:
        begun = threading.Event()

        def wait() -> int:
            begun.set()
            return log.wait(stream, 0, 0, LONG)

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(wait)
            begun.wait()
            log.delete_stream(stream)
            with pytest.raises(UnknownStream):
                waiting.result()

    def test_a_follower_sees_everything_once_while_it_comes(self, log: Log, name: str) -> None:
        log.create_stream(name, settings=SMALL)

        def follow() -> list[int]:
            seen: list[int] = []
            while len(seen) < 300:
                seen.extend(indexes(log.read(name, 0, len(seen), wait_seconds=LONG)))
            return seen

        with ThreadPoolExecutor(2) as pool:
            followers = [pool.submit(follow) for _ in range(2)]
            for start in range(0, 300, 10):
                log.append(name, numbered(10, start))
                if start % 50 == 0:
                    log.checkpoint()
            for follower in followers:
                assert follower.result() == list(range(300))

    # -- by time ---------------------------------------------------------------------------------

    def test_the_first_index_at_or_after_a_time(self, log: Log, name: str, where: Where) -> None:
        log.create_stream(name, settings=where.settings)
        where.fill(
            log,
            name,
            [
                Batch.of(
                    [padded(number) for number in range(start, start + 5)],
                    timestamps=[number * 100 for number in range(start, start + 5)],
                )
                for start in range(0, 40, 5)
            ],
        )
        for time, expected in [
            (-1, 0), (0, 0), (1, 1), (100, 1), (101, 2), (1_999, 20), (3_900, 39), (3_901, 40),
        ]:  # fmt: skip
            assert log.index_at(name, 0, time) == expected

    def test_times_out_of_order_give_the_first_record_late_enough(
        self, log: Log, name: str, where: Where
    ) -> None:
        log.create_stream(name, settings=where.settings)
        given = [50, 10, 90, 20, 30, 80, 100, 5]
        where.fill(log, name, [Batch.of([padded(1)], timestamps=[time]) for time in given])
        for time in range(0, 111, 5):
            expected = next((n for n, each in enumerate(given) if each >= time), len(given))
            assert log.index_at(name, 0, time) == expected

    def test_records_that_were_dropped_are_not_found_by_time(self, log: Log, name: str) -> None:
        log.create_stream(name, settings=SMALL)
        for start in range(0, 100, 10):
            log.append(
                name,
                Batch.of([padded(start)] * 10, timestamps=list(range(start, start + 10))),
            )
            log.checkpoint()
        earliest = log.trim(name, 0, 60)
        assert log.index_at(name, 0, 0) == earliest
        assert log.index_at(name, 0, 70) == 70

    def test_an_empty_partition_has_no_time(self, log: Log, stream: str) -> None:
        assert log.index_at(stream, 0, 0) == 0
