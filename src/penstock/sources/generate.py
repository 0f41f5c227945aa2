"""Messages made up, at a rate: to try things out, and to see what they bear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from penstock.protocols.wallaroo.chunk import Chunk

_CHUNK_MESSAGES: Final = 5_000
_CHUNK_BYTES: Final = 1024 * 1024
_TICK_S: Final = 0.01
"""At a rate, messages are made a hundred times a second; slower ones when they are due."""


class GenerateSource:
    """Numbered messages of one size: message 7 is 7, with zeros before it.

    `count` more are made than the worker has had before; None: no end.
    """

    def __init__(
        self,
        name: str = "generated",
        *,
        count: int | None = None,
        rate: float | None = None,
        size: int = 100,
    ) -> None:
        self.name = name
        self._count = count
        self._rate = rate
        self._size = size
        self._at = 0
        self._end: int | None = None

    async def reset(self, position: int | None) -> None:
        """Go on after this message."""
        self._at = position or 0
        if self._count is not None and self._end is None:
            self._end = self._at + self._count

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """Messages, as they are due."""
        loop = asyncio.get_running_loop()
        began, made = loop.time(), 0
        most = max(1, min(_CHUNK_MESSAGES, _CHUNK_BYTES // max(1, self._size)))
        while self._end is None or self._at < self._end:
            count = most if self._end is None else min(most, self._end - self._at)
            if self._rate is not None:
                due = int(self._rate * (loop.time() - began)) - made
                if due < 1:
                    wait = began + (made + 1) / self._rate - loop.time()
                    await asyncio.sleep(max(wait, _TICK_S))
                    continue
                count = min(count, due)
            made += count
            yield self._chunk(count)

    def _chunk(self, count: int) -> Chunk:
        ids = range(self._at + 1, self._at + count + 1)
        self._at += count
        size = self._size
        return Chunk.of(
            [(b"%0*d" % (size, number))[-size:] if size else b"" for number in ids], ids
        )
