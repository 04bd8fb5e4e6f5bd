"""Start a run that outlives the command: `up`.

The child does the pre-flight itself, so that the lock's owner, the stub and the
process that is waited for are one pid.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

PREPARED = b"prepared "


def start_detached(prepare: Callable[[], tuple[Path, Path]], become: Callable[[Path], None]) -> tuple[int, Path]:
    """Fork; the child prepares, says so, and becomes the stub in a session of its own.

    Shape:  `prepare` returns (run.json, run directory); this returns (stub pid, run directory), in the parent only.
    Errors: in the child, what `prepare` raises: it is the command's to print; in the parent SystemExit with the
            child's exit code then.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    near, far = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(near)
        run_json, run_dir = prepare()
        _leave_terminal(run_dir)
        os.write(far, PREPARED + os.fsencode(run_dir))
        os.close(far)
        become(run_json)
    os.close(far)
    with open(near, "rb") as file:
        said = file.read()
    if said.startswith(PREPARED):
        return pid, Path(os.fsdecode(said.removeprefix(PREPARED)))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    raise SystemExit(code if code >= 0 else 128 - code)


def _leave_terminal(run_dir: Path) -> None:
    """A session of its own, no input, output into `stub.log`."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    try:
        log = os.open(run_dir / "stub.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    except OSError:
        # A disk that has just filled up must not end a run that is prepared; what the stub says is lost.
        log = os.dup(null)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(null)
    os.close(log)
