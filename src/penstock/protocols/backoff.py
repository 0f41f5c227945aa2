"""How long a client waits before it connects again."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Pauses that double up to `most`, each shortened by chance up to a half.

    By chance, so that not all clients of a server that was gone come back at once.
    """

    def __init__(
        self,
        least: float,
        most: float,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._least = least
        self._most = most
        self._chance = chance
        self._next = least

    def reset(self) -> None:
        """Begin again with the shortest."""
        self._next = self._least

    def pause(self) -> float:
        """Seconds to wait now."""
        pause = self._next * (0.5 + 0.5 * self._chance())
        self._next = min(2 * self._next, self._most)
        return pause
