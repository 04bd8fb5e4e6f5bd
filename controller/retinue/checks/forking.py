"""Forks children ahead of need, hands them to the host, reaps them and says how they ended.

One loop over poll(2), one thread, and it never waits for a child or for the host: what cannot be
sent yet is kept. It ends when the host hangs up, and the kernel ends all children with it.
"""

import fcntl
import os
import resource
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Mapping
from typing import NoReturn

from retinue.checks.child import NUMBER_BYTES, serve_check
from retinue.checks.jail.cell import EVENTS_FD, Cell, confine_child
from retinue.checks.plugin import Verifier
from retinue.checks.records import Ended, FromWarm, Spare, Want
from retinue.node import kernel
from retinue.terms.record import from_json, to_json

PACKET_BYTES = 64 * 1024
SLOW_NICE = 10
"""Of a check that is not fresh any more."""
_BACKOFF_S, _BACKOFF_MAX_S = 0.025, 2.0
_SETUP_FAILED_EXIT = 71


class Forking:
    """The warm parent's loop."""

    def __init__(self, control: socket.socket, cell: Cell, verifiers: Mapping[str, Verifier]) -> None:
        self._control = control
        self._cell = cell
        self._verifiers = verifiers
        self._wanted = 0
        self._number = 0
        self._pids: dict[int, int] = {}
        """Pid -> number of every child that was not reaped."""
        self._hatching: dict[int, tuple[int, int]] = {}
        """Number -> (socket, pidfd) of those that are still being locked in: not for the host yet."""
        self._spares: set[int] = set()
        """Numbers of those that have not read Prepare."""
        self._outbox: deque[tuple[FromWarm, tuple[int, ...]]] = deque()
        """What the host has not taken yet; descriptors are closed once sent."""
        self._failures = 0
        """Children in a row that could not be forked or locked in."""
        self._resume_s = 0.0
        """Monotonic; no fork before it."""
        self._events_read, events_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # Above the numbers that a child's descriptors are moved to.
        self._events_write = fcntl.fcntl(events_write, fcntl.F_DUPFD_CLOEXEC, EVENTS_FD + 1)
        os.close(events_write)
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self, first: FromWarm) -> None:
        """Say `first`, then serve until the host hangs up."""
        self._control.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._say(first)
        poller = select.poll()
        poller.register(self._events_read, select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        while True:
            poller.register(self._control, select.POLLIN | (select.POLLOUT if self._outbox else 0))
            poller.poll(self._decide_timeout_ms())
            if not self._hear():
                return
            self._note_events()
            self._reap()
            if self._lacks_spares() and time.monotonic() >= self._resume_s:
                self._fork()
            self._flush()

    def _lacks_spares(self) -> bool:
        return len(self._spares) + len(self._hatching) < self._wanted

    def _decide_timeout_ms(self) -> float | None:
        return max(0.0, self._resume_s - time.monotonic()) * 1000 if self._lacks_spares() else None

    # --- host -----------------------------------------------------------------------------------

    def _hear(self) -> bool:
        """Take in what the host wants; False when it hung up."""
        while True:
            try:
                packet = self._control.recv(PACKET_BYTES)
            except BlockingIOError:
                return True
            except ConnectionError:
                return False
            if not packet:
                return False
            want = from_json(packet, Want)
            self._wanted = want.spares
            self._renice(want.slow)

    def _renice(self, numbers: list[int]) -> None:
        """Let fresh checks go first: each child leads a process group of its own."""
        pids = {number: pid for pid, number in self._pids.items()}
        for number in numbers:
            # Not reaped, so the pid is still its own.
            if (pid := pids.get(number)) is not None:
                try:
                    os.setpriority(os.PRIO_PGRP, pid, SLOW_NICE)
                except (ProcessLookupError, PermissionError):
                    pass

    def _say(self, message: FromWarm, fds: tuple[int, ...] = ()) -> None:
        self._outbox.append((message, fds))
        self._flush()

    def _flush(self) -> None:
        while self._outbox:
            message, fds = self._outbox[0]
            try:
                socket.send_fds(self._control, [to_json(message)], fds)
            except BlockingIOError:
                return
            except ConnectionError:
                pass  # The next look at the socket says that the host is gone.
            self._outbox.popleft()
            for fd in fds:
                os.close(fd)

    # --- children -------------------------------------------------------------------------------

    def _fork(self) -> None:
        number = self._number = self._number + 1
        ours, theirs = socket.socketpair()
        try:
            pid = self._cell.fork()
            if pid == 0:
                self._become_child(theirs.fileno(), number)
            pidfd = kernel.open_pidfd(pid)
        except OSError as error:
            os.write(2, f"retinue checks: cannot fork a child: {error}\n".encode())
            ours.close()
            self._note_failure()
            return
        finally:
            theirs.close()
        self._pids[pid] = number
        self._hatching[number] = (ours.detach(), pidfd)

    def _become_child(self, sock_fd: int, number: int) -> NoReturn:
        """Never returns, whatever happens: there must not be two of the caller."""
        try:
            signal.set_wakeup_fd(-1)
            for kind in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
                signal.signal(kind, signal.SIG_DFL)
            confine_child(self._cell, sock_fd, self._events_write)
            os.dup2(0, 2)  # Until here it led to whoever reads why a child could not be locked in.
            serve_check(self._cell, number, self._verifiers)
        except OSError as error:
            os.write(2, f"retinue checks: cannot lock a child in: {error}\n".encode())
        finally:
            os._exit(_SETUP_FAILED_EXIT)

    def _note_events(self) -> None:
        """A child says twice who it is: locked in (the host gets it), and taken (no spare any more)."""
        while events := _read_ready(self._events_read):
            for at in range(0, len(events), NUMBER_BYTES):
                number = int.from_bytes(events[at : at + NUMBER_BYTES], "big")
                if number in self._hatching:
                    self._spares.add(number)
                    self._failures = 0
                    self._say(Spare(number), self._hatching.pop(number))
                else:
                    self._spares.discard(number)

    def _reap(self) -> None:
        while _read_ready(self._wake_read):
            pass
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self._pids.pop(pid, None)
            # None: a process that a plugin started when it was imported.
            if number is not None:
                self._note_end(number, os.waitstatus_to_exitcode(status), usage)

    def _note_end(self, number: int, code: int, usage: resource.struct_rusage) -> None:
        if number in self._hatching:  # The host never heard of it.
            for fd in self._hatching.pop(number):
                os.close(fd)
            self._note_failure()
            return
        self._spares.discard(number)
        exited, killed = (code, None) if code >= 0 else (None, -code)
        self._say(Ended(number, exited, killed, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024))

    def _note_failure(self) -> None:
        self._failures += 1
        self._resume_s = time.monotonic() + min(_BACKOFF_S * 2 ** min(self._failures, 10), _BACKOFF_MAX_S)


def _read_ready(fd: int) -> bytes:
    try:
        return os.read(fd, PACKET_BYTES)
    except BlockingIOError:
        return b""
