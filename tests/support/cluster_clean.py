"""Nothing of a run is left on any host of the cluster: seen from outside, without Slurm and without retinue's own word.

The look is a script of its own on every node, standard library only, so that no bug of ours hides what it is to find.
"""

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from support.cluster import Cluster, GaveUp, wait_for

SETTLE_S = 10.0
"""Slurm ends a job's last processes while it already says that the job is over."""

LOOK = r"""
import json, os, sys
run_id, uid = sys.argv[1], os.getuid()

def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""

def parse(pid):
    text = read(f"/proc/{pid}/stat").decode(errors="replace")
    rest = text.rpartition(") ")[2].split()
    return (rest[0], int(rest[1])) if rest else None

pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
stats = {pid: stat for pid in pids if (stat := parse(pid)) is not None}
# What is run here from outside has parent 0; this look is a child of such a one.
visitors = {pid for pid, (_, parent) in stats.items() if parent == 0}
visitors |= {pid for pid, (_, parent) in stats.items() if parent in visitors and parent != 1}

def owner(pid):
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1

def describe(pid):
    words = read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    return f"{pid} {stats[pid][0]} {words[:160]}"

others = [pid for pid in stats if pid not in visitors and pid != os.getpid()]
tag = f"RETINUE_RUN_ID={run_id}".encode()
found = {
    "processes of the user": [describe(pid) for pid in others if owner(pid) == uid],
    "processes of the run": [describe(pid) for pid in others if tag in read(f"/proc/{pid}/environ").split(b"\0")],
    "node directories": [f"{top}/{name}" for top in ("/tmp", "/var/tmp", "/run") for name in os.listdir(top)
                         if name.startswith("retinue-") and not name.startswith("retinue-cluster-")],
    "shared memory": [f"/dev/shm/{name}" for name in os.listdir("/dev/shm")
                      if os.lstat(f"/dev/shm/{name}").st_uid == uid],
    "mounts": [line for line in read("/proc/self/mountinfo").decode().splitlines()
               if f"retinue-{uid}-" in line or run_id in line],
    "unix sockets": [line for line in read("/proc/net/unix").decode().splitlines()
                     if f"retinue-{uid}-" in line or run_id in line],
    "ports": [], "system v ipc": [],
}
for name in ("tcp", "tcp6", "udp", "udp6"):
    for line in read(f"/proc/net/{name}").decode().splitlines()[1:]:
        words = line.split()
        is_open = words[3] == "0A" or name.startswith("udp")
        if is_open and int(words[7]) == uid:
            found["ports"].append(f"{name} {int(words[1].rpartition(':')[2], 16)}")
for name, column in (("shm", 7), ("sem", 4), ("msg", 7)):
    for line in read(f"/proc/sysvipc/{name}").decode().splitlines()[1:]:
        if int(line.split()[column]) == uid:
            found["system v ipc"].append(f"{name} {line.split()[1]}")
print(json.dumps({what: sorted(set(items)) for what, items in found.items() if items}))
"""


def assert_nothing_left(cluster: Cluster, run_dir: Path, without: Collection[str] = ()) -> None:
    """Look on every node until none shows anything of the run or of its user.

    Shape:  `without`: nodes that are down, or that another job of the user still has.
    Errors: AssertionError with what was found where.
    """
    nodes = [node for node in cluster.nodes if node not in without]
    seen: dict[str, Any] = {}

    def is_empty() -> bool:
        seen.clear()
        seen.update(find_left(cluster, run_dir, nodes))
        return not seen

    try:
        wait_for("nothing to be left of the run", is_empty, SETTLE_S)
    except GaveUp:
        raise AssertionError(f"left of the run in {run_dir}: {json.dumps(seen, indent=1)}") from None


def find_left(cluster: Cluster, run_dir: Path, nodes: Collection[str]) -> dict[str, dict[str, list[str]]]:
    """Say what each of the nodes holds of the run, by kind; nodes without anything are left out."""
    run_id = read_run_id(run_dir)
    found = {}
    for node in nodes:
        ran = cluster.run_on(node, [sys.executable, "-I", "-c", LOOK, run_id])
        assert ran.code == 0, f"cannot look at {node}: {ran.err}"
        left = json.loads(ran.out)
        if left:
            found[node] = left
    return found


def read_run_id(run_dir: Path) -> str:
    """Read the run's id from the first file of its newest attempt that tells it, verdict or status."""
    for name in ("verdict.json", "status.json"):
        path = run_dir / "current" / name
        if path.exists():
            return str(json.loads(path.read_text())["run_id"])
    raise AssertionError(f"no attempt in {run_dir} says its run id")
