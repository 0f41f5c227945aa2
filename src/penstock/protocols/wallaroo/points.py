"""What a worker remembers of each stream of a connector: its name, and where it goes on.

A stream's point of reference is the id of its last stable message that was acked, and the
connector goes on after it. Most of the time the log knows it: ids travel in the journal with the
records. What is no record needs a note beside the log.

    stored      the point is the last id the log has
    noted       the point is `ref` as long as the log's last id is `over`: a boundary, or a rewind
    processed   the point is `ref`: acked when a group had passed it, while the log has more
"""

from __future__ import annotations

import zlib
from typing import Final, Literal

import msgspec

from penstock.protocols.names import escape, unescape

Kind = Literal["stored", "noted", "processed"]
_SEPARATOR: Final = "/"


class Entry(msgspec.Struct, frozen=True):
    """One stream of one connector. `name` is escaped, as it may have any bytes."""

    name: str
    stream: str
    """Its name in the log."""
    partition: int = 0
    kind: Kind = "stored"
    ref: int | None = None
    over: int | None = None
    """The log's last id when the note was made; None if it had none."""
    rewound: bool = False
    """Whether somebody moved the point back: what is sent again is then stored again."""

    @property
    def owner_name(self) -> bytes:
        """The name as its owner wrote it."""
        return unescape(self.name)

    def is_rewound(self, last_id: int | None) -> bool:
        """Whether nothing came since somebody moved the point back."""
        return self.rewound and self.over == last_id

    def brought_up(self, last_id: int | None, *, processed: bool) -> Entry:
        """The entry as it is kept in the way that is in use: the other may have been before."""
        ref = self.point(last_id, processed=processed)
        rewound = self.is_rewound(last_id)
        if processed:
            return msgspec.structs.replace(self, kind="processed", ref=ref, rewound=rewound)
        if rewound or (self.kind == "noted" and self.over == last_id):
            return msgspec.structs.replace(self, kind="noted", ref=ref, rewound=rewound)
        return msgspec.structs.replace(self, kind="stored", ref=None, over=None, rewound=False)

    def point(self, last_id: int | None, *, processed: bool) -> int | None:
        """The point of reference, given the log's last id; None: from the beginning."""
        if self.kind == "noted":
            return self.ref if self.over == last_id else last_id
        if self.kind == "processed" and (processed or self.is_rewound(last_id)):
            return self.ref
        return last_id


def partition_of(producer: str, stream: int, count: int) -> int:
    """Which of a stream's partitions a connector's stream goes to: always the same."""
    return zlib.crc32(note_name(producer, stream).encode()) % count


def producer(program: str, instance: str) -> str:
    """A connector's name as a producer of the log's."""
    parts = ("wallaroo", escape(program.encode()), escape(instance.encode()))
    return _SEPARATOR.join(parts)


def note_name(producer: str, stream: int) -> str:
    """The name of the note for a stream."""
    return f"{producer}{_SEPARATOR}{stream}"


def split_note_name(name: str) -> tuple[str, int] | None:
    """Producer and stream of a note's name; None if it is not one of these."""
    owner, _, stream = name.rpartition(_SEPARATOR)
    if owner.count(_SEPARATOR) != 2 or not stream.isdigit():
        return None
    return owner, int(stream)


def names_of(producer: str) -> tuple[str, str]:
    """Program and instance of a producer, as they were given."""
    _, program, instance = producer.split(_SEPARATOR)
    return unescape(program).decode(errors="replace"), unescape(instance).decode(errors="replace")


def encode_entry(entry: Entry) -> bytes:
    """An entry as a note."""
    return msgspec.json.encode(entry)


def decode_entry(note: bytes) -> Entry | None:
    """A note as an entry; None if it is none."""
    try:
        return msgspec.json.decode(note, type=Entry)
    except msgspec.MsgspecError:
        return None
