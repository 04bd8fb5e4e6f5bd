"""How one running incarnation is asked: its probes, its port, and who it is that listens there."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from retinue.errors import TransientError
from retinue.node import listeners
from retinue.node.environment import build_placeholders
from retinue.node.exec_probe import ProbeCommand
from retinue.node.listeners import Holder, Ownership
from retinue.node.memory import Note
from retinue.node.orders import SpawnBody
from retinue.node.ports import read_port_file
from retinue.node.probe import Answer, Target, probe_port
from retinue.node.progress_probe import ProgressProbe
from retinue.node.site import Site
from retinue.node.startup_watch import find_loader_names, find_loaders
from retinue.node.tree import Tree, find_tree
from retinue.plan.expand import PlaceholderError, expand
from retinue.terms.launch import ProbeSpec
from retinue.terms.replica import Verdict

WATCH_S = 0.1
WATCH_MAX_S = 1.0
LOOPBACKS = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Subject:
    """The incarnation that is asked."""

    note: Note
    body: SpawnBody
    tree: Tree


class Questions:
    """All that is asked of one incarnation."""

    def __init__(self, site: Site, subject: Subject, port: int | None) -> None:
        self.port = port
        self._site = site
        self._subject = subject
        self._holders: dict[tuple[int, str], Holder] = {}
        """Who was found listening, so that all but the first ask cost one readlink."""
        self._progress: ProgressProbe | None = None
        host = subject.note.host
        self._addresses = LOOPBACKS if host in LOOPBACKS else (host,)

    async def ask(self, spec: ProbeSpec) -> Answer:
        """Ask one probe once."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()

        def read_lag_s() -> float:
            return self._site.lag.worst_since(began_s)

        if spec.exec_argv:
            return await self._ask_exec(spec, read_lag_s)
        target = Target(self._addresses, self.port, self.check_owner)
        try:
            if spec.progress:
                return await self._find_progress(spec).ask(target, self._find_loaders)
            return await probe_port(spec, target, read_lag_s)
        except TransientError as error:
            return Answer(Verdict.UNKNOWN, str(error))

    def _find_progress(self, spec: ProbeSpec) -> ProgressProbe:
        """The one that has seen what this engine did before; its time begins with the first question."""
        if self._progress is None:
            token = self._site.join.token if self._subject.note.spec.token_env else ""
            self._progress = ProgressProbe(spec, token, self._site.lag.worst_since)
        return self._progress

    async def _find_loaders(self) -> dict[int, str]:
        names = find_loader_names(self._subject.note.spec)
        return await self._site.threads.run(find_loaders, self._subject.tree, names)

    async def _ask_exec(self, spec: ProbeSpec, read_lag_s: Callable[[], float]) -> Answer:
        note, body = self._subject.note, self._subject.body
        places = build_placeholders(self._site.join, note.host, self.port, note.inner_port)
        try:
            argv = tuple(expand(word, places) for word in spec.exec_argv)
        except PlaceholderError as error:
            return Answer(Verdict.FAIL, str(error))
        command = ProbeCommand(argv, body.env, body.cwd, spec.timeout_s, body.egress)
        return await self._site.exec_probes.ask(note.spec.replica, spec.kind.value, command, read_lag_s)

    async def check_owner(self, port: int, address: str) -> Ownership:
        """Say whether it is this incarnation that listens at address:port."""
        known = self._holders.get((port, address))
        if known is not None and listeners.is_still_held(known):
            return Ownership(known)
        owner = await self._site.threads.run(_find_owner, port, address, self._subject.tree)
        if owner.holder is not None:
            self._holders[port, address] = owner.holder
        return owner

    async def _is_listening(self) -> bool:
        if self.port is None:
            return False
        try:
            return await self._site.threads.run(_is_listened, self.port, self._subject.tree)
        except TransientError:
            return False  # asked again soon

    async def watch_port(self, on_told: Callable[[int], None], on_listening: Callable[[], None]) -> None:
        """Look for the port file and for the listening socket until one of them settles the port.

        A number counts when it was read twice in a row: a service may write it in pieces.
        """
        wait_s, last = WATCH_S, None
        while True:
            told = read_port_file(self._subject.note.port_file)
            if told is not None and told == last:
                self.port = told
                on_told(told)
                return
            last = told
            if told is None and await self._is_listening():
                on_listening()
                return
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 1.25, WATCH_MAX_S)


def _find_owner(port: int, address: str, tree: Tree) -> Ownership:
    return listeners.find_owner(port, address, [process.pid for process in find_tree(tree)])


def _is_listened(port: int, tree: Tree) -> bool:
    """Say whether some process of the tree listens on the port, on whatever address."""
    found = listeners.read_listeners(port)
    if not found:
        return False
    pids = [process.pid for process in find_tree(tree)]
    return any(listeners.find_holder(item.inode, pids)[0] is not None for item in found)
