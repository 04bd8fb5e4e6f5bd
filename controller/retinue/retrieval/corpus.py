"""A corpus as people have it, JSON lines, turned into passages; everything that is wrong with it in one report.

Takes what Search-R1's corpora hold, `{"id", "contents"}`, and what others do: `text` for `contents`, a `title`,
numbers as ids, no ids at all. `.gz` is read as it is.
"""

import contextlib
import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from retinue.errors import UsageError
from retinue.retrieval.records import Passage, Progress
from retinue.serving.lenient import read_lenient
from retinue.terms.record import DecodeError, Record

FINDINGS_MAX = 20
LINE_BYTES_MAX = 16 * 2**20
READ_BYTES = 2**20
EVERY = 1000
"""Passages between two words about progress."""


class _Line(Record, frozen=True):
    id: str | int | None = None
    contents: str | None = None
    text: str | None = None
    title: str | None = None


class Findings:
    """What is wrong with a corpus, line by line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str] = []
        self._count = 0

    def add(self, number: int, what: str) -> None:
        """Note one finding."""
        self._count += 1
        if len(self._lines) < FINDINGS_MAX:
            self._lines.append(f"{self._path}:{number}: {what}")

    def refuse(self) -> None:
        """Errors: UsageError with every finding, or with the first of many and how many there are."""
        if not self._count:
            return
        more = [f"and {self._count - len(self._lines)} more"] if self._count > len(self._lines) else []
        raise UsageError("\n".join(["cannot index the corpus:", *self._lines, *more]))


def hash_corpus(path: Path, progress: Progress) -> tuple[int, str]:
    """Read the whole file once.

    Shape:  (bytes, sha256).
    Errors: UsageError when it cannot be read.
    """
    digest, done = hashlib.sha256(), 0
    with _open(path) as stream:
        total = path.stat().st_size
        while block := stream.read(READ_BYTES):
            digest.update(block)
            done += len(block)
            progress("looking at the corpus", done, total)
    return done, digest.hexdigest()


def read_corpus(path: Path, progress: Progress, what: str) -> Iterator[Passage]:
    """Give the passages in the order of the file.

    Errors: UsageError after the last line, with all findings; passages that came before it are to be thrown away.
    """
    findings = Findings(path)
    with _open(path) as raw:
        total = path.stat().st_size
        count = 0
        for number, line in _read_lines(path, raw):
            passage = _read_passage(number, line, findings)
            if passage is not None:
                yield passage
            count += 1
            if count % EVERY == 0:
                progress(what, min(raw.tell(), total), total)
    if not count:
        findings.add(1, "there is no passage in it")
    findings.refuse()


def _read_lines(path: Path, raw: BinaryIO) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with gzip.open(raw) if path.suffix == ".gz" else contextlib.nullcontext(raw) as stream:
            while line := stream.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(line) > LINE_BYTES_MAX:
                    raise UsageError(f"cannot index the corpus: {path}:{number}: longer than {LINE_BYTES_MAX} bytes")
                if line.strip():
                    yield number, line
    except (EOFError, OSError, zlib.error) as error:
        raise UsageError(f"cannot index the corpus: {path}:{number + 1}: {error}") from None


def _read_passage(number: int, line: bytes, findings: Findings) -> Passage | None:
    try:
        found = read_lenient(line, _Line)
    except (DecodeError, ValueError, RecursionError) as error:
        findings.add(number, f'is no passage: {error}; write {{"id": ..., "contents": ...}}')
        return None
    contents = found.contents if found.contents is not None else found.text
    if contents is None:
        findings.add(number, "has neither `contents` nor `text`")
        return None
    if found.title is not None and found.contents is None:
        contents = f'"{found.title}"\n{contents}'
    if not contents.strip():
        findings.add(number, "its `contents` are empty")
        return None
    return Passage(str(number if found.id is None else found.id), contents)


def _open(path: Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise UsageError(f"cannot read the corpus {str(path)!r}: {error.strerror}") from None
