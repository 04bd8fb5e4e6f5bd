"""Runs programs of the machine in the node space, with what they print, for as long as it takes.

They end with the space, and with whoever waits for them.
"""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence

from retinue.sandbox.image_errors import NodeRefused
from retinue.sandbox.link import LinkLost, Refused
from retinue.sandbox.space import Helper, NodeSpace

_TAIL_BYTES = 4096
_END_S = 5.0
_USUAL = os.pathsep.join(("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"))
PACKAGES = {"squashfuse_ll": "squashfuse", "mksquashfs": "squashfs-tools", "unsquashfs": "squashfs-tools"}


def find_program(name: str) -> str:
    """Find a program of the machine, in PATH or where it usually is.

    Errors: NodeRefused names the package to install.
    """
    found = shutil.which(name) or shutil.which(name, path=_USUAL)
    if found is None:
        package = PACKAGES.get(name, name)
        raise NodeRefused(f"cannot find {name}; install the package {package} on the nodes, or put it in PATH")
    return os.path.abspath(found)


async def run_tool(
    space: NodeSpace,
    argv: Sequence[str],
    on_text: Callable[[str], None] = lambda text: None,
    env: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Run a program; gives its exit code (or minus the signal) and the end of what it printed.

    Shape:  both streams are one; on_text gets them as they come.
    Errors: LinkLost, Refused. When the waiting is cancelled, the program is killed.
    """
    helper, reader = await _start(space, argv, env or {})
    tail = ""
    try:
        while chunk := await reader.read(_TAIL_BYTES):
            text = chunk.decode(errors="replace")
            tail = (tail + text)[-_TAIL_BYTES:]
            on_text(text)
        status = await asyncio.shield(helper.ended)
    finally:
        reader.close()
        await end_helper(helper)
    return os.waitstatus_to_exitcode(status), tail


async def end_helper(helper: Helper, patience_s: float = _END_S) -> None:
    """Kill a helper unless it has ended, and wait until it has, or the kernel does not let go of it."""
    if helper.ended.done():
        return
    with contextlib.suppress(Refused, LinkLost):
        await helper.signal(signal.SIGKILL)
    await asyncio.wait({helper.ended}, timeout=patience_s)


class _Reader:
    """The read end of a pipe, for one task."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)

    async def read(self, count: int) -> bytes:
        while True:
            with contextlib.suppress(BlockingIOError):
                return os.read(self._fd, count)
            ready: asyncio.Future[None] = self._loop.create_future()
            self._loop.add_reader(self._fd, _settle, ready)
            try:
                await ready
            finally:
                self._loop.remove_reader(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def start_helper(
    space: NodeSpace, argv: Sequence[str], env: Mapping[str, str], fds: tuple[int, int, int]
) -> Helper:
    """Start a program in the space; none is left running when the waiting is cancelled. Errors: LinkLost, Refused."""
    starting = asyncio.create_task(space.start_helper(argv, {"LC_ALL": "C", **env}, fds))
    try:
        await asyncio.wait({starting})
    except asyncio.CancelledError:
        await asyncio.wait({starting}, timeout=_END_S)
        if starting.done() and starting.exception() is None:
            await end_helper(starting.result())
        raise
    return starting.result()


async def _start(space: NodeSpace, argv: Sequence[str], env: Mapping[str, str]) -> tuple[Helper, _Reader]:
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        theirs.callback(os.close, null)
        read_end, write_end = os.pipe()
        theirs.callback(os.close, write_end)
        reader = _Reader(read_end)
        ours.callback(reader.close)
        helper = await start_helper(space, argv, env, (null, write_end, write_end))
        ours.pop_all()
    return helper, reader
