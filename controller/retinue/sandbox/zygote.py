"""The zygote of one image: makes sandboxes on it, one per request, without a mount of any other image to copy."""

import asyncio
import socket
from contextlib import ExitStack

from retinue.sandbox.box import Box
from retinue.sandbox.config import BoxConfig
from retinue.sandbox.link import Answer, Link, LinkLost, make_pair, read_refusal
from retinue.sandbox.wire import Kind


class Zygote:
    """Made by `NodeSpace.start_zygote`."""

    def __init__(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._link = Link(sock, self._hear, self._lose)
        self._ready: asyncio.Future[None] = loop.create_future()
        self._boxes: dict[int, Box] = {}
        self.ended: asyncio.Future[int] = loop.create_future()
        """Wait status of the zygote's process. Its sandboxes die with it."""
        self.lost: asyncio.Future[None] = loop.create_future()
        """Done when it takes no more requests, by `close` too."""

    @property
    def box_count(self) -> int:
        """Sandboxes of it that live."""
        return len(self._boxes)

    async def create(self, config: BoxConfig) -> Box:
        """Make a sandbox; it is ready to take commands.

        Errors: Refused names the step and errno (EAGAIN and ENOSPC: this node's limits; EINVAL, ENODEV: this kernel, or
                other `filter_flags` than the zygote's); LinkLost: the zygote is gone.
        """
        ours, theirs = make_pair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        box = Box(ours, config)
        with theirs, ExitStack() as unless_made:
            unless_made.callback(box.close)
            fds = [theirs.fileno()]
            await self._link.ask(
                Kind.CREATE, config.numbers(), config.fields(), fds, lambda answer: self._keep(answer, box)
            )
            theirs.close()  # Else a sandbox that died before it was ready would not be noticed.
            await box.wait_ready()
            unless_made.pop_all()
        return box

    async def wait_ready(self) -> None:
        """Wait until sandboxes can be made. Errors: Refused with the step of its own start, LinkLost."""
        await self._ready

    def close(self) -> None:
        """End the zygote and all its sandboxes."""
        self._link.close()
        self._lose()

    def _keep(self, answer: Answer, box: Box) -> None:
        self._boxes[answer.message.number(0)] = box

    def _hear(self, answer: Answer) -> None:
        message = answer.message
        if message.kind is Kind.GONE:
            box = self._boxes.pop(message.number(0), None)
            if box:
                box.end(message.number(1))
        elif message.kind is Kind.READY and not self._ready.done():
            self._ready.set_result(None)
        elif message.kind is Kind.FAILED and not self._ready.done():
            self._ready.set_exception(read_refusal(message))

    def _lose(self) -> None:
        if not self._ready.done():
            self._ready.set_exception(LinkLost("the zygote is gone"))
            self._ready.exception()
        for box in self._boxes.values():
            box.end(-1)
        self._boxes.clear()
        if not self.lost.done():
            self.lost.set_result(None)
