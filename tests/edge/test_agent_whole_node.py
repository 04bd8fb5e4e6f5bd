"""The real chain on one node: outer process, keeper, agent and writer, with the channel's own server in front."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import channel_scenes as scenes
from agent_doubles import is_alive, wait_for

from retinue import __version__
from retinue.channel.join import write_join
from retinue.channel.messages import Beat, EndNode, Hello, LaunchOrder, NodeEnding, NodeNote, Report, StopOrder
from retinue.channel.server import ChannelServer
from retinue.terms.launch import LaunchSpec, ProbeKind, ProbeSpec
from retinue.terms.record import replace
from retinue.terms.replica import AnyEvent, Exited, ReadinessChanged, Started

SERVICE = """
import os, signal, socket, subprocess, sys
signal.signal(signal.SIGTERM, lambda *args: os._exit(11))
child = subprocess.Popen([sys.executable, '-S', '-c', 'import signal; signal.pause()'], start_new_session=True)
print('child', child.pid, os.environ['KEY'], flush=True)
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', int('{port}'))); s.listen()
while True: signal.pause()
"""


class Node:
    """One node's outer process and the controller's side of its channel."""

    def __init__(self, server: ChannelServer, desk: scenes.Desk, outer: "subprocess.Popen[str]") -> None:
        self.server = server
        self.desk = desk
        self.outer = outer

    def order(self, message: Any) -> None:
        assert self.server.send("n1", message)

    async def hello(self, number: int) -> Hello:
        await wait_for(lambda: len(self.desk.hellos) >= number and self.server.connected, f"hello {number}")
        return self.desk.hellos[number - 1]

    def events(self) -> list[AnyEvent]:
        return [message.event for _, message in self.desk.messages if isinstance(message, Report)]

    async def event(self, kind: type[Any]) -> Any:
        return await wait_for(lambda: next((e for e in self.events() if isinstance(e, kind)), None), kind.__name__)

    def has_heard(self, kind: type[Any]) -> bool:
        return any(isinstance(message, kind) for _, message in self.desk.messages)


def start_outer(argv: list[str], where: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=where)


@contextlib.asynccontextmanager
async def open_node(where: Path) -> AsyncIterator[Node]:
    (where / "attempt-0").mkdir()
    (where / "attempt-0" / "nonce").write_text(scenes.NONCE + "\n")
    # A run id of its own: the janitor of a node that just ended looks for processes by it.
    run_id = secrets.token_hex(6)
    cert_pem, key_pem = scenes.certificate("controller", "controller", run_id)
    changes = {"run_id": run_id, "ca_pem": scenes.authority(run_id).ca_pem, "cert_pem": cert_pem, "key_pem": key_pem}
    with scenes.bind_listener() as listener:
        desk = scenes.Desk()
        async with scenes.serving(listener, desk, version=__version__, **changes) as server:
            join = replace(
                scenes.build_join(listener, run_id=run_id, signer=run_id),
                run_dir=str(where),
                attempt_dir=str(where / "attempt-0"),
                node_dir=str(where / "node"),
                start_dir=str(where),
                python=sys.executable,
                version=__version__,
            )
            write_join(where / "n1.pem", join)
            argv = [sys.executable, "-P", "-m", "retinue", "node", str(where / "n1.pem")]
            outer = start_outer(argv, where)
            try:
                yield Node(server, desk, outer)
            finally:
                if outer.poll() is None:
                    outer.send_signal(signal.SIGTERM)
                await wait_for(lambda: outer.poll() is not None, "end of the outer process")
                if outer.stdout is not None:
                    outer.stdout.close()


def build_spec(where: Path) -> LaunchSpec:
    probe = ProbeSpec(ProbeKind.READINESS, tcp=True, period_s=0.1, timeout_s=5.0)
    return LaunchSpec(
        replica="svc/0",
        service="svc",
        index=0,
        incarnation=1,
        argv=(sys.executable, "-S", "-c", SERVICE),
        secrets={"KEY": "very-secret"},
        wants_port=True,
        probes=(probe,),
        log_path=str(where / "attempt-0" / "logs" / "svc.0" / "launch-1.log"),
    )


async def test_a_killed_agent_is_followed_by_one_that_readopts_and_the_node_ends_clean(tmp_path: Path) -> None:
    async with open_node(tmp_path) as node:
        first = await node.hello(1)
        spec = build_spec(tmp_path)
        node.order(LaunchOrder(spec))
        started = await node.event(Started)
        assert (await node.event(ReadinessChanged)).is_ready
        log = Path(spec.log_path)
        await wait_for(lambda: log.exists() and log.read_text().endswith(" [redacted]\n"), "line in the log")
        os.kill(first.host_pid, signal.SIGKILL)
        second = await node.hello(2)
        (seen,) = second.observed
        assert (seen.pid, seen.host_pid, seen.is_running) == (started.pid, started.host_pid, True)
        assert (seen.is_ready, seen.port) == (True, started.port)
        await wait_for(lambda: node.has_heard(NodeNote), "note about the restarted agent")
        node.order(StopOrder("svc/0", 1, "TERM", 10.0, "test"))
        exited: Exited = await node.event(Exited)
        assert (exited.code, exited.escapees, exited.left) == (11, 1, ())
        assert exited.rung == ("namespace" if second.has_namespace else "subreaper")
        assert not is_alive(started.host_pid)
        node.order(EndNode("over"))
        await wait_for(lambda: node.outer.poll() is not None, "end of the node")
        assert node.has_heard(NodeEnding)
        assert node.outer.stdout is not None
        report = json.loads(node.outer.stdout.read())
        assert report["clean"] is True
        assert not (tmp_path / "node").exists()


async def test_a_term_for_every_process_of_the_job_does_not_take_the_agent_before_its_services(tmp_path: Path) -> None:
    async with open_node(tmp_path) as node:
        first = await node.hello(1)
        node.order(LaunchOrder(build_spec(tmp_path)))
        await node.event(ReadinessChanged)
        os.kill(first.host_pid, signal.SIGTERM)
        node.desk.messages.clear()
        await wait_for(lambda: node.has_heard(Beat), "beat of the same agent")
        assert len(node.desk.hellos) == 1
        assert is_alive(first.host_pid)
