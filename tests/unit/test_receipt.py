from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LogBusy, StorageFailed
from penstock.log.receipt import Appended, Receipt, fulfil


def appended(first: int = 5, count: int = 3) -> Appended:
    return Appended(np.array([first], np.int64), None, count)


def test_records_of_one_partition_have_indexes_in_a_row() -> None:
    assert appended().indexes().tolist() == [5, 6, 7]
    assert appended().first_index == 5
    assert appended().dropped == 0


@given(st.data())
def test_records_of_several_partitions_count_up_in_each(data: st.DataObject) -> None:
    runs = data.draw(st.integers(2, 5))
    slots = [*range(runs), *data.draw(st.lists(st.integers(0, runs - 1), max_size=20))]
    slots = data.draw(st.permutations(slots))
    bases = [100 * run for run in range(runs)]
    nexts = list(bases)
    expected = []
    for slot in slots:
        expected.append(nexts[slot])
        nexts[slot] += 1
    found = Appended(np.array(bases, np.int64), np.array(slots, np.uint16), len(slots))
    assert found.indexes().tolist() == expected


def test_dropped_records_have_no_index() -> None:
    kept = np.array([False, True, True, False])
    found = Appended(np.array([9], np.int64), None, 2, kept)
    assert found.indexes().tolist() == [-1, 9, 10, -1]
    assert (found.count, found.dropped) == (2, 2)


def test_a_receipt_is_done_once_it_is_fulfilled() -> None:
    receipt = Receipt()
    assert not receipt.done
    with pytest.raises(LogBusy, match="may still be stored"):
        receipt.result(0)
    outcome = appended()
    fulfil([(receipt, outcome)])
    assert receipt.done
    assert receipt.result() is receipt.result(0) is outcome


def test_a_failed_receipt_raises_each_time() -> None:
    receipt = Receipt()
    fulfil([(receipt, StorageFailed("the disk"))])
    for _ in range(2):
        with pytest.raises(StorageFailed, match="the disk"):
            receipt.result()


def test_callbacks_are_called_before_and_after() -> None:
    receipt = Receipt()
    called: list[Receipt] = []
    receipt.on_done(called.append)
    receipt.on_done(called.append)
    assert called == []
    fulfil([(receipt, appended())])
    assert called == [receipt, receipt]
    receipt.on_done(called.append)
    assert called == [receipt] * 3


def test_coroutines_in_several_loops_are_woken() -> None:
    receipts = [Receipt() for _ in range(4)]
    waiting = threading.Barrier(3)

    async def wait() -> list[int]:
        tasks = [asyncio.ensure_future(_awaited(receipt)) for receipt in receipts]
        await asyncio.sleep(0)
        await asyncio.to_thread(waiting.wait)
        return await asyncio.gather(*tasks)

    found: list[list[int]] = []
    threads = [threading.Thread(target=lambda: found.append(asyncio.run(wait()))) for _ in "ab"]
    for thread in threads:
        thread.start()
    waiting.wait()
    fulfil([(receipt, appended(number)) for number, receipt in enumerate(receipts)])
    for thread in threads:
        thread.join()
    assert found == [[0, 1, 2, 3]] * 2


async def _awaited(receipt: Receipt) -> int:
    return (await receipt).first_index


def test_awaiting_what_is_done_does_not_wait() -> None:
    receipt = Receipt()
    fulfil([(receipt, appended())])
    assert asyncio.run(_awaited(receipt)) == 5


def test_a_coroutine_that_gave_up_is_passed_over() -> None:
    async def run() -> int:
        receipt = Receipt()
        leaver = asyncio.ensure_future(_awaited(receipt))
        stayer = asyncio.ensure_future(_awaited(receipt))
        await asyncio.sleep(0)
        leaver.cancel()
        fulfil([(receipt, appended())])
        return await stayer

    assert asyncio.run(run()) == 5
