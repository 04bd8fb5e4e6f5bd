"""The gateway's end of the control socket: one agent at a time tells it who may be called.

The last membership stays when the agent goes; a new connection replaces an old one,
because an agent that was killed may leave its connection open in nobody's hands.
"""

import asyncio
import os
import socket
import stat
import struct
from collections.abc import Callable

from retinue.channel.messages import GatewayFacts, Membership
from retinue.errors import PermanentError, TransientError
from retinue.gateway.control import Attach, ControllerIs, DropReplica, ToGateway, build_frame, read_to_gateway
from retinue.gateway.notes import log
from retinue.gateway.routes import RouteTable

FACTS_PERIOD_S = 0.2
UNREAD_BYTES_MAX = 64 * 1024
"""An agent that does not read its facts is told no more until it does."""

_CREDENTIALS = struct.Struct("3i")


def bind_control(path: str) -> socket.socket:
    """Bind the control socket, 0600 in a 0700 directory of ours; a dead predecessor's is replaced.

    Errors: PermanentError when the directory is somebody else's or open to others, or the path cannot be a socket's.
    """
    directory = os.path.dirname(path) or "."
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        seen = os.stat(directory)
        if seen.st_uid != os.getuid() or seen.st_mode & 0o077:
            raise PermanentError(f"cannot listen at {path!r}: its directory must be ours alone (0700)")
        if os.path.lexists(path):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise PermanentError(f"cannot listen at {path!r}: something that is not a socket is there")
            os.unlink(path)
        control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            control.bind(path)
            # Nobody can have connected in between: listen() comes later, and the directory is ours.
            os.chmod(path, 0o600)
        except OSError:
            control.close()
            raise
    except OSError as error:
        raise PermanentError(f"cannot listen at {path!r}: {error.strerror or error}") from None
    return control


class Desk:
    """Takes what the agent says into the table, and tells it facts when they changed."""

    def __init__(self, table: RouteTable, read_facts: Callable[[], GatewayFacts]) -> None:
        self._table = table
        self._read_facts = read_facts
        self._writer: asyncio.StreamWriter | None = None
        self._told: GatewayFacts | None = None

    async def serve_agent(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Listen to one agent until it goes or another comes."""
        if _read_uid(writer) != os.getuid():
            writer.transport.abort()
            return
        if self._writer is not None:
            self._writer.transport.abort()
        self._writer = writer
        self._told = None
        is_first = True
        try:
            while True:
                message = await read_to_gateway(reader)
                self._take(message, is_first)
                is_first = is_first and not isinstance(message, Membership)
        except TransientError as error:
            if not reader.at_eof():
                log.warning("closed the agent's connection: %s", error)
        finally:
            if self._writer is writer:
                self._writer = None
            writer.transport.abort()

    async def tell_facts(self) -> None:
        """Several times a second, tell the agent what changed; until cancelled."""
        while True:
            await asyncio.sleep(FACTS_PERIOD_S)
            self.tell_now()

    def tell_now(self) -> None:
        """Tell the agent the facts unless it knows them, or reads none."""
        facts = self._read_facts()
        if self._writer is None or facts == self._told:
            return
        if self._writer.transport.get_write_buffer_size() <= UNREAD_BYTES_MAX:
            self._writer.write(build_frame(facts))
            self._told = facts

    def _take(self, message: ToGateway, is_first: bool) -> None:
        match message:
            case Attach():
                self._table.node = message.node
            case Membership():
                self._table.apply(message, is_first)
            case ControllerIs(is_there=is_there):
                self._table.has_controller = is_there
            case DropReplica():
                if self._table.drop(message.replica, message.incarnation, message.cause):
                    log.info("left out %s#%d: told so by the agent", message.replica, message.incarnation)


def _read_uid(writer: asyncio.StreamWriter) -> int:
    peer = writer.get_extra_info("socket")
    _, uid, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)
