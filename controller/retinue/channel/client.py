"""The agent's end of the control channel. Standard library and msgspec only.

Dials until it is told not to: the controller may be restarted behind the same address, and the
agent's full state is worth sending again each time. Uses no proxy, and no name service for
literal addresses. Never decides what losing the controller means.
"""

import asyncio
import random
import socket
from collections.abc import Callable

from retinue.channel.context import (
    CONNECT_TIMEOUT_S,
    HANDSHAKE_TIMEOUT_S,
    build_client_context,
    limit_tls_buffers,
    tune_socket,
)
from retinue.channel.join import Join
from retinue.channel.messages import FromAgent, FromController, Hello, Refused, Welcome
from retinue.channel.wire import Wire

BACKOFF_S = 0.1
BACKOFF_MAX_S = 2.0
STEADY_S = 5.0
"""A welcome that lasted this long was a good connection: the next loss starts the backoff again."""
CLOSE_TIMEOUT_S = 3.0


class AgentLink:
    """Keeps one agent connected to its controller."""

    def __init__(
        self,
        join: Join,
        build_hello: Callable[[], Hello],
        on_message: Callable[[FromController], None],
        on_change: Callable[[bool, str], None] | None = None,
    ) -> None:
        """Make a link that `run` brings to life; called on the running loop.

        Shape: `build_hello` is called for every connection, so that it carries the state of that
               moment; `on_change(is_connected, reason)` when that changes.
        """
        limit_tls_buffers()
        self._join = join
        self._addresses = list(join.addresses)
        self._build_hello = build_hello
        self._on_message = on_message
        self._on_change = on_change
        self._context = build_client_context(join.ca_pem, join.cert_pem, join.key_pem)
        self._loop = asyncio.get_running_loop()
        self._wire: Wire | None = None
        self._ended = asyncio.Event()
        self._refused: Refused | None = None
        self.is_connected = False
        """From the controller's Welcome to the end of the connection."""
        self.lost_since_s: float | None = self._loop.time()
        """Loop time since when there is no controller; None while connected."""
        self.last_error = ""
        """Why the last attempt or connection ended."""

    async def run(self) -> Refused:
        """Stay connected until cancelled; returns only when the controller refuses this node."""
        delay_s = BACKOFF_S
        try:
            while True:
                if await self._connect_once() >= STEADY_S:
                    delay_s = BACKOFF_S
                if self._refused is not None:
                    return self._refused
                # Jitter: all nodes of a run lose their controller in the same instant.
                await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
                delay_s = min(delay_s * 2, BACKOFF_MAX_S)
        finally:
            if self._wire is not None:
                self._wire.abort("the agent ends")

    def send(self, message: FromAgent) -> bool:
        """Queue a message without waiting; False when there is no controller to take it."""
        return self.is_connected and self._wire is not None and self._wire.send(message)

    async def close(self, reason: str) -> None:
        """Send what is queued, end this connection, and wait for that at most 3 s; `run` would dial again."""
        if self._wire is None or not self._wire.is_open:
            return
        self._wire.close(reason)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._ended.wait()
        except TimeoutError:
            self._wire.abort(reason)

    # --- one connection -----------------------------------------------------------

    async def _connect_once(self) -> float:
        """Try the addresses in order; returns for how many seconds the first that answered kept us."""
        for address in self._addresses:
            self._ended.clear()
            wire = await self._dial(*address)
            if wire is not None:
                # Next time first: one before it may swallow every packet, which costs the whole connect limit.
                self._addresses = sorted(self._addresses, key=lambda other: other != address)
                return await self._stay(wire)
        return 0.0

    async def _dial(self, host: str, port: int) -> Wire | None:
        wire = Wire(FromController, self._open, self._take, self._end)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                sock = await connect(host, port)
            # A controller that is being restarted has a listening socket but nobody who accepts: waiting
            # here is better than coming back, because the place in the queue is kept.
            await self._loop.create_connection(
                lambda: wire,
                sock=sock,
                ssl=self._context,
                server_hostname=self._join.server_name,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
                ssl_shutdown_timeout=2.0,
            )
        except OSError as error:
            self.last_error = f"cannot reach the controller at {host}:{port}: {error or type(error).__name__}"
            return None
        return wire if wire.is_open else None

    async def _stay(self, wire: Wire) -> float:
        self._wire = wire
        wire.send(self._build_hello())
        timer = self._loop.call_later(HANDSHAKE_TIMEOUT_S, self._check_welcome, wire)
        began_s = self._loop.time()
        try:
            await self._ended.wait()
        finally:
            timer.cancel()
        was_welcome = self.lost_since_s is not None and self.lost_since_s >= began_s
        return self._loop.time() - began_s if was_welcome else 0.0

    def _check_welcome(self, wire: Wire) -> None:
        if not self.is_connected:
            wire.abort("the controller did not answer the Hello")

    def _open(self, wire: Wire) -> None:
        """Nothing to do: `_stay` speaks first."""

    def _take(self, wire: Wire, message: FromController) -> None:
        if isinstance(message, Welcome):
            self.is_connected = True
            self.lost_since_s = None
            if self._on_change is not None:
                self._on_change(True, "")
        elif isinstance(message, Refused):
            self._refused = message
            wire.close("refused")
        self._on_message(message)

    def _end(self, wire: Wire, reason: str) -> None:
        self.last_error = reason
        if self.is_connected:
            self.is_connected = False
            self.lost_since_s = self._loop.time()
            if self._on_change is not None:
                self._on_change(False, reason)
        self._ended.set()


async def connect(host: str, port: int) -> socket.socket:
    """Open a TCP connection, tuned for the channel; tries every address a name stands for.

    Errors: OSError of the last address; TimeoutError is the caller's to set.
    """
    loop = asyncio.get_running_loop()
    try:
        # Literal addresses never touch the resolver, whose threads would outlive a hung name service.
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError = OSError(f"no address for {host!r}")
    for family, kind, protocol, _, address in places:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            tune_socket(sock)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except asyncio.CancelledError:
            sock.close()
            raise
        else:
            return sock
    raise failure
