"""The agent's process: keeper, controller, gateway, writer and slots put together; keeps the time.

What it talks to is handed in (`Ends`), so that a test can be the controller.
"""

import asyncio
import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from retinue.channel.join import Join
from retinue.channel.messages import (
    Beat,
    FromAgent,
    FromController,
    GatewayFacts,
    Hello,
    NodeEnding,
    ReachAddresses,
    Report,
)
from retinue.errors import TransientError
from retinue.node.addresses import find_own_address, read_addresses
from retinue.node.adoption import Estate
from retinue.node.exec_probe import ExecProbes
from retinue.node.facts import LagMeter, read_load_per_cpu, read_memory_free_mib
from retinue.node.gpus import GpuQuestions
from retinue.node.guard_link import GuardLink
from retinue.node.host_watch import watch_settings
from retinue.node.keeper_link import KeeperLink
from retinue.node.memory import read_memory, write_memory
from retinue.node.orders import AgentBeat, DeniedSeen, End, GpusTold, Handover, Inventory, InventoryDone, ToAgent
from retinue.node.orphan import judge_orphan
from retinue.node.outbox import Outbox
from retinue.node.ports import Ports
from retinue.node.proof import read_nonce
from retinue.node.site import Site, Writer
from retinue.node.slots import Gateway, Slots
from retinue.node.threads import Threads

BEAT_S = 2.0
KEEPER_BEAT_S = 1.0
ORPHAN_TICK_S = 0.5
CALM_S = 1.0
"""Silence of the controller counts only while our own loop was less late than this."""
FLUSH_S = 1.2
"""Longer than a writer takes to know that it hangs."""
BUG = 70


class Dialer(Protocol):
    """The control channel."""

    @property
    def lost_since_s(self) -> float | None: ...
    def send(self, message: FromAgent) -> bool: ...
    async def run(self) -> object: ...


class GatewayEnd(Gateway, Protocol):
    """The link to the node's gateway."""

    async def run(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Ends:
    """What the agent talks to besides its keeper."""

    writer: Writer
    """For logs, on the run's shared file system."""
    build_dialer: Callable[[Callable[[], Hello], Callable[[FromController], None], Callable[[bool, str], None]], Dialer]
    """(build_hello, on_message, on_change)"""
    build_gateway: Callable[[Callable[[GatewayFacts], None]], GatewayEnd]
    """(on_facts)"""
    nodes: tuple[str, ...]
    version: str
    own_env: Mapping[str, str]


class AgentProcess:
    """One agent, from its keeper's first packet to its keeper's end."""

    def __init__(self, join: Join, channel: socket.socket, ends: Ends) -> None:
        self.join = join
        self.ends = ends
        self.slots: Slots | None = None
        """None until the keeper's inventory is in."""
        self._loop = asyncio.get_running_loop()
        self._code: asyncio.Future[int] = self._loop.create_future()
        self._keeper = KeeperLink(channel, self._on_packet, lambda: self._end_with(0))
        self._gpus = GpuQuestions(self._keeper)
        self._lag = LagMeter()
        self._outbox = Outbox()
        self._guard = GuardLink(self._keeper, self._outbox)
        self._estate: Estate | None = None
        self._dialer: Dialer | None = None
        self._nonce = ""
        self._addresses: tuple[str, ...] = ()
        self._has_change = False
        self._is_ending = False
        self._orphaned_s = 0.0

    async def run(self) -> int:
        """Live until the keeper goes away (0) or a bug shows (70)."""
        self._keeper.start()
        beat = asyncio.create_task(self._beat_keeper())
        lag = asyncio.create_task(self._lag.run())
        try:
            return await self._code
        finally:
            beat.cancel()
            lag.cancel()
            if self.slots is not None:
                await self.slots.close()
            self._keeper.close()

    # --- the keeper ------------------------------------------------------------------

    def _on_packet(self, packet: ToAgent, descriptors: list[int]) -> None:
        match packet:
            case Inventory():
                self._estate = Estate(packet)
            case Handover() if self._estate is not None:
                self._estate.take(packet, descriptors)
            case InventoryDone() if self._estate is not None:
                self._begin(self._estate)
            case DeniedSeen():
                self._guard.take(packet)
            case GpusTold(text=text):
                self._gpus.take(text)
            case _ if self.slots is not None and not isinstance(packet, Handover | InventoryDone):
                self.slots.take(packet)

    def _begin(self, estate: Estate) -> None:
        """Know what runs; adopt it; dial. Without a wait in it: the keeper's next packet may be here already."""
        inventory, threads = estate.inventory, Threads()
        # A gateway is told of an exit even before the controller.
        gateway = self.ends.build_gateway(lambda facts: slots.pass_facts(facts))
        site = Site(
            join=self.join,
            keeper=self._keeper,
            writer=self.ends.writer,
            ports=Ports(),
            exec_probes=ExecProbes(self._keeper),
            lag=self._lag,
            read_gpus=self._gpus.read,
            threads=threads,
            has_namespace=inventory.has_namespace,
            never=frozenset({os.getpid(), inventory.keeper_pid, 1}),
            keeper_pid=inventory.keeper_pid,
            own_env=self.ends.own_env,
            nodes=self.ends.nodes,
            address=find_own_address(self.join.addresses),
            report=lambda replica, event: self._outbox.say(Report(replica, event)),
            on_down=gateway.drop,
            on_change=self._note_change,
        )
        self.slots = slots = Slots(site, self._outbox, gateway, self.end_node, self._on_bug)
        slots.gateway_port, slots.hop_port = inventory.gateway_port, inventory.hop_port
        estate.adopt_all(slots, read_memory(self.join.node_dir))
        slots.start(gateway.run())
        slots.start(self._serve(slots, inventory))
        slots.start(self._beat_controller(slots))
        slots.start(watch_settings(self.join.node_dir, self._outbox.say))
        slots.start(self._watch_orphan(slots))

    async def _beat_keeper(self) -> None:
        while True:
            self._keeper.send(AgentBeat(self.ends.writer.is_hung))
            await asyncio.sleep(KEEPER_BEAT_S)

    # --- the controller ----------------------------------------------------------------

    async def _serve(self, slots: Slots, inventory: Inventory) -> None:
        """Stay connected to the controller."""
        self._nonce = await read_nonce(slots.site.threads, self.join.attempt_dir, self.join.node_dir)
        self._addresses = await read_addresses(slots.site.threads, self.join.node_count)
        dialer = self.ends.build_dialer(
            lambda: self._build_hello(slots, inventory),
            lambda message: self._obey(slots, message),
            lambda is_connected, reason: self._note_controller(slots, is_connected),
        )
        self._dialer = dialer
        self._outbox.attach(dialer)
        await dialer.run()  # returns only when this node was refused, which `obey` heard

    def _obey(self, slots: Slots, message: FromController) -> None:
        if isinstance(message, ReachAddresses):
            self._guard.tell(message)
        else:
            slots.obey(message)

    def _note_controller(self, slots: Slots, is_connected: bool) -> None:
        slots.note_controller(is_connected)
        if is_connected:
            self._guard.retell()

    def _build_hello(self, slots: Slots, inventory: Inventory) -> Hello:
        return Hello(
            node=self.join.node,
            version=self.ends.version,
            nonce=self._nonce,
            python=sys.executable,
            agent_starts=inventory.starts,
            pid=os.getpid(),
            host_pid=inventory.agent_host_pid,
            keeper_host_pid=inventory.keeper_host_pid,
            outer_pid=inventory.outer_pid,
            has_namespace=inventory.has_namespace,
            weaker=inventory.weaker,
            gateway_port=slots.gateway_port,
            hop_port=slots.hop_port,
            addresses=self._addresses,
            listen_host=slots.site.address,
            observed=slots.observe(),
            guard_off=inventory.guard_off,
        )

    async def _beat_controller(self, slots: Slots) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            now_s = self._loop.time()
            beat = Beat(
                loop_lag_s=self._lag.worst_since(now_s - BEAT_S),
                load_per_cpu=read_load_per_cpu(),
                memory_free_mib=read_memory_free_mib(),
                log_lines_lost=self.ends.writer.lost_lines,
                journal_stuck_s=self.ends.writer.stuck_s(now_s),
                failing=slots.describe_failing(),
            )
            self._outbox.say_now(beat)

    async def _watch_orphan(self, slots: Slots) -> None:
        """End the node when the controller was gone for the grace, while we ourselves were awake."""
        while not self._is_ending:
            await asyncio.sleep(ORPHAN_TICK_S)
            is_calm = self._lag.worst_since(self._loop.time() - ORPHAN_TICK_S) < CALM_S
            if not self._is_lost():
                self._orphaned_s = 0.0
            elif is_calm:
                self._orphaned_s += ORPHAN_TICK_S
            if self._orphaned_s >= slots.orphan_grace_s:
                reason = await judge_orphan(
                    self.join, slots.peers, slots.site.threads, self.ends.own_env, self._is_lost
                )
                if reason is not None:
                    self.end_node(f"no controller for {slots.orphan_grace_s:g} s; {reason}")

    def _is_lost(self) -> bool:
        return self._dialer is None or self._dialer.lost_since_s is not None

    # --- its end ---------------------------------------------------------------------------

    def end_node(self, reason: str) -> None:
        """End the node: once."""
        if not self._is_ending and self.slots is not None:
            self._is_ending = True
            self.slots.start(self._end_node(self.slots, reason))

    async def _end_node(self, slots: Slots, reason: str) -> None:
        self._outbox.say_now(NodeEnding(reason=reason))
        writer = self.ends.writer
        if not writer.is_hung:
            slots.site.look_at_run_dir()
            try:
                await slots.site.threads.run(writer.flush, FLUSH_S)
            except TransientError:
                pass
        self._keeper.send(AgentBeat(writer.is_hung))
        self._keeper.send(End(reason=reason))

    def _note_change(self) -> None:
        """Write down what is known, once per turn of the loop however much changed."""
        if not self._has_change:
            self._has_change = True
            self._loop.call_soon(self._write_memory)

    def _write_memory(self) -> None:
        self._has_change = False
        if self.slots is not None:
            write_memory(self.join.node_dir, self.slots.remember())

    def _on_bug(self, error: BaseException) -> None:
        """End, and be started again by the keeper: half an agent would be worse than none."""
        traceback.print_exception(error, file=sys.stderr)
        self._end_with(BUG)

    def _end_with(self, code: int) -> None:
        if not self._code.done():
            self._code.set_result(code)
