"""A corpus as people have it becomes passages; what is wrong with it is in one report, line by line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from retinue.errors import UsageError
from retinue.retrieval.corpus import FINDINGS_MAX, LINE_BYTES_MAX, hash_corpus, read_corpus
from retinue.retrieval.passages import Damaged, Passages, read_all, write_passages
from retinue.retrieval.records import PASSAGES, PLACES, Passage


def nothing(_what: str, _done: int, _total: int) -> None:
    pass


def read(path: Path) -> list[Passage]:
    return list(read_corpus(path, nothing, "reading"))


def write(path: Path, *rows: Any) -> Path:
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


@pytest.mark.parametrize(
    ("row", "passage"),
    [
        ({"id": "7", "contents": '"T"\ntext'}, Passage("7", '"T"\ntext')),
        ({"id": 7, "contents": "text"}, Passage("7", "text")),
        ({"contents": "text"}, Passage("1", "text")),
        ({"id": "a", "text": "text"}, Passage("a", "text")),
        ({"id": "a", "title": "T", "text": "text"}, Passage("a", '"T"\ntext')),
        ({"id": "a", "title": "T", "contents": "whole"}, Passage("a", "whole")),
        ({"id": "a", "contents": "text", "url": "x", "more": [1]}, Passage("a", "text")),
        (b'{"id": "\\ud800", "contents": "a\\u0000b"}', Passage("�", "a\0b")),
    ],
)
def test_the_shapes_that_corpora_have_are_read(tmp_path: Path, row: Any, passage: Passage) -> None:
    assert read(write(tmp_path / "c.jsonl", row)) == [passage]


def test_blank_lines_and_compression_change_nothing(tmp_path: Path) -> None:
    plain = write(tmp_path / "c.jsonl", {"contents": "one"}, b"", b"  ", {"contents": "two"})
    packed = tmp_path / "c.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(plain) == read(packed) == [Passage("1", "one"), Passage("4", "two")]


def test_everything_that_is_wrong_is_in_one_report_with_its_line(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.jsonl", {"contents": "ok"}, {"id": "x"}, b"{", {"contents": " "}, {"id": [], "text": "a"}
    )
    with pytest.raises(UsageError) as caught:
        read(path)
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines[1:]] == [f"{path}:{number}" for number in (2, 3, 4, 5)]
    assert "neither `contents` nor `text`" in lines[1]
    assert "`id`" in lines[4] or "$.id" in lines[4]


def test_a_report_of_thousands_of_lines_says_how_many_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="and 80 more") as caught:
        read(write(tmp_path / "c.jsonl", *[{"id": "x"}] * (FINDINGS_MAX + 80)))
    assert len(str(caught.value).splitlines()) == FINDINGS_MAX + 2


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("c.jsonl", b"", "no passage"),
        ("c.jsonl", b"x" * (LINE_BYTES_MAX + 1), ":1: longer than"),
        ("c.jsonl.gz", b"not gzip", ":1: Not a gzipped file"),
        ("c.jsonl.gz", gzip.compress(b'{"contents": "a"}\n' * 1000, mtime=0)[:-20], "c.jsonl.gz:"),
    ],
)
def test_a_file_that_is_no_corpus_is_refused(tmp_path: Path, name: str, content: bytes, word: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=word):
        read(tmp_path / name)


def test_a_corpus_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.jsonl.*No such file"):
        hash_corpus(tmp_path / "nowhere.jsonl", nothing)


def test_an_id_that_is_there_twice_is_named_with_both_places(tmp_path: Path) -> None:
    rows = [Passage(str(number % 90), "text") for number in range(100)]
    with pytest.raises(UsageError, match="passages 1 and 91 have the same id, '0'"):
        write_passages(tmp_path, rows)


def test_passages_are_read_back_by_place(tmp_path: Path) -> None:
    rows = [Passage(f"p{number}", f"text \n {number} 北 \0") for number in range(50)]
    assert write_passages(tmp_path, rows) == 50
    assert list(read_all(tmp_path)) == rows
    passages = Passages(tmp_path)
    assert [passages.read(place) for place in (0, 49, 7)] == [rows[0], rows[49], rows[7]]
    for place in (50, 10**6):
        with pytest.raises(Damaged):
            passages.read(place)
    passages.close()


@pytest.mark.parametrize(("name", "content"), [(PASSAGES, b'{"id":'), (PASSAGES, b""), (PLACES, b"\xff" * 408)])
def test_a_passage_of_a_damaged_file_is_never_made_up(tmp_path: Path, name: str, content: bytes) -> None:
    write_passages(tmp_path, [Passage(f"p{number}", "text") for number in range(50)])
    (tmp_path / name).write_bytes(content)
    passages = Passages(tmp_path)
    with pytest.raises(Damaged):
        passages.read(3)
    passages.close()
