"""Several nodes' gateways in this loop: each has an address of its own on loopback, and its node's certificate."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from aiohttp import web
from channel_scenes import RUN, authority, certificate
from gateway_scenes import Handle, Scene, make_backend, make_route, open_scene

from retinue.channel.context import build_hop_contexts
from retinue.channel.messages import Backend, Peer
from retinue.gateway.far import Hop


@cache
def _build_contexts(node: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    return build_hop_contexts(RUN, authority().ca_pem, *certificate("agent", node))


@dataclass
class FarNode:
    """One node: its gateway, and where other nodes' gateways find it."""

    name: str
    scene: Scene
    listen: socket.socket
    address: str
    hop_port: int

    def peer(self, *addresses: str) -> Peer:
        return Peer(self.name, addresses or (self.address,), self.hop_port)

    async def open_replica(self, handle: Handle, replica: str = "judge/0", incarnation: int = 1) -> Backend:
        port = await self.scene.open_backend(handle)
        return make_backend(port, replica, incarnation, node=self.name)


def listen_at(address: str, port: int = 0) -> socket.socket:
    listener = socket.create_server((address, port), backlog=128)
    listener.setblocking(False)
    return listener


def build_hop(node: str, listen: socket.socket) -> Hop:
    return Hop(listen.dup(), node, *_build_contexts(node))


@asynccontextmanager
async def open_nodes(*names: str, **scene: Any) -> AsyncIterator[list[FarNode]]:
    """Open a gateway for each node, at 127.0.1.1, 127.0.1.2 and so on; their replicas end first."""
    async with AsyncExitStack() as stack:
        nodes = []
        for number, name in enumerate(names, 1):
            address = f"127.0.1.{number}"
            listen = stack.enter_context(listen_at(address))
            opened = await stack.enter_async_context(open_scene(hop=build_hop(name, listen), **scene))
            nodes.append(FarNode(name, opened, listen, address, listen.getsockname()[1]))
        yield nodes


def publish_all(nodes: list[FarNode], *backends: Backend, **route: Any) -> None:
    """Tell every gateway of all these replicas, and where the other gateways are."""
    for node in nodes:
        others = tuple(other.peer() for other in nodes if other is not node)
        node.scene.publish(make_route(*backends, **route), peers=others)


async def count_body(request: web.BaseRequest) -> int:
    """Read a body of any length; aiohttp's own `read` ends at 1 MiB."""
    return sum([len(part) async for part in request.content.iter_any()])


def answer_with(text: str) -> Handle:
    async def handle(request: web.BaseRequest) -> web.Response:
        await count_body(request)
        return web.Response(text=text)

    return handle


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for a condition of this process, with a deadline."""
    async with asyncio.timeout(20.0):
        while not is_true():  # noqa: ASYNC110 (a count in another object has no event)
            await asyncio.sleep(0.002)
