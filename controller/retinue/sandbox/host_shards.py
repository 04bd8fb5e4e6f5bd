"""The shard processes as the front sees them: started, asked, watched, started again.

One that dies takes its own sandboxes along and nobody else's; one that does not answer is killed.
"""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Sequence

from retinue.sandbox.shard_link import Peer, ShardLost
from retinue.sandbox.shard_wire import Ask, Happening

MODULE = "retinue.sandbox.shard_main"
PING_S = 2.0
SILENT_S = 20.0
"""No answer for so long, while our own loop was on time, and it is killed."""
LAG_S = 1.0
BACKOFF_S, BACKOFF_MAX_S = 0.05, 5.0
STABLE_S = 10.0
"""One that lived so long starts again at once."""


class ShardSlot:
    """One shard and those that come after it."""

    def __init__(self, index: int, argv: Sequence[str], on_event: "OnEvent", on_lost: "OnLost") -> None:
        self.index = index
        self._argv = argv
        self._on_event = on_event
        self._on_lost = on_lost
        self.live_count = 0
        """Sandboxes in it, those that are being made included."""
        self.launches = 0
        self._peer: Peer | None = None
        self._fd_sock: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self.is_ready = asyncio.Event()
        self.is_told_lost = asyncio.Event()
        """Set from when its loss was told until it is started again."""

    @property
    def peer(self) -> Peer:
        """Whom to ask. Errors: ShardLost while it is started again."""
        if self._peer is None or not self._peer.is_open:
            raise ShardLost("cannot ask a shard: it is being started again")
        return self._peer

    @property
    def pid(self) -> int:
        """0 while it is started again."""
        return self._process.pid if self._process is not None else 0

    async def run(self) -> None:
        """Keep one running until cancelled."""
        loop = asyncio.get_running_loop()
        backoff_s = BACKOFF_S
        try:
            while True:
                began_s = loop.time()
                cause = await self._live()
                backoff_s = BACKOFF_S if loop.time() - began_s > STABLE_S else min(2 * backoff_s, BACKOFF_MAX_S)
                self._on_lost(self, cause)
                self.is_told_lost.set()
                await asyncio.sleep(backoff_s)
        finally:
            await self._end()

    def send_zygote(self, number: int, sock: socket.socket, image_fd: int) -> None:
        """Give it a zygote's socket and a directory of its image, before all that names the number.

        Errors: ShardLost.
        """
        if self._fd_sock is None:
            raise ShardLost("cannot give a shard a zygote: it is being started again")
        try:
            socket.send_fds(self._fd_sock, [number.to_bytes(4, "little")], [sock.fileno(), image_fd])
        except OSError as error:
            raise ShardLost(f"cannot give a shard a zygote: {error}") from None

    async def _live(self) -> str:
        """Start it and wait for its end; says how it ended."""
        await self._start()
        assert self._process is not None
        exited = asyncio.ensure_future(self._process.wait())
        watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait([exited, watching], return_when=asyncio.FIRST_COMPLETED)
            silent = watching.done() and not exited.done()
        finally:
            watching.cancel()
            exited.cancel()
        await self._end()
        code = self._process.returncode
        return f"shard {self.index} {'did not answer' if silent else f'died ({describe_code(code)})'}"

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        fds_ours, fds_theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fds_ours.setblocking(False)
        with theirs, fds_theirs:
            words = [str(theirs.fileno()), str(fds_theirs.fileno()), *self._argv]
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                MODULE,
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), fds_theirs.fileno()),
            )
        self.launches += 1
        self.is_told_lost.clear()
        self._fd_sock = fds_ours
        _, self._peer = await loop.create_unix_connection(
            lambda: Peer(on_event=lambda happening: self._on_event(self, happening)), sock=ours
        )
        with contextlib.suppress(ShardLost):
            await self._peer.ask(Ask("ping"))
            self.is_ready.set()

    async def _watch(self) -> None:
        """Return when it has not answered for too long, or hung up."""
        loop = asyncio.get_running_loop()
        peer = self.peer
        last_s = loop.time()
        while peer.is_open:
            peer.open(Ask("ping")).answer.add_done_callback(lambda answer: answer.exception())
            await asyncio.sleep(PING_S)
            now_s = loop.time()
            if now_s - last_s > PING_S + LAG_S:
                peer.heard_s = now_s  # It was us who stood still.
            last_s = now_s
            if now_s - peer.heard_s > SILENT_S:
                return

    async def _end(self) -> None:
        self.is_ready.clear()
        if self._peer is not None:
            self._peer.close()
        if self._fd_sock is not None:
            self._fd_sock.close()
            self._fd_sock = None
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


OnEvent = Callable[[ShardSlot, Happening], None]
OnLost = Callable[[ShardSlot, str], None]


class Shards:
    """All shards of a node."""

    def __init__(self, count: int, service: str, node: str, on_event: OnEvent, on_lost: OnLost) -> None:
        argv = (service, node)
        self.slots = [ShardSlot(index, argv, on_event, on_lost) for index in range(count)]

    def choose(self) -> ShardSlot:
        """Choose the one with the fewest sandboxes that answers. Errors: ShardLost when none does."""
        ready = [slot for slot in self.slots if slot.is_ready.is_set()]
        if not ready:
            raise ShardLost("cannot make a sandbox: no shard runs")
        return min(ready, key=lambda slot: slot.live_count)

    async def wait_any(self) -> None:
        """Wait until one answers."""
        if any(slot.is_ready.is_set() for slot in self.slots):
            return
        waiting = [asyncio.ensure_future(slot.is_ready.wait()) for slot in self.slots]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    async def wait_ready(self) -> None:
        """Wait until every one has answered."""
        for slot in self.slots:
            await slot.is_ready.wait()


def describe_code(code: int | None) -> str:
    """Say how a process ended, in words."""
    if code is None:
        return "still there"
    return f"exit {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
