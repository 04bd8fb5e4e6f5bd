"""One image mounted in the node space: a squashfuse_ll in the foreground, watched, gone when it is not wanted.

Its death, or its silence, is told once, with the cause in words. squashfuse reads an image that nobody vouches for, so
nothing here waits for it without a limit. Mounted without allow_other: this user's processes are enough, and only so
can the host ask whether it still answers.
"""

import asyncio
import contextlib
import errno
import os
import signal
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from retinue.sandbox.aside import run_aside
from retinue.sandbox.image_errors import ImageFailed, ImageRefused, NodeRefused, Reason
from retinue.sandbox.link import LinkLost, Refused
from retinue.sandbox.space import Helper, NodeSpace
from retinue.sandbox.store import Opened
from retinue.sandbox.tools import end_helper, find_program, start_helper

_POLL_S = 0.001
_PROBE_S = 5.0
"""A probe costs about 0.2 ms of the host: 500 mounted images cost 2 % of a CPU."""
_LEAVE_S = 2.0
_LOG_BYTES_MAX = 1 << 20
_LOG_TAIL_BYTES = 400
_CANNOT_FUSE = ("mount failed", "/dev/fuse", "fusermount")
_CANNOT_READ = ("compression", "unsupported", "version")


@dataclass(frozen=True, slots=True)
class MountPlace:
    """Where images are mounted on this node."""

    space: NodeSpace
    base: Path
    base_fd: int
    """The same directory as the space sees it."""
    logs: Path
    start_s: float = 20.0
    """How long squashfuse may take until its mount answers."""
    hang_s: float = 10.0
    """How long it may give no answer to a question that needs no storage, until it is killed."""
    program: str = "squashfuse_ll"


def check_fuse(program: str = "squashfuse_ll") -> None:
    """Refuse a node on which no image can be mounted. Errors: NodeRefused with the remedy."""
    find_program(program)
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        hint = "load the kernel module fuse" if isinstance(error, FileNotFoundError) else "chmod 0666 /dev/fuse"
        raise NodeRefused(
            f"cannot open /dev/fuse: {error.strerror}; ask the admin to {hint}, or unpack images instead"
        ) from None


class Mount:
    """Made by `open`."""

    def __init__(self, place: MountPlace, name: str) -> None:
        self._place = place
        self._entry = f"mnt/{name}"
        self.path = place.base / self._entry
        """As the space sees it."""
        self._log = place.logs / f"{name.partition('.')[0]}.log"
        self._helper: Helper | None = None

    @classmethod
    async def open(cls, place: MountPlace, opened: Opened, name: str) -> "Mount":
        """Mount an image at `mnt/<name>`; it answers when this returns.

        Errors: ImageRefused: squashfuse cannot read it; NodeRefused, ImageFailed, LinkLost.
        """
        check_fuse(place.program)
        mount = cls(place, name)
        is_up = False
        try:
            await mount._start(opened)
            await mount._wait_mounted(opened)
            is_up = True
        except OSError as error:
            raise ImageFailed(f"cannot mount image {opened.name!r}: {error}") from None
        finally:
            if not is_up:
                # Killed first: the space itself must not come to wait for a squashfuse that hangs.
                await mount._kill()
                await mount.close()
        return mount

    async def watch(self) -> str:
        """Wait until it does not serve any more; says why. It is not running then."""
        assert self._helper is not None
        ended = self._helper.ended
        while not ended.done():
            await asyncio.wait({ended}, timeout=_PROBE_S)
            if not ended.done() and (cause := await self._probe()) is not None:
                await self._kill()
                return cause
        return f"squashfuse {_describe_end(ended)}"

    async def close(self) -> None:
        """Detach the mount and end squashfuse; who still uses the image gets errors."""
        with contextlib.suppress(Refused, LinkLost):
            await self._place.space.unmount(self.path)
        if self._helper is not None:
            # The kernel tells it to leave when nobody uses the mount any more.
            if not self._helper.ended.done():
                await asyncio.wait({self._helper.ended}, timeout=_LEAVE_S)
            await self._kill()
        with contextlib.suppress(OSError):
            os.rmdir(self._entry, dir_fd=self._place.base_fd)

    async def _kill(self) -> None:
        if self._helper is not None:
            await end_helper(self._helper)

    # --- its start --------------------------------------------------------------------

    async def _start(self, opened: Opened) -> None:
        os.mkdir(self._entry, 0o755, dir_fd=self._place.base_fd)
        self._place.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The image is its stdin: it opens what was looked at, whatever the name means by now.
        words = [find_program(self._place.program), "-f"]
        words += ["-o", f"offset={opened.offset_bytes}"] if opened.offset_bytes else []
        words += ["/proc/self/fd/0", str(self.path)]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        log = os.open(self._log, flags, 0o600)
        try:
            self._trim_log()
            os.write(log, f"--- {opened.path} at {self._entry}\n".encode(errors="replace"))
            self._helper = await start_helper(self._place.space, words, {}, (opened.fd, log, log))
        finally:
            os.close(log)

    async def _wait_mounted(self, opened: Opened) -> None:
        assert self._helper is not None
        ended = self._helper.ended
        over = threading.Event()
        ended.add_done_callback(lambda _: over.set())
        before = os.stat("mnt", dir_fd=self._place.base_fd).st_dev
        limit_s = self._place.start_s
        try:
            await run_aside(lambda: _wait_root(self._place.base_fd, self._entry, before, over), limit_s)
        except TimeoutError:
            raise ImageFailed(
                f"cannot mount image {opened.name!r}: squashfuse gave no answer in {limit_s:g} s"
            ) from None
        except OSError as error:
            if not ended.done():
                await asyncio.wait({ended}, timeout=_LEAVE_S if _is_broken(error) else 0)
            if not ended.done():
                raise _refuse_damaged(opened.name, f"its root directory cannot be read ({error.strerror})") from None
        finally:
            over.set()
        if ended.done():
            raise self._explain_end(opened.name, ended)

    def _explain_end(self, name: str, ended: "asyncio.Future[int]") -> ImageRefused | NodeRefused | ImageFailed:
        if ended.exception() is not None:
            return ImageFailed(f"cannot mount image {name!r}: the node space is gone")
        words = self._read_log()
        how = f"squashfuse {_describe_end(ended)}{f' ({words})' if words else ''}"
        code = os.waitstatus_to_exitcode(ended.result())
        if code == -signal.SIGKILL:
            return ImageFailed(f"cannot mount image {name!r}: {how}")
        if code in (126, 127) or any(word in words for word in _CANNOT_FUSE):
            return NodeRefused(f"cannot mount image {name!r}: {how}; `retinue doctor` says what this node can do")
        if any(word in words for word in _CANNOT_READ):
            hint = "pack it with gzip, or install a newer squashfuse"
            return ImageRefused(Reason.UNSUPPORTED, f"cannot mount image {name!r}: {how}; {hint}")
        return _refuse_damaged(name, how)

    # --- its life ---------------------------------------------------------------------

    async def _probe(self) -> str | None:
        """Ask something that the kernel always passes on; None when there is an answer."""
        try:
            await run_aside(self._ask, self._place.hang_s)
        except TimeoutError:
            return f"squashfuse gave no answer for {self._place.hang_s:g} s and was killed"
        except OSError as error:
            return f"squashfuse does not serve its mount any more ({error.strerror})" if _is_broken(error) else None
        return None

    def _ask(self) -> None:
        with _open_root(self._place.base_fd, self._entry) as root:
            os.fstatvfs(root)
        self._trim_log()

    def _trim_log(self) -> None:
        if os.path.getsize(self._log) > _LOG_BYTES_MAX:
            os.truncate(self._log, 0)

    def _read_log(self) -> str:
        with contextlib.suppress(OSError):
            text = self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
            return " ".join(text.rpartition("--- ")[2].partition("\n")[2].split())
        return ""


def _wait_root(base_fd: int, entry: str, before: int, over: threading.Event) -> None:
    """Wait, in a thread, until another file system answers there with a directory that can be listed."""
    while os.stat(entry, dir_fd=base_fd).st_dev == before:
        if over.wait(_POLL_S):
            return
    with _open_root(base_fd, entry) as root:
        if not stat.S_ISDIR(os.fstat(root).st_mode):
            raise NotADirectoryError(0, "it is no directory")
        listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
        with os.scandir(listed) as entries:
            next(entries, None)
        os.close(listed)


@contextlib.contextmanager
def _open_root(base_fd: int, entry: str) -> Iterator[int]:
    root = os.open(entry, os.O_PATH | os.O_CLOEXEC, dir_fd=base_fd)
    try:
        yield root
    finally:
        os.close(root)


def _is_broken(error: OSError) -> bool:
    """Whether the kernel has given the connection up; see fuse(4)."""
    return error.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV)


def _refuse_damaged(name: str, cause: str) -> ImageRefused:
    return ImageRefused(Reason.DAMAGED, f"cannot mount image {name!r}: {cause}; copy or build it again")


def _describe_end(ended: "asyncio.Future[int]") -> str:
    if ended.exception() is not None:
        return "ended with its node space"
    code = os.waitstatus_to_exitcode(ended.result())
    return f"ended with exit code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
