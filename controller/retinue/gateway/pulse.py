"""Whether the host at the other end of a connection between nodes is still there.

A host that lost its power says nothing. Idle connections are asked by the kernel (keepalive). One with
unacknowledged bytes would be retried by the kernel for a quarter of an hour; TCP_USER_TIMEOUT would shorten that,
and would also end every connection whose reader pauses, because a closed window counts as silence there. So the
kernel's own counts are looked at. Never judges how long an answer takes.
"""

import asyncio
import socket
import struct
import weakref

from retinue.gateway.notes import log

LOOK_PERIOD_S = 2.0
SILENCE_MS = 15_000
"""No acknowledgement for so long while bytes are on their way. An idle connection has one every few seconds, so at
least half of this was spent asking again."""

_COUNTS = struct.Struct("=24xI16xI8xI")
"""tcp_info of linux/tcp.h: tcpi_unacked, tcpi_last_data_sent and tcpi_last_ack_recv (ms ago)."""


class Pulse:
    """Watches sockets until they are closed."""

    def __init__(self) -> None:
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def watch(self, sock: socket.socket) -> None:
        """Set a socket up for small frames and a kernel that asks, and look at it from now on."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        self._sockets.add(sock)

    async def run(self) -> None:
        """Look at all sockets every two seconds; until cancelled."""
        while True:
            await asyncio.sleep(LOOK_PERIOD_S)
            self.look()

    def look(self) -> None:
        """Shut down the sockets whose other end is gone: their owners then read an end, and close them."""
        for sock in list(self._sockets):
            if sock.fileno() < 0:
                self._sockets.discard(sock)
                continue
            counts = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size)
            if is_silent(counts):
                self._sockets.discard(sock)
                log.warning(
                    "gave up a connection to another node: nothing is acknowledged for %d s", SILENCE_MS // 1000
                )
                _shut_down(sock)


def is_silent(tcp_info: bytes) -> bool:
    """Tell from the kernel's counts whether bytes are on their way and nothing of them is acknowledged.

    A reader that pauses closes its window: then nothing is on its way. A host that is short of memory drops what came
    and says so each time: then an acknowledgement is younger than what was sent last.
    """
    unacked, last_sent_ms, last_ack_ms = _COUNTS.unpack(tcp_info[: _COUNTS.size])
    return bool(unacked) and last_ack_ms > max(SILENCE_MS, last_sent_ms)


def _shut_down(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # It has just ended by itself.
