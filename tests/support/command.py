"""The command as a person gives it: run to its end, or started in a scene of its own (a terminal, a namespace)."""

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import termios
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.real_run import PATIENCE_S, RealRun, wait_for

RETINUE = (sys.executable, "-P", "-m", "retinue")

MANIFEST = """\
retinue: 1
run: {name: test}
services:
  server: {command: [sleep, "600"]}
"""


def retinue(*words: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run one command to its end; a traceback in what it prints is a failure of any test."""
    done = subprocess.run(
        [*RETINUE, *map(str, words)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    assert "internal error" not in done.stderr, done.stderr
    return done


@contextmanager
def private_scratch() -> Iterator[Path]:
    """A short place for node directories (sockets have short names) that only this test uses: SLURM_TMPDIR."""
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp") as name:
        yield Path(name)


def start_in_scene(run: RealRun, prefix: Sequence[str] = (), terminal: int | None = None, **env: str) -> RealRun:
    """Start the run behind a prefix that execs it, or on a terminal (the slave's descriptor)."""

    def take_terminal() -> None:
        if terminal is not None:
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    argv = [*prefix, *RETINUE, "run", "--run-dir", str(run.run_dir), str(run.manifest), "--", *run.trainer]
    with open(run.output, "w") as output:
        run.stub = subprocess.Popen(
            argv,
            cwd=run.directory,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
    return run


def ask(url: str, body: bytes = b"hello there", patience_s: float = PATIENCE_S, token: str = "") -> dict[str, Any]:
    """Ask a service through its stable URL until it answers; another user than the run's needs its token."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {"X-API-Key": token.strip()} if token else {}

    def try_once() -> dict[str, Any] | None:
        try:
            with opener.open(urllib.request.Request(url, body, headers), timeout=patience_s) as answer:
                said: dict[str, Any] = json.loads(answer.read())
                return said
        except (urllib.error.URLError, OSError):
            return None

    said: dict[str, Any] = wait_for(f"an answer of {url}", try_once, patience_s)
    return said
