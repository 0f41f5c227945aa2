"""A stream's Parquet table, to which each batch of a query is added exactly once.

    DIR/<stream>/date=2026-01-31/*.parquet    the rows and nothing else: any Parquet reader will do
    DIR/_penstock/archive.json                whose archive it is
    DIR/_penstock/<stream>/checkpoint/        Spark's
    DIR/_penstock/<stream>/staging/           files of the batch that is being written
    DIR/_penstock/<stream>/state.json         the last batch that counts, and the files it adds
    DIR/_penstock/<stream>/compact/           what compaction works on
    DIR/_penstock/<stream>/schema.json        of values that are parsed

A batch is written to a staging directory of its own and synced. It counts from the moment the state
file is replaced, at once, by one that names the batch. Then its files are renamed into the table,
and the staging directory goes last. Whoever comes after a kill finishes what the state file names,
and drops all else in staging. A batch that Spark repeats is recognised by the state file. Spark's
own note of what the batch holds is synced before, so that it is the same batch when repeated.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.errors import BadSetting, PipelineError, TableForeign
from penstock.spark.files import Lock, make_directory, read_json, sync, write_json

INTERNAL: Final = "_penstock"
"""The directory beside the tables; a stream of this name cannot be archived."""

_VERSION: Final = 1


def no_step(_name: str) -> None:
    """Between two steps nothing happens, but in tests of what a kill there does."""


class Table:
    """One stream's table in the archive at `root`."""

    def __init__(self, root: Path, stream: str, step: Callable[[str], None] = no_step) -> None:
        self.root = root.absolute()
        self.stream = stream
        self.path = self.root / stream
        self.internal = internal(self.root, stream)
        self.checkpoint = self.internal / "checkpoint"
        self.compaction = self.internal / "compact"
        self._staging = self.internal / "staging"
        self._state_file = self.internal / "state.json"
        self._owner = Lock(self.internal / "lock", f"another process archives to {self.path}")
        self._step = step

    def open(self, hub: str) -> None:
        """Take the table for this process and finish what a killed one left; `hub` is its id."""
        claim(self.root, hub, "parquet")
        make_directory(self.internal)
        self._owner.take()
        try:
            if self._state() is None:
                self._refuse_strangers()
            self._redo()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let others have the table."""
        self._owner.give_back()

    def begin(self, query: str, batch: int) -> Path | None:
        """Where to write the batch's files, in directories `date=...`; none if it is there."""
        state = self._state()
        if state is not None and state["query"] != query:
            raise TableForeign(
                f"{self.path} holds batches 0 to {state['batch']} of query {state['query']}, "
                f"but this is query {query}, which begins anew: its rows would be there twice. "
                f"Give another directory, or move {self.path} and {self.internal} away"
            )
        self._redo()
        if state is not None and batch <= state["batch"]:
            return None
        make_directory(self._staging)
        # A name of its own: tasks of a killed driver may still write to the last one.
        return self._staging / f"{batch}-{uuid.uuid4().hex[:12]}"

    def commit(self, query: str, batch: int, staged: Path) -> int:
        """Add what was written to `staged`; returns how many files. On disk when it returns."""
        files = sorted(each.relative_to(staged) for each in staged.rglob("*.parquet"))
        sync_checkpoint(self.checkpoint, batch)
        for file in files:
            sync(staged / file)
        for directory in {staged / file.parent for file in files}:
            sync(directory)
        if staged.exists():
            sync(staged)
        sync(self._staging)
        self._step("staged")
        if files:
            moves = {
                str(file): f"{file.parent}/{batch:08d}-{number:04d}-{query[:8]}.parquet"
                for number, file in enumerate(files)
            }
            state = {
                "version": _VERSION, "query": query, "batch": batch, "staging": staged.name,
                "files": moves,
            }  # fmt: skip
            write_json(self._state_file, state)
            self._step("counted")
        self._redo()
        return len(files)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Nobody else adds files to the table or takes any away meanwhile."""
        busy = f"files are being moved in {self.path}"
        with Lock(self.internal / "moves.lock", busy):
            self._put_back()
            yield

    def _redo(self) -> None:
        """Finish the moves of the last batch that counts."""
        state = self._state()
        if state is not None:
            staged = self._staging / state["staging"]
            if staged.exists():
                self._move(staged, state["files"])
        self._drop_staging()

    def _move(self, staged: Path, moves: dict[str, str]) -> None:
        with self.moving():
            directories = {(self.path / target).parent for target in moves.values()}
            for directory in sorted(directories):
                make_directory(directory)
            for source, target in sorted(moves.items()):
                if (staged / source).exists():  # else an earlier try has moved it
                    os.rename(staged / source, self.path / target)
                    self._step("moved")
            for directory in directories:
                sync(directory)
            self._step("all moved")

    def _put_back(self) -> None:
        """Undo half a compaction, where directories could not be exchanged at once."""
        if not self.compaction.exists():
            return
        for old in self.compaction.glob("*.old"):
            place = self.path / old.name.removesuffix(".old")
            if not place.exists():
                os.rename(old, place)
                sync(self.path)
                sync(self.compaction)

    def _drop_staging(self) -> None:
        if self._staging.exists():
            # Tasks of a killed driver may still write here: what stays now is dropped next time.
            shutil.rmtree(self._staging, ignore_errors=True)
            self._step("dropped")

    def _state(self) -> dict[str, Any] | None:
        state = read_json(self._state_file)
        if state is not None and state.get("version") != _VERSION:
            raise PipelineError(
                f"{self._state_file} has version {state.get('version')!r}, this Penstock knows "
                f"{_VERSION}: use the one that wrote it, or a newer one"
            )
        return state

    def _refuse_strangers(self) -> None:
        if self.path.exists() and any(self.path.iterdir()):
            raise TableForeign(
                f"{self.path} has files in it that no archive wrote: give another directory, "
                "or move them away"
            )


def internal(root: Path, stream: str) -> Path:
    """Where the archive keeps what is not data of a stream."""
    if stream == INTERNAL:
        raise BadSetting(f"a stream named {INTERNAL} cannot be archived: the name is taken")
    return root / INTERNAL / stream


def sync_checkpoint(checkpoint: Path, batch: int) -> None:
    """Bring Spark's note of what a batch holds to disk, which Spark itself does not do."""
    offsets = checkpoint / "offsets"
    for path in (checkpoint / "metadata", offsets / str(batch), offsets, checkpoint):
        if path.exists():
            sync(path)


def claim(root: Path, hub: str, form: str) -> None:
    """Make `root` the archive of this hub in this format, or refuse if it is another's."""
    file = root / INTERNAL / "archive.json"
    found = read_json(file)
    if found is None:
        make_directory(file.parent)
        write_json(file, {"version": _VERSION, "hub": hub, "format": form})
    elif hub and found.get("hub") not in (hub, ""):  # a hub tells its id to those it trusts
        raise TableForeign(
            f"{root} is the archive of the hub with the id {found.get('hub')}, and this hub's id "
            f"is {hub}: give each hub a directory of its own"
        )
    elif found.get("format") != form:
        raise TableForeign(
            f"{root} is an archive in the format {found.get('format')}, not {form}: say "
            f"--format {found.get('format')}, or give another directory"
        )


class Archived(NamedTuple):
    """What an archive holds."""

    root: str
    form: str
    streams: list[str]

    def path(self, stream: str) -> str:
        """Where a stream's table is."""
        return f"{self.root.rstrip('/')}/{stream}"


def archived(to: str, streams: Sequence[str] | None = None) -> Archived:
    """The archive at `to`, with all its streams or those that are named."""
    root = local_path(to)
    if root is None:
        if not streams:
            raise BadSetting(f"what is in {to} cannot be listed: name the streams with --streams")
        return Archived(to, "delta", list(streams))
    about = read_json(root / INTERNAL / "archive.json")
    if about is None:
        raise TableForeign(f"{root} is no archive: `penstock pipeline archive --to` makes one")
    found = sorted(each.name for each in (root / INTERNAL).iterdir() if each.is_dir())
    unknown = [each for each in streams or () if each not in found]
    if unknown:
        raise TableForeign(
            f"there is no archive of {', '.join(unknown)} in {root}, but of {', '.join(found)}"
        )
    return Archived(str(root), about["format"], list(streams or found))


def local_path(to: str) -> Path | None:
    """A directory's path, unless it names another file system."""
    if to.startswith("file:"):
        return Path("/" + to.removeprefix("file:").lstrip("/"))
    return None if "://" in to else Path(to).absolute()
