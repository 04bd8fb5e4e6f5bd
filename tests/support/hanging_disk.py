"""A run whose run directory is on a FUSE daemon that a test can stop, as root or as an ordinary user."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support import fuse_disk
from support.command import start_in_scene
from support.real_run import RealRun, wait_for

NOBODY = 65534
needs_fuse = [
    pytest.mark.root,
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="the kernel has no FUSE: cannot here"),
]


class HangingDisk:
    """A FUSE daemon in a mount namespace of its own; stopped, it answers nothing."""

    def __init__(self, directory: Path) -> None:
        self.backing, self.mountpoint = directory / "backing", directory / "disk"
        self.backing.mkdir()
        self.mountpoint.mkdir()
        words = [sys.executable, fuse_disk.__file__, str(self.backing), str(self.mountpoint)]
        self.daemon = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.daemon.stdout is not None
        assert self.daemon.stdout.readline() == "up\n"
        self.enter = ("nsenter", "-t", str(self.daemon.pid), "-m", "env", "-C", str(directory))

    def hang(self) -> None:
        self.daemon.send_signal(signal.SIGSTOP)
        self._wait_stopped()

    def hang_in_close(self) -> None:
        """Hang over the next close: the process that closes is in the kernel, and no signal gets it out."""
        self.daemon.send_signal(signal.SIGUSR1)
        self._wait_stopped()

    def _wait_stopped(self) -> None:
        state = Path(f"/proc/{self.daemon.pid}/stat")
        wait_for("the daemon to stand still", lambda: state.read_text().rpartition(")")[2].split()[0] == "T")

    def go_on(self) -> None:
        self.daemon.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Whatever waits for the daemon gets an error when its end of /dev/fuse is closed."""
        self.daemon.kill()
        self.daemon.communicate()


@contextmanager
def run_on_hanging_disk(
    services: dict[str, Any],
    trainer: list[str] | None = None,
    uid: int = 0,
    stop_grace: str = "60s",
    redirect: str = 'exec "$@"',
) -> Iterator[tuple[RealRun, HangingDisk]]:
    """Start a run there and wait until it is running; all of it is ended when the test is over.

    Shape: `redirect` is what a shell in the test's directory does with the command, as a batch script would.
    """
    with tempfile.TemporaryDirectory(prefix="rt-hung-", dir="/tmp") as name:
        directory = Path(name)
        disk = HangingDisk(directory)
        for path in (directory, disk.backing):
            os.chown(path, uid, uid)
        run = RealRun(directory, services, trainer)
        with open(run.manifest, "a") as manifest:
            manifest.write(f"trainer: {{stop: {{grace: {stop_grace}}}}}\n")
        run.run_dir = disk.mountpoint / "run"
        user = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups") if uid else ()
        try:
            start_in_scene(run, prefix=(*disk.enter, *user, "/bin/sh", "-c", redirect, "sh"))
            run.run_dir = disk.backing / "run"
            run.wait_phase("running")
            yield run, disk
        finally:
            disk.go_on()
            run.end_hard()
            disk.close()
