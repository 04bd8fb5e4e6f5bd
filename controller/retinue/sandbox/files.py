"""The files of a sandbox, used from outside: read, written, listed, removed, packed and unpacked.

`root_fd` is what `Box.open_root` gives, the caller's to close whenever it likes. Nothing outside that root is ever
read, written or made, whatever processes in the sandbox do meanwhile; every call is bounded in bytes, entries and time.
Errors: FileRefused with its reason, FileFailed; nothing else.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

from retinue.sandbox import file_acts, file_remove, openat
from retinue.sandbox.archive_in import Unpacking
from retinue.sandbox.archive_out import Packing
from retinue.sandbox.file_errors import FileFailed, FileRefused, Reason, translate
from retinue.sandbox.file_inlet import Inlet
from retinue.sandbox.file_lanes import Hold, Lanes, Stop
from retinue.sandbox.file_records import (
    LIST_MAX,
    READ_MAX_BYTES,
    Downloaded,
    Entry,
    TransferLimits,
    Uploaded,
)

T = TypeVar("T")
CALL_S = 30.0
SEND_BYTES = 64 * 1024
"""What is given to `send` at once."""
Entries = list[Entry]
_lanes: WeakKeyDictionary[asyncio.AbstractEventLoop, Lanes] = WeakKeyDictionary()


async def read(
    root_fd: int, path: str | bytes, offset: int = 0, limit: int = READ_MAX_BYTES, time_s: float = CALL_S
) -> bytes:
    """Read a regular file; shorter than `limit` only at its end."""
    name = _encode("read", path)
    return await _run(root_fd, lambda fd, stop: file_acts.read_file(fd, name, offset, limit, stop), time_s)


async def write(
    root_fd: int,
    path: str | bytes,
    content: bytes,
    mode: int | None = None,
    append: bool = False,
    parents: bool = False,
    time_s: float = CALL_S,
) -> Entry:
    """Write a regular file, over an old one or after it; gives what it is then.

    Shape:  mode None: an old file keeps its own, a new one gets 0644. When the disk is full, what fitted stays.
    """
    name = _encode("write", path)
    return await _run(
        root_fd, lambda fd, stop: file_acts.write_file(fd, name, content, mode, append, parents, stop), time_s
    )


async def list(root_fd: int, path: str | bytes, limit: int = LIST_MAX, time_s: float = CALL_S) -> Entries:
    """List a directory, sorted by name; links are not followed."""
    name = _encode("list", path)
    return await _run(root_fd, lambda fd, stop: file_acts.list_directory(fd, name, limit, stop), time_s)


async def stat(root_fd: int, path: str | bytes, follow: bool = False, time_s: float = CALL_S) -> Entry:
    """Say what has a name; follow: what it leads to, if it is a link."""
    name = _encode("look at", path)
    return await _run(root_fd, lambda fd, stop: file_acts.stat_file(fd, name, follow), time_s)


async def remove(root_fd: int, path: str | bytes, recursive: bool = False, time_s: float = 2 * CALL_S) -> int:
    """Remove a file, a link or a directory; gives how many entries that were."""
    name = _encode("remove", path)
    return await _run(root_fd, lambda fd, stop: file_remove.remove_path(fd, name, recursive, stop), time_s)


async def make_directory(
    root_fd: int, path: str | bytes, mode: int = 0o755, parents: bool = False, time_s: float = CALL_S
) -> None:
    """Make a directory; parents: and those above it, and it may be there already."""
    name = _encode("make directory", path)
    await _run(root_fd, lambda fd, stop: file_acts.make_directory(fd, name, mode, parents), time_s)


async def upload(
    root_fd: int,
    path: str | bytes,
    receive: Callable[[], Awaitable[bytes]],
    limits: TransferLimits = TransferLimits(),  # noqa: B008  frozen
) -> Uploaded:
    """Unpack a tar stream below a directory, which is made where it is missing.

    Shape:  `receive` gives the next piece, empty at the end. An upload that fails leaves what it had unpacked.
    """
    name = _encode("unpack into", path)
    unpacking = Unpacking(_duplicate(root_fd), name, limits)
    hold = Hold(unpacking.close)
    inlet = Inlet(receive)
    try:
        async with asyncio.timeout(limits.time_s):
            is_over = False
            while not is_over:
                data, is_over = await inlet.take()
                feed = partial(unpacking.feed, data, is_over)
                await _find_lanes().run(partial(_use, hold, feed), limits.step_s)
    except TimeoutError:
        raise _build_late("unpack", limits) from None
    finally:
        _close_aside(hold)
        await inlet.close()
    return unpacking.build_result()


async def download(
    root_fd: int,
    path: str | bytes,
    send: Callable[[bytes], Awaitable[None]],
    limits: TransferLimits = TransferLimits(),  # noqa: B008  frozen
) -> Downloaded:
    """Pack a directory, with names relative to it, or one file into a tar stream.

    Shape:  what is wrong with the path is said before the first `send`. A stream that fails has no end marker.
    """
    name = _encode("pack", path)
    packing = Packing(_duplicate(root_fd), name, limits)
    hold = Hold(packing.close)
    try:
        async with asyncio.timeout(limits.time_s):
            is_over = False
            while not is_over:
                data, is_over = await _find_lanes().run(partial(_use, hold, packing.step), limits.step_s)
                for at in range(0, len(data), SEND_BYTES):
                    await send(data[at : at + SEND_BYTES])
    except TimeoutError:
        raise _build_late("pack", limits) from None
    finally:
        _close_aside(hold)
    return packing.build_result()


async def _run(root_fd: int, work: Callable[[int, Stop], T], time_s: float) -> T:
    """Run it with a descriptor of its own, which stays open for as long as the kernel may be using it."""
    held_fd = _duplicate(root_fd)
    hold = Hold(lambda: os.close(held_fd))
    try:
        return await _find_lanes().run(lambda stop: hold.use(lambda: work(held_fd, stop)), time_s)
    finally:
        hold.close()


def _use(hold: Hold, act: Callable[[Stop], T], stop: Stop) -> T:
    return hold.use(lambda: act(stop))


def _find_lanes() -> Lanes:
    loop = asyncio.get_running_loop()
    if loop not in _lanes:
        _lanes[loop] = Lanes()
    return _lanes[loop]


def _close_aside(hold: Hold) -> None:
    """Close it, unless its thread still works; in a thread: a close too may wait for a file system that hangs."""
    try:
        threading.Thread(target=hold.close, name="close", daemon=True).start()
    except RuntimeError:  # No more threads.
        hold.close()


def _encode(verb: str, path: str | bytes) -> bytes:
    try:
        return openat.encode_path(path)
    except OSError as error:
        raise translate(verb, path if isinstance(path, bytes) else path.encode(errors="replace"), error) from None


def _duplicate(root_fd: int) -> int:
    try:
        return os.dup(root_fd)
    except OSError as error:
        raise FileFailed(f"cannot use files: {error.strerror}") from None


def _build_late(verb: str, limits: TransferLimits) -> FileRefused:
    return FileRefused(Reason.LATE, f"cannot {verb} within {limits.time_s:g} s")
