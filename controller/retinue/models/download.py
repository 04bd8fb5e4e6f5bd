"""One file over HTTP or from a path: goes on where an earlier download stopped, and is checked to the last byte.

Writes beside the target and renames; what is in place is whole. Never follows what it
downloads, never unpacks.
"""

import hashlib
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO

from retinue.errors import PermanentError, TransientError

PIECE_BYTES = 1 << 20
SILENT_S = 60.0
"""A server that sends nothing for so long is given up; what came is kept."""
TRIES = 5
PAUSE_S = 1.0
"""Between tries; doubles."""
SCHEMES = ("http", "https", "file")

OnProgress = Callable[[int], None]
"""Bytes that are there so far."""


def download(url: str, part: Path, size: int, on_progress: OnProgress, sleep: Callable[[float], None]) -> None:
    """Bring `part` to its full size, from where it is.

    Errors: TransientError when the source stops answering, PermanentError when it does not have the file.
    """
    if url.partition("://")[0] not in SCHEMES:
        raise PermanentError(f"cannot download {url!r}: it is none of {', '.join(SCHEMES)}")
    pause_s, last = PAUSE_S, ""
    for _ in range(TRIES):
        have = _measure(part)
        if have > size:
            part.unlink()
            have = 0
        on_progress(have)
        if have == size:
            return
        try:
            with part.open("ab") as file:
                _append(url, file, have, size, on_progress)
            last = f"it ended after {_measure(part)} of {size} bytes"
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code not in (408, 416, 425, 429):
                raise PermanentError(f"cannot download {url}: {error.code} {error.reason}") from None
            if error.code == 416:
                part.unlink(missing_ok=True)
            last = f"{error.code} {error.reason}"
        except (OSError, HTTPException) as error:
            last = str(getattr(error, "reason", error)) or type(error).__name__
        if _measure(part) == size:
            continue
        sleep(pause_s)
        pause_s *= 2
    if _measure(part) != size:
        raise TransientError(f"cannot download {url}: {last}; what came is kept, fetch again to go on")


def _append(url: str, file: BinaryIO, have: int, size: int, on_progress: OnProgress) -> None:
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=SILENT_S) as answer:
        if have and not _goes_on(answer, have):
            if url.startswith("file:"):
                answer.seek(have)
            else:
                # The server does not know ranges and begins anew.
                file.truncate(0)
                have = 0
        while have < size and (piece := answer.read(min(PIECE_BYTES, size - have))):
            file.write(piece)
            have += len(piece)
            on_progress(have)


def _goes_on(answer: HTTPResponse, have: int) -> bool:
    where = answer.headers.get("Content-Range", "")
    return getattr(answer, "status", None) == 206 and where.startswith(f"bytes {have}-")


def check_hash(path: Path, sha256: str) -> bool:
    """Say whether a file has this content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest() == sha256


class Claim:
    """One fetcher per model and cache, on a file system that hosts may share.

    A file made exclusively, touched while its owner works; after STALE_S without a touch its owner is dead.
    """

    STALE_S = 60.0

    def __init__(self, path: Path) -> None:
        """Take it.

        Errors: TransientError names who has it.
        """
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            try:
                handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                self._clear_stale()
                continue
            with os.fdopen(handle, "w") as file:
                file.write(f"{os.uname().nodename} pid {os.getpid()}")
            return
        raise TransientError(f"cannot fetch: {_read(path) or 'somebody'} is fetching it already ({path})")

    def _clear_stale(self) -> None:
        with suppress(FileNotFoundError):
            if time.time() - self._path.stat().st_mtime > self.STALE_S:
                self._path.unlink()

    def touch(self) -> None:
        """Say that its owner lives."""
        with suppress(OSError):
            os.utime(self._path)

    def release(self) -> None:
        """Give it back."""
        self._path.unlink(missing_ok=True)


def _read(path: Path) -> str:
    try:
        return path.read_text()[:200]
    except OSError:
        return ""


def _measure(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
