"""Finds where MESSAGE frames begin, each by the length of the one before: the per-frame work.

This module is compiled by mypyc where a C compiler is at hand. All else about messages is done a
column at a time, in `runs.py`.
"""

from __future__ import annotations

from mypy_extensions import i64


def message_starts(
    data: bytes, at: i64, end: i64, big: bool, tag: i64, least: i64, most: i64
) -> list[int]:
    """Where the frames of a run begin that starts at `at`, and where the run ends.

    It ends at a frame that is not whole before `end`, has another tag, or a length outside of
    `least` to `most`: what to make of that one is for the caller to say.
    """
    starts: list[int] = []
    while end - at >= 5:
        a: i64 = data[at]
        b: i64 = data[at + 1]
        c: i64 = data[at + 2]
        d: i64 = data[at + 3]
        length: i64
        if big:
            length = a << 24 | b << 16 | c << 8 | d
        else:
            length = d << 24 | c << 16 | b << 8 | a
        found: i64 = data[at + 4]
        if found != tag or length < least or length > most or length > end - at - 4:
            break
        starts.append(at)
        at += 4 + length
    starts.append(at)
    return starts
