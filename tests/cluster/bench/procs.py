"""Processes and namespaces by pid: children, start times, waiting for an end, the argv that enters a host."""

import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

from bench.layout import Refusal


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot; 0 when it has ended. With the pid it names one process."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    # Ended, but not yet reaped by whoever started it.
    return 0 if state in "ZX" else int(fields[18])


def kill_and_wait(pid: int, patience_s: float) -> bool:
    """SIGKILL one process and wait for its end; of a pid namespace's first process that means: all in it have ended."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        signal.pidfd_send_signal(watched, signal.SIGKILL)
        return bool(select.select([watched], [], [], patience_s)[0])
    except ProcessLookupError:
        return True
    finally:
        os.close(watched)


def wait_until(what: str, condition: Callable[[], object], patience_s: float) -> None:
    """Poll until the condition is true. Errors: Refusal says what did not happen in time."""
    until = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > until:
            raise Refusal(f"waited {patience_s:g} s for {what}")
        time.sleep(0.02)


def build_enter(pid: int) -> list[str]:
    """The argv prefix that runs a command inside a host, given its first process."""
    namespaces = ["--net", "--uts", "--ipc", "--mount", "--cgroup", "--time", "--pid"]
    return ["nsenter", f"--target={pid}", *namespaces, "--"]


def build_become(ids: tuple[int, int], directory: str, extra: dict[str, str]) -> list[str]:
    """The argv prefix that makes root an ordinary user with a clean environment."""
    uid, gid = ids
    become = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--init-groups", "--inh-caps=-all", "--reset-env"]
    return [*become, "env", "-C", directory, *(f"{name}={value}" for name, value in extra.items())]
