"""`index.json`: what an index is, and what each of its files was when it was written."""

import hashlib
import os
from pathlib import Path

from retinue.errors import PermanentError
from retinue.retrieval.passages import Damaged
from retinue.retrieval.records import FACTS, FORMAT, STATE, VECTORS, FileFacts, IndexFacts, Progress
from retinue.terms.record import DecodeError, Record, from_json, to_pretty_json

READ_BYTES = 2**20
NOT_KEPT = {FACTS, STATE, VECTORS}
BUILD = "retinue index build CORPUS --out DIR"
AGAIN = f"build it again: {BUILD}"


class _Format(Record, frozen=True):
    format: int


def read_facts(directory: Path) -> IndexFacts:
    """Read them.

    Errors: FileNotFoundError when there is no index; Damaged; PermanentError for one of another version.
    """
    try:
        text = (directory / FACTS).read_bytes()
    except NotADirectoryError:
        raise FileNotFoundError(directory / FACTS) from None
    try:
        version = from_json(text, _Format).format
        if version != FORMAT:
            raise PermanentError(f"cannot use {directory}: an index of format {version}, not {FORMAT}; {AGAIN}")
        return from_json(text, IndexFacts)
    except DecodeError as error:
        raise Damaged(f"cannot use {directory}: {FACTS} is damaged: {error}; {AGAIN}") from None


def write_facts(directory: Path, facts: IndexFacts) -> None:
    """Write them, last of all, and let others read the whole index as far as the umask lets them."""
    mask = os.umask(0)
    os.umask(mask)
    for path in directory.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
    directory.chmod(0o777 & ~mask)
    with open(directory / f"{FACTS}.new", "wb") as stream:
        stream.write(to_pretty_json(facts))
        stream.flush()
        os.fsync(stream.fileno())
    (directory / f"{FACTS}.new").rename(directory / FACTS)


def check_sizes(directory: Path, facts: IndexFacts) -> None:
    """See that every file is there with its size; quick, for every start. Errors: Damaged, OSError."""
    for name, file in facts.files.items():
        try:
            size = (directory / name).stat().st_size
        except FileNotFoundError:
            raise Damaged(f"cannot use {directory}: {name} is missing; {AGAIN}") from None
        if size != file.size:
            raise Damaged(f"cannot use {directory}: {name} has {size} bytes, not {file.size}; {AGAIN}")


def check_files(directory: Path, facts: IndexFacts, progress: Progress) -> None:
    """Read every file to its end. Errors: Damaged names the first that is not what was written; OSError."""
    check_sizes(directory, facts)
    found = hash_files(directory, progress)
    for name, file in facts.files.items():
        if found.get(name) != file:
            raise Damaged(f"cannot use {directory}: {name} is not what was written; {AGAIN}")


def hash_files(directory: Path, progress: Progress) -> dict[str, FileFacts]:
    """Read every file that is kept, but the facts themselves: path below the directory -> what it is."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and path.name not in NOT_KEPT)
    total, done = sum(path.stat().st_size for path in paths), 0
    found = {}
    for path in paths:
        digest, size = hashlib.sha256(), 0
        with open(path, "rb") as stream:
            while block := stream.read(READ_BYTES):
                digest.update(block)
                size += len(block)
                progress("checking files", done + size, total)
        done += size
        found[str(path.relative_to(directory))] = FileFacts(size, digest.hexdigest())
    return found
