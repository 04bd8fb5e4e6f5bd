"""Start a run that outlives the command: `up`.

The child does the pre-flight itself, so that the lock's owner, the stub and the
process that is waited for are one pid.
"""

import os
from collections.abc import Callable
from pathlib import Path

from retinue.cli.become import become_stub, flush_output, print_warnings, taken_back_on_failure
from retinue.supervise.preflight import Prepared

PREPARED = b"prepared "


def start_detached(prepare: Callable[[], Prepared]) -> tuple[int, Path]:
    """Fork; the child prepares, says so, and becomes the stub in a session of its own.

    Shape:  returns (stub pid, run directory), in the parent only.
    Errors: in the child, what `prepare` raises: it is the command's to print; in the parent SystemExit with the
            child's exit code then.
    """
    flush_output()
    near, far = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(near)
        _become_detached(prepare(), far)
    os.close(far)
    with open(near, "rb") as file:
        said = file.read()
    if said.startswith(PREPARED):
        return pid, Path(os.fsdecode(said.removeprefix(PREPARED)))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    raise SystemExit(code if code >= 0 else 128 - code)


def _become_detached(prepared: Prepared, far: int) -> None:
    """In the child: say where the run is, and become the stub. Never returns."""
    with taken_back_on_failure(prepared):
        print_warnings(prepared)
        _leave_terminal(prepared.run_dir)
        os.write(far, PREPARED + os.fsencode(prepared.run_dir))
        os.close(far)
    become_stub(prepared)


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
