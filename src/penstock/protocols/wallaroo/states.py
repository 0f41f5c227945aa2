"""The states of a session and of its streams, and what each frame does in each of them.

CONNECTED --HELLO--> HANDSHAKE --welcome--> STREAMING
any --ERROR, or a broken rule--> FAILED --> ENDED

INTRO --NOTIFY--> OPENING --introduced--> OPEN --EOS--> CLOSED --NOTIFY--> OPENING
OPEN, CLOSED, RESET --nack--> RESET --as many NOTIFYs as NACKs--> OPENING
"""

from __future__ import annotations

import enum
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.protocols.wallaroo.wire import (
    Ack,
    Dialect,
    EndOfStream,
    Error,
    Greeting,
    Messages,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    WireError,
)


class State(enum.Enum):
    """Of a session."""

    CONNECTED = "connected"
    HANDSHAKE = "handshake"
    STREAMING = "streaming"
    FAILED = "failed"
    ENDED = "ended"


class StreamState(enum.IntEnum):
    """Of a stream within a session."""

    INTRO = 0
    OPENING = 1
    OPEN = 2
    CLOSED = 3
    RESET = 4


_CONNECTOR_FRAMES: Final = (Greeting, Notify, Messages, EndOfStream)
OWN_FRAMES: Final = {
    Ok: "ok",
    NotifyAck: "notify_ack",
    Ack: "ack",
    Nack: "nack",
    Restart: "restart",
}
_ANY_STATE: Final = {Error: "_peer_failed", WireError: "_undecodable"} | dict.fromkeys(
    OWN_FRAMES, "_not_theirs"
)
_DISCARD: Final = dict.fromkeys((*_CONNECTOR_FRAMES, *_ANY_STATE), "_discard")

SESSION: Final[dict[State, dict[type, str]]] = {
    State.CONNECTED: {
        **_ANY_STATE,
        Greeting: "_hello",
        Notify: "_out_of_state",
        Messages: "_out_of_state",
        EndOfStream: "_out_of_state",
    },
    State.HANDSHAKE: {**_ANY_STATE, **dict.fromkeys(_CONNECTOR_FRAMES, "_out_of_state")},
    State.STREAMING: {
        **_ANY_STATE,
        Greeting: "_out_of_state",
        Notify: "_notify",
        Messages: "_messages",
        EndOfStream: "_end_of_stream",
    },
    State.FAILED: _DISCARD,
    State.ENDED: _DISCARD,
}
"""What a session does with each frame, by the name of a method."""

Event: TypeAlias = Literal["notify", "message", "eos", "nack"]
Rule: TypeAlias = Literal[
    "introduce", "refuse", "count", "store", "close", "ignore", "fail", "reset"
]

_STREAMS: Final[dict[StreamState, dict[Event, Rule]]] = {
    StreamState.INTRO: {"notify": "introduce", "message": "fail", "eos": "fail", "nack": "fail"},
    StreamState.OPENING: {"notify": "introduce", "message": "fail", "eos": "fail", "nack": "fail"},
    StreamState.OPEN: {
        "notify": "introduce", "message": "store", "eos": "close", "nack": "reset",
    },
    StreamState.CLOSED: {"notify": "introduce", "message": "fail", "eos": "fail", "nack": "reset"},
    StreamState.RESET: {
        "notify": "count", "message": "ignore", "eos": "ignore", "nack": "reset",
    },
}  # fmt: skip
STREAMS: Final[dict[Dialect, dict[StreamState, dict[Event, Rule]]]] = {
    Dialect.SPEC: _STREAMS,
    Dialect.LITERAL: _STREAMS,
    Dialect.SHIPPED: {
        **_STREAMS,
        StreamState.OPENING: {**_STREAMS[StreamState.OPENING], "notify": "refuse"},
        StreamState.OPEN: {**_STREAMS[StreamState.OPEN], "notify": "refuse", "nack": "fail"},
        StreamState.CLOSED: {**_STREAMS[StreamState.CLOSED], "nack": "fail"},
        StreamState.RESET: dict.fromkeys(("notify", "message", "eos", "nack"), "fail"),
    },
}
"""What a stream does: with a NOTIFY, with a message (`eos`: its last), and when a NACK is sent.

The shipped dialect refuses to introduce a stream twice, and has no NACK, so no RESET either.
"""


FAIL, STORE, IGNORE = range(3)


def _message_rules(dialect: Dialect) -> NDArray[np.uint8]:
    rules: tuple[Rule, ...] = ("fail", "store", "ignore")
    table = STREAMS[dialect]
    return np.array([rules.index(table[state]["message"]) for state in StreamState], np.uint8)


MESSAGE_RULES: Final = {dialect: _message_rules(dialect) for dialect in Dialect}
"""The rule for a message by the number of its stream's state, for whole columns at once."""
