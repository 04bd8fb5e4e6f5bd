"""A run of N nodes for bench_core.py: its plan, the stub's part beside a real controller, and what both processes cost.

Everything lives in one temporary directory; both processes are ended by pid whatever happens.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from retinue import __version__
from retinue.plan.records import Dependency, Plan
from retinue.terms import run as files
from retinue.terms.launch import StopSpec
from retinue.terms.record import replace, to_json
from retinue.terms.replica import Policy, RestartPolicy
from retinue.terms.run import RunRecord
from support.world import build_test_plan, service

OWN = 5
SHARED = 5
"""Services with one replica on every node, and services whose replicas anybody may call: ten replicas a node."""
AGENTS = Path(__file__).with_name("core_agents.py")
PATIENCE_S = 600.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def build_bench_plan(count: int, backoff_s: float = 0.0) -> Plan:
    """Plan 10 replicas for each of `count` nodes; the last service waits for the one before it."""
    nodes = tuple(f"node{index:04d}" for index in range(count))
    policy = Policy(
        restart=RestartPolicy(backoff_s=backoff_s, limit=10**6, stable_for_s=3600.0, jitter=0.0),
        stop=StopSpec("TERM", 20.0),
    )
    services = [service(f"own-{index}", count, is_per_node=True) for index in range(OWN)]
    services += [service(f"shared-{index}", count) for index in range(SHARED - 1)]
    services.append(service("caller", count, after=(Dependency(f"shared-{SHARED - 2}", "ready"),)))
    lanes = [tuple(entry.name for entry in services[:-1]), ("caller",)]
    plan = build_test_plan(services, nodes=nodes, policy=policy, lanes=lanes)
    argv = ("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/judge", "--port", "{port}")
    replicas = tuple(replace(place, launch=replace(place.launch, argv=argv)) for place in plan.replicas)
    return replace(plan, replicas=replicas)


class Rig:
    """One controller, one process full of agents, and this process as the stub between them."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.directory = directory
        self.nodes = [node.name for node in plan.allocation.nodes]
        self.record_path = self._write_run(plan)
        self.near, self.far = socket.socketpair()
        self.stop_read, self.stop_write = os.pipe()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.ops: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.children: list[subprocess.Popen[bytes]] = []
        """The controller, then the agents."""
        self.writers: list[asyncio.StreamWriter] = []

    def _write_run(self, plan: Plan) -> Path:
        run_dir, node_dir = self.directory / "run", self.directory / "node"
        attempt_dir, private = run_dir / "attempt-0", node_dir / "controller"
        attempt_dir.mkdir(parents=True)
        private.mkdir(parents=True)
        record = RunRecord(
            run_id="be0c4be0c4be",
            name="bench",
            attempt=0,
            run_dir=str(run_dir),
            attempt_dir=str(attempt_dir),
            node_dir=str(node_dir),
            start_dir=str(self.directory),
            started_utc=time.time(),
            python=sys.executable,
            version=__version__,
        )
        (private / files.PLAN).write_bytes(to_json(plan))
        (private / "run.json").write_bytes(to_json(record))
        return private / "run.json"

    async def start(self) -> float:
        """Start the controller, be its stub, and start the agents once the nodes' join files are there.

        Units: returns the seconds until the controller gave its launch order.
        """
        began_s = time.perf_counter()
        self._start_controller()
        reader, self.writer = await self._talk(self.near)
        self.say(ev="hello", starts=1, launch=None, trainer=None, stops=[], nodes={})
        self.reading = asyncio.create_task(self._read(reader))
        await self.hear("launch")
        took_s = time.perf_counter() - began_s
        self.say(ev="launch_started", pid=4242)
        near, far = socket.socketpair()
        with far:
            argv = [sys.executable, str(AGENTS), str(self.directory / "run" / files.JOIN)]
            self.children.append(subprocess.Popen(argv, stdin=far, stdout=far))  # noqa: ASYNC220
        self.agents_reader, self.agents_writer = await self._talk(near)
        await self.hear_agents("loaded")
        return took_s

    def _start_controller(self) -> None:
        words = [str(self.record_path), "--listener", str(self.listener.fileno())]
        words += ["--stub", str(self.far.fileno()), "--stop", str(self.stop_read)]
        with self.far, open(self.directory / "controller.log", "wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "retinue", "controller", *words],
                pass_fds=(self.listener.fileno(), self.far.fileno(), self.stop_read),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.children.append(child)

    async def _talk(self, sock: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(sock=sock, limit=8 << 20)
        self.writers.append(writer)
        return reader, writer

    def say(self, **event: Any) -> None:
        self.writer.write(json.dumps(event).encode() + b"\n")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            order = json.loads(line)
            if order["op"] != "beat":
                self.ops.put_nowait(order)

    async def hear(self, op: str) -> dict[str, Any]:
        """Wait for this order of the controller; others meanwhile are skipped."""
        async with asyncio.timeout(PATIENCE_S):
            while (order := await self.ops.get())["op"] != op:
                pass
        return order

    async def ask_agents(self, line: str, event: str) -> dict[str, Any]:
        self.agents_writer.write(line.encode() + b"\n")
        return await self.hear_agents(event)

    async def hear_agents(self, event: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while line := await self.agents_reader.readline():
                said: dict[str, Any] = json.loads(line)
                if said["ev"] == event:
                    return said
        raise SystemExit("the agents ended early")

    async def stop(self) -> None:
        """Take the run down as a signal to the stub would; returns with the controller's last word."""
        self.say(ev="stop", signal="TERM", count=1, from_terminal=False)
        await self.hear("signal_trainer")
        self.say(ev="trainer_exited", code=None, signal=15)
        await self.hear_agents("closed")
        for name in self.nodes:
            self.say(ev="node", report={"retinue_node": name, "clean": True, "rung": "namespace"})
        self.say(ev="launch_exited", code=0, signal=None)
        await self.hear("finish")

    async def close(self) -> None:
        """End what still runs, by pid, and reap it."""
        for child in self.children:
            child.kill()
            child.wait()
        for writer in self.writers:
            writer.close()
        self.near.close()
        self.listener.close()
        os.close(self.stop_read)
        os.close(self.stop_write)

    # --- what the controller costs --------------------------------------------------------

    @property
    def _proc(self) -> Path:
        return Path(f"/proc/{self.children[0].pid}")

    def read_cpu_s(self) -> float:
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def read_memory_mb(self, name: str = "VmRSS") -> float:
        lines = (self._proc / "status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024 / 1e6

    def read_written_bytes(self) -> int:
        """Bytes passed to write(2): files and the stub's socket; the agents' connections use send(2)."""
        return int((self._proc / "io").read_text().split("wchar:")[1].split()[0])


@asynccontextmanager
async def open_rig(directory: Path, plan: Plan) -> AsyncIterator[Rig]:
    rig = Rig(directory, plan)
    try:
        yield rig
    except BaseException:
        sys.stderr.write((directory / "controller.log").read_text()[-4000:])
        raise
    finally:
        await rig.close()
        shutil.rmtree(directory, ignore_errors=True)
