"""Spoiling bytes: the ways that find codec bugs."""

from __future__ import annotations

import random
import struct

_EDGES = (0, 1, 7, 8, 63, 64, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1)


def mutated(seed: bytes, chooser: random.Random) -> bytes:
    """`seed` with one to four changes."""
    data = bytearray(seed)
    for _ in range(chooser.randint(1, 4)):
        if not data:
            return bytes(chooser.randbytes(chooser.randint(0, 200)))
        at = chooser.randrange(len(data))
        kind = chooser.randrange(7)
        if kind == 0:
            data[at] ^= 1 << chooser.randrange(8)
        elif kind == 1:
            data[at] = chooser.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            data[at : at + 4] = struct.pack("<I", chooser.choice(_EDGES))
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            del data[at : at + chooser.randint(1, 64)]
        elif kind == 5:
            data[at:at] = chooser.randbytes(chooser.randint(1, 64))
        else:
            end = min(len(data), at + chooser.randint(1, 64))
            target = chooser.randrange(len(data))
            data[target : target + end - at] = data[at:end]
    return bytes(data)
