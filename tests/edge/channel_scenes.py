"""A controller's end of the channel on loopback, and agents for it; used by the channel tests."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from typing import Any

from retinue.channel.certs import Authority, build_authority, build_certificate
from retinue.channel.client import AgentLink
from retinue.channel.join import Join
from retinue.channel.messages import Answer, Ask, FromAgent, FromController, Hello, Refused, Welcome
from retinue.channel.operator import Control
from retinue.channel.server import AgentConnection, ChannelServer, ChannelSettings

RUN = "0123456789ab"
NONCE = "the nonce"
VERSION = "1.2.3"
DEADLINE_S = 20.0

# Keys are made once: the cache is on functions without defaults, where equal calls look equal.
_make_authority = cache(build_authority)
_make_certificate = cache(build_certificate)


def authority(run_id: str = RUN) -> Authority:
    return _make_authority(run_id)


def certificate(role: Any, name: str, run_id: str = RUN) -> tuple[str, str]:
    return _make_certificate(authority(run_id), role, name)


async def until(condition: Callable[[], object], what: str = "condition") -> None:
    """Wait, one loop turn of 5 ms at a time, until the condition holds; fail at the deadline."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < end_s, f"never came true: {what}"
        await asyncio.sleep(0.005)


class Desk:
    """A controller that writes down what it is told."""

    def __init__(self) -> None:
        self.hellos: list[Hello] = []
        self.hosts: list[str] = []
        self.messages: list[tuple[str, FromAgent]] = []
        self.lost: list[tuple[str, str]] = []
        self.left: list[tuple[str, str]] = []
        self.asks: list[Ask] = []
        self.on_hello: Callable[[AgentConnection, Hello], Refused | None] = lambda connection, hello: None
        self.answer: Callable[[Ask], Awaitable[Answer]] | None = None

    def on_agent(self, connection: AgentConnection, hello: Hello) -> Welcome | Refused:
        self.hellos.append(hello)
        self.hosts.append(connection.peer_host)
        return self.on_hello(connection, hello) or Welcome(RUN, 0, 60.0)

    def on_message(self, node: str, message: FromAgent) -> None:
        self.messages.append((node, message))

    def on_left(self, node: str, reason: str) -> None:
        self.left.append((node, reason))

    def on_lost(self, node: str, reason: str) -> None:
        self.lost.append((node, reason))

    async def on_operator(self, ask: Ask) -> Answer:
        self.asks.append(ask)
        return await self.answer(ask) if self.answer else Answer(True, f"{ask.command} {ask.target}")


def bind_listener() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.settimeout(None)
    return listener


def build_settings(**changes: Any) -> ChannelSettings:
    cert_pem, key_pem = certificate("controller", "controller")
    settings: dict[str, Any] = {"run_id": RUN, "nonce": NONCE, "version": VERSION, "ca_pem": authority().ca_pem}
    return ChannelSettings(**(settings | {"cert_pem": cert_pem, "key_pem": key_pem} | changes))


@contextlib.asynccontextmanager
async def serving(listener: socket.socket, desk: Desk, **changes: Any) -> AsyncIterator[ChannelServer]:
    """Serve on a copy of the listener, as the controller does on the stub's."""
    server = ChannelServer(listener.dup(), build_settings(**changes), desk)
    running = asyncio.create_task(server.run())
    try:
        yield server
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        # A turn for the transports that were aborted to close their sockets.
        await asyncio.sleep(0.01)


def build_join(listener: socket.socket, node: str = "n1", *, run_id: str = RUN, signer: str = RUN) -> Join:
    cert_pem, key_pem = certificate("agent", node, signer)
    return Join(
        run_id=run_id,
        attempt=0,
        node=node,
        addresses=(listener.getsockname(),),
        run_dir="/r",
        attempt_dir="/r/attempt-0",
        node_dir="/n",
        start_dir="/",
        python="python3",
        version=VERSION,
        ca_pem=authority(run_id).ca_pem,
        cert_pem=cert_pem,
        key_pem=key_pem,
        token="t",
    )


def build_control(listener: socket.socket, signer: str = RUN, run_id: str = RUN) -> Control:
    cert_pem, key_pem = certificate("operator", "operator", signer)
    ca_pem = authority(run_id).ca_pem
    return Control(run_id, (listener.getsockname(),), ca_pem, cert_pem, key_pem, "here", 1)


class Agent:
    """An AgentLink and what it heard."""

    def __init__(self, join: Join, hello: Hello | None = None) -> None:
        self.heard: list[FromController] = []
        self.changes: list[bool] = []
        self.dials = 0
        self._hello = hello or Hello(join.node, VERSION, NONCE)
        self.link = AgentLink(
            join, self._build_hello, self.heard.append, lambda connected, reason: self.changes.append(connected)
        )

    def _build_hello(self) -> Hello:
        self.dials += 1
        return self._hello


@contextlib.asynccontextmanager
async def running(agent: Agent) -> AsyncIterator[Agent]:
    task = asyncio.create_task(agent.link.run())
    try:
        yield agent
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def joined(join: Join) -> AsyncIterator[Agent]:
    async with running(Agent(join)) as agent:
        await until(lambda: agent.link.is_connected, f"joined; {agent.link.last_error}")
        yield agent
