"""The run directory: made once per run, 0700, on a file system that all nodes share.

<run dir>/manifest.yaml                  as resolved
          control.json join/ token lock  0600
          attempt-<n>/                   plan, status, endpoints, verdict, events, logs
          current -> attempt-<n>
<parent>/latest -> <run dir>
"""

import errno
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from retinue.errors import EdgeError, PermanentError, TransientError
from retinue.journal.files import replace_file
from retinue.journal.lock import release_lock, take_lock
from retinue.terms import run as files
from retinue.terms.record import Record

RUNS = "retinue-runs"
HINTS = {
    errno.EACCES: "choose another place with --run-dir",
    errno.EROFS: "choose another place with --run-dir",
    errno.EPERM: "choose another place with --run-dir",
    errno.EEXIST: "a file has that name; choose another place with --run-dir",
    errno.ENOTDIR: "a part of the path is a file; choose another place with --run-dir",
    errno.ENOSPC: "free some space, or choose another place with --run-dir",
    errno.EDQUOT: "you are over your quota; free some space, or choose another place with --run-dir",
    errno.ENAMETOOLONG: "choose a shorter --run-dir",
    errno.EMFILE: "raise `ulimit -n`",
}
TRANSIENT = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EBUSY,
        errno.EAGAIN,
        errno.EINTR,
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
    }
)


def build_edge_error(what: str, error: OSError) -> EdgeError:
    """Translate an OSError of the run directory: `cannot <what>: <cause>; <hint>`."""
    hint = HINTS.get(error.errno or 0, "")
    text = f"cannot {what}: {error.strerror}" + (f"; {hint}" if hint else "")
    return TransientError(text) if error.errno in TRANSIENT else PermanentError(text)


class TakenNameError(PermanentError):
    """A run directory of that name has just been made by another run; the next name may be free."""


class Before(Record, frozen=True):
    """What was there before a run directory was made, so that all of it can be taken back."""

    missing: tuple[Path, ...]
    """Directories of its path, and `retinue-runs` of the start directory, that did not exist; innermost first."""
    names: frozenset[str]
    """In the run directory."""
    links: tuple[tuple[Path, str], ...]
    """`current` and `latest`, and where they pointed; empty: not there."""


def look_before(run_dir: Path, start_dir: Path) -> Before:
    """Look at a place where `create_run_dir` is about to make one."""
    runs = start_dir / RUNS
    missing = _find_missing(run_dir)
    missing += [path for path in _find_missing(runs) if path not in missing]
    links = tuple((link, _read_link(link)) for link in (run_dir / files.CURRENT, runs / files.LATEST))
    names = frozenset[str]()
    with suppress(OSError):
        names = frozenset(os.listdir(run_dir))
    return Before(tuple(missing), names, links)


def take_back_run_dir(run_dir: Path, run_id: str, attempt: int, before: Before) -> None:
    """Undo what `create_run_dir` has made whole: the run will not begin. What cannot be undone stays.

    Shape: `manifest.yaml` of an older run in the same directory is not restored.
    """
    attempt_dir = run_dir / f"attempt-{attempt}"
    if run_dir in before.missing:
        shutil.rmtree(run_dir, ignore_errors=True)
    else:
        shutil.rmtree(attempt_dir, ignore_errors=True)
        for old in run_dir.glob(f"{attempt_dir.name}.old-*"):
            if old.name not in before.names:
                old.rename(attempt_dir)
    for link, target in before.links:
        with suppress(OSError):
            replace_link(link, target) if target else link.unlink()
    with suppress(OSError):
        release_lock(run_dir / files.LOCK, run_id)
    for directory in before.missing:
        with suppress(OSError):
            directory.rmdir()


def _read_link(path: Path) -> str:
    return os.readlink(path) if os.path.islink(path) else ""


def create_run_dir(
    run_dir: Path,
    run_id: str,
    attempt: int,
    texts: Mapping[str, str],
    start_dir: Path | None = None,
    job: str = "",
    pause: Callable[[float], None] = time.sleep,
    is_new: bool = False,
) -> Path:
    """Make the run's directories, take its lock, write its first files; return the attempt directory.

    Shape:  `texts` is path below the run directory -> content; `latest` is set in `start_dir/retinue-runs` (None:
            beside the run directory); where that cannot be, commands need the run directory as RUN. `pause` waits
            for a sign of life of another owner; what it raises ends this too. `is_new`: it must not exist yet.
    Errors: PermanentError when the place is not usable or another run owns it; TransientError on a full disk;
            TakenNameError when another run was quicker with a new name. Nothing is left of what was made.
    """
    lock, attempt_dir = run_dir / files.LOCK, run_dir / f"attempt-{attempt}"
    made = _find_missing(run_dir.parent)
    is_locked = is_whole = False
    try:
        if _make_dir(run_dir, is_new):
            made = [run_dir, *made]
        check_usable(run_dir)
        take_lock(lock, run_id, attempt, job, pause=pause)
        is_locked = True
        _fill_run_dir(run_dir, attempt_dir, texts)
        is_whole = True
    except OSError as error:
        raise build_edge_error(f"make the run directory {str(run_dir)!r}", error) from error
    finally:
        if not is_whole:
            _remove_made(run_dir, made, lock, is_locked, run_id)
    with suppress(OSError):
        _point_latest(run_dir, start_dir)
    return attempt_dir


def _make_dir(run_dir: Path, is_new: bool) -> bool:
    """Make the directory; mkdir(2) alone decides whose it is. Says whether it was made here."""
    run_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        run_dir.mkdir(mode=0o700)
    except FileExistsError as error:
        if is_new:
            raise TakenNameError(f"cannot make {str(run_dir)!r}: another run has just taken that name") from error
        if not run_dir.is_dir():
            raise
        return False
    return True


def _fill_run_dir(run_dir: Path, attempt_dir: Path, texts: Mapping[str, str]) -> None:
    """The attempt's directory gets its name last: what fails before leaves an older attempt as it was."""
    draft = run_dir / f".{attempt_dir.name}.new"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    try:
        (draft / files.LOGS).mkdir(mode=0o700)
        for name, text in texts.items():
            first, _, rest = name.partition("/")
            replace_text(draft / rest if first == attempt_dir.name else run_dir / name, text)
        if attempt_dir.exists():
            _make_way(attempt_dir)
        draft.rename(attempt_dir)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    replace_link(run_dir / files.CURRENT, attempt_dir.name)


def _find_missing(path: Path) -> list[Path]:
    """List the directories of a path that do not exist, innermost first."""
    missing = []
    while not os.path.lexists(path) and path.parent != path:
        missing.append(path)
        path = path.parent
    return missing


def _remove_made(run_dir: Path, made: list[Path], lock: Path, has_lock: bool, run_id: str) -> None:
    """Take back what was made here; where not even this works, the lock is stale as soon as this process ends."""
    if has_lock:
        with suppress(OSError):
            release_lock(lock, run_id)
    if run_dir in made and not os.path.lexists(lock):
        shutil.rmtree(run_dir, ignore_errors=True)
    for directory in made:
        # Only empty ones: another command may have begun to use it.
        with suppress(OSError):
            directory.rmdir()


def _point_latest(run_dir: Path, start_dir: Path | None) -> None:
    runs = run_dir.parent if start_dir is None else start_dir / RUNS
    runs.mkdir(mode=0o700, exist_ok=True)
    is_inside = run_dir.parent == runs
    replace_link(runs / files.LATEST, run_dir.name if is_inside else str(run_dir.absolute()))


def check_usable(run_dir: Path) -> None:
    """Refuse a directory that is not ours or holds something else; close one that others can look into."""
    found = run_dir.stat()
    if found.st_uid != os.geteuid():
        raise PermanentError(f"cannot use {str(run_dir)!r}: it belongs to uid {found.st_uid}, not to you")
    names = os.listdir(run_dir)
    ours = (files.CURRENT, files.SCRIPT)
    if names and not any(name in ours or name.startswith((files.LOCK, "attempt-")) for name in names):
        # Also the protection of a home or team directory from the chmod below.
        raise PermanentError(f"cannot use {str(run_dir)!r}: it holds other files; name a new directory with --run-dir")
    run_dir.chmod(0o700)
    if run_dir.stat().st_mode & 0o077:
        raise PermanentError(
            f"cannot use {str(run_dir)!r}: its file system lets others in whatever the mode; "
            "choose another place with --run-dir"
        )


def _make_way(attempt_dir: Path) -> Path:
    """A finished attempt of the same number is kept under another name: nothing is overwritten."""
    number = 1
    while (old := attempt_dir.with_name(f"{attempt_dir.name}.old-{number}")).exists():
        number += 1
    attempt_dir.rename(old)
    return attempt_dir


def replace_text(path: Path, text: str) -> None:
    """Write a 0600 file in one step.

    Errors: OSError; an older file stands, nothing of the new one is left.
    """
    replace_file(str(path), text.encode(), 0o600)


def replace_link(path: Path, target: str) -> None:
    """Point a symbolic link elsewhere in one step; a real file or directory of that name is left alone."""
    if path.exists() and not path.is_symlink():
        return
    fresh = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.rename(path)
