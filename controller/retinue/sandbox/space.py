"""The node space: the namespaces in which this node's images, zygotes and sandboxes live, held by one process of ours.

Whatever ends that process, or us, ends everything in it.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from retinue.errors import PermanentError
from retinue.sandbox.build import PROGRAM
from retinue.sandbox.config import BoxConfig
from retinue.sandbox.link import Answer, Link, LinkLost, make_pair
from retinue.sandbox.wire import Flag, Kind, Message, check_words, encode
from retinue.sandbox.zygote import Zygote

_END_S = 5.0
USUAL = BoxConfig().filter_flags


class Helper:
    """A program that runs in the space, for instance squashfuse."""

    def __init__(self, space: "NodeSpace", pid: int, ended: asyncio.Future[int]) -> None:
        self._space = space
        self.pid = pid
        """As the space sees it."""
        self.ended = ended
        """Its wait status; LinkLost when the space went first."""

    async def signal(self, number: int) -> None:
        """Signal it. Errors: Refused (ESRCH: it has ended), LinkLost."""
        await self._space.ask(Kind.SIGNAL_CHILD, (self.pid, number))


class NodeSpace:
    """One per sandbox host; made by `start`, in the thread whose end shall be its end (the main one)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._children: dict[int, asyncio.Future[int]] = {}
        self._link: Link
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the space has ended without `close`."""

    @classmethod
    async def start(cls, base: Path, program: Path = PROGRAM) -> "NodeSpace":
        """Start the program and have it make the namespaces.

        Shape:  base is an empty directory of the caller; inside the space it is a tmpfs with `mnt/` for image mounts.
        Errors: PermanentError when the program is not there; Refused with the step and errno when namespaces are.
        """
        if not os.access(program, os.X_OK):
            raise PermanentError(f"cannot start sandboxes: no program {program}; run python -m retinue.sandbox.build")
        ours, theirs = make_pair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                "retinue-sandbox",  # Seen inside as the command line of pid 1: no path of ours.
                "--space",
                executable=str(program),
                stdin=theirs.fileno(),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env={},
                start_new_session=True,  # What a stop signals is the host's group; the space ends with the host.
            )
        space = cls(process)
        space._link = Link(ours, space._hear, space._lose)
        async with AsyncExitStack() as unless_started:
            unless_started.push_async_callback(space.close)
            await space.ask(Kind.SPACE, fields=[os.fsencode(base)])
            unless_started.pop_all()
        return space

    @property
    def pid(self) -> int:
        """Of the process that holds the space, in our pid namespace."""
        return self._process.pid

    async def start_zygote(self, lowers: Sequence[Path], uppers: Path | None = None, flags: Flag = USUAL) -> Zygote:
        """Start the zygote of one image, for sandboxes with these `filter_flags`.

        Shape:  lowers are directories as the space sees them, the first on top; uppers is a directory of the node's
                disk for sandboxes whose upper layer is not a tmpfs.
        Errors: Refused (ENOENT, ENOTCONN: the image's mount is gone; ETIMEDOUT: this kernel's filters do not
                answer), LinkLost.
        """
        sock, ended = await self.open_zygote(lowers, uppers, flags)
        with ExitStack() as unless_started:
            zygote = Zygote(sock)
            unless_started.callback(zygote.close)
            await zygote.wait_ready()
            unless_started.pop_all()
        zygote.ended = ended
        return zygote

    async def open_zygote(
        self, lowers: Sequence[Path], uppers: Path | None = None, flags: Flag = USUAL
    ) -> tuple[socket.socket, asyncio.Future[int]]:
        """Start a zygote for whoever `Zygote(sock)` is made by, another process for instance.

        Shape:  its socket, the caller's to close or to pass on, and its wait status once it has ended.
        """
        ours, theirs = make_pair()
        fields = [os.fsencode(uppers) if uppers else b"", *(os.fsencode(lower) for lower in lowers)]
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        with theirs, ExitStack() as unless_started:
            unless_started.callback(ended.cancel)
            unless_started.callback(ours.close)
            ours.send(encode(Message(Kind.IMAGE, 0, (), tuple(fields))))  # Read when it is there: the first thing.
            fds = [theirs.fileno()]
            await self._link.ask(Kind.ZYGOTE, [flags], (), fds, lambda answer: self._keep(answer, ended))
            unless_started.pop_all()
        return ours, ended

    async def start_helper(self, argv: Sequence[str], env: Mapping[str, str], fds: tuple[int, int, int]) -> Helper:
        """Run a program in the space, with three descriptors of ours as its standard ones and no other.

        Shape:  argv[0] is a path. The helper dies with the space.
        """
        words = [os.fsencode(word) for word in argv] + [os.fsencode(f"{key}={value}") for key, value in env.items()]
        check_words(words)
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        numbers = (len(argv), len(env))
        with ExitStack() as unless_started:
            unless_started.callback(ended.cancel)
            answer = await self._link.ask(Kind.HELPER, numbers, words, fds, lambda answer: self._keep(answer, ended))
            unless_started.pop_all()
        return Helper(self, answer.message.number(0), ended)

    async def unmount(self, path: Path) -> None:
        """Detach a mount of the space; who uses it keeps it. Errors: Refused, LinkLost."""
        await self.ask(Kind.UNMOUNT, fields=[os.fsencode(path)])

    async def open_base(self) -> int:
        """Open the base directory as the space sees it (O_PATH): for mkdir and stat of mount points. Ours to close."""
        return (await self.ask(Kind.ROOT)).fd

    async def ask(
        self, kind: Kind, numbers: Sequence[int] = (), fields: Sequence[bytes] = (), fds: Sequence[int] = ()
    ) -> Answer:
        """Ask the space itself; see `Link.ask`."""
        return await self._link.ask(kind, numbers, fields, fds)

    async def close(self) -> None:
        """End the space and everything in it, and wait until the kernel has done so."""
        self._link.close()
        self._forget_children()
        try:
            await asyncio.wait_for(self._process.wait(), _END_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def _keep(self, answer: Answer, ended: asyncio.Future[int]) -> None:
        pid = answer.message.number(0)
        if ended.cancelled():  # Whoever asked for it has gone meanwhile.
            self._link.post(Kind.SIGNAL_CHILD, (pid, signal.SIGKILL))
        self._children[pid] = ended

    def _hear(self, answer: Answer) -> None:
        if answer.message.kind is not Kind.GONE:
            return
        future = self._children.pop(answer.message.number(0), None)
        if future and not future.done():
            future.set_result(answer.message.number(1))

    def _lose(self) -> None:
        self._forget_children()
        if not self.lost.done():
            self.lost.set_result(None)

    def _forget_children(self) -> None:
        for future in self._children.values():
            if not future.done():
                future.set_exception(LinkLost("the node space is gone"))
                future.exception()
        self._children.clear()
