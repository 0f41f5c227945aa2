from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.partitioner import murmur2, partition_of, partitions_of
from tests.contract.log.appending import KAFKA_HASHES


@pytest.mark.parametrize(("key", "signed"), KAFKA_HASHES)
def test_the_hash_is_that_of_kafkas_java_client(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


@given(st.binary(max_size=70), st.integers(1, 1_024))
def test_a_key_has_one_of_the_partitions(key: bytes, count: int) -> None:
    assert 0 <= murmur2(key) < 2**32
    chosen = partition_of(key, count)
    assert 0 <= chosen < count
    assert chosen == (murmur2(key) & 0x7FFFFFFF) % count


@given(st.lists(st.none() | st.binary(max_size=20)), st.integers(1, 9))
def test_records_without_a_key_go_where_they_are_told(keys: list[bytes | None], count: int) -> None:
    assert partitions_of(keys, count, count - 1) == [
        count - 1 if key is None else partition_of(key, count) for key in keys
    ]


def test_keys_spread_over_all_partitions() -> None:
    counts = [0] * 16
    for number in range(1_600):
        counts[partition_of(b"key-%d" % number, 16)] += 1
    assert min(counts) > 50
