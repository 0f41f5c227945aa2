"""Sources that are there already: files in three formats, followed or not, and made-up messages."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from penstock.clients import Chunk, FileSource, GenerateSource, Single
from penstock.errors import BadBatch, BadFormat, BadSetting, RecordTooLarge
from penstock.protocols.wallaroo.messages import Column


def rows(chunks: list[Chunk]) -> list[tuple[int, bytes]]:
    found = []
    for chunk in chunks:
        payloads = chunk.payloads.array().to_pylist()
        found += list(zip(chunk.ids.tolist(), payloads, strict=True))
    return found


def read(source: Any, position: int | None = None, count: int | None = None) -> list[Any]:
    """Messages as pairs of id and payload; all, or so many."""

    async def reading() -> list[Chunk]:
        await source.reset(position)
        chunks = []
        async for chunk in source:
            chunks.append(chunk)
            if count is not None and sum(map(len, chunks)) >= count:
                break
        return chunks

    return rows(asyncio.run(reading()))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.log"


# -- chunks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payloads",
    [
        [b"a", b"", b"ccc"],
        Column.of([b"a", b"", b"ccc"]),
        Column(np.array([2, 3, 3, 6], np.int32), b"__accc__"),
        pa.array([b"a", None, b"ccc"]),
        pa.array(["x", "a", "", "ccc"])[1:],
        pa.array([b"a", b"", b"ccc"], pa.large_binary()),
        pa.chunked_array([[b"a"], [b"", b"ccc"]]),
    ],
)
@pytest.mark.parametrize("ids", [[1, 5, 9], range(1, 10, 4), np.array([1, 5, 9])])
def test_a_chunk_is_made_of_what_is_at_hand(payloads, ids):
    chunk = Chunk.of(payloads, ids)
    assert rows([chunk]) == [(1, b"a"), (5, b""), (9, b"ccc")]
    some = chunk.messages(7, 1, 3)
    assert [(each.stream, each.id, each.payload) for each in some.rows()] == [
        (7, 5, b""),
        (7, 9, b"ccc"),
    ]


def test_a_chunk_of_messages_that_came_one_by_one():
    singles = [Single(b"a", 1), (b"b", 2, b"key"), (b"c", 3, None, 5, 8)]
    found = Chunk.of_singles(singles).messages(7, 0, 3).rows()
    assert [(each.key or None, each.time, each.flags) for each in found] == [
        (None, None, 0), (b"key", None, 0), (None, 5, 8),
    ]  # fmt: skip


def test_ids_use_all_64_bits():
    assert Chunk.of([b"x"], [2**64 - 1]).ids.tolist() == [2**64 - 1]
    assert Chunk.of([b"x"] * 2, range(2**64 - 2, 2**64)).ids.tolist() == [2**64 - 2, 2**64 - 1]
    assert Chunk.of([b"x"] * 2, range(2, 0, -1)).ids.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("payloads", "ids", "more"),
    [
        ([b"x"], [1, 2], {}),
        ([b"x"], [-1], {}),
        ([b"x"], np.array([-1]), {}),
        ([b"x"], range(-1, 0), {}),
        ([b"x"], [2**64], {}),
        (["text"], [1], {}),
        (pa.array([1]), [1], {}),
        ([b"x"], [1], {"keys": [b"a", b"b"]}),
        ([b"x"], [1], {"times": [1, 2]}),
        ([b"x"], [1], {"flags": [1, 2]}),
        ([b"x"], [1], {"times": [2**63]}),
    ],
)
def test_a_chunk_that_does_not_fit_together_is_refused(payloads, ids, more):
    with pytest.raises(BadBatch):
        Chunk.of(payloads, ids, **more)


# -- lines -------------------------------------------------------------------------------------


def test_ids_are_the_bytes_up_to_the_end_of_a_line(path):
    path.write_bytes(b"one\n\ntwo two\nlast")
    source = FileSource(path)
    assert source.name == "orders"
    assert read(source) == [(4, b"one"), (5, b""), (13, b"two two"), (17, b"last")]
    for position in (0, 4, 5, 13, 17):
        assert read(source, position) == [each for each in read(source) if each[0] > position]


def test_records_longer_than_a_read_are_put_together(path, monkeypatch):
    monkeypatch.setattr("penstock.limits.SOURCE_READ_BYTES", 7)
    lines = [b"x" * size for size in (0, 1, 6, 7, 8, 30, 2)]
    path.write_bytes(b"\n".join(lines))
    assert [payload for _, payload in read(FileSource(path))] == lines
    assert read(FileSource(path), 3)[0][1] == lines[2]


def test_an_empty_file_has_no_messages(path):
    path.touch()
    assert read(FileSource(path)) == []


def test_a_file_that_is_not_there_is_an_error(path):
    with pytest.raises(BadSetting, match="cannot be read"):
        read(FileSource(path))


def test_a_line_without_end_is_refused(path, monkeypatch):
    monkeypatch.setattr("penstock.limits.WALLAROO_FRAME_BYTES_MAX", 1000)
    path.write_bytes(b"x" * 2000)
    with pytest.raises(RecordTooLarge, match="at byte 0"):
        read(FileSource(path))


def test_a_file_that_became_shorter_is_sent_from_its_beginning(path):
    path.write_bytes(b"new\n")
    told: list[str] = []
    ((number, payload),) = read(FileSource(path, notice=told.append), 1000)
    assert payload == b"new"
    assert number == (1 << 48) + 4 > 1000
    assert "was replaced" in told[0]
    assert read(FileSource(path), number) == []


# -- formats -----------------------------------------------------------------------------------


def test_json_lines_are_sent_as_they_are(path):
    path.write_bytes(b'{"a": 1}\n\n [2]\r\n"x"')
    assert read(FileSource(path, form="jsonl")) == [(9, b'{"a": 1}'), (16, b"[2]"), (19, b'"x"')]
    path.write_bytes(b'{"a": 1}\n{"b"\n')
    with pytest.raises(BadFormat, match="no JSON at byte 9"):
        read(FileSource(path, form="jsonl"))


def test_rows_of_csv_become_json_with_the_names_of_the_first(path):
    text = 'id,text\r\n1,plain\r\n2,"two\nlines, ""quoted"""\r\n\r\n3,last'
    path.write_text(text, newline="")
    found = read(FileSource(path, form="csv"))
    assert [msgspec.json.decode(payload) for _, payload in found] == [
        {"id": "1", "text": "plain"},
        {"id": "2", "text": 'two\nlines, "quoted"'},
        {"id": "3", "text": "last"},
    ]
    assert [number for number, _ in found] == [18, 45, len(text)]
    for number, _ in found:
        assert read(FileSource(path, form="csv"), number) == [e for e in found if e[0] > number]


def test_csv_with_only_names_has_no_messages(path):
    for text in ("", "id,text", "id,text\n"):
        path.write_text(text)
        assert read(FileSource(path, form="csv")) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,b\n1\n", "row of 1 values"),
        ('a\n"open\n', "ends within quotes"),
        ('a\n"x"y\n', "no CSV"),
    ],
)
def test_what_is_no_csv_is_refused(path, text, why):
    path.write_text(text)
    with pytest.raises(BadFormat, match=why):
        read(FileSource(path, form="csv"))


# -- following ---------------------------------------------------------------------------------


class Following:
    """A source that is read in a task."""

    def __init__(self, path: Path, form: Any = "lines") -> None:
        self.told: list[str] = []
        self.source = FileSource(
            path, form=form, follow=True, poll_seconds=0.01, notice=self.told.append
        )
        self.found: list[tuple[int, bytes]] = []

    async def __aenter__(self) -> Following:
        await self.source.reset(None)
        self.task = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        async for chunk in self.source:
            self.found += rows([chunk])

    async def has(self, *payloads: bytes) -> None:
        for _ in range(500):
            if [payload for _, payload in self.found] == list(payloads):
                return
            assert not self.task.done()
            await asyncio.sleep(0.01)
        raise AssertionError(self.found)

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.source.close()


def test_following_waits_for_the_end_of_a_line(path):
    async def play() -> None:
        path.write_bytes(b"one\ntw")
        async with Following(path) as following:
            await following.has(b"one")
            await asyncio.sleep(0.05)
            with path.open("ab") as file:
                file.write(b"o\nthree\n")
            await following.has(b"one", b"two", b"three")
            assert [number for number, _ in following.found] == [4, 8, 14]

    asyncio.run(play())


def test_following_goes_on_with_the_file_that_takes_the_place(path):
    async def play() -> None:
        path.write_bytes(b"one\n")
        async with Following(path) as following:
            await following.has(b"one")
            with path.open("ab") as old:
                path.rename(path.with_suffix(".1"))
                old.write(b"late\nunfinished")
            await asyncio.sleep(0.05)
            path.write_bytes(b"new\n")
            await following.has(b"one", b"late", b"unfinished", b"new")
            ids = [number for number, _ in following.found]
            assert ids == sorted(ids)
            assert ids[-1] == (1 << 48) + 4
            # Until all of it is acked, the earlier file can still be sent again.
            following.task.cancel()
            again = following.source
            assert [each async for each in _some(again, 4, 3)] == following.found[1:]
            again.acked(ids[-1])
            assert [each async for each in _some(again, ids[2], 1)] == following.found[3:]

    asyncio.run(play())


async def _some(source: FileSource, position: int, count: int):
    await source.reset(position)
    async for chunk in source:
        for row in rows([chunk]):
            yield row
            count -= 1
        if not count:
            return


def test_following_begins_again_when_the_file_is_cut(path):
    async def play() -> None:
        path.write_bytes(b"one\ntwo\n")
        async with Following(path) as following:
            await following.has(b"one", b"two")
            os.truncate(path, 0)
            await asyncio.sleep(0.1)
            with path.open("ab") as file:
                file.write(b"new\n")
            await following.has(b"one", b"two", b"new")
            assert following.found[-1][0] == (1 << 48) + 4
            assert "was cut" in following.told[0]

    asyncio.run(play())


def test_following_csv_reads_the_names_when_they_come(path):
    async def play() -> None:
        path.touch()
        async with Following(path, "csv") as following:
            await asyncio.sleep(0.03)
            with path.open("ab") as file:
                file.write(b"a,b\n1,2\n")
            await following.has(b'{"a":"1","b":"2"}')

    asyncio.run(play())


# -- made-up messages --------------------------------------------------------------------------


def test_generated_messages_go_on_where_they_were():
    source = GenerateSource(count=3, size=4)
    assert read(source, 10) == [(11, b"0011"), (12, b"0012"), (13, b"0013")]
    assert read(source, 12) == [(13, b"0013")]
    assert read(source, 13) == []
    assert read(GenerateSource(count=1, size=1), 10) == [(11, b"1")]


def test_generated_messages_keep_to_their_rate():
    began = time.perf_counter()
    assert len(read(GenerateSource(count=60, rate=200))) == 60
    assert 0.25 < time.perf_counter() - began < 3
