"""Credits: how much a connector may send.

A NOTIFY, a MESSAGE and a shipped EOS take one each. They come back when the messages are on disk,
and those of ignored and repeated messages come back too: what the connector has, what is on its
way to the disk and what is about to be given back always add up to the window.
"""

from __future__ import annotations

from penstock import limits
from penstock.protocols.wallaroo.wire import Dialect, Messages

_AROUND_PAYLOAD = 27
"""Bytes of a MESSAGE besides its payload; shipped ones have four more."""


class Credits:
    """The credits of one session. The window is in bytes, and so follows the messages' size."""

    def __init__(self, most: int, window_bytes: int) -> None:
        self.left = 0
        """What the connector has, once all frames on their way have arrived."""
        self.taken = 0
        """Messages that are not on disk yet."""
        self.window = 0
        """How many there are altogether."""
        self.held = False
        """Whether nothing is given back, to see how a connector takes it."""
        self._most = most
        self._dialect = Dialect.SPEC
        self._window_bytes = window_bytes
        self._frame_bytes = 0.0
        self._measured = 0

    def begin(self, dialect: Dialect) -> int:
        """The first credits."""
        self._dialect = dialect
        self._set_window()
        self.left = self.window
        return self.left

    def owed(self) -> int:
        """What there is to give back."""
        return 0 if self.held else max(0, self.window - self.left - self.taken)

    def give(self) -> int:
        """Give it back."""
        given = self.owed()
        self.left += given
        return given

    @property
    def are_few(self) -> bool:
        """Whether the connector has used half of them."""
        return 2 * self.left <= self.window

    def overdrawn(self, count: int) -> bool:
        """Whether `count` frames are too many. Shipped connectors do not count all they send."""
        return self._dialect is not Dialect.SHIPPED and count > self.left

    def set_window(self, window_bytes: int) -> None:
        """Change how many bytes may be on their way."""
        self._window_bytes = window_bytes
        self._set_window()

    def measure(self, messages: Messages) -> None:
        """Learn how large messages are."""
        keys = 0 if messages.keys is None else len(messages.keys.data)
        size = _AROUND_PAYLOAD + (len(messages.payloads.data) + keys) / len(messages)
        self._measured += len(messages)
        known = self._frame_bytes
        self._frame_bytes = 0.75 * known + 0.25 * size if known else size
        self._set_window()

    def _set_window(self) -> None:
        """As many as the window holds; few messages do not show yet how large they are."""
        shipped = self._dialect is Dialect.SHIPPED
        first = limits.WALLAROO_SHIPPED_CREDITS if shipped else limits.WALLAROO_FIRST_CREDITS
        wished = first
        if self._frame_bytes:
            nbytes = self._window_bytes
            if shipped:
                nbytes = min(nbytes, limits.WALLAROO_SHIPPED_WINDOW_BYTES)
            wished = max(int(nbytes / self._frame_bytes), limits.WALLAROO_CREDITS_MIN)
            wished = min(wished, max(first, 2 * self._measured))
        self.window = max(1, min(wished, self._most))
