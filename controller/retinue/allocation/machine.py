"""What this machine has: the one place of this room that looks.

Never fails for want of a device or a file: what cannot be seen is not there (0 GPUs),
what cannot be read is unknown (0 MiB).
"""

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from retinue.allocation.local import (
    build_local_allocation,
    parse_gpu_information,
    parse_gpu_listing,
    parse_limit_mib,
    parse_memory_groups,
    parse_memory_mib,
    select_visible_gpus,
)
from retinue.allocation.records import Allocation

LIST_TIMEOUT_S = 5.0
"""nvidia-smi on a sick driver hangs for minutes."""
_LIMIT_FILES = {"v2": ("", "memory.max"), "v1": ("memory", "memory.limit_in_bytes")}


def read_local_allocation(root: Path = Path("/"), list_gpus: Callable[[], str] | None = None) -> Allocation:
    """Read this machine as an allocation of one node.

    Shape: `root` is where /proc and /sys/fs/cgroup are looked for; `list_gpus` answers as `nvidia-smi -L`.
    """
    uuids = parse_gpu_listing((list_gpus or read_gpu_listing)()) or _read_gpu_information(root)
    return build_local_allocation(
        hostname=socket.gethostname(),
        cpus=len(os.sched_getaffinity(0)),
        memory_mib=read_memory_mib(root),
        gpu_uuids=select_visible_gpus(uuids, os.environ.get("CUDA_VISIBLE_DEVICES")),
    )


def read_memory_mib(root: Path = Path("/")) -> int:
    """Read how much memory this process may use: the machine's, or a lower limit of a control group above us."""
    found = [parse_memory_mib(_read(root / "proc/meminfo"))]
    for version, path in parse_memory_groups(_read(root / "proc/self/cgroup")):
        folder, file = _LIMIT_FILES[version]
        top = root / "sys/fs/cgroup" / folder
        # In a container the path is the host's and may not exist below our mount; the mount's own top still limits us.
        inner = Path(path.lstrip("/"))
        for group in (inner, *inner.parents):
            limit = parse_limit_mib(_read(top / group / file)) if ".." not in group.parts else None
            found.extend([limit] if limit is not None else [])
    return min((mib for mib in found if mib > 0), default=0)


def read_gpu_listing(program: str = "nvidia-smi", timeout_s: float = LIST_TIMEOUT_S) -> str:
    """Ask `nvidia-smi -L`; empty when there is none, it fails, or it does not answer in time."""
    try:
        child = subprocess.Popen(
            [program, "-L"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        return ""
    try:
        text, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _abandon(child)
        return ""
    return text if child.returncode == 0 else ""


def _abandon(child: subprocess.Popen[str]) -> None:
    """End a child without waiting for it for ever: one that is stuck in the driver (D state) never ends."""
    child.kill()
    if child.stdout is not None:
        child.stdout.close()
    try:
        child.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        # subprocess keeps it on its own list and reaps it with the next child.
        return


def _read_gpu_information(root: Path) -> tuple[str, ...]:
    """Read the driver's own list, in PCI order, which is nvidia-smi's."""
    files = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    return parse_gpu_information([_read(file) for file in files])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
