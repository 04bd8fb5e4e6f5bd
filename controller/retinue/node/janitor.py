"""The outer process's twin: it does nothing until the outer process dies, then ends and removes what is left.

Forked early, in a session of its own, deaf to TERM, INT and HUP (Slurm sends TERM to every
process of a job), and no child of the outer process: where Slurm finds a step's processes by
descent (proctrack/linuxproc) its SIGKILL takes the outer process and spares the janitor. A
janitor that dies is forked again by the outer process.
"""

import errno
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from retinue.node import kernel
from retinue.node.census import build_census, kill_left
from retinue.node.descriptors import build_pair, receive_packet, send_packet
from retinue.node.nodedir import CONTROLLER, RUN_RECORD, remove_node_dir
from retinue.node.scan import list_pids, read_words
from retinue.node.settings import NodeSettings
from retinue.terms.record import DecodeError, Record

_KILL_WAIT_S = 10.0
_STUB_S, _LOOK_S = 5.0, 0.1
"""Slurm ends the batch script and our step one after the other."""
_GONE_S = 1.0
"""Once killed, nothing in a namespace writes any more; what is stuck in the kernel would be waited for in vain."""


class KeeperIs(Record, frozen=True, tag=True):
    """The keeper runs; its pidfd comes beside."""

    has_namespace: bool


class Done(Record, frozen=True, tag=True):
    """The outer process cleaned up by itself."""


_ToJanitor = KeeperIs | Done


@dataclass(slots=True)
class Janitor:
    """The outer process's view of its janitor."""

    pid: int
    pidfd: int
    """Readable once it is dead."""
    end: socket.socket

    def tell_keeper(self, pidfd: int, has_namespace: bool) -> None:
        """Name the keeper; a dead janitor is noticed elsewhere."""
        self._send(KeeperIs(has_namespace), (pidfd,))

    def dismiss(self) -> None:
        """Send it home: told first, so that it does not clean up; then killed, because a stopped one would be waited
        for."""
        self._send(Done())
        _kill(self.pidfd)
        _wait_for_exit(self.pidfd, _GONE_S)
        self.forget()

    def forget(self) -> None:
        """Close what leads to it, and reap it where it was ours to adopt."""
        self.end.close()
        os.close(self.pidfd)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)

    def _send(self, record: Record, fds: tuple[int, ...] = ()) -> None:
        try:
            send_packet(self.end, record, fds)
        except OSError:
            pass


def fork_janitor(settings: NodeSettings, lock_fd: int) -> Janitor:
    """Fork the twin; it keeps the node directory's lock and nothing else of the caller's.

    Errors: OSError when there is no pid or memory for it.
    """
    ours, theirs = build_pair()
    # With every signal blocked until it is deaf: a TERM in between would run the caller's handler in it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid, pidfd = _fork_away(lambda: _live(settings, theirs, lock_fd))
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return Janitor(pid, pidfd, ours)


def _fork_away(live: Callable[[], None]) -> tuple[int, int]:
    """Fork by way of a child that exits, so that the new process is nobody's here; return its pid and pidfd.

    The child in between waits until the pidfd is open: it does not reap, so the pid cannot become another's.
    """
    near, far = socket.socketpair()
    with near, far:
        middle = os.fork()
        if middle == 0:
            try:
                pid = os.fork()
                if pid == 0:
                    live()
                far.send(str(pid).encode())
                far.recv(1)
            finally:
                os._exit(0)
        far.close()
        try:
            pid = int(near.recv(32) or 0)
            if not pid:
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return pid, kernel.open_pidfd(pid)
        finally:
            with suppress(OSError):
                near.send(b"!")
            os.waitpid(middle, 0)


def _live(settings: NodeSettings, end: socket.socket, lock_fd: int) -> None:
    """The janitor's whole life; never returns."""
    try:
        _detach({end.fileno(), lock_fd})
        keeper_fd, has_namespace = -1, False
        while packet := receive_packet(end, _ToJanitor):
            said, fds = packet
            if isinstance(said, Done):
                os._exit(0)
            keeper_fd, has_namespace = fds[0], said.has_namespace
        _clean_up(settings, keeper_fd, has_namespace)
    except (OSError, DecodeError):
        pass
    finally:
        os._exit(1)


def _detach(kept: set[int]) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.setsid()
    os.chdir("/")
    null_fd = os.open(os.devnull, os.O_RDWR)
    # A copy of the outer process's output would let a launcher wait for its end of file after it died.
    for target in (0, 1, 2):
        os.dup2(null_fd, target)
    kernel.close_all_fds_but(kept)


def _clean_up(settings: NodeSettings, keeper_fd: int, has_namespace: bool) -> None:
    """End the keeper and everything of the node, then remove the directory.

    Without a namespace the keeper saw the outer process die too and ends its tree in order, better than any
    scan from here could; with one the kernel has done it already.
    """
    if keeper_fd >= 0:
        if has_namespace or not _wait_for_exit(keeper_fd, settings.keeper_limit_s):
            _kill(keeper_fd)
        _wait_for_exit(keeper_fd, _GONE_S if has_namespace else _KILL_WAIT_S)
    if not has_namespace:
        kill_left(build_census(settings.tags), lambda: None, _KILL_WAIT_S)
    node_dir = Path(settings.node_dir)
    remove_node_dir(node_dir)
    if (node_dir / CONTROLLER).exists() and _wait_for_no_stub(str(node_dir / CONTROLLER / RUN_RECORD)):
        remove_node_dir(node_dir, spared=())


def _wait_for_no_stub(record: str) -> bool:
    """Wait a moment for the end of stub and controller; say whether both are gone.

    On the batch host they remove their part of the directory themselves, unless all was killed at once: a node of
    the job failed, or its memory ran out. Each has the path of the run's record among its arguments.
    """
    until_s = time.monotonic() + _STUB_S
    word = record.encode()
    while any(word in read_words(pid, "cmdline") for pid in list_pids()):
        if time.monotonic() > until_s:
            return False
        time.sleep(_LOOK_S)
    return True


def _kill(pidfd: int) -> None:
    try:
        kernel.signal_pidfd(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _wait_for_exit(pidfd: int, limit_s: float) -> bool:
    """A pidfd is readable once its process is dead; a namespace's pid 1 is dead only after all in it."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(limit_s * 1000))
