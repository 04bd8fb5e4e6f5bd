"""The passages of an index on disk: JSON lines, and where each begins.

Read with pread, so that a file that is cut short is an error and never a signal, and so that all processes of a node
share what the kernel keeps.
"""

import array
import hashlib
import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from retinue.errors import PermanentError, UsageError
from retinue.retrieval.records import PASSAGES, PLACES, Passage
from retinue.terms.record import DecodeError, from_json, to_json

PLACE_BYTES = 8
PASSAGE_BYTES_MAX = 64 * 2**20


class Damaged(PermanentError):
    """The index is not what was built: build it again."""


def write_passages(directory: Path, passages: Iterable[Passage]) -> int:
    """Write passages and their places; gives how many there are.

    Errors: UsageError for an id that is there twice, and what `passages` raises.
    """
    ids = array.array("Q")
    position = 0
    with open(directory / PASSAGES, "wb") as lines, open(directory / PLACES, "wb") as places:
        for passage in passages:
            line = to_json(passage) + b"\n"
            lines.write(line)
            places.write(position.to_bytes(PLACE_BYTES, "little"))
            position += len(line)
            ids.append(_digest(passage.id))
        places.write(position.to_bytes(PLACE_BYTES, "little"))
        _settle(lines.fileno())
        _settle(places.fileno())
    twice = _find_twice(ids)
    if twice:
        raise UsageError(f"cannot index the corpus: {_name_twice(directory, twice)}")
    return len(ids)


def read_all(directory: Path) -> Iterator[Passage]:
    """Give all passages in order. Errors: Damaged."""
    with open(directory / PASSAGES, "rb") as lines:
        for line in lines:
            yield _parse(directory, line)


class Passages:
    """The open files; any thread may read."""

    def __init__(self, directory: Path) -> None:
        """Open them. Errors: OSError."""
        self._directory = directory
        self._lines = os.open(directory / PASSAGES, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._places = os.open(directory / PLACES, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._lines)
            raise

    def read(self, place: int) -> Passage:
        """Give one passage. Errors: Damaged; OSError as the file system says."""
        ends = os.pread(self._places, 2 * PLACE_BYTES, place * PLACE_BYTES)
        first, after = (int.from_bytes(ends[at : at + PLACE_BYTES], "little") for at in (0, PLACE_BYTES))
        if len(ends) != 2 * PLACE_BYTES or not 0 < after - first <= PASSAGE_BYTES_MAX:
            raise Damaged(f"cannot read passage {place}: {self._directory / PLACES} is damaged")
        line = os.pread(self._lines, after - first, first)
        if len(line) != after - first:
            raise Damaged(f"cannot read passage {place}: {self._directory / PASSAGES} is cut short")
        return _parse(self._directory, line)

    def close(self) -> None:
        """Close the files."""
        os.close(self._lines)
        os.close(self._places)


def _parse(directory: Path, line: bytes) -> Passage:
    try:
        return from_json(line, Passage)
    except DecodeError as error:
        raise Damaged(f"cannot read a passage: {directory / PASSAGES} is damaged: {error}") from None


def _settle(descriptor: int) -> None:
    # A name that says "whole" must not outlive a power cut that its bytes did not.
    os.fsync(descriptor)


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), sys.byteorder)


def _find_twice(ids: "array.array[int]") -> set[int]:
    """Find digests that occur twice: 8 bytes per passage, where a set of twenty million texts would be gigabytes."""
    numpy = importlib.import_module("numpy")
    ordered = numpy.sort(numpy.frombuffer(ids, dtype="u8")) if ids else numpy.zeros(0)
    return set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())


def _name_twice(directory: Path, digests: set[int]) -> str:
    first: dict[str, int] = {}
    for number, passage in enumerate(read_all(directory), 1):
        if _digest(passage.id) not in digests:
            continue
        if passage.id in first:
            return f"passages {first[passage.id]} and {number} have the same id, {passage.id!r}"
        first[passage.id] = number
    return "two ids cannot be told apart"
