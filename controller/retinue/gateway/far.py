"""The way to a replica of another node: through that node's gateway, over TLS of this run, to one replica exactly.

Both ends show their node's certificate; no host name and no proxy plays a part. Never chooses a replica and never
sends a request twice: what went wrong is told as a Fault, as if the replica had been asked directly.
"""

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from yarl import URL

from retinue.channel.messages import Backend, Peer
from retinue.gateway.exchange import Outgoing
from retinue.gateway.faults import Blame, parse_fault, translate_error
from retinue.gateway.peers import Peers
from retinue.gateway.pulse import Pulse
from retinue.gateway.routes import RouteTable
from retinue.gateway.upstream import build_authority, open_session
from retinue.gateway.wire import FAR_FAULT, FAR_REPLICA

SYN_RETRIES = 1
"""An address that swallows every packet is given up after 3 s: the kernel waits one second, then two."""
HANDSHAKE_S = 20.0
"""Until the other gateway has spoken TLS. It is there, so it is busy or being started again, and not to be left out;
its keeper ends one that hangs much sooner than this."""
IDLE_S = 60.0
"""Idle connections are kept: both ends are ours, and a handshake costs more than a request."""
UNREAD_BYTES = 16 * 1024
PING = "/-/far"
"""Answered with 204 by a gateway, to another node's gateway only."""


@dataclass(frozen=True, slots=True)
class Hop:
    """What a gateway calls and answers those of other nodes with."""

    listen: socket.socket
    """Held by the keeper for the run."""
    node: str
    """The own node, as its certificate says it."""
    server: ssl.SSLContext
    client: ssl.SSLContext


class Far:
    """Asks other nodes' gateways."""

    def __init__(self, table: RouteTable, context: ssl.SSLContext, pulse: Pulse) -> None:
        self._pulse = pulse
        connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=IDLE_S, ssl=context, use_dns_cache=False, socket_factory=self._open_socket
        )
        self._session = open_session(connector, HANDSHAKE_S)
        self.peers = Peers(lambda: table.peers, self._ask)

    async def send(self, backend: Backend, outgoing: Outgoing, read_s: float | None = None) -> aiohttp.ClientResponse:
        """Send one request to a replica of another node.

        Units:  `read_s` silence that ends the exchange; None: no deadline.
        Shape:  when the pinned address does not answer any more, the others are tried with the same request:
                nothing of it has left.
        Errors: Fault as the other gateway said it, or when there is no way there; whatever aiohttp raises.
        """
        peer, address = await self.peers.find(backend.node)
        try:
            upstream = await self._send_to(peer, address, backend, outgoing, read_s)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            if translate_error(error).blame is Blame.OURS:
                raise
            self.peers.doubt(backend.node, address)
            peer, address = await self.peers.find(backend.node)
            upstream = await self._send_to(peer, address, backend, outgoing, read_s)
        _limit_unread(upstream)
        said = upstream.headers.get(FAR_FAULT)
        if said is not None:
            upstream.close()
            raise parse_fault(said)
        return upstream

    async def close(self) -> None:
        """Close all connections."""
        await self.peers.close()
        await self._session.close()

    async def _send_to(
        self, peer: Peer, address: str, backend: Backend, outgoing: Outgoing, read_s: float | None
    ) -> aiohttp.ClientResponse:
        host = ("Host", build_authority(backend))
        named = (FAR_REPLICA, f"{backend.replica}#{backend.incarnation}")
        return await self._session.request(
            outgoing.method,
            build_far_url(peer, address, outgoing.target),
            headers=[*outgoing.headers, host, named],
            data=outgoing.body.payload(),
            # A body that can be sent once stays here until the replica itself takes it.
            expect100=outgoing.body.is_streamed,
            allow_redirects=False,
            server_hostname=peer.node,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=HANDSHAKE_S, sock_read=read_s),
        )

    async def _ask(self, peer: Peer, address: str) -> str:
        """Ask at one address whether that node's gateway answers there; the connection is kept for what follows."""
        limits = aiohttp.ClientTimeout(total=None, sock_connect=HANDSHAKE_S, sock_read=HANDSHAKE_S)
        try:
            url = build_far_url(peer, address, PING)
            async with self._session.get(url, server_hostname=peer.node, timeout=limits) as answer:
                return "" if answer.status == 204 else f"answered with status {answer.status}"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return str(translate_error(error))

    def _open_socket(self, info: tuple[int, int, int, str, object]) -> socket.socket:
        sock = socket.socket(info[0], info[1], info[2])
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, SYN_RETRIES)
        self._pulse.watch(sock)
        return sock


@asynccontextmanager
async def open_far(hop: Hop | None, table: RouteTable, pulse: Pulse) -> AsyncIterator[Far | None]:
    """Open the way to other nodes while the context lasts; there is none in a run of one node."""
    if hop is None:
        yield None
        return
    table.node = hop.node
    far = Far(table, hop.client, pulse)
    try:
        yield far
    finally:
        await far.close()


def _limit_unread(upstream: aiohttp.ClientResponse) -> None:
    """Keep little of an answer whose client does not take it: asyncio would hold 256 KiB beside aiohttp's own."""
    if upstream.connection is not None and upstream.connection.transport is not None:
        upstream.connection.transport.set_read_buffer_limits(high=UNREAD_BYTES)  # type: ignore[attr-defined]


def build_far_url(peer: Peer, address: str, target: str) -> URL:
    """Build the address of a target at another node's gateway; `target` goes through byte for byte."""
    return URL.build(scheme="https", host=address, port=peer.hop_port, path=target, encoded=True)
