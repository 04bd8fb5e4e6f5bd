"""One launch of the warm parent: its process, its control socket, the children it offers.

Never restarts anything; what it hears and its end are told to whoever started it.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from retinue.checks.records import Broken, Ended, Loading, Spare, Want, WarmConfig, Warmed
from retinue.checks.spare import Child
from retinue.terms.record import DecodeError, from_json, to_json

PACKET_BYTES = 256 * 1024
DESCRIPTORS = 2
LAST_WORDS_S = 2.0
"""One that hung up while it was loading ends within that, and its exit code says how."""
SIGNALLED = 128
"""The warm parent's outer half ends so when its inner half was ended by a signal, as a shell does."""
STEPS = {"import": "its import", "warm": "its `warm`"}
KEPT_ENVIRONMENT = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LD_LIBRARY_PATH",
    "PATH",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPATH",
    "RETINUE_NODE",
    "RETINUE_RUN_ID",
)
"""All that a plugin's import may see; the last two are how the run finds its processes."""
ONE_THREAD = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""A library that starts threads at import makes a parent that cannot be forked."""

WARM_ARGV = (sys.executable, "-P", "-m", "retinue.checks.warm")


class WarmLink:
    """A warm parent that is starting, running, or lost."""

    def __init__(self, config: WarmConfig, on_news: Callable[[], None], argv: Sequence[str] = WARM_ARGV) -> None:
        """Start it.

        Errors: OSError when it cannot be started; nothing runs then.
        """
        self._on_news = on_news
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        """Why it is gone."""
        self.reaped: asyncio.Future[None] = self._loop.create_future()
        """Its process has been collected."""
        self._wanted = 0
        self.warmed: Warmed | None = None
        self.broken: Broken | None = None
        self.loading: Loading | None = None
        """What it does on the way to being warm."""
        self.last_word_s = self._loop.time()
        """When it said something; loop clock."""
        self.spares: deque[Child] = deque()
        self.last_spare_s = self.last_taken_s = self._loop.time()
        self._children: dict[int, Child] = {}
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.setblocking(False)
        try:
            self._process = _launch(argv, config, theirs)
        except OSError:
            self._sock.close()
            raise
        finally:
            theirs.close()
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._reap)
        self._loop.add_reader(self._sock, self._read)

    @property
    def pid(self) -> int:
        return self._process.pid

    def keep(self, spares: int, slow: Sequence[int] = ()) -> None:
        """Say how many spares to keep, and which children are slow."""
        self._wanted = spares
        try:
            self._sock.send(to_json(Want(spares, slow=list(slow))))
        except OSError:  # Lost: the reader finds out. Full: a child keeps its priority, which harms nobody.
            pass

    def take(self) -> Child | None:
        """Take a spare that still lives; None when there is none now."""
        while self.spares:
            child = self.spares.popleft()
            if not child.is_over:
                self.last_taken_s = self._loop.time()
                return child
            child.close()
        return None

    def blame(self, what: str) -> None:
        """Say that the verifier that is being loaded broke it; nothing when none is, or it was said already."""
        if self.loading is not None and self.warmed is None and self.broken is None:
            self.broken = Broken(self.loading.verifier, f"{STEPS.get(self.loading.step, self.loading.step)} {what}")

    def kill(self, cause: str) -> None:
        """End it, and with it every child."""
        if self._process.returncode is None:
            self._process.kill()
        self._lose(cause)

    def _read(self) -> None:
        is_new = False
        while not self.lost.done():
            try:
                packet, fds, _, _ = socket.recv_fds(self._sock, PACKET_BYTES, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                break
            except ConnectionResetError:
                # It ended with a word of ours unread. What it said before is still there: read on.
                continue
            except OSError as error:
                self.kill(f"its control socket failed ({error.strerror})")
                break
            if not packet:
                self._hang_up()
                break
            is_new = True
            self._take_packet(packet, fds)
        if is_new:
            self._on_news()

    def _hang_up(self) -> None:
        if self.warmed is not None:
            self.kill("it closed its control socket")
            return
        self._loop.remove_reader(self._sock)
        self._loop.call_later(LAST_WORDS_S, self.kill, "it closed its control socket")

    def _take_packet(self, packet: bytes, fds: list[int]) -> None:
        try:
            message = from_json(packet, Warmed | Broken | Spare | Ended | Loading)  # type: ignore[arg-type]
        except DecodeError as error:
            self.kill(f"it sent what cannot be read ({error})")
            message = None
        self.last_word_s = self._loop.time()
        match message:
            case Loading():
                self.loading = message
            case Spare(number) if len(fds) == DESCRIPTORS:
                slow = partial(self._say_slow, number)
                child = Child(number, socket.socket(fileno=fds.pop(0)), fds.pop(), slow)
                self._children[number] = child
                self.spares.append(child)
                self.last_spare_s = self._loop.time()
            case Ended(number):
                child_over = self._children.pop(number, None)
                if child_over is not None and not child_over.is_over:
                    child_over.fate.set_result(message)
            case Warmed():
                self.warmed = message
                self.last_spare_s = self._loop.time()
            case Broken():
                self.broken = message
        for fd in fds:
            os.close(fd)

    def _say_slow(self, number: int) -> None:
        self.keep(self._wanted, [number])

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = self._process.wait()
        # What it said before it died comes first: `Broken`, and how children ended.
        if not self.lost.done():
            self._read()
        self._end(-code if code < 0 else max(code - SIGNALLED, 0), code)
        self.reaped.set_result(None)
        self._on_news()

    def _end(self, signal_number: int, code: int) -> None:
        words = f"ended by signal {signal_number}" if signal_number else f"exited with {code}"
        if not self.lost.done() and signal_number != signal.SIGKILL:
            # A SIGKILL comes from the kernel or from outside; anything else the verifier did.
            self.blame(f"ended the process, which {words}")
        self._lose(f"it {words}")

    def _lose(self, cause: str) -> None:
        if self.lost.done():
            return
        self._loop.remove_reader(self._sock)
        self._sock.close()
        self.lost.set_result(cause)
        for child in self._children.values():
            if not child.is_over:
                child.fate.set_result(None)
        self._children.clear()
        while self.spares:
            self.spares.popleft().close()


def _launch(argv: Sequence[str], config: WarmConfig, control: socket.socket) -> subprocess.Popen[bytes]:
    config_fd = os.memfd_create("checks-config")
    try:
        os.write(config_fd, to_json(config))
        os.lseek(config_fd, 0, os.SEEK_SET)
        return subprocess.Popen(
            [*argv, "--control-fd", str(control.fileno()), "--config", str(config_fd)],
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=(control.fileno(), config_fd),
            env=build_environment(os.environ),
            start_new_session=True,
        )
    finally:
        os.close(config_fd)


def build_environment(own: Mapping[str, str]) -> dict[str, str]:
    """Build the environment of the warm parent: no token, no place in the job, one thread per library."""
    kept = {name: own[name] for name in KEPT_ENVIRONMENT if name in own}
    return kept | dict.fromkeys(ONE_THREAD, "1")
