"""The agent's end of the socketpair to its keeper, on an asyncio loop.

Never blocks: an order the socket does not take yet waits here, in order, with its descriptors.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from retinue.node.descriptors import close_fds, receive_packet, send_packet
from retinue.node.orders import ToAgent, ToKeeper
from retinue.terms.record import DecodeError


class Keeper(Protocol):
    """What an incarnation asks of the keeper."""

    def send(self, order: ToKeeper, descriptors: Sequence[int] = ()) -> None: ...


class KeeperLink:
    """The socket, on the running loop.

    `on_packet(packet, descriptors)` owns the descriptors; `on_lost()` is called once.
    """

    def __init__(
        self,
        channel: socket.socket,
        on_packet: Callable[[ToAgent, list[int]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._on_packet = on_packet
        self._on_lost = on_lost
        self._waiting: deque[tuple[ToKeeper, list[int]]] = deque()
        self._loop = asyncio.get_running_loop()
        channel.setblocking(False)

    def start(self) -> None:
        """Begin to read."""
        self._loop.add_reader(self._channel, self._read)

    def close(self) -> None:
        """Stop reading and close; waiting orders are dropped."""
        if self._channel.fileno() < 0:
            return
        self._loop.remove_reader(self._channel)
        self._loop.remove_writer(self._channel)
        self._channel.close()
        while self._waiting:
            close_fds(self._waiting.popleft()[1])

    def send(self, order: ToKeeper, descriptors: Sequence[int] = ()) -> None:
        """Send one order; the descriptors are duplicated, the caller keeps its own."""
        if self._channel.fileno() < 0:
            return
        self._waiting.append((order, [os.dup(number) for number in descriptors]))
        self._flush()

    def _flush(self) -> None:
        while self._waiting:
            order, descriptors = self._waiting[0]
            try:
                send_packet(self._channel, order, tuple(descriptors))
            except BlockingIOError:
                self._loop.add_writer(self._channel, self._flush)
                return
            except OSError:  # EPIPE: the keeper is gone, and with it this node
                self._lose()
                return
            close_fds(self._waiting.popleft()[1])
        self._loop.remove_writer(self._channel)

    def _read(self) -> None:
        while self._channel.fileno() >= 0:
            try:
                packet = receive_packet(self._channel, ToAgent)
            except BlockingIOError:
                return
            except (OSError, DecodeError):
                # Keeper and agent are of one version: a packet that is none is a bug. End, and be started again.
                packet = None
            if packet is None:
                self._lose()
                return
            self._on_packet(*packet)

    def _lose(self) -> None:
        self.close()
        self._on_lost()
