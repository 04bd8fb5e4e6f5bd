"""The controller process: the real edges around the run, and the one loop.

Started by the stub, again and again if need be. Everything slow is somebody
else's: files are the writer thread's, launches are the stub's, nodes are the
agents'. This process only takes happenings off one queue.
"""

import argparse
import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retinue.channel.messages import Answer, Ask, FromAgent, Hello, Refused, Welcome
from retinue.channel.server import AgentConnection, ChannelServer, ChannelSettings
from retinue.errors import NotReadyError, RetinueError
from retinue.launch.local import build_local_launch
from retinue.launch.srun import build_srun_launch, build_srun_proof
from retinue.node.ports import read_ephemeral_range
from retinue.plan.records import Plan
from retinue.slurm.hygiene import scrub_for_step
from retinue.slurm.version import build_step_flags
from retinue.slurm.words import NOISE
from retinue.supervise.fleet import Fleet
from retinue.supervise.gateway_port import build_port_candidates
from retinue.supervise.happenings import (
    AgentJoined,
    AgentLeft,
    AgentSaid,
    FencedOff,
    Happening,
    NodeGone,
    OperatorAsked,
    StubGone,
    StubHello,
    TermHeard,
    Ticked,
)
from retinue.supervise.keys import RunKeys, prepare_keys
from retinue.supervise.orphaned import end_orphaned_run
from retinue.supervise.real_time import RealClock, RealTimers
from retinue.supervise.recorder import Recorder
from retinue.supervise.run import Run
from retinue.supervise.snapshot import build_verdict
from retinue.supervise.state import RunPhase
from retinue.supervise.store import StateStore
from retinue.supervise.to_stub import StubLink, refuse_start
from retinue.supervise.trainer import Surroundings
from retinue.terms import run as files
from retinue.terms.record import from_json
from retinue.terms.run import RunRecord

TICK_S = 1.0
SNAPSHOT_S = 0.1
FILES_S = 2.0
"""How long the trainer waits for the files it may read first; a file system that hangs does not keep it longer."""


class Controller:
    """Implements `edges.Edges` and the channel's `ControllerSide`; owns the queue."""

    def __init__(
        self, record: RunRecord, plan: Plan, keys: RunKeys, sockets: "Sockets", env: Mapping[str, str]
    ) -> None:
        self.record, self.plan, self.env = record, plan, env
        self.queue: asyncio.Queue[Happening] = asyncio.Queue()
        settings = ChannelSettings(
            run_id=record.run_id,
            nonce=keys.nonce,
            version=record.version,
            ca_pem=keys.ca_pem,
            cert_pem=keys.cert_pem,
            key_pem=keys.key_pem,
        )
        self.server = ChannelServer(sockets.listener, settings, self)
        self.clock = RealClock()
        self.timers = RealTimers(self.post)
        self.agents = self.server
        self.stub = StubLink(sockets.stub, self.post)
        self.stop_fd = sockets.stop_fd
        self.store = StateStore(Path(record.node_dir) / "controller" / "state.jsonl")
        self.gateway_ports = build_port_candidates(record.run_id, read_ephemeral_range())
        self.launch_order = build_launch(record, plan, env)
        self.recorder = Recorder(record, self.stub.order)
        self.journal = self.recorder
        fleet = Fleet(plan, self, find_secrets(plan, env))
        self.run = Run(plan, self, fleet, Surroundings(plan, record, dict(env)))
        self._is_over = asyncio.Event()
        self._soon: asyncio.TimerHandle | None = None
        self._start_trainer_task: asyncio.Task[None] | None = None
        self._is_settled = False

    # --- edges -------------------------------------------------------------------

    def say(self, text: str) -> None:
        self.stub.order({"op": "say", "text": text})

    def post(self, happening: Happening) -> None:
        self.queue.put_nowait(happening)

    def start_trainer(self, order: dict[str, Any]) -> None:
        self.recorder.write_snapshots(self.run, is_urgent=True)
        self._start_trainer_task = asyncio.get_running_loop().create_task(self._order_when_written(order))

    async def _order_when_written(self, order: dict[str, Any]) -> None:
        await asyncio.to_thread(self.recorder.flush, FILES_S)
        self.stub.order(order)

    def finish(self, exit_code: int) -> None:
        self.run.egress.write_totals()
        verdict = build_verdict(self.run, self.record, exit_code, self.clock.now_utc())
        if self.stub.is_gone:
            verdict = end_orphaned_run(self.record, self.plan, verdict)
            self.recorder.write_last(verdict)
        self.recorder.write_snapshots(self.run)
        is_hurried = self.run.state.signalled_utc is not None
        self.stub.order({"op": "finish", "exit_code": exit_code, "verdict": verdict, "is_hurried": is_hurried})
        self._is_over.set()

    # --- the channel's side --------------------------------------------------------

    def on_agent(self, connection: AgentConnection, hello: Hello) -> Welcome | Refused:
        if hello.node not in self.run.nodes.views:
            return Refused(f"{hello.node} is not a node of this run")
        if self.run.nodes.views[hello.node].is_lost:
            return Refused(f"{hello.node} was given up: {self.run.nodes.views[hello.node].lost_cause}")
        self.post(AgentJoined(hello.node, hello))
        return Welcome(self.record.run_id, self.record.attempt, self.plan.orphan_grace_s)

    def on_message(self, node: str, message: FromAgent) -> None:
        self.post(AgentSaid(node, message))

    def on_left(self, node: str, reason: str) -> None:
        self.post(AgentLeft(node))

    def on_lost(self, node: str, reason: str) -> None:
        self.post(NodeGone(node, reason))

    async def on_operator(self, ask: Ask) -> Answer:
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def reply(answer: Answer) -> None:
            if not answered.done():  # the operator has gone away meanwhile
                answered.set_result(answer)

        self.post(OperatorAsked(ask, reply))
        return await answered

    # --- the loop --------------------------------------------------------------------

    async def main(self) -> int:
        """Run until the run is over; every task here lives as long as this does."""
        state, seats = self.store.load()
        if state is not None:
            self.run.restore(state, seats)
        asyncio.get_running_loop().add_reader(self.stop_fd, self._lose_stub)
        # Slurm signals every process of a job; what that means is the run's to say.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.post, TermHeard())
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self.server.run()),
                group.create_task(self.stub.run()),
                group.create_task(self._tick()),
                group.create_task(self._handle_all()),
            ]
            await self._is_over.wait()
            await self.stub.drain()
            for task in tasks:
                task.cancel()
        self.recorder.close()
        await self.stub.drain()
        return 0

    async def _handle_all(self) -> None:
        while True:
            happening = await self.queue.get()
            if isinstance(happening, StubHello):
                self.recorder.begin(happening.starts)
            self.run.handle(happening)
            self._settle()
            self._snapshot_soon()

    def _settle(self) -> None:
        """Once all is up, hide what stays from the garbage collector: it would hold up a large run's decisions for a
        tenth of a second every few seconds, to find nothing."""
        if not self._is_settled and self.run.state.phase is RunPhase.RUNNING:
            self._is_settled = True
            gc.freeze()

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s = max(due_s + TICK_S, loop.time())
            await asyncio.sleep(due_s - loop.time())
            lag_s = loop.time() - due_s
            self.server.check_silence(lag_s)
            self.post(Ticked(lag_s))
            if self.recorder.taken_by:
                self.post(FencedOff(self.recorder.taken_by))

    def _snapshot_soon(self) -> None:
        """Write snapshots shortly after a burst of happenings, so that files follow within a moment."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(SNAPSHOT_S, self._snapshot)

    def _snapshot(self) -> None:
        self._soon = None
        self.recorder.write_snapshots(self.run)

    def _lose_stub(self) -> None:
        asyncio.get_running_loop().remove_reader(self.stop_fd)
        self.stub.is_gone = True
        self.post(StubGone())


class Sockets:
    """What the stub handed over, by number."""

    def __init__(self, listener_fd: int, stub_fd: int, stop_fd: int) -> None:
        self.listener = socket.socket(fileno=listener_fd)
        self.listener.setblocking(False)
        self.stub = socket.socket(fileno=stub_fd)
        self.stub.setblocking(False)
        self.stop_fd = stop_fd
        for fd in (listener_fd, stub_fd, stop_fd):
            os.set_inheritable(fd, False)


def build_launch(record: RunRecord, plan: Plan, env: Mapping[str, str]) -> dict[str, Any]:
    """Build the order that starts the nodes: one child of the stub, or one srun step for all of them."""
    names = [node.name for node in plan.allocation.nodes]
    join_dir = Path(record.run_dir) / files.JOIN
    if not record.slurm_version:
        return build_local_launch(record.python, str(join_dir / f"{names[0]}.pem"), env)
    gpus = min(node.gpus for node in plan.allocation.nodes)
    flags = build_step_flags(record.slurm_version, len(names), gpus, plan.survives_node_loss)
    order = build_srun_launch(record.python, str(join_dir), scrub_for_step(env), names, flags, NOISE)
    # It needs no GPU, and a node that does not answer must not end what is done on the others.
    proof_flags = build_step_flags(record.slurm_version, 1, gpus=0, survives_node_loss=True)
    return order | {"proof_argv": build_srun_proof(record.python, record.run_id, proof_flags)}


def find_secrets(plan: Plan, env: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Resolve `env:NAME` references; the pre-flight has checked that all are there."""
    return {
        service.name: {name: env[source] for name, source in service.env_secrets if source in env}
        for service in plan.services
    }


def main(argv: Sequence[str]) -> int:
    """`python -m retinue controller run.json --listener FD --stub FD --stop FD`."""
    parser = argparse.ArgumentParser(prog="retinue controller")
    parser.add_argument("record", type=Path)
    parser.add_argument("--listener", type=int, required=True)
    parser.add_argument("--stub", type=int, required=True)
    parser.add_argument("--stop", type=int, required=True)
    options = parser.parse_args(argv)
    record = from_json(options.record.read_bytes(), RunRecord)
    plan = from_json((options.record.parent / files.PLAN).read_bytes(), Plan)
    sockets = Sockets(options.listener, options.stub, options.stop)
    try:
        keys = prepare_keys(record, plan, sockets.listener.getsockname()[1])
    except NotReadyError as error:
        refuse_start(sockets.stub, str(error))
        return error.exit_code
    except RetinueError as error:
        print(f"retinue: {error}", file=sys.stderr)
        return error.exit_code

    async def run() -> int:
        return await Controller(record, plan, keys, sockets, os.environ).main()

    return asyncio.run(run())
