"""Key to partition: murmur2, bit for bit as Kafka's Java client computes it.

A key lands on the same partition number here and, should the stream move, in Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mypy_extensions import i64

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 hash of `data`, unsigned.

    In 64-bit integers: products wrap around when compiled, which leaves their lower half right.
    """
    length: i64 = len(data)
    h: i64 = (_SEED ^ length) & _MASK
    whole: i64 = length - length % 4
    i: i64 = 0
    k: i64 = 0
    while i < whole:
        k = data[i] | data[i + 1] << 8 | data[i + 2] << 16 | data[i + 3] << 24
        i += 4
        k = (k * _M) & _MASK
        k ^= k >> 24
        k = (k * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    left: i64 = length - whole
    if left == 3:
        h ^= data[whole + 2] << 16
    if left >= 2:
        h ^= data[whole + 1] << 8
    if left >= 1:
        h ^= data[whole]
        h = (h * _M) & _MASK
    h ^= h >> 13
    h = (h * _M) & _MASK
    return h ^ (h >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition, of `partitions`, that records with this key go to."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def partitions_of(keys: Sequence[bytes | None], partitions: int, keyless: int) -> list[int]:
    """The partition of each key; records without a key go to `keyless`."""
    return [keyless if key is None else partition_of(key, partitions) for key in keys]
