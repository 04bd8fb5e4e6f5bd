"""Looks at the processes of one starting incarnation while its startup probe has not passed yet.

Reads /proc and the size of its log; what that means is `lifecycle.loading`'s to say.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from retinue.errors import TransientError
from retinue.lifecycle.loading import Loading, Look
from retinue.node.capture import Capture
from retinue.node.engines import ENGINES
from retinue.node.probe import LATE_S
from retinue.node.prober import Prober
from retinue.node.scan import Process, read_processes, read_words
from retinue.node.site import Site
from retinue.node.tree import Tree, find_tree
from retinue.terms.launch import LaunchSpec, ProbeKind, compute_budget_s

LOOK_S = 1.0
SAY_AGAIN_S = 30.0
"""Said again as long as nobody stopped it: the first word may have been lost with a connection."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Start(NamedTuple):
    """The incarnation that starts."""

    spec: LaunchSpec
    tree: Tree
    capture: Capture
    prober: Prober
    say_lost: Callable[[str], None]
    """Hears why the start is to be given up."""


async def watch_startup(site: Site, start: Start) -> None:
    """Look until the start is over, or cancelled.

    Does nothing for a start whose budget does not go on: that is Kubernetes' and the controller's alone.
    """
    startup = next((probe for probe in start.spec.probes if probe.kind is ProbeKind.STARTUP), None)
    if startup is None or startup.budget_max_s is None:
        return
    loop = asyncio.get_running_loop()
    names = find_loader_names(start.spec)
    loading = Loading(compute_budget_s(startup), loop.time(), loop.time())
    said_s = -SAY_AGAIN_S
    while start.prober.is_starting:
        asked_s = loop.time()
        await asyncio.sleep(LOOK_S)
        with suppress(TransientError):
            look = await site.threads.run(look_at, start.tree, start.capture.bytes_read, names)
            if site.lag.worst_since(asked_s) > LATE_S:
                loading = loading.restart(loop.time())
            loading, lost = loading.observe(look, loop.time())
            if lost and start.prober.is_starting and loop.time() - said_s >= SAY_AGAIN_S:
                said_s = loop.time()
                start.say_lost(lost)


def find_loader_names(spec: LaunchSpec) -> tuple[str, ...]:
    """Find what the names of its engine's processes begin with."""
    progress = [ENGINES[probe.progress] for probe in spec.probes if probe.progress]
    return tuple(name for engine in progress for name in engine.loaders)


def find_loaders(tree: Tree, names: tuple[str, ...]) -> dict[int, str]:
    """Find the processes of the tree that an engine cannot be without: pid -> name. May block like `look_at`."""
    return {process.pid: process.name for process in find_tree(tree) if _is_loader(process, names)}


def look_at(tree: Tree, log_bytes: int, names: tuple[str, ...]) -> Look:
    """Look at all processes of the tree. May block on one that hangs in the kernel."""
    alive = find_tree(tree)
    pids = {process.pid for process in alive}
    fields = [_read_fields(process.pid) for process in alive]
    dead = (process for process in read_processes().values() if process.is_dead and process.ppid in pids)
    return Look(
        log_bytes=log_bytes,
        memory_bytes=sum(int(found[21]) * PAGE_BYTES for found in fields if found),
        faults=sum(int(found[9]) for found in fields if found),
        read_bytes=sum(_read_io(process.pid) for process in alive),
        dead={process.pid: how for process in dead if (how := _describe_death(process))},
        loaders={process.pid: process.name for process in alive if _is_loader(process, names)},
    )


def _is_loader(process: Process, names: tuple[str, ...]) -> bool:
    if not names:
        return False
    title = read_words(process.pid, "cmdline")[:1]
    return process.name.startswith(names) or any(word.decode(errors="replace").startswith(names) for word in title)


def _describe_death(process: Process) -> str:
    """Say how a process ended that nobody has taken note of; empty when it ended well, or it cannot be told.

    Source: proc_pid_stat(5), exit_code, in the form of waitpid(2).
    """
    fields = _read_fields(process.pid)
    status = int(fields[49]) if len(fields) > 49 else 0
    if not status:
        return ""
    code = os.waitstatus_to_exitcode(status)
    how = f"exited {code}" if code >= 0 else f"died of signal {-code}"
    return f"({process.name}) {how}"


def _read_fields(pid: int) -> list[str]:
    """Read what follows the name in /proc/PID/stat; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(") ")[2].split()
    except OSError:
        return []


def _read_io(pid: int) -> int:
    """Read how many bytes it has read, from disks or caches; 0 where that is not told."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            words = dict(line.split(": ") for line in file.read().splitlines())
            return int(words["rchar"]) + int(words["read_bytes"])
    except (OSError, ValueError, KeyError):
        return 0
