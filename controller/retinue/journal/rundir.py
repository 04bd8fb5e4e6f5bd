"""The run directory: made once per run, 0700, on a file system that all nodes share.

<run dir>/manifest.yaml                  as resolved
          control.json join/ token lock  0600
          attempt-<n>/                   plan, status, endpoints, verdict, events, logs
          current -> attempt-<n>
<parent>/latest -> <run dir>
"""

import errno
import os
from pathlib import Path

from retinue.errors import EdgeError, PermanentError, TransientError, UsageError
from retinue.journal.lock import take_lock
from retinue.terms import run as files

HINTS = {
    errno.EACCES: "choose another place with --run-dir",
    errno.EROFS: "choose another place with --run-dir",
    errno.ENOTDIR: "a part of the path is a file; choose another place with --run-dir",
    errno.ENOSPC: "free some space, or choose another place with --run-dir",
    errno.EDQUOT: "you are over your quota; free some space, or choose another place with --run-dir",
    errno.ENAMETOOLONG: "choose a shorter --run-dir",
}
TRANSIENT = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)


def build_edge_error(what: str, error: OSError) -> EdgeError:
    """Translate an OSError of the run directory: `cannot <what>: <cause>; <hint>`."""
    hint = HINTS.get(error.errno or 0, "")
    text = f"cannot {what}: {error.strerror}" + (f"; {hint}" if hint else "")
    return TransientError(text) if error.errno in TRANSIENT else PermanentError(text)


def create_run_dir(run_dir: Path, run_id: str, attempt: int, manifest_text: str) -> Path:
    """Make the run's directories, take its lock, write the resolved manifest; return the attempt directory.

    Errors: PermanentError when the place is not usable or another run owns it; TransientError on a full disk.
    """
    is_new = not run_dir.exists()
    attempt_dir = run_dir / f"attempt-{attempt}"
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(run_dir)
        take_lock(run_dir / files.LOCK, run_id, attempt)
        if attempt_dir.exists():
            attempt_dir = _make_way(attempt_dir)
        (attempt_dir / files.LOGS).mkdir(mode=0o700, parents=True)
        replace_text(run_dir / files.MANIFEST, manifest_text)
        replace_link(run_dir / files.CURRENT, attempt_dir.name)
        if is_new:
            replace_link(run_dir.parent / files.LATEST, run_dir.name)
    except OSError as error:
        raise build_edge_error(f"make the run directory {run_dir}", error) from error
    return attempt_dir


def _check_owner(run_dir: Path) -> None:
    found = run_dir.stat()
    if found.st_uid != os.getuid():
        raise PermanentError(f"cannot use {run_dir}: it belongs to uid {found.st_uid}, not to you")
    if found.st_mode & 0o077:
        run_dir.chmod(0o700)


def _make_way(attempt_dir: Path) -> Path:
    """A finished attempt of the same number is kept under another name: nothing is overwritten."""
    number = 1
    while (old := attempt_dir.with_name(f"{attempt_dir.name}.old-{number}")).exists():
        number += 1
    attempt_dir.rename(old)
    return attempt_dir


def replace_text(path: Path, text: str) -> None:
    """Write a 0600 file in one step."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w") as file:
        file.write(text)
    fresh.rename(path)


def replace_link(path: Path, target: str) -> None:
    """Point a symbolic link elsewhere in one step; a real file or directory of that name is left alone."""
    if path.exists() and not path.is_symlink():
        return
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.rename(path)


def find_run(run: str | None, cwd: Path) -> Path:
    """Find the run directory that a command is about.

    Shape:  a path, a name under retinue-runs/, or a job id; None: `retinue-runs/latest`.
    Errors: UsageError says where it looked.
    """
    runs = cwd / "retinue-runs"
    if run is None:
        candidates = [runs / files.LATEST]
    else:
        candidates = [cwd / run, runs / run, *sorted(runs.glob(f"*-{run}"), reverse=True)]
    for candidate in candidates:
        if (candidate / files.CURRENT).is_dir():
            return candidate.resolve()
    looked = ", ".join(str(candidate) for candidate in candidates[:2])
    hint = "give the run directory as RUN" if run is None else "list them with `ls retinue-runs`"
    raise UsageError(f"cannot find a run at {looked}; {hint}")


def find_attempt(run_dir: Path) -> Path:
    """The newest attempt of a run."""
    return (run_dir / files.CURRENT).resolve()
