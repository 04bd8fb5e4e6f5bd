"""How an agent takes over what an earlier agent of its node left with the keeper.

Reads the keeper's inventory and the descriptors that follow it; gives every kept
incarnation its old life back, or its end when it ended meanwhile.
"""

import os
import signal

from retinue.node.descriptors import close_fds, read_body
from retinue.node.exec_probe import is_probe_name
from retinue.node.incarnation import Incarnation
from retinue.node.memory import Note, Remembered
from retinue.node.orders import Handover, Inventory, Kept, Reaped, Release, Signal, SpawnBody, Spawned
from retinue.node.questions import Subject
from retinue.node.slots import Slots
from retinue.node.tree import build_tree
from retinue.terms.launch import LaunchSpec
from retinue.terms.record import DecodeError, from_json


class Estate:
    """The inventory as it comes in."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self._descriptors: dict[tuple[str, int], list[int]] = {}

    def take(self, handover: Handover, descriptors: list[int]) -> None:
        """Keep the descriptors of one incarnation until `adopt_all`."""
        self._descriptors[handover.replica, handover.incarnation] = descriptors

    def adopt_all(self, slots: Slots, memory: dict[tuple[str, int], Remembered]) -> None:
        """Give the agent everything that is kept."""
        newest = {kept.replica: kept.incarnation for kept in sorted(self.inventory.kept, key=lambda k: k.incarnation)}
        for kept in self.inventory.kept:
            key = (kept.replica, kept.incarnation)
            descriptors = self._descriptors.pop(key, [])
            if kept.incarnation < newest[kept.replica] and not is_probe_name(kept.replica):
                # Followed by another, so it was over and said; the agent died before it could be forgotten.
                close_fds(descriptors)
                slots.site.keeper.send(Signal(kept.replica, kept.incarnation, signal.SIGKILL))
                slots.site.keeper.send(Release(kept.replica, kept.incarnation))
                continue
            if is_probe_name(kept.replica):
                close_fds(descriptors)
                slots.site.exec_probes.kill_left_over(kept.replica, kept.incarnation, is_alive=kept.is_alive)
            else:
                _adopt(slots, kept, descriptors, memory.get(key))
        for seen in memory.values():
            _recall(slots, seen)


def _adopt(slots: Slots, kept: Kept, descriptors: list[int], seen: Remembered | None) -> None:
    site = slots.site
    held = dict(zip(kept.held, descriptors[1:], strict=False))
    try:
        body = read_body(descriptors[0], SpawnBody)
        note = from_json(body.note, Note)
    except (IndexError, OSError, DecodeError):
        # Without the note nobody can probe it or name its log. It is ended; the controller launches another.
        close_fds(descriptors)
        site.keeper.send(Signal(kept.replica, kept.incarnation, signal.SIGKILL))
        return
    pipe = held.pop("log", None)
    close_fds([descriptors[0], *held.values()])
    incarnation = Incarnation(site, note.spec)
    incarnation.own(Spawned(kept.replica, kept.incarnation, kept.pid, kept.host_pid), note.port)
    if note.port is not None:
        site.ports.remember(kept.replica, note.port)
    if note.inner_port is not None:
        site.ports.remember_block(kept.replica, note.inner_port)
    if not kept.is_alive:
        incarnation.take(Reaped(kept.replica, kept.incarnation, kept.code, kept.signal))
    if seen is not None and seen.exited is not None:
        if pipe is not None:
            os.close(pipe)
        incarnation.recall_end(seen)
        slots.by_replica[kept.replica] = incarnation
        return
    pipe = _build_ended_pipe() if pipe is None else pipe
    subject = Subject(note, body, build_tree(site, note.spec, kept.pid, pipe))
    slots.adopt(incarnation, incarnation.adopt(subject, pipe, set(kept.held), seen))


def _recall(slots: Slots, seen: Remembered) -> None:
    """Remember an answer about something the keeper does not hold: a refused launch."""
    present = slots.by_replica.get(seen.replica)
    is_newest = present is None or present.spec.incarnation < seen.incarnation
    if is_newest and seen.refused is not None:
        spec = LaunchSpec(seen.replica, service="", index=0, incarnation=seen.incarnation, argv=())
        incarnation = Incarnation(slots.site, spec)
        incarnation.recall_end(seen)
        slots.by_replica[seen.replica] = incarnation


def _build_ended_pipe() -> int:
    """A read end at its end of file: the log was given up already."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    os.close(write_end)
    return read_end
