"""Where a wheel can be had: what the user names, else what the package index says by way of the user's own pip.

pip knows the site's index, mirrors and proxies; it is asked for the address alone.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from retinue.errors import TransientError, UsageError
from retinue.models.catalogue import ModelFile
from retinue.terms.record import DecodeError, Record, from_json

PIP_S = 180.0
FindUrl = Callable[[ModelFile], str]


class _Download(Record, frozen=True):
    url: str


class _Item(Record, frozen=True):
    download_info: _Download


class _Report(Record, frozen=True):
    install: tuple[_Item, ...] = ()


def find_url(file: ModelFile) -> str:
    """Ask pip where the wheel is; nothing is installed.

    Errors: UsageError when this Python has no pip, TransientError when the index does not say.
    Source: pip's installation report, version 1 (pip 22.2 and newer).
    """
    wanted = f"{file.project}=={file.version}"
    argv = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet"]
    argv += ["--only-binary", ":all:", "--no-input", "--report", "-", wanted]
    try:
        done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=PIP_S)
    except subprocess.TimeoutExpired:
        raise TransientError(f"cannot find {wanted}: pip did not answer within {PIP_S:g} s") from None
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode and "No module named pip" in said:
        raise UsageError(
            f"cannot find {wanted}: {sys.executable} has no pip; get the wheel by other means and give it with --from"
        )
    try:
        report = from_json(done.stdout, _Report)
        return report.install[0].download_info.url
    except (DecodeError, IndexError):
        last = said.splitlines()[-1] if said else f"pip exited {done.returncode}"
        raise TransientError(f"cannot find {wanted} on the package index: {last}") from None


def name_source(source: str) -> FindUrl:
    """Turn what `--from` names (a file, a directory of wheels, a URL) into where each wheel is.

    Errors: UsageError when a path is not there.
    """
    if "://" in source:
        return lambda file: source
    path = Path(source).absolute()
    if not path.exists():
        raise UsageError(f"cannot fetch from {source!r}: there is no such file or directory")
    if path.is_file():
        return lambda file: path.as_uri()
    return lambda file: find_in(path, file).as_uri()


def find_in(directory: Path, file: ModelFile) -> Path:
    """Find a wheel, or the file itself, in a directory.

    Errors: UsageError names what is looked for.
    """
    stem = f"{file.project.replace('-', '_')}-{file.version}-"
    found = [*directory.glob(f"{stem}*.whl"), *directory.glob(file.name)]
    if not found:
        raise UsageError(f"cannot fetch from {str(directory)!r}: neither {stem}*.whl nor {file.name} is in it")
    return found[0]
