"""What a source has offered and a connector has not sent yet: bounded, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from penstock import limits
from penstock.errors import LocalError
from penstock.protocols.wallaroo.chunk import Chunk, Source
from penstock.protocols.wallaroo.connector import stream_id

_BYTES = bytes | bytearray | memoryview


class Feed:
    """A source, and what it has offered and is not sent."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.name = source.name.encode()
        self.id: int = getattr(source, "stream_id", None) or stream_id(self.name)
        self.ref: int | None = None
        self.finished = False
        self.task: asyncio.Task[None] | None = None
        self._acked = getattr(source, "acked", None)
        self._room = asyncio.Event()
        self.clear()

    def clear(self) -> None:
        """Forget what was offered."""
        self.chunks: deque[Chunk] = deque()
        self.at = 0
        self.ended = False
        self.queued = False
        self._singles: list[Any] = []
        self._held = 0
        self._room.set()

    def put(self, item: Any) -> None:
        """What the source yields."""
        if isinstance(item, Chunk):
            chunk = item
        elif isinstance(item, tuple) and item and isinstance(item[0], _BYTES):
            self._singles.append(item)
            self._held += len(item[0])
            return
        elif isinstance(item, tuple) and len(item) >= 2:
            chunk = Chunk.of(*item)
        else:
            raise LocalError(
                f"the source {self.source.name!r} yields {type(item).__name__}: a Chunk, a tuple "
                "(payloads, ids) or a tuple (payload, id) is wanted"
            )
        self._pack()
        if len(chunk):
            self.chunks.append(chunk)

    def _pack(self) -> None:
        if self._singles:
            self.chunks.append(Chunk.of_singles(self._singles))
            self._singles = []
            self._held = 0

    @property
    def is_full(self) -> bool:
        return (
            len(self.chunks) >= limits.WALLAROO_CHUNKS_MAX
            or len(self._singles) >= limits.WALLAROO_GATHER_MESSAGES
            or self._held >= limits.WALLAROO_GATHER_BYTES
        )

    async def room(self) -> None:
        """Wait until more may be put."""
        while self.is_full:
            self._room.clear()
            await self._room.wait()

    def chunk(self) -> Chunk | None:
        """What is to be sent next, from row `at` on."""
        if not self.chunks:
            self._pack()
        return self.chunks[0] if self.chunks else None

    def sent(self, count: int) -> None:
        """So many messages of the chunk are sent."""
        self.at += count
        if self.at == len(self.chunks[0]):
            self.chunks.popleft()
            self.at = 0
        if not self.is_full:
            self._room.set()

    @property
    def has_more(self) -> bool:
        return bool(self.chunks or self._singles or self.ended)

    def acked(self, position: int) -> None:
        self.ref = position
        if self._acked is not None:
            self._acked(position)
