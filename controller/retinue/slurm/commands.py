"""Run one of Slurm's commands, for a bounded time. Blocks: never called from an event loop."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence

from retinue.slurm.answers import Unknown
from retinue.slurm.hygiene import scrub_for_query

LIMIT_S = 10.0
"""With slurmctld away the commands try again and again: 12 s and more were seen."""
LAST_S = 1.0
"""For the pipes of a command that was killed; a wrapper's children may hold them for ever."""
WHY_CHARS = 300


def ask_slurm(argv: Sequence[str], env: Mapping[str, str], limit_s: float = LIMIT_S) -> str | Unknown:
    """Run a command in an environment that makes it print the same everywhere; return what it printed.

    Errors: none; a missing, failing or silent command is Unknown, with its own words.
    """
    scrubbed = scrub_for_query(env)
    path = shutil.which(argv[0], path=scrubbed.get("PATH"))
    if path is None:
        return Unknown(f"there is no {argv[0]} in PATH")
    try:
        child = subprocess.Popen(
            [path, *argv[1:]],
            env=scrubbed,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Unknown(f"cannot run {path}: {error.strerror}")
    try:
        out, errors = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _end(child)
        return Unknown(f"{argv[0]} said nothing within {limit_s:g} s")
    if child.returncode != 0:
        said = (errors or out).decode(errors="replace").strip()
        return Unknown(said[-WHY_CHARS:] or f"{argv[0]} ended with {child.returncode}")
    return out.decode(errors="replace")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a command and what it started: it is in a session of its own."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        child.communicate(timeout=LAST_S)
    except subprocess.TimeoutExpired:
        # Stuck in the kernel, or something outside its session holds the pipes: not ours to wait for.
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()
