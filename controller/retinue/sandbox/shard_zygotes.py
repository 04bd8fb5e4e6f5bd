"""The zygotes that a shard holds, by the numbers that the front gave them, and whether their images still serve.

Their sockets come on a line of their own, each before anything that names its number.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from retinue.errors import TransientError
from retinue.sandbox.aside import run_aside
from retinue.sandbox.zygote import Zygote

FDS = 2
"""The zygote's socket; a directory of its image."""
IMAGE_S = 15.0
"""How long an image may take to say that it serves; longer than squashfuse may hang before it is killed."""


class ZygoteGone(TransientError):
    """There is none of that number."""


@dataclass(eq=False, slots=True)
class Seated:
    """One zygote."""

    zygote: Zygote
    ready: asyncio.Future[None]
    """What is asked before would be taken for answered."""
    image_fd: int

    def close(self) -> None:
        """End it, and let go of its image."""
        self.zygote.close()
        self.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        if self.image_fd >= 0:
            os.close(self.image_fd)
            self.image_fd = -1

    async def has_image(self) -> bool:
        """Say whether its image serves; asked when a command failed, which may have been for want of it.

        A daemon that died is an error at once; one that hangs is waited for until somebody has killed it. What a
        sandbox does to its image can make this slow, never false.
        """
        if self.image_fd < 0:
            return False
        held_fd = os.dup(self.image_fd)  # Closed by whoever is last: the call may outlive us.
        try:
            await run_aside(lambda: _ask(held_fd), IMAGE_S)
        except TimeoutError:
            return True
        except OSError:
            return False
        return True


class SeatedZygotes:
    """All of a shard."""

    def __init__(self, line: socket.socket, on_lost: Callable[[int], None]) -> None:
        """line: where their descriptors come in; on_lost gets the number of one that died by itself."""
        line.setblocking(False)
        self._line = line
        self._on_lost = on_lost
        self._seated: dict[int, Seated] = {}

    async def find(self, number: int) -> Seated:
        """Find one, ready to make sandboxes. Errors: ZygoteGone; LinkLost and Refused of its start."""
        while number not in self._seated:
            try:
                message, fds, _, _ = socket.recv_fds(self._line, 4, FDS)
            except BlockingIOError:
                raise ZygoteGone("it died") from None
            if len(fds) != FDS:
                raise ZygoteGone("it was never heard of")
            self._seat(int.from_bytes(message, "little"), socket.socket(fileno=fds[0]), fds[1])
        seated = self._seated[number]
        if not seated.ready.done():
            await asyncio.wait([seated.ready])
        seated.ready.result()
        return seated

    def drop(self, number: int) -> None:
        """End one."""
        seated = self._seated.pop(number, None)
        if seated is not None:
            seated.close()

    def _seat(self, number: int, sock: socket.socket, image_fd: int) -> None:
        sock.setblocking(False)
        zygote = Zygote(sock)
        self._seated[number] = Seated(zygote, asyncio.ensure_future(zygote.wait_ready()), image_fd)
        zygote.lost.add_done_callback(lambda lost: self._lose(number))

    def _lose(self, number: int) -> None:
        seated = self._seated.pop(number, None)
        if seated is not None:
            seated.close()
            self._on_lost(number)


def _ask(fd: int) -> None:
    """Ask the file system itself; what it answers is in no cache."""
    try:
        os.fstatvfs(fd)
    finally:
        os.close(fd)
