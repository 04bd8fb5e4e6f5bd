"""What the kernel tells the stub: signals, read as records.

Every signal the stub cares about is blocked and read from a signalfd, because
only there `si_code` says whether a terminal sent it. Never decides anything.
Standard library only.
"""

import ctypes
import os
import signal
import struct
import sys

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2)
"""Signals that ask the run to end. USR2 is what `sbatch --signal=B:USR2@N` sends."""

PASSED_ON = signal.SIGUSR1
"""Means something to the trainer only (checkpoint now); passed on, never a stop."""

WATCHED = (*STOPS, PASSED_ON, signal.SIGCHLD)

LEFT_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)

SI_KERNEL = 0x80
RECORD_BYTES = 128
"""sizeof(struct signalfd_siginfo), and of glibc's and musl's sigset_t; signalfd(2)."""

_libc = ctypes.CDLL(None, use_errno=True)


class Caught:
    """One signal that arrived."""

    __slots__ = ("code", "number", "pid")

    def __init__(self, number: int, code: int, pid: int) -> None:
        self.number = number
        self.code = code
        """`si_code`: SI_KERNEL from a terminal, SI_USER (0) from kill(2)."""
        self.pid = pid

    @property
    def is_from_terminal(self) -> bool:
        """The terminal sent it to the whole foreground group: the trainer has it already."""
        return self.code == SI_KERNEL and self.number in (signal.SIGINT, signal.SIGQUIT)

    @property
    def name(self) -> str:
        """Name without SIG."""
        return signal.Signals(self.number).name[3:]


def block_signals() -> None:
    """Keep the watched signals for the signalfd; also called before exec, so that none is lost while Python starts.

    A blocked signal is kept even when it is ignored, so what `nohup` or `cmd &` made us ignore stays unblocked.
    TERM and USR2 are taken in any case.
    """
    left_alone = {number for number in LEFT_IGNORED if signal.getsignal(number) is signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, set(WATCHED) - left_alone)


def open_signalfd() -> int:
    """Open the descriptor that the watched (and already blocked) signals are read from."""
    mask = sum(1 << (number - 1) for number in WATCHED)
    buffer = ctypes.create_string_buffer(mask.to_bytes(8, sys.byteorder), RECORD_BYTES)
    fd: int = _libc.signalfd(-1, buffer, os.O_CLOEXEC | os.O_NONBLOCK)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "cannot open a signalfd")
    return fd


def read_signals(fd: int) -> list[Caught]:
    """Read what has arrived; empty when nothing has."""
    try:
        data = os.read(fd, 16 * RECORD_BYTES)
    except BlockingIOError:
        return []
    caught = []
    for start in range(0, len(data), RECORD_BYTES):
        number, _errno, code, pid = struct.unpack_from("=IiiI", data, start)
        caught.append(Caught(number, code, pid))
    return caught


def parse_signal(name: object) -> int | None:
    """Turn `TERM`, `SIGTERM` or 15 into a number; None when it is no signal."""
    try:
        if isinstance(name, str):
            return int(signal.Signals["SIG" + name.removeprefix("SIG")])
        return int(signal.Signals(name)) if isinstance(name, int) else None
    except (KeyError, ValueError):
        return None


def find_ignored() -> tuple[int, ...]:
    """List the signals the caller had us ignore (`nohup`, `cmd &`): the trainer goes on ignoring them."""
    candidates = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    return tuple(int(number) for number in candidates if signal.getsignal(number) is signal.SIG_IGN)
