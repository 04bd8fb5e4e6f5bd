"""Tells whether this machine's kernel still takes a seccomp filter; where it does not, nobody returns from asking.

Seen on Linux 6.18: more than 1,024 filters freed at one moment fill the kernel's `events` work queue, one of them
holds the mutex of all filters and waits for a work behind them (docs/faults.md). Only a reboot helps, and whatever
asks for a filter until then can never be killed.
"""

import os
import sys
import time

PATIENCE_S = 20.0
POLL_S = 0.05
ASK = """
import ctypes, struct
allow = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 1, ctypes.addressof(allow)))
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
libc.prctl(22, 2, ctypes.byref(program), 0, 0)
"""
"""PR_SET_NO_NEW_PRIVS, then PR_SET_SECCOMP with one instruction: allow all."""
_NULL = tuple((os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2))
"""Who never ends must hold nobody's pipe open."""


def is_kernel_stuck() -> bool:
    """Let a process of its own ask for a filter; it is left behind when it does not come back."""
    argv = [sys.executable, "-S", "-E", "-c", ASK]
    pid = os.posix_spawn(sys.executable, argv, dict(os.environ), file_actions=_NULL, setsid=True)
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if os.waitpid(pid, os.WNOHANG) != (0, 0):
            return False
        time.sleep(POLL_S)
    return True
