"""What a door's tests have to bring: how it is opened, and a client that speaks its protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

STREAM = "orders"
"""The stream as the client names it; `DoorAdapter.stored_as` is its name in the log."""


class Refused(Exception):
    """The hub said no, and why."""


class Client(ABC):
    """One peer. Messages are numbered from 1; each is written under its number.

    `write` returns when the hub has confirmed all of it, and raises `ConnectionError` when the
    connection breaks before that, or `Refused`.
    """

    @abstractmethod
    def resume(self, stream: str) -> int:
        """Be ready to write to a stream; returns the number of the last message confirmed."""

    @abstractmethod
    def write(self, stream: str, first: int, values: Sequence[bytes]) -> None:
        """Write messages numbered from `first` on."""

    @abstractmethod
    def begin(self, stream: str, first: int, values: Sequence[bytes]) -> None:
        """Send messages, wait for nothing."""

    @abstractmethod
    def send_half(self, stream: str, number: int, value: bytes) -> None:
        """Send the first half of a message."""

    @abstractmethod
    def flood(self, stream: str, first: int, values: Sequence[bytes]) -> None:
        """Write for as long as the hub takes it, and read no answer, until the connection ends."""

    @abstractmethod
    def close(self) -> None:
        """Go, without a word."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DoorAdapter(ABC):
    """A door and how to use it."""

    name: ClassVar[str]
    exactly_once: ClassVar[bool] = True
    """Whether a message that is written again is stored once."""

    @abstractmethod
    def settings(self, port: int) -> Mapping[str, str]:
        """What opens the door at a port, as for `--set`, with credentials asked for."""

    @abstractmethod
    def connect(self, port: int) -> Client:
        """A client with the right credentials."""

    @abstractmethod
    def intrude(self, port: int) -> None:
        """Connect with wrong credentials and try to write; raises `Refused`."""

    @abstractmethod
    def stored_as(self, stream: str) -> str:
        """The stream's name in the log."""

    def replay(self, hub_url: str, client: Client, stream: str, after: int) -> Client | None:
        """Ask for what came after a message once more; returns who has to write it now.

        None, if the protocol has no such thing.
        """
        return None
