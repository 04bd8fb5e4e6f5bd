"""The agent's end of its gateway's control socket.

Keeps what the gateway must know and tells it again after every reconnect, so a
gateway that was killed and started again needs nothing of its own. Standard
library and records only: the agent imports this, and must not import aiohttp.
"""

import asyncio
from collections.abc import Callable

from retinue.channel.messages import GatewayFacts, Membership
from retinue.errors import TransientError
from retinue.gateway.control import Attach, ControllerIs, DropReplica, build_frame, read_to_agent
from retinue.terms.record import Record

BACKLOG_BYTES = 8 * 1024 * 1024
"""A gateway that left this much unread is stuck: the link reconnects, which sends the state once."""
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 1.0


class GatewayLink:
    """One agent's link to the gateway of its node; `run` lives until it is cancelled."""

    def __init__(self, control_path: str, node: str, on_facts: Callable[[GatewayFacts], None]) -> None:
        self._path = control_path
        self._node = node
        self._on_facts = on_facts
        self._membership: Membership | None = None
        self._drops: dict[str, DropReplica] = {}
        self._controller = ControllerIs(False)
        self._writer: asyncio.StreamWriter | None = None

    def tell_controller(self, is_there: bool) -> None:
        """Tell the gateway whether there is a controller: nodes that have none ask it."""
        self._controller = ControllerIs(is_there)
        self._send(self._controller)

    def publish(self, membership: Membership) -> None:
        """Tell the gateway the full set of routes, now and after every reconnect."""
        self._membership = membership
        # A drop is answered by the newer epoch: the controller knows of the exit, or the replica is back.
        self._drops.clear()
        self._send(membership)

    def drop(self, replica: str, incarnation: int, cause: str) -> None:
        """Take a replica out at once, without waiting for the controller."""
        order = DropReplica(replica=replica, incarnation=incarnation, cause=cause)
        self._drops[replica] = order
        self._send(order)

    async def run(self) -> None:
        """Connect, say all, read facts; again and again until cancelled."""
        wait_s = RETRY_FIRST_S
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self._path)
            except OSError:
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_MAX_S)
                continue
            wait_s = RETRY_FIRST_S
            await self._serve(reader, writer)
            await asyncio.sleep(wait_s)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._send(Attach(node=self._node))
        self._send(self._controller)
        if self._membership is not None:
            self._send(self._membership)
        for order in self._drops.values():
            self._send(order)
        try:
            while True:
                self._on_facts(await read_to_agent(reader))
        except TransientError:
            return
        finally:
            self._writer = None
            writer.transport.abort()

    def _send(self, record: Record) -> None:
        if self._writer is None:
            return
        if self._writer.transport.get_write_buffer_size() > BACKLOG_BYTES:
            self._writer.transport.abort()
            return
        self._writer.write(build_frame(record))
