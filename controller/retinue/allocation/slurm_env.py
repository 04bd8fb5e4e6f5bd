"""What Slurm granted, read from the environment of a batch script.

A mapping in, an `Allocation` out; works with what 22.05 and 25.11 set. Never asks
Slurm: an end time the environment does not hold is None, and somebody else's to ask.
"""

import re
from collections.abc import Mapping

from retinue.allocation.nodelist import parse_distinct_nodelist
from retinue.allocation.records import Allocation, Node
from retinue.errors import AllocationError

_NEEDED = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_CPUS_PER_NODE")
_NO_END = 0xFFFFFFFE
"""Slurm's NO_VAL; it and INFINITE mean that the job has no time limit."""
_MIB = {"K": 1 / 1024, "M": 1.0, "": 1.0, "G": 1024.0, "T": 1024.0**2}


def parse_slurm_environment(env: Mapping[str, str]) -> Allocation:
    """Read the grant from `SLURM_*`.

    Shape:  nodes in the order of the node list, the batch host first.
    Units:  memory in MiB, 0 when the job asked for none; end_utc epoch seconds.
    Errors: AllocationError names every variable that is missing, or the one that cannot be read.
    Source: OUTPUT ENVIRONMENT VARIABLES, sbatch(1).
    """
    _refuse_heterogeneous(env)
    missing = [name for name in _NEEDED if not env.get(name)]
    if missing:
        raise AllocationError(
            f"cannot read the Slurm allocation: {', '.join(missing)} not set; run inside a batch script or salloc"
        )
    names = parse_distinct_nodelist(env["SLURM_JOB_NODELIST"])
    claimed = _number(env, "SLURM_JOB_NUM_NODES", len(names))
    if claimed != len(names):
        raise AllocationError(
            f"cannot read the Slurm allocation: SLURM_JOB_NUM_NODES is {claimed}, "
            f"SLURM_JOB_NODELIST {env['SLURM_JOB_NODELIST']!r} names {len(names)}"
        )
    batch_host = env.get("SLURMD_NODENAME") or names[0]
    if batch_host not in names:
        raise AllocationError(
            f"cannot use the Slurm allocation: this shell is on '{batch_host}' (SLURMD_NODENAME), "
            f"which is not a node of job {env['SLURM_JOB_ID']} ({env['SLURM_JOB_NODELIST']})"
        )
    cpus = _cpus(env, len(names))
    gpus = _gpus(env, len(names), names.index(batch_host))
    nodes = [
        Node(name=name, cpus=cpus[at], memory_mib=_memory_mib(env, cpus[at], gpus[at]), gpus=gpus[at])
        for at, name in enumerate(names)
    ]
    nodes.sort(key=lambda node: node.name != batch_host)
    return Allocation(
        nodes=tuple(nodes),
        source="slurm",
        job_id=env["SLURM_JOB_ID"],
        restart_count=_number(env, "SLURM_RESTART_COUNT", 0),
        end_utc=_end_utc(env),
        batch_host=batch_host,
    )


def parse_repeated(text: str) -> list[int]:
    """Expand Slurm's `1(x3),4` into one number per node.

    Errors: ValueError for anything else.
    """
    counts: list[int] = []
    for word in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,5})\))?", word)
        if match is None:
            raise ValueError(f"{word!r} is not COUNT or COUNT(xNODES)")
        counts.extend([int(match[1])] * int(match[2] or 1))
    return counts


def parse_gpu_count(text: str) -> int:
    """Add up `4`, `a100:4`, `gpu:a100:4` or `a100:2,h100:2`.

    Errors: ValueError for anything else.
    """
    total = 0
    for word in text.split(","):
        match = re.fullmatch(r"(?:[A-Za-z_][A-Za-z0-9_.-]*:){0,2}([0-9]{1,5})", word)
        if match is None:
            raise ValueError(f"{word!r} is not COUNT or TYPE:COUNT")
        total += int(match[1])
    return total


def _refuse_heterogeneous(env: Mapping[str, str]) -> None:
    size = _number(env, "SLURM_HET_SIZE", 1)
    if size > 1:
        raise AllocationError(
            f"cannot use a heterogeneous job: SLURM_HET_SIZE is {size}; "
            "submit one job and divide its nodes with `nodes:` in the manifest"
        )


def _cpus(env: Mapping[str, str], node_count: int) -> list[int]:
    text = env["SLURM_JOB_CPUS_PER_NODE"]
    try:
        cpus = parse_repeated(text)
    except ValueError as error:
        raise _unreadable("SLURM_JOB_CPUS_PER_NODE", text, str(error)) from None
    if len(cpus) != node_count:
        raise _unreadable("SLURM_JOB_CPUS_PER_NODE", text, f"it speaks of {len(cpus)} nodes, the job has {node_count}")
    return cpus


def _gpus(env: Mapping[str, str], node_count: int, batch_at: int) -> list[int]:
    """Count whole devices per node.

    The environment tells the batch host's own share; that all nodes have as many holds for
    `--gres` and `--gpus-per-node`. With a total (`--gpus`) the others share the rest.
    """
    per_node = _gpu_count(env, "SLURM_GPUS_PER_NODE")
    if per_node is not None:
        return [per_node] * node_count
    own = _gpu_count(env, "SLURM_GPUS_ON_NODE")
    if own is None:
        own = _count_devices(env.get("SLURM_JOB_GPUS", ""))
    total = _gpu_count(env, "SLURM_GPUS")
    if total is None or total == own * node_count:
        return [own] * node_count
    others, rest = divmod(total - own, max(node_count - 1, 1))
    if rest or others < 0 or node_count == 1:
        raise AllocationError(
            f"cannot tell which node has which GPUs: SLURM_GPUS is {total}, '{own}' of them here, "
            f"{node_count} nodes; submit with --gpus-per-node"
        )
    return [own if at == batch_at else others for at in range(node_count)]


def _gpu_count(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    if not text:
        return None
    try:
        return parse_gpu_count(text)
    except ValueError as error:
        raise _unreadable(name, text, str(error)) from None


def _count_devices(text: str) -> int:
    """Count the entries of a device list, `0,1,2` or `0-3`."""
    count = 0
    for word in text.split(",") if text else ():
        match = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", word)
        count += int(match[2]) - int(match[1]) + 1 if match else 1
    return count


def _memory_mib(env: Mapping[str, str], cpus: int, gpus: int) -> int:
    """Read the node's memory limit; Slurm sets the one of the three that was asked for."""
    for name, factor in (("SLURM_MEM_PER_NODE", 1), ("SLURM_MEM_PER_CPU", cpus), ("SLURM_MEM_PER_GPU", gpus)):
        text = env.get(name)
        if not text:
            continue
        match = re.fullmatch(r"([0-9]{1,15})([KMGT]?)B?", text.upper())
        if match is None:
            raise _unreadable(name, text, "it is not a number of MiB")
        return int(int(match[1]) * _MIB[match[2]]) * factor
    return 0


def _end_utc(env: Mapping[str, str]) -> float | None:
    seconds = _number(env, "SLURM_JOB_END_TIME", 0)
    return float(seconds) if 0 < seconds < _NO_END else None


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name)
    if not text:
        return default
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise _unreadable(name, text, "it is not a whole number")
    return int(text)


def _unreadable(name: str, text: str, cause: str) -> AllocationError:
    return AllocationError(f"cannot read {name}={text!r}: {cause}")
