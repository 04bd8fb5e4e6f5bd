"""A stage for agent tests: one real keeper, this process as its agent, the test as the controller.

The keeper (plain subreaper rung) starts a relay as its "agent"; the relay hands its socket
to the test process, which then is the agent. Killing the relay is an agent's death.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

from agent_doubles import LIMIT_S, Controller, FileWriter, GatewaySpy, wait_for

from retinue.channel.join import Join
from retinue.channel.messages import GatewayFacts, LaunchOrder, StopOrder
from retinue.node.agent_process import AgentProcess, Ends
from retinue.node.census import build_census, find_left
from retinue.node.descriptors import build_pair, send_packet
from retinue.node.settings import EndAsked, Greeting, NodeSettings
from retinue.terms.launch import LaunchSpec
from retinue.terms.record import replace, to_json
from retinue.terms.replica import Exited, LaunchRefused, Started

PYTHON = sys.executable
KEEPER = "import sys; from retinue.node.keeper import main; sys.exit(main(sys.argv[1:]))"
RELAY = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as end:
    end.connect(sys.argv[1])
    socket.send_fds(end, [b"%d" % os.getpid()], [int(sys.argv[2])])
    os.close(int(sys.argv[2]))
    end.recv(1)
"""
T = TypeVar("T")


class Stage:
    """One node in one directory."""

    def __init__(self, where: Path, own_env: dict[str, str]) -> None:
        self.where = where
        self.own_env = own_env
        self.writer = FileWriter()
        self.run_id = secrets.token_hex(6)
        self.controller: Controller
        self.gateway: GatewaySpy
        self.agent: AgentProcess
        self.relay_pid = 0
        self.agent_code: asyncio.Task[int] | None = None
        for name in ("attempt-0", "node"):
            (where / name).mkdir(mode=0o700)
        (where / "attempt-0" / "nonce").write_text("nonce")
        self.join = Join(
            run_id=self.run_id,
            attempt=0,
            node="n1",
            addresses=(("127.0.0.1", 9),),
            run_dir=str(where),
            attempt_dir=str(where / "attempt-0"),
            node_dir=str(where / "node"),
            start_dir=str(where),
            python=PYTHON,
            version="test",
            ca_pem="",
            cert_pem="",
            key_pem="",
            token="the-run-token",
        )

    def start_keeper(self) -> None:
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(self.where / "door"))
        self._door.listen()
        self._door.settimeout(LIMIT_S)
        settings = NodeSettings(
            run_id=self.run_id,
            node="n1",
            node_dir=self.join.node_dir,
            agent_argv=(PYTHON, "-S", "-c", RELAY, str(self.where / "door"), "{keeper_fd}"),
        )
        path = self.where / "settings.json"
        path.write_bytes(to_json(settings))
        self._control, theirs = build_pair()
        send_packet(self._control, Greeting(keeper_host_pid=0, outer_pid=os.getpid()))
        argv = [PYTHON, "-c", KEEPER, str(path), str(theirs.fileno())]
        self.keeper = subprocess.Popen(argv, pass_fds=[theirs.fileno()], cwd=self.where)
        theirs.close()

    async def start_agent(self) -> None:
        """Become the agent that the keeper just started."""
        self._relay, _ = await asyncio.to_thread(self._door.accept)
        data, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, self._relay, 64, 1)
        self.relay_pid = int(data)
        ends = Ends(
            writer=self.writer,
            build_dialer=self._build_controller,
            build_gateway=self._build_gateway,
            nodes=("n1", "n2"),
            version="test",
            own_env=self.own_env,
        )
        self._controller_there = asyncio.Event()
        self.agent = AgentProcess(self.join, socket.socket(fileno=descriptors[0]), ends)
        self.agent_code = asyncio.create_task(self.agent.run())
        await asyncio.wait_for(self._controller_there.wait(), LIMIT_S)
        await wait_for(lambda: bool(self.controller.hellos), "hello")

    def _build_controller(self, *calls: Callable[..., object]) -> Controller:
        self.controller = Controller(*calls)  # type: ignore[arg-type]
        self._controller_there.set()
        return self.controller

    def _build_gateway(self, on_facts: Callable[[GatewayFacts], None]) -> GatewaySpy:
        self.gateway = GatewaySpy(on_facts)
        return self.gateway

    async def kill_agent(self) -> None:
        """The agent dies as by SIGKILL: nothing more is sent, its socket closes."""
        assert self.agent_code is not None
        self.agent_code.cancel()
        await asyncio.gather(self.agent_code, return_exceptions=True)
        os.kill(self.relay_pid, signal.SIGKILL)
        self._relay.close()

    async def end(self) -> None:
        """End the node, and prove that nothing is left of it."""
        if self.keeper.poll() is None:
            with contextlib.suppress(BrokenPipeError):  # it may be ending by itself
                send_packet(self._control, EndAsked("the test is over"))
        if self.agent_code is not None:
            await asyncio.wait({self.agent_code}, timeout=LIMIT_S)
        await asyncio.to_thread(self.keeper.wait, LIMIT_S)
        for end in (self._door, self._control, self._relay):
            end.close()
        left = find_left(build_census({"RETINUE_RUN_ID": self.run_id}))
        assert left == set(), f"processes left: {left}"

    # --- the controller's side ---------------------------------------------------------

    def launch(self, spec: LaunchSpec) -> None:
        self.controller.order(LaunchOrder(spec=spec))

    def stop(self, replica: str, incarnation: int, grace_s: float = 10.0, number: str = "TERM") -> None:
        self.controller.order(StopOrder(replica, incarnation, number, grace_s, "the test asks"))

    async def wait_event(self, replica: str, kind: type[T], incarnation: int = 1) -> T:
        """Wait for an event of this kind about this incarnation."""

        def look() -> T | None:
            for event in self.controller.events(replica):
                if isinstance(event, kind) and getattr(event, "incarnation", 0) == incarnation:
                    return event
            return None

        return await wait_for(look, f"{kind.__name__} of {replica}#{incarnation}: {self.controller.events(replica)}")

    async def start(self, spec: LaunchSpec) -> Started:
        """Launch and wait until it runs."""
        self.launch(spec)
        return await self.wait_event(spec.replica, Started, spec.incarnation)

    async def wait_exit(self, replica: str, incarnation: int = 1) -> Exited:
        return await self.wait_event(replica, Exited, incarnation)

    async def wait_refused(self, replica: str, incarnation: int = 1) -> LaunchRefused:
        return await self.wait_event(replica, LaunchRefused, incarnation)

    async def wait_file(self, name: str) -> str:
        """Wait until a service has written a line into a file of the run's directory."""
        path = self.where / name
        return await wait_for(lambda: _read_line(path), f"line in {name}")

    def log_text(self, spec: LaunchSpec) -> str:
        path = Path(spec.log_path)
        return path.read_text(errors="replace") if path.exists() else ""

    def build_spec(self, script: str, incarnation: int = 1, **changes: object) -> LaunchSpec:
        """A service that runs this Python text; `{where}` in it is this stage's directory."""
        text = script.replace("{where}", str(self.where)).replace("{", "{{").replace("}", "}}")
        text = text.replace("{{port}}", "{port}").replace("{{host}}", "{host}")
        spec = LaunchSpec(
            replica="svc/0",
            service="svc",
            index=0,
            incarnation=incarnation,
            argv=(PYTHON, "-S", "-c", text),
            log_path=str(self.where / "attempt-0" / "logs" / "svc.0" / f"launch-{incarnation}.log"),
        )
        return replace(spec, **changes)


def _read_line(path: Path) -> str | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    return text.strip() if text.endswith("\n") else None


@contextlib.asynccontextmanager
async def open_stage(where: Path, own_env: dict[str, str] | None = None) -> AsyncIterator[Stage]:
    """A running node with this process as its agent."""
    stage = Stage(where, dict(os.environ) if own_env is None else own_env)
    stage.start_keeper()
    try:
        await stage.start_agent()
        yield stage
    finally:
        await stage.end()
