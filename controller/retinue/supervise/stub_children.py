"""What the stub knows of a process it started: exec went well or not, runs, or how it ended.

Standard library only.
"""

import errno
import os
import signal
from collections.abc import Sequence
from typing import Any

from retinue.node import spawn


class Child:
    """One child of the stub, from fork to reaping. Its pid is never signalled after that."""

    def __init__(self, command: spawn.Command, steps: Sequence[spawn.Step] = ()) -> None:
        self.errno: int | None = None
        """Why it could not be executed."""
        self.cause = ""
        self.refused_code = 0
        """126 found but not to be executed, 127 not found."""
        self.code: int | None = None
        self.signal: int | None = None
        self.is_reaped = False
        self.is_killed = False
        """SIGKILL was sent to it: it does nothing more."""
        self.is_deaf = False
        """It hears no signal but SIGKILL."""
        self.is_hung = False
        """It was given up: dead, but the kernel does not let go of it."""
        self._forked: spawn.Child | None = None
        """Answers how exec went; None once it has."""
        try:
            self._forked = spawn.spawn(command, steps=steps)
            self.pid = self._forked.pid
        except spawn.SpawnError as error:
            self.pid = 0
            self.is_reaped = True
            self._refuse(error)

    @property
    def is_alive(self) -> bool:
        """Neither reaped nor given up yet: its pid is its own."""
        return not self.is_reaped

    @property
    def is_refused(self) -> bool:
        return self.errno is not None

    @property
    def is_exec_pending(self) -> bool:
        """Neither executed nor refused yet: the program may lie on a slow file system."""
        return self._forked is not None

    @property
    def status_fd(self) -> int:
        """Readable when exec is settled; -1 once it is."""
        return self._forked.status_fd if self._forked else -1

    @property
    def exit_code(self) -> int:
        """What a shell would say: its code, 128+n by signal, 126 or 127 when it could not be executed."""
        if self.is_refused:
            return self.refused_code
        if self.signal is not None:
            return 128 + self.signal
        return self.code or 0

    def settle_exec(self) -> bool:
        """Read how exec went; False while it is under way."""
        try:
            if self._forked and not spawn.poll_exec(self._forked):
                return False
        except spawn.SpawnError as error:
            self._refuse(error)
        self._forked = None
        return True

    def _refuse(self, error: spawn.SpawnError) -> None:
        self.errno = error.errno
        self.cause = str(error)
        is_missing = error.step == "exec" and error.errno in (errno.ENOENT, errno.ENOTDIR)
        self.refused_code = 127 if is_missing else 126

    def note_status(self, status: int) -> None:
        """Take the wait status."""
        self.is_reaped = True
        if self.is_refused:
            return  # The 127 is our fork's, not the program's.
        if os.WIFSIGNALED(status):
            self.signal = os.WTERMSIG(status)
        else:
            self.code = os.WEXITSTATUS(status)

    def describe_exit(self) -> dict[str, Any]:
        return {"code": self.code, "signal": self.signal}

    def send_signal(self, number: int) -> None:
        """Signal the process itself, while it is ours to signal; a deaf one that is to end is killed."""
        if self.is_deaf and number == signal.SIGTERM:
            number = signal.SIGKILL
        if self.is_alive:
            os.kill(self.pid, number)
            self.is_killed = self.is_killed or number == signal.SIGKILL

    def describe(self) -> dict[str, Any]:
        """Say the truth to a controller that was not there."""
        return {
            "pid": self.pid,
            "is_running": self.is_alive,
            "is_started": not self.is_exec_pending and not self.is_refused,
            "code": self.code,
            "signal": self.signal,
            "errno": self.errno,
            "cause": self.cause,
            "exit_code": self.refused_code,
        }

    def describe_end(self) -> str:
        """Say in words how it ended."""
        if self.is_refused:
            return self.cause
        if self.signal is not None:
            return f"was ended by signal {self.signal}" + (" and hangs in the kernel" if self.is_hung else "")
        return f"exited with code {self.code}"
