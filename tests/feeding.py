"""Every codec is fed the same three ways: whole, byte by byte, and with a tail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Decodes(Protocol):
    """Anything that bytes go into in pieces, and whatever became whole comes out."""

    def receive(self, data: bytes, /) -> list[Any]: ...


def feedings(whole: bytes, tail: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """The ways to feed `whole`, each with its name; `tail` is the beginning of one more."""
    yield "whole", [whole]
    yield "byte by byte", [whole[at : at + 1] for at in range(len(whole))]
    yield "with a tail", [whole + tail]
    half = len(whole) // 2
    yield "in two parts, with a tail", [whole[:half], whole[half:] + tail]


def fed(
    make: Callable[[], Decodes], whole: bytes, tail: bytes = b""
) -> Iterator[tuple[str, list[Any]]]:
    """What a new decoder gives for `whole`, fed in each way, with the way's name."""
    for name, parts in feedings(whole, tail):
        decoder = make()
        yield name, [each for part in parts for each in decoder.receive(part)]
