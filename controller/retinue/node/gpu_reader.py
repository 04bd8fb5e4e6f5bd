"""The outer process asks who has the GPUs' memory, in the host's pid namespace: nobody below it can name a holder.

Standard library only. Never waits: the answer is read as it comes, and an alarm ends what does not answer.
"""

import os
import signal
from collections.abc import Mapping

from retinue.node.spawn import Command, SpawnError, spawn

PROGRAM = "nvidia-smi"
"""Looked for in PATH: where there is none nobody has GPUs of this kind."""
QUERIES = (
    "--query-gpu=index,uuid,memory.used,memory.total",
    "--query-compute-apps=gpu_uuid,pid,used_memory,process_name",
)
LIMIT_S = 10
TEXT_BYTES = 16 * 1024
"""More than eight GPUs with a dozen processes each say."""


class GpuReader:
    """The questions of one node; one is asked at a time."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._text = b""
        self.fd: int | None = None
        """Readable when there is something of the answer; None while nothing is asked."""

    def start(self) -> None:
        """Ask, unless the answer to an earlier question is on its way; where nobody can be asked it is empty."""
        if self.fd is not None:
            return
        self.fd, far = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._text = b""
        os.set_blocking(far, True)
        try:
            for query in QUERIES:
                argv = (PROGRAM, query, "--format=csv,noheader,nounits")
                child = spawn(Command(argv, self._env, stdout=far), steps=[("alarm", _set_alarm)])
                # Whether it could be executed shows in what it says; it is reaped with all children.
                os.close(child.status_fd)
        except SpawnError:
            pass  # No process is left for this: what was not asked is not answered.
        finally:
            os.close(far)

    def take(self) -> str | None:
        """Take what came; the whole text once it is complete, else None."""
        assert self.fd is not None
        try:
            piece = os.read(self.fd, TEXT_BYTES)
        except BlockingIOError:
            return None
        self._text = (self._text + piece)[:TEXT_BYTES]
        if piece:
            return None
        os.close(self.fd)
        self.fd = None
        return self._text.decode("utf-8", "replace")


def _set_alarm() -> None:
    signal.alarm(LIMIT_S)
