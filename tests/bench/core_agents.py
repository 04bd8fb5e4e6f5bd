"""Plays every agent of a run in one process, over the real control channel: starts, beats, crashes, ends.

Run by bench_core.py: `python core_agents.py JOIN_DIR`. Commands come as lines on stdin, answers are JSON lines on
stdout. Launches nothing: a launch order is answered as if the service were up at once.
"""

import asyncio
import json
import random
import socket
import statistics
import struct
import sys
import time
from pathlib import Path
from typing import Any

from retinue.channel.client import connect
from retinue.channel.context import build_client_context, limit_tls_buffers
from retinue.channel.join import Join, read_join
from retinue.channel.messages import (
    Beat,
    BindGateway,
    EndNode,
    FromController,
    GatewayBound,
    Hello,
    LaunchOrder,
    Membership,
    Message,
    ReachAddresses,
    Report,
    StopOrder,
    Welcome,
)
from retinue.channel.wire import Wire
from retinue.terms.replica import Exited, ReadinessChanged, Started

BEAT_S = 2.0
DIALLING = 32
"""Handshakes of this process at one time: a thousand hosts would share them, one interpreter cannot."""
TCP_INFO_BYTES = 136
RECEIVED_AT = 128
"""Offset of tcpi_bytes_received in struct tcp_info (linux/tcp.h)."""
WATCHERS = 20
"""Agents that read their memberships; the others drop them, because a thousand hosts would share that work."""


class Dropped(Message, frozen=True, tag="Membership"):
    """A membership whose routes are not looked at."""

    epoch: int


Lean = Welcome | BindGateway | LaunchOrder | StopOrder | Dropped | EndNode | ReachAddresses


class Agent:
    """One node."""

    def __init__(self, crowd: "Crowd", join: Join, nonce: str, number: int) -> None:
        self.crowd, self.join, self.nonce, self.number = crowd, join, nonce, number
        self.up: dict[str, int] = {}
        """Replica -> incarnation that is ready."""
        kind = FromController if number < WATCHERS else Lean
        self.wire = Wire(kind, lambda wire: None, lambda wire, message: self.take(message), self.end)
        self.sock: socket.socket | None = None
        self.context = build_client_context(join.ca_pem, join.cert_pem, join.key_pem)
        self.is_welcome = False

    async def dial(self) -> None:
        host, port = self.join.addresses[0]
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: self.wire, sock=await connect(host, port), ssl=self.context, server_hostname=self.join.server_name
        )
        self.sock = transport.get_extra_info("socket")
        addresses = tuple(f"10.{network}.{self.number // 250}.{self.number % 250}" for network in range(2))
        self.wire.send(Hello(self.join.node, self.join.version, self.nonce, pid=2, host_pid=4711, addresses=addresses))

    def count_received(self) -> int:
        """Say how many bytes the kernel took in on this connection, TLS included."""
        if self.sock is None or not self.wire.is_open:
            return 0
        facts = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        return int(struct.unpack_from("Q", facts, RECEIVED_AT)[0])

    def take(self, message: FromController | Dropped) -> None:
        match message:
            case Welcome():
                self.is_welcome = True
                self.crowd.welcome()
            case BindGateway(port=port):
                self.wire.send(GatewayBound(port, True, hop_port=30000))
            case LaunchOrder(spec=spec):
                self.launch(spec.replica, spec.incarnation)
            case StopOrder(replica=key, incarnation=number):
                self.up.pop(key, None)
                self.wire.send(Report(key, Exited(number, signal=15, was_asked=True, rung="namespace")))
            case Dropped():
                self.crowd.memberships += 1
            case Membership():
                self.crowd.take_membership(self, message)
            case EndNode():
                self.wire.close("told to end")

    def launch(self, key: str, number: int) -> None:
        self.crowd.take_launch(key)
        self.up[key] = number
        self.wire.send(Report(key, Started(number, pid=100, host_pid=5000, port=20000 + len(self.up))))
        self.wire.send(Report(key, ReadinessChanged(number, True)))

    def crash(self, key: str) -> None:
        self.wire.send(Report(key, Exited(self.up.pop(key), code=1, rung="namespace", last_lines="it broke")))

    def withdraw(self, key: str, is_ready: bool) -> None:
        self.wire.send(Report(key, ReadinessChanged(self.up[key], is_ready, "" if is_ready else "probe failed")))

    def end(self, wire: Wire, reason: str) -> None:
        self.crowd.lose(self.join.node, reason)


class Crowd:
    """All agents, and what is measured between them and the controller."""

    def __init__(self, join_dir: Path) -> None:
        joins = [read_join(path) for path in sorted(join_dir.iterdir())]
        nonce = (Path(joins[0].attempt_dir) / "nonce").read_text()
        self.agents = [Agent(self, join, nonce, at) for at, join in enumerate(joins)]
        self.welcomed = self.memberships = 0
        self.open = len(self.agents)
        self.crashed: dict[str, float] = {}
        """Replica -> when its exit was sent."""
        self.crash_times: list[float] = []
        self.withdrawn: dict[str, float] = {}
        self.withdraw_times: list[float] = []
        self.answered = asyncio.Event()
        self.random = random.Random(2)

    def welcome(self) -> None:
        self.welcomed += 1
        if self.welcomed == len(self.agents):
            say(ev="joined")

    def lose(self, node: str, reason: str) -> None:
        if reason != "told to end":
            print(f"{node}: {reason}", file=sys.stderr)
        self.open -= 1
        if self.open == 0:
            say(ev="closed")

    def take_launch(self, key: str) -> None:
        if key in self.crashed:
            self.crash_times.append(time.perf_counter() - self.crashed.pop(key))
            self.answered.set()

    def take_membership(self, agent: Agent, message: Membership) -> None:
        self.memberships += 1
        waited = [key for key in agent.up if key in self.withdrawn]
        if not waited:
            return
        named = {backend.replica for route in message.routes for backend in route.backends}
        for key in waited:
            if key not in named:
                self.withdraw_times.append(time.perf_counter() - self.withdrawn.pop(key))
                agent.withdraw(key, True)
                self.answered.set()

    # --- what the bench asks for ----------------------------------------------------------

    async def dial_all(self) -> None:
        places = asyncio.Semaphore(DIALLING)

        async def dial(agent: Agent) -> None:
            async with places:
                await agent.dial()

        await asyncio.gather(*(dial(agent) for agent in self.agents))

    async def beat_for_ever(self) -> None:
        """Spread the beats over the period, as a thousand clocks would."""
        while True:
            for step in range(20):
                for agent in filter(lambda agent: agent.is_welcome, self.agents[step::20]):
                    agent.wire.send(Beat(0.001, 0.5, 100_000))
                await asyncio.sleep(BEAT_S / 20)

    async def crash_some(self, count: int, period_s: float) -> None:
        """Let replicas exit one after the other, whether or not the controller keeps up."""
        loop, due_s = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        late: list[float] = []
        for _ in range(count):
            due_s += period_s
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            late.append(loop.time() - due_s)
            agent = self.random.choice(self.agents)
            if not agent.up:
                # The controller is so far behind that nothing of this node is up: the others' times will show it.
                continue
            key = self.random.choice(list(agent.up))
            self.crashed[key] = time.perf_counter()
            agent.crash(key)
        await self.wait_for_answers(self.crashed)
        say(ev="crashed", late=summarise(late)["p99"], **summarise(self.crash_times))

    async def withdraw_some(self, count: int, period_s: float) -> None:
        """Let a node's own service become unready; ends when that node's gateway was told."""
        for _ in range(count):
            agent = self.random.choice(self.agents[:WATCHERS])
            key = next(key for key in agent.up if key.startswith("own") and key not in self.withdrawn)
            self.withdrawn[key] = time.perf_counter()
            agent.withdraw(key, False)
            await asyncio.sleep(period_s)
        await self.wait_for_answers(self.withdrawn)
        say(ev="withdrawn", **summarise(self.withdraw_times))

    async def wait_for_answers(self, asked: dict[str, float]) -> None:
        async with asyncio.timeout(60.0):
            while asked:
                self.answered.clear()
                await self.answered.wait()

    async def obey(self) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := (await reader.readline()).split():
            match line:
                case [b"crash", count, period_s]:
                    await self.crash_some(int(count), float(period_s))
                case [b"withdraw", count, period_s]:
                    await self.withdraw_some(int(count), float(period_s))
                case _:
                    received = sum(agent.count_received() for agent in self.agents)
                    say(ev="counts", received=received, memberships=self.memberships)


def summarise(times: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=100)
    return {"p50": cuts[49], "p99": cuts[98], "worst": max(times), "count": len(times)}


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


async def main(join_dir: Path) -> None:
    limit_tls_buffers()
    crowd = Crowd(join_dir)
    say(ev="loaded")
    beats = asyncio.create_task(crowd.beat_for_ever())
    await crowd.dial_all()
    await crowd.obey()
    beats.cancel()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
