"""The controller's end of the control channel: who is connected, and what they say.

Promises that only certificates of this run get a word in, that one node has one connection, and
that no peer's silence, slowness or garbage touches another. Decides nothing: what happens goes
to the `ControllerSide`.
"""

import asyncio
import ipaddress
import socket
from typing import Any, Protocol

from retinue.channel.admission import Admission
from retinue.channel.context import HANDSHAKE_TIMEOUT_S, build_server_context, limit_tls_buffers
from retinue.channel.frames import FrameError
from retinue.channel.messages import Answer, Ask, FromAgent, FromController, FromOperator, Hello, Refused, Welcome
from retinue.channel.silence import Silence
from retinue.channel.wire import Wire
from retinue.errors import RetinueError
from retinue.terms.record import Record, replace


class ChannelSettings(Record, frozen=True):
    """What the controller is, and what it wants to hear from an agent."""

    run_id: str
    nonce: str
    """Written to the attempt directory; an agent that cannot read it is not on the same file system."""
    version: str
    ca_pem: str
    cert_pem: str
    key_pem: str
    hello_timeout_s: float = HANDSHAKE_TIMEOUT_S
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S
    silence_limit_s: float = 10.0


class AgentConnection:
    """One joined agent, or one that is about to be."""

    def __init__(self, wire: Wire, node: str) -> None:
        self._wire = wire
        self._early: list[FromController] | None = []
        self.node = node
        self.peer_host = wire.peer_host
        """Source address of the connection."""

    def send(self, message: FromController) -> bool:
        """Queue a message without waiting; False when the connection is gone.

        What is sent from within `on_agent` follows the Welcome.
        """
        if self._early is not None:
            self._early.append(message)
            return True
        return self._wire.send(message)

    def close(self, reason: str) -> None:
        """Send what is queued, then end; the node may come back."""
        self._wire.close(reason)

    def begin(self, welcome: Welcome) -> None:
        """Send the Welcome, and what waited for it; the server calls this once."""
        early, self._early = self._early or [], None
        for message in (welcome, *early):
            self._wire.send(message)


class ControllerSide(Protocol):
    """Who is told; called on the loop, must not block."""

    def on_agent(self, connection: AgentConnection, hello: Hello) -> Welcome | Refused:
        """Say whether this agent joins; its certificate, version and nonce are right."""

    def on_message(self, node: str, message: FromAgent) -> None:
        """Take anything a joined agent says after its Hello."""

    def on_left(self, node: str, reason: str) -> None:
        """Learn that a node's connection closed; it may well come back."""

    def on_lost(self, node: str, reason: str) -> None:
        """Learn that a node was silent for too long; said once."""

    async def on_operator(self, ask: Ask) -> Answer:
        """Answer an operator; cancelled when the operator goes away."""


class ChannelServer:
    """Serves one run on a socket that is already bound and listening."""

    def __init__(self, listener: socket.socket, settings: ChannelSettings, side: ControllerSide) -> None:
        limit_tls_buffers()
        self._listener = listener
        self._settings = settings
        self._side = side
        self._silence = Silence(settings.silence_limit_s)
        self._wires: dict[Wire, asyncio.TimerHandle] = {}
        self._joined: dict[Wire, AgentConnection] = {}
        self._agents: dict[str, AgentConnection] = {}
        self._last_end: dict[str, str] = {}
        self._answers: dict[Wire, asyncio.Task[None]] = {}
        context = build_server_context(settings.ca_pem, settings.cert_pem, settings.key_pem)
        self.admission = Admission(listener, context, self._build_wire, handshake_s=settings.handshake_timeout_s)

    async def run(self) -> None:
        """Serve until cancelled, then close every connection and this process's copy of the listener."""
        try:
            await self.admission.run()
        finally:
            for task in self._answers.values():
                task.cancel()
            for wire in list(self._wires):
                wire.abort("the controller ends")
            self._listener.close()

    # --- for supervise ------------------------------------------------------------

    @property
    def connected(self) -> tuple[str, ...]:
        """Nodes with a joined connection now."""
        return tuple(self._agents)

    def send(self, node: str, message: FromController) -> bool:
        """Queue a message for a node; False when it is not connected (its full state comes when it is)."""
        agent = self._agents.get(node)
        return agent is not None and agent.send(message)

    def expect(self, node: str) -> None:
        """Count a node's silence from now on, though it has not connected (after a controller restart)."""
        self._silence.hear(node, asyncio.get_running_loop().time())

    def forget(self, node: str) -> None:
        """Expect nothing more of a node; its silence is no loss."""
        self._silence.forget(node)

    def check_silence(self, loop_lag_s: float) -> None:
        """Report the nodes that are lost by now; supervise calls this every second with its own lag."""
        now_s = asyncio.get_running_loop().time()
        for node in self._silence.find_lost(now_s, loop_lag_s):
            last_end = self._last_end.get(node, "")
            reason = f"nothing heard for {self._settings.silence_limit_s:g} s"
            if node in self._agents:
                self._agents.pop(node).close(reason)
            self._side.on_lost(node, f"{reason}{'; ' + last_end if last_end else ''}")

    # --- connections ----------------------------------------------------------------

    def _build_wire(self) -> Wire:
        return Wire(FromAgent, self._open, self._take, self._end)

    def _open(self, wire: Wire) -> None:
        loop = asyncio.get_running_loop()
        self._wires[wire] = loop.call_later(self._settings.hello_timeout_s, wire.abort, "said nothing in time")
        peer = wire.peer
        if peer is None or peer.run_id != self._settings.run_id or peer.role not in ("agent", "operator"):
            wire.abort(f"not a peer of this run: {peer}")
        elif peer.role == "operator":
            wire.expect(FromOperator)

    def _take(self, wire: Wire, message: Any) -> None:
        agent = self._joined.get(wire)
        if agent is not None and not isinstance(message, Hello):
            self._silence.hear(agent.node, asyncio.get_running_loop().time())
            self._side.on_message(agent.node, message)
        elif agent is None and isinstance(message, Hello):
            self._greet(wire, message)
        elif isinstance(message, Ask) and wire not in self._answers:
            self._wires[wire].cancel()
            self._answers[wire] = asyncio.get_running_loop().create_task(self._answer(wire, message))
        else:
            wire.abort(f"{type(message).__name__} out of turn")

    def _greet(self, wire: Wire, hello: Hello) -> None:
        self._wires[wire].cancel()
        hello = replace(hello, addresses=order_addresses(wire.peer_host, hello.addresses))
        connection = AgentConnection(wire, hello.node)
        mistake = self._find_mistake(wire, hello)
        reply = Refused(mistake) if mistake else self._side.on_agent(connection, hello)
        if isinstance(reply, Refused):
            wire.send(reply)
            wire.close(reply.reason)
            return
        older = self._agents.get(hello.node)
        self._agents[hello.node] = self._joined[wire] = connection
        if older is not None:
            older.close("replaced by a newer connection of the same node")
        self._silence.hear(hello.node, asyncio.get_running_loop().time())
        connection.begin(reply)

    def _find_mistake(self, wire: Wire, hello: Hello) -> str:
        own = self._settings
        if wire.peer is None or hello.node != wire.peer.name:
            return f"cannot join as {hello.node!r}: the certificate is for {wire.peer and wire.peer.name!r}"
        if hello.version != own.version:
            return (
                f"cannot join {hello.node!r}: its retinue is version {hello.version!r} ({hello.python}), the "
                f"controller's is {own.version!r}; install the same one or set launch.python"
            )
        if hello.nonce != own.nonce:
            return (
                f"cannot join {hello.node!r}: it does not see the run directory of this run; "
                "name one on a file system that all nodes share with --run-dir"
            )
        return ""

    async def _answer(self, wire: Wire, ask: Ask) -> None:
        try:
            answer = await self._side.on_operator(ask)
        except RetinueError as error:
            answer = Answer(is_done=False, text=str(error))
        try:
            wire.send(answer)
        except FrameError as error:
            wire.send(Answer(is_done=False, text=str(error)))
        wire.close("answered")

    def _end(self, wire: Wire, reason: str) -> None:
        timer = self._wires.pop(wire, None)
        if timer is not None:
            timer.cancel()
        task = self._answers.pop(wire, None)
        if task is not None:
            task.cancel()
        agent = self._joined.pop(wire, None)
        if agent is not None and self._agents.get(agent.node) is agent:
            del self._agents[agent.node]
            self._last_end[agent.node] = reason
            self._side.on_left(agent.node, reason)


def order_addresses(source: str, offered: tuple[str, ...]) -> tuple[str, ...]:
    """Put the address that a node was seen to call from before those that it offers.

    Shape:  a loopback source (the batch host itself) and a link-local one lead nobody else there, and add nothing.
    """
    try:
        seen = ipaddress.ip_address(source)
    except ValueError:
        return offered
    seen = getattr(seen, "ipv4_mapped", None) or seen
    if seen.is_loopback or seen.is_link_local:
        return offered
    return tuple(dict.fromkeys([str(seen), *offered]))
