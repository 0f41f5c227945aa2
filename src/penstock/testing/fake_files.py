"""What a fake disk holds, what of it is synced, and what of that survives a crash."""

from __future__ import annotations

import hashlib
import random
from typing import Any, Final, Literal, NamedTuple

SECTOR: Final = 512
"""A disk writes a sector whole or not at all, and sectors in any order."""

Fate = Literal["kept", "lost", "mixed"]


class Loss(NamedTuple):
    """What becomes of the things that were not synced when the power went."""

    writes: Fate = "kept"
    names: Fate = "kept"
    seed: int = 0
    """Decides in `mixed`: which writes, sectors and names are kept."""
    torn_at: int | None = None
    """The very last write keeps only so many of its first bytes."""
    power: bool = True
    """False: only the process died. Nothing is lost, and nothing more is synced than before."""

    @classmethod
    def killed(cls) -> Loss:
        """`kill -9`: the process is gone, the machine runs on."""
        return cls(power=False)

    @classmethod
    def nothing(cls) -> Loss:
        """A power cut right after all had reached the disk by itself."""
        return cls()

    @classmethod
    def unsynced(cls, names: Fate = "lost") -> Loss:
        """A power cut that takes all that was not synced."""
        return cls("lost", names)

    @classmethod
    def mixed(cls, seed: int) -> Loss:
        """A power cut that takes this and that: the disk writes in an order of its own."""
        return cls("mixed", "mixed", seed)

    @classmethod
    def torn(cls, at: int, names: Fate = "kept") -> Loss:
        """A power cut in the middle of the last write."""
        return cls("kept", names, torn_at=at)


class Write(NamedTuple):
    """Bytes written at an offset."""

    offset: int
    data: bytes


class Truncate(NamedTuple):
    """A file cut, or filled up with zeros, to a size."""

    size: int


Change = Write | Truncate


class Node:
    """A file's content: as a process reads it, as it is on disk, and the changes in between."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.synced = bytearray(content)
        self.pending: list[Change] = []
        self.forgotten: list[Change] = []
        """Changes whose sync failed: a later sync does not write them, as on a real kernel."""

    def change(self, change: Change) -> None:
        apply(self.content, change)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            apply(self.synced, change)
        self.pending.clear()

    def forget(self) -> None:
        self.forgotten.extend(self.pending)
        self.pending.clear()

    def unsynced(self) -> list[Change]:
        return [*self.forgotten, *self.pending]

    def copy(self) -> Node:
        node = Node()
        node.content = bytearray(self.content)
        node.synced = bytearray(self.synced)
        node.pending = list(self.pending)
        node.forgotten = list(self.forgotten)
        return node


class Naming(NamedTuple):
    """A change of names in a directory: `old` goes, `new` becomes the node. Either may be None."""

    old: str | None
    new: str | None
    node: Node | Directory


class Directory:
    """Names: as a process sees them, as they are on disk, and the changes in between."""

    def __init__(self) -> None:
        self.entries: dict[str, Node | Directory] = {}
        self.synced: dict[str, Node | Directory] = {}
        self.pending: list[Naming] = []

    def change(self, naming: Naming) -> None:
        rename_in(self.entries, naming)
        self.pending.append(naming)

    def sync(self) -> None:
        for naming in self.pending:
            rename_in(self.synced, naming)
        self.pending.clear()


class PowerCut:
    """Makes the tree of files that is found after the power comes back."""

    def __init__(self, loss: Loss, last: tuple[Node, Write] | None) -> None:
        self._loss = loss
        self._last = None if last is None else last[1]
        self._random = random.Random(loss.seed)
        self._made: dict[int, Node | Directory] = {}

    def directory(self, source: Directory) -> Directory:
        entries = dict(source.synced)
        for naming in source.pending:
            if self._survives(self._loss.names):
                rename_in(entries, naming)
        made = Directory()
        for name, node in entries.items():
            made.entries[name] = made.synced[name] = self._copy(node)
        return made

    def _copy(self, source: Node | Directory) -> Node | Directory:
        made = self._made.get(id(source))
        if made is None:
            if isinstance(source, Directory):
                made = self.directory(source)
            else:
                made = self._file(source)
            self._made[id(source)] = made
        return made

    def _file(self, source: Node) -> Node:
        content = bytearray(source.synced)
        for change in source.unsynced():
            if change is self._last and self._loss.torn_at is not None:
                apply(content, Write(change.offset, change.data[: self._loss.torn_at]))
            elif isinstance(change, Truncate):
                if self._survives(self._loss.writes):
                    apply(content, change)
            elif self._loss.writes == "mixed" and self._random.random() < 0.5:
                for part in sectors(change):
                    if self._survives("mixed"):
                        apply(content, part)
            elif self._survives(self._loss.writes):
                apply(content, change)
        return Node(bytes(content))

    def _survives(self, fate: Fate) -> bool:
        if fate == "mixed":
            return self._random.random() < 0.5
        return fate == "kept"


def copied(source: Directory) -> tuple[Directory, dict[int, Node]]:
    """The whole tree with all that is not synced, and the new node for each old one."""
    nodes: dict[int, Node] = {}
    directories: dict[int, Directory] = {}

    def copy(old: Any) -> Any:
        if isinstance(old, Node):
            if id(old) not in nodes:
                nodes[id(old)] = old.copy()
            return nodes[id(old)]
        if id(old) not in directories:
            new = directories[id(old)] = Directory()
            new.entries = {name: copy(node) for name, node in old.entries.items()}
            new.synced = {name: copy(node) for name, node in old.synced.items()}
            new.pending = [each._replace(node=copy(each.node)) for each in old.pending]
        return directories[id(old)]

    return copy(source), nodes


def apply(content: bytearray, change: Change) -> None:
    """Make a change of a file's content."""
    if isinstance(change, Truncate):
        del content[change.size :]
        content.extend(bytes(change.size - len(content)))
    elif change.data:
        if len(content) < change.offset:
            content.extend(bytes(change.offset - len(content)))
        content[change.offset : change.offset + len(change.data)] = change.data


def rename_in(entries: dict[str, Node | Directory], naming: Naming) -> None:
    """Make a change of names."""
    if naming.old is not None and entries.get(naming.old) is naming.node:
        del entries[naming.old]
    if naming.new is not None:
        entries[naming.new] = naming.node


def sectors(write: Write) -> list[Write]:
    """The write cut where the disk's sectors end."""
    parts = []
    at = write.offset
    end = write.offset + len(write.data)
    while at < end:
        stop = min(end, (at // SECTOR + 1) * SECTOR)
        parts.append(Write(at, write.data[at - write.offset : stop - write.offset]))
        at = stop
    return parts


def flipped(change: Change, at: int, mask: int) -> Change:
    """The change with one bit of the file flipped, if that bit is in it."""
    if isinstance(change, Truncate) or not 0 <= at - change.offset < len(change.data):
        return change
    data = bytearray(change.data)
    data[at - change.offset] ^= mask
    return Write(change.offset, bytes(data))


def total(directory: Directory) -> int:
    """Bytes of all files below a directory."""
    return sum(
        total(node) if isinstance(node, Directory) else len(node.content)
        for node in directory.entries.values()
    )


def digest(found: hashlib._Hash, path: str, node: Node | Directory) -> None:
    """Take all files below `node` into a hash."""
    if isinstance(node, Node):
        found.update(f"{path} {len(node.content)} ".encode() + node.content)
    else:
        found.update(f"{path}/ ".encode())
        for name in sorted(node.entries):
            digest(found, f"{path}/{name}", node.entries[name])
