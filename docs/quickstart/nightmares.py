"""Kill one part of the run after the other, as a bad day would. Pids come from the run's own status file."""

import json
import os
import signal
from pathlib import Path
from typing import Any

PARTS = ("scorer/1", "the agent", "the checks' warm parent", "the controller", "checks/0", "customer/0")


def read_status() -> dict[str, Any]:
    path = Path(os.environ["RETINUE_ENDPOINTS"]).with_name("status.json")
    status: dict[str, Any] = json.loads(path.read_text())
    return status


def find_pid(part: str) -> int:
    """Find the process that a part is now, as this host numbers it."""
    status = read_status()
    if part == "the controller":
        return int(status["controller_pid"])
    if part == "the agent":
        return int(status["nodes"][0]["agent_host_pid"])
    if part == "the checks' warm parent":
        return find_child(find_pid("checks/0"), b"retinue.checks.warm")
    return next(int(replica["host_pid"]) for replica in status["replicas"] if replica["id"] == part)


def find_child(parent: int, word: bytes) -> int:
    """Find the child of a process that has this word in its command line."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return next(int(pid) for pid in children if word in Path(f"/proc/{pid}/cmdline").read_bytes())


def kill(part: str) -> str:
    """Send SIGKILL to a part and say so."""
    try:
        pid = find_pid(part)
        os.kill(pid, signal.SIGKILL)
    except (OSError, StopIteration, KeyError):
        return f"{part} was not there to be killed"
    return f"SIGKILL to {part} (pid {pid})"
