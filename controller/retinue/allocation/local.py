"""The machine itself as an allocation of one node: the pure part.

Reads the texts that `machine.py` fetched; never touches the machine.
"""

import re

from retinue.allocation.records import Allocation, Node

_GPU_LINE = re.compile(r"GPU [0-9]+: .*\(UUID: (GPU-[0-9A-Za-z-]+)\)\s*\Z")
_UUID_LINE = re.compile(r"GPU UUID:\s*(\S+)")
_MEMORY_LINE = re.compile(r"MemTotal:\s*([0-9]+) kB")


def build_local_allocation(
    hostname: str, cpus: int, memory_mib: int, gpu_uuids: tuple[str, ...] = (), restart_count: int = 0
) -> Allocation:
    """Describe this machine as the only node.

    Units: cpus that this process may use; memory_mib 0 when unknown; gpu_uuids in index order, "" where unknown.
    """
    node = Node(
        name=hostname or "localhost",
        cpus=max(1, cpus),
        memory_mib=max(0, memory_mib),
        gpus=len(gpu_uuids),
        # A list with holes would send a replica to the wrong device: then indices have to do.
        gpu_uuids=gpu_uuids if all(gpu_uuids) else (),
    )
    return Allocation(nodes=(node,), source="local", restart_count=restart_count, batch_host=node.name)


def parse_gpu_listing(text: str) -> tuple[str, ...]:
    """Read `nvidia-smi -L` into the UUIDs of whole devices; MIG slices below them are not counted."""
    return tuple(match[1] for line in text.splitlines() if (match := _GPU_LINE.match(line)))


def parse_gpu_information(texts: list[str]) -> tuple[str, ...]:
    """Read /proc/driver/nvidia/gpus/*/information into UUIDs, one per file.

    Shape: a device whose UUID the driver does not tell (`GPU-???...`) is known by its position only, as "".
    """
    found = [_UUID_LINE.search(text) for text in texts]
    return tuple(match[1] if match and "?" not in match[1] else "" for match in found)


def select_visible_gpus(uuids: tuple[str, ...], visible: str | None) -> tuple[str, ...]:
    """Keep the devices that CUDA_VISIBLE_DEVICES leaves, in its order.

    Shape:  None: all. As in CUDA the first entry that names no device ends the list, so "" and "-1" leave none.
    Source: CUDA programming guide, environment variables: indices, UUIDs, unambiguous UUID prefixes.
    """
    if visible is None:
        return uuids
    kept: list[str] = []
    for word in visible.split(","):
        found = _find_gpu(uuids, word.strip())
        if found is None or (found and found in kept):
            break
        kept.append(found)
    return tuple(kept)


def _find_gpu(uuids: tuple[str, ...], word: str) -> str | None:
    if re.fullmatch(r"[0-9]{1,4}", word):
        return uuids[int(word)] if int(word) < len(uuids) else None
    if word.startswith("MIG-") and uuids:
        return word
    matches = [uuid for uuid in uuids if uuid.startswith(word)] if word.startswith("GPU-") else []
    return matches[0] if len(matches) == 1 else None


def parse_memory_mib(text: str) -> int:
    """Read MemTotal of /proc/meminfo; 0 when it is not there."""
    match = _MEMORY_LINE.search(text)
    return int(match[1]) // 1024 if match else 0


def parse_limit_mib(text: str) -> int | None:
    """Read memory.max (v2) or memory.limit_in_bytes (v1); None: no limit.

    Units: v1 writes "no limit" as the largest page-aligned 63-bit number, more memory than any machine has.
    """
    word = text.strip()
    if not (word.isascii() and word.isdecimal()) or int(word) >= 1 << 60:
        return None
    return int(word) // (1024 * 1024)


def parse_memory_groups(text: str) -> list[tuple[str, str]]:
    """Read /proc/self/cgroup into (`v1` | `v2`, path) of the groups that may limit memory."""
    groups: list[tuple[str, str]] = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            groups.append(("v2", path))
        elif "memory" in controllers.split(","):
            groups.append(("v1", path))
    return groups
