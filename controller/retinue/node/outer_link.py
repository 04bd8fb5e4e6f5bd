"""The keeper's end of the line to its outer process: questions about the host, and the order to end.

A question waits a moment for its answer and then goes without: a stopped outer
process must not stop the node.
"""

import os
import select
import socket
import time

from retinue.node import kernel
from retinue.node.descriptors import receive_packet, send_packet
from retinue.node.settings import (
    EndAsked,
    Ending,
    FromOuter,
    GpusAre,
    GpusAsked,
    Greeting,
    HolderAsked,
    HolderIs,
    HostPidAsked,
    HostPidIs,
    Said,
    TasksAre,
    TasksAsked,
    ToOuter,
)
from retinue.terms.record import DecodeError

_GREETING_S = 10.0
_HOST_PID_S = 0.25
_HOLDER_S = 2.0


class OuterLink:
    """The socket, its end of file, and what came over it unasked."""

    def __init__(self, end: socket.socket, has_namespace: bool) -> None:
        self._end = end
        self._has_namespace = has_namespace
        self._is_slow = False
        """A question was not answered in time: nothing is asked until something comes again."""
        self.end_reason = ""
        """Why the node is to end; empty while it is not."""
        self._tasks: list[TasksAre] = []
        self._gpus: list[str] = []
        self.greeting = Greeting(0, 0)
        end.setblocking(False)

    def fileno(self) -> int:
        return self._end.fileno()

    def wait_for_greeting(self) -> None:
        """Learn who is who on the host; without an answer the pids are unknown (0)."""
        answer = self._wait_for(Greeting, _GREETING_S)
        if isinstance(answer, Greeting):
            self.greeting = answer

    def ask_host_pid(self, pid: int) -> int:
        """Say which pid this child of ours has on the host; 0 when nobody answers.

        The question carries a pidfd, so the answer is about this process and no later one.
        """
        if not self._has_namespace:
            return pid
        if self._is_slow:
            return 0
        try:
            pidfd = kernel.open_pidfd(pid)
        except OSError:
            return 0
        try:
            self._say(HostPidAsked(pid), (pidfd,))
        finally:
            os.close(pidfd)
        answer = self._wait_for(HostPidIs, _HOST_PID_S, pid)
        return answer.host_pid if isinstance(answer, HostPidIs) else 0

    def ask_holder(self, port: int) -> str:
        """Name who holds a port of the host; empty when nobody answers."""
        if self._is_slow:
            return ""
        self._say(HolderAsked(port))
        answer = self._wait_for(HolderIs, _HOLDER_S, port)
        return answer.holder if isinstance(answer, HolderIs) else ""

    def tell_tasks(self, signal: str, spared_step: str) -> None:
        """Have the trainer's tasks signalled; the answer is not waited for."""
        self._say(TasksAsked(signal, spared_step))

    def take_tasks(self) -> list[TasksAre]:
        """Give the answers about tasks that have come."""
        answers, self._tasks = self._tasks, []
        return answers

    def ask_gpus(self) -> None:
        """Ask who has memory of which GPU; the answer is not waited for."""
        self._say(GpusAsked())

    def take_gpus(self) -> list[str]:
        """Give the answers about GPUs that have come."""
        answers, self._gpus = self._gpus, []
        return answers

    def tell_ending(self, reason: str, is_hung: bool) -> None:
        self._say(Ending(reason, is_hung))

    def read(self) -> None:
        """Take what came; answers that came too late are dropped."""
        while not self.end_reason:
            if self._receive() is None:
                return

    def _say(self, said: ToOuter, fds: tuple[int, ...] = ()) -> None:
        try:
            send_packet(self._end, said, fds)
        except OSError:  # Full: it does not read. Gone: the next read says so.
            pass

    def _wait_for(self, kind: type[Said], limit_s: float, subject: int = 0) -> Said | None:
        poller = select.poll()
        poller.register(self._end, select.POLLIN)
        deadline_s = time.monotonic() + limit_s
        while not self.end_reason:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not poller.poll(left_s * 1000):
                self._is_slow = True
                return None
            said = self._receive()
            if isinstance(said, kind) and subject in (0, getattr(said, "pid", 0), getattr(said, "port", 0)):
                return said
        return None

    def _receive(self) -> Said | None:
        """One packet; None when there is none now."""
        try:
            packet = receive_packet(self._end, FromOuter)
        except BlockingIOError:
            return None
        except (DecodeError, OSError) as error:
            self.end_reason = f"the outer process cannot be understood: {error}"
            return None
        if packet is None:
            self.end_reason = "the outer process died"
            return None
        self._is_slow = False
        said: Said = packet[0]
        if isinstance(said, EndAsked):
            self.end_reason = said.reason
        if isinstance(said, TasksAre):
            self._tasks.append(said)
        if isinstance(said, GpusAre):
            self._gpus.append(said.text)
        return said
