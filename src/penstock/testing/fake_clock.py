"""A clock that stands still until it is told to move."""

from __future__ import annotations


class FakeClock:
    """Call it for the time in microseconds since 1970, as `open_log(clock=...)` wants it."""

    def __init__(self, start: int = 1_700_000_000_000_000) -> None:
        self.now = start

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> int:
        """Move on; returns the new time."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} seconds")
        self.now += round(seconds * 1_000_000)
        return self.now
