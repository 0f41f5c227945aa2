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
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from penstock.protocols.names import escape, unescape
from penstock.protocols.wallaroo.streams import Mark

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


class Book:
    """What is remembered of all connectors' streams, as it is on disk."""

    def __init__(self) -> None:
        self.count = 0
        self.marks: dict[tuple[str, int], tuple[Mark, ...]] = {}
        """Of connectors that are gone: what was stored and waits for a group."""
        self._entries: dict[str, dict[int, Entry]] = {}
        self._ids: dict[tuple[str, str], int] = {}

    def load(self, notes: Mapping[str, bytes]) -> list[str]:
        """Begin with what was noted; returns the names of notes that are none."""
        unreadable = []
        for name, note in notes.items():
            entry = decode_entry(note)
            if entry is None or split_note_name(name) is None:
                unreadable.append(name)
            else:
                self.put(name, entry)
        return unreadable

    def of(self, producer: str) -> dict[int, Entry]:
        """A connector's streams, by id."""
        return self._entries.get(producer, {})

    def all(self) -> list[tuple[str, int, Entry]]:
        """Producer, stream id and entry of all."""
        return [
            (producer, stream, entry)
            for producer, entries in sorted(self._entries.items())
            for stream, entry in sorted(entries.items())
        ]

    def id_of(self, producer: str, stream: str) -> int | None:
        """Under which id a connector had a stream of the log's."""
        return self._ids.get((producer, stream))

    def put(self, name: str, entry: Entry) -> None:
        self.drop(name)
        found = split_note_name(name)
        assert found is not None
        producer, stream = found
        self._entries.setdefault(producer, {})[stream] = entry
        self._ids[producer, entry.stream] = stream
        self.count += 1

    def drop(self, name: str) -> None:
        found = split_note_name(name)
        if found is None:
            return
        producer, stream = found
        entry = self._entries.get(producer, {}).pop(stream, None)
        if entry is not None:
            self.count -= 1
            if self._ids.get((producer, entry.stream)) == stream:
                del self._ids[producer, entry.stream]
