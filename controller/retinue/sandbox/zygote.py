"""The zygote of one image: makes sandboxes on it, one per request, without a mount of any other image to copy."""

import asyncio
import socket

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
        self._early: dict[int, int] = {}
        self.ended: asyncio.Future[int] = loop.create_future()
        """Wait status of the zygote's process. Its sandboxes die with it."""

    @property
    def box_count(self) -> int:
        """Sandboxes of it that live."""
        return len(self._boxes)

    async def create(self, config: BoxConfig) -> Box:
        """Make a sandbox; it is ready to take commands.

        Errors: Refused names the step and errno (EAGAIN and ENOSPC: this node's limits; EINVAL, ENODEV: this kernel);
                LinkLost: the zygote is gone.
        """
        ours, theirs = make_pair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        box = Box(ours, config)
        with theirs:
            try:
                answer = await self._link.ask(Kind.CREATE, config.numbers(), config.fields(), [theirs.fileno()])
                theirs.close()  # Else a sandbox that died before it was ready would not be noticed.
                self._keep(answer.message.number(0), box)
                await box.wait_ready()
            except BaseException:
                box.close()
                raise
        return box

    async def wait_ready(self) -> None:
        """Wait until sandboxes can be made. Errors: Refused with the step of its own start, LinkLost."""
        await self._ready

    def close(self) -> None:
        """End the zygote and all its sandboxes."""
        self._link.close()
        self._lose()

    def _keep(self, pid: int, box: Box) -> None:
        if pid in self._early:
            box.end(self._early.pop(pid))
            return
        self._boxes[pid] = box

    def _hear(self, answer: Answer) -> None:
        message = answer.message
        if message.kind is Kind.GONE:
            box = self._boxes.pop(message.number(0), None)
            if box is None:
                self._early[message.number(0)] = message.number(1)
            else:
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
            box.close()
        self._boxes.clear()
