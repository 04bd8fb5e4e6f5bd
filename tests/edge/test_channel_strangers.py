"""Whoever is not of this run gets nowhere, and a joined agent does not notice."""

import asyncio
import resource
import socket
import ssl
from collections.abc import Iterator

import pytest
from channel_scenes import (
    DEADLINE_S,
    NONCE,
    VERSION,
    Agent,
    Desk,
    authority,
    bind_listener,
    build_join,
    certificate,
    joined,
    running,
    serving,
    until,
)

from retinue.channel.context import build_client_context
from retinue.channel.frames import build_frame
from retinue.channel.messages import Ask, Beat, EndNode, Hello, Message
from retinue.channel.server import ChannelServer

OTHER_RUN = "ffffffffffff"
HELLO = Hello("n2", VERSION, NONCE)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind_listener() as sock:
        yield sock


def blind() -> ssl.SSLContext:
    """A client that believes anybody and shows nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def showing(role: str, name: str, run_id: str) -> ssl.SSLContext:
    cert_pem, key_pem = certificate(role, name, run_id)
    context = build_client_context(authority().ca_pem, cert_pem, key_pem)
    context.check_hostname = False
    return context


async def say(listener: socket.socket, context: ssl.SSLContext | None, *words: bytes) -> bytes:
    """Connect, say it, and read until the other side ends it."""
    host, port = listener.getsockname()
    async with asyncio.timeout(DEADLINE_S):
        try:
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
        except OSError:
            return b""
        try:
            for word in words:
                writer.write(word)
            return await reader.read()
        except OSError:
            return b""
        finally:
            writer.close()
            try:
                await writer.wait_closed()
            except OSError:
                pass


STRANGERS: dict[str, tuple[ssl.SSLContext | None, Message | bytes]] = {
    "no TLS at all": (None, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 20),
    "no certificate": (blind(), HELLO),
    "another run's agent": (showing("agent", "n2", OTHER_RUN), HELLO),
    "another run's operator": (showing("operator", "operator", OTHER_RUN), Ask("down")),
    "an operator who talks like an agent": (showing("operator", "operator", authority().run_id), HELLO),
    "an operator who beats": (showing("operator", "operator", authority().run_id), Beat()),
    "an agent who talks like an operator": (showing("agent", "n2", authority().run_id), Ask("down")),
    "an agent without Hello": (showing("agent", "n2", authority().run_id), Beat()),
    "a controller's certificate as client": (showing("controller", "controller", authority().run_id), HELLO),
    "an agent of ours with garbage": (showing("agent", "n2", authority().run_id), b"\xff" * 4096),
    "a frame of 4 GiB": (showing("agent", "n2", authority().run_id), b"\xff\xff\xff\xff"),
}


async def check_undisturbed(server: ChannelServer, desk: Desk, agent: Agent) -> None:
    """The joined agent still has its first connection, in both directions."""
    assert server.send("n1", EndNode("ping"))
    assert agent.link.send(Beat())
    await until(lambda: agent.heard[-1] == EndNode("ping") and desk.messages)
    assert agent.dials == 1


@pytest.mark.parametrize("who", STRANGERS)
async def test_a_stranger_gets_nowhere_and_disturbs_nobody(listener: socket.socket, who: str) -> None:
    context, word = STRANGERS[who]
    desk = Desk()
    async with serving(listener, desk) as server, joined(build_join(listener)) as agent:
        reply = await say(listener, context, word if isinstance(word, bytes) else build_frame(word))
        assert reply == b""
        assert [hello.node for hello in desk.hellos] == ["n1"]
        assert desk.asks == []
        assert server.connected == ("n1",)
        await check_undisturbed(server, desk, agent)


async def test_an_agent_that_says_hello_twice_is_cut_off(listener: socket.socket) -> None:
    desk = Desk()
    async with serving(listener, desk) as server:
        reply = await say(listener, showing("agent", "n2", authority().run_id), build_frame(HELLO), build_frame(HELLO))
        assert b"Welcome" in reply
        assert len(desk.hellos) == 1
        await until(lambda: server.connected == ())


async def test_an_agent_that_says_nothing_is_cut_off(listener: socket.socket) -> None:
    async with serving(listener, Desk(), hello_timeout_s=0.1):
        assert await say(listener, showing("agent", "n2", authority().run_id)) == b""


async def test_an_agent_does_not_trust_a_controller_of_another_run(listener: socket.socket) -> None:
    desk = Desk()
    own = build_join(listener, run_id=OTHER_RUN, signer=OTHER_RUN)
    async with serving(listener, desk), running(Agent(own)) as agent:
        await until(lambda: agent.link.last_error)
        assert "certificate" in agent.link.last_error.lower()
        assert not agent.link.is_connected
    assert desk.hellos == []


async def test_an_agent_does_not_trust_another_agent_as_controller(listener: socket.socket) -> None:
    cert_pem, key_pem = certificate("agent", "n2")
    desk = Desk()
    own = Agent(build_join(listener))
    async with serving(listener, desk, cert_pem=cert_pem, key_pem=key_pem), running(own) as agent:
        await until(lambda: agent.link.last_error)
        assert not agent.link.is_connected
    assert desk.hellos == []


async def test_a_slow_handshake_is_given_up(listener: socket.socket) -> None:
    async with serving(listener, Desk(), handshake_timeout_s=0.2) as server:
        # The first bytes of a ClientHello, and then nothing.
        assert await say(listener, None, b"\x16\x03\x01\x02\x00\x01") == b""
        await until(lambda: server.admission.refused_count == 1)
        assert server.admission.pending_count == 0


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_thousand_idle_connections_keep_nobody_out(listener: socket.socket, many_descriptors: None) -> None:
    desk = Desk()
    async with serving(listener, desk) as server, joined(build_join(listener)) as agent:
        idle = []
        try:
            for _ in range(1000):
                sock = socket.socket()
                sock.setblocking(False)
                idle.append(sock)
                sock.connect_ex(listener.getsockname())
            await until(lambda: server.admission.pending_count >= 64, "all places taken")
            assert server.admission.pending_count == 64
            await check_undisturbed(server, desk, agent)
            server.admission._patience_s = 0.01
            async with joined(build_join(listener, "n2")):
                assert set(server.connected) == {"n1", "n2"}
                assert server.admission.pending_count <= 64
            assert agent.dials == 1
        finally:
            for sock in idle:
                sock.close()
    assert desk.lost == []
