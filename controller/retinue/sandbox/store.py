"""Finds images by name, and packs directories into the store: `ab/cd/<digest>.sqfs`, once for all nodes.

The store is on a shared file system. What is in it under its final name is whole; what is unfinished has another name,
and is removed by whoever takes its dead packer's place.
"""

import asyncio
import contextlib
import os
import re
import stat
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from retinue.sandbox.aside import run_aside
from retinue.sandbox.fingerprint import Tree, digest_file, digest_tree
from retinue.sandbox.image_errors import (
    FULL_ERRNOS,
    GIVE,
    ImageFailed,
    ImageRefused,
    NodeRefused,
    Reason,
    refuse_path,
)
from retinue.sandbox.pack import PackTool, pack_directory
from retinue.sandbox.sif import read_content
from retinue.sandbox.space import NodeSpace
from retinue.sandbox.store_lock import StoreLock

POLL_S = 0.5
REFRESH_S = 10.0
_WALK_S = 900.0
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SUFFIXES = (".sif", ".sqfs")


@dataclass(frozen=True, slots=True)
class Opened:
    """An image file that was found, looked at and opened: what is mounted is this, whatever happens to its name."""

    id: str
    """64 hex digits, the same on every node that sees the same file under the same path."""
    name: str
    """As the caller wrote it."""
    path: Path
    fd: int
    offset_bytes: int

    def close(self) -> None:
        os.close(self.fd)


@dataclass(slots=True)
class Store:
    """The images of one shared directory, for one node space."""

    space: NodeSpace
    directory: Path
    storage_s: float = 30.0
    """How long the shared file system may take for one look."""
    progress: dict[str, str] = field(default_factory=dict)
    """What is being packed: name to words about how far it is."""
    _tool: PackTool | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One packs at a time on a node: mksquashfs takes all the CPUs that it is given."""

    async def open(self, name: str) -> Opened:
        """Open the image of a name; a directory is packed first, here or by another node.

        Errors: ImageRefused, NodeRefused, ImageFailed.
        """
        found = await self._ask(name, lambda: self._look(name))
        if isinstance(found, Path):
            packed = await self._pack(name, found)
            found = await self._ask(name, lambda: _open_file(name, packed))
        if isinstance(found, Path):
            raise ImageFailed(f"cannot use image {name!r}: {str(found)!r} became a directory meanwhile")
        return found

    def _look(self, name: str) -> Opened | Path:
        return _open_file(name, self._find_path(name))

    def _find_path(self, name: str) -> Path:
        if not name or "\0" in name:
            raise ImageRefused(Reason.NOT_FOUND, f"cannot find image {name!r}: it has no name; {GIVE}")
        if _DIGEST.fullmatch(name):
            places = [self._place(name, suffix) for suffix in _SUFFIXES]
            return next((place for place in places if place.exists()), places[0])
        if ".." in Path(name).parts:
            raise ImageRefused(Reason.NOT_FOUND, f"cannot find image {name!r}: '..' has no place in a name; {GIVE}")
        return self.directory / name

    def _place(self, digest: str, suffix: str) -> Path:
        return self.directory / digest[:2] / digest[2:4] / f"{digest}{suffix}"

    async def _ask(self, name: str, look: Callable[[], Opened | Path]) -> Opened | Path:
        try:
            return await run_aside(look, self.storage_s, _close_late)
        except TimeoutError as error:
            raise ImageFailed(f"cannot read image {name!r}: its file system gave {error}") from None
        except OSError as error:
            raise refuse_path(name, error) from None

    # --- packing ----------------------------------------------------------------------

    async def _pack(self, name: str, source: Path) -> Path:
        try:
            self.progress[name] = "reading the directory"
            tree = await run_aside(lambda: self._look_over(name, source), _WALK_S)
            final = self._place(tree.digest, ".sqfs")
            await self._pack_once(name, source, tree, final)
        except TimeoutError as error:
            raise ImageFailed(f"cannot pack {name!r}: its file system gave {error}") from None
        finally:
            self.progress.pop(name, None)
        return final

    def _look_over(self, name: str, source: Path) -> Tree:
        real = source.resolve()
        if self.directory.resolve().is_relative_to(real):
            raise ImageRefused(
                Reason.UNSUPPORTED,
                f"cannot pack {name!r}: the store {str(self.directory)!r} is in it; move one of both",
            )
        try:
            return digest_tree(os.fsencode(real))
        except OSError as error:
            raise refuse_path(name, error) from None

    async def _pack_once(self, name: str, source: Path, tree: Tree, final: Path) -> None:
        """See to it that the packed file is there, by packing or by waiting for who packs it."""
        lock = StoreLock(final.with_suffix(".lock"))
        while not await run_aside(lambda: _is_there(final), self.storage_s):
            dead = await self._touch(lambda: _try_take(lock, final), lambda nonce: _give_back(lock, nonce))
            if dead is None:
                self.progress[name] = f"waiting for {lock.holder}, which packs it"
                await asyncio.sleep(POLL_S)
                continue
            async with self._hold(lock):
                if dead:
                    await self._touch(partial(_remove, _name_part(final, dead)))
                if not await run_aside(lambda: _is_there(final), self.storage_s):
                    await self._write(name, source, tree, _name_part(final, lock.nonce), final)

    @contextlib.asynccontextmanager
    async def _hold(self, lock: StoreLock) -> AsyncGenerator[None, None]:
        """Keep a lock fresh while the context lasts, then give it back."""
        refreshing = asyncio.create_task(self._refresh(lock))
        try:
            yield
        finally:
            refreshing.cancel()
            with contextlib.suppress(OSError, TimeoutError):  # Stale after a minute all the same.
                await run_aside(lock.release, self.storage_s)

    async def _refresh(self, lock: StoreLock) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            with contextlib.suppress(OSError, TimeoutError):
                await run_aside(lock.refresh, self.storage_s)

    async def _write(self, name: str, source: Path, tree: Tree, part: Path, final: Path) -> None:
        def show(done: int, total: int) -> None:
            self.progress[name] = f"packing {done}/{total} blocks of {tree.entry_count} files"

        self.progress[name] = "waiting for another directory that is being packed"
        async with self._turn:
            self._tool = self._tool or await PackTool.find(self.space)
            try:
                await self._touch(lambda: _make_part(part, source))
                await pack_directory(self.space, self._tool, name, source.resolve(), part, show)
                again = await run_aside(lambda: self._look_over(name, source), _WALK_S)
                if again.digest != tree.digest:
                    raise ImageFailed(
                        f"cannot pack {name!r}: it changed while it was packed; ask again when it is still"
                    )
                await self._touch(lambda: _finish_part(name, part, final))
            finally:
                with contextlib.suppress(OSError, TimeoutError):
                    await run_aside(partial(_remove, part), self.storage_s)

    async def _touch(
        self, work: Callable[[], str | None], on_late: Callable[[str | None], None] = lambda _: None
    ) -> str | None:
        """Do something to the store."""
        try:
            return await run_aside(work, self.storage_s, on_late)
        except OSError as error:
            what = f"cannot write the store {str(self.directory)!r}: {error.strerror or error}"
            if error.errno in FULL_ERRNOS:
                raise ImageFailed(f"{what}; free some space") from None
            raise NodeRefused(
                f"{what}; give the service a store that it can write, or images that are packed"
            ) from None


def _open_file(name: str, path: Path) -> Opened | Path:
    """Open an image file and read its headers; a directory is given back as it is."""
    # Looking first: opening a device does something.
    kind = os.stat(path).st_mode
    if stat.S_ISDIR(kind):
        return path
    if not stat.S_ISREG(kind):
        raise ImageRefused(Reason.NOT_AN_IMAGE, f"cannot use image {name!r}: it is no regular file; {GIVE}")
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, fd)
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise ImageRefused(Reason.NOT_AN_IMAGE, f"cannot use image {name!r}: it is no regular file; {GIVE}")
        content = read_content(fd, name)
        digest = digest_file(os.fsencode(path.resolve()), facts, content.head)
        stack.pop_all()
    return Opened(digest, name, path, fd, content.offset_bytes)


def _close_late(found: Opened | Path) -> None:
    if isinstance(found, Opened):
        found.close()


def _is_there(final: Path) -> bool:
    """Whether a packed file is there. By opening: NFS may remember for a while that a name is not."""
    try:
        os.close(os.open(final, os.O_RDONLY | os.O_CLOEXEC))
    except FileNotFoundError:
        return False
    return True


def _remove(part: Path) -> None:
    part.unlink(missing_ok=True)


def _name_part(final: Path, nonce: str) -> Path:
    return final.with_name(f"{final.stem}.{nonce}.part")


def _try_take(lock: StoreLock, final: Path) -> str | None:
    final.parent.mkdir(parents=True, exist_ok=True)
    return lock.try_take()


def _give_back(lock: StoreLock, nonce: str | None) -> None:
    if nonce is not None:
        lock.release()


def _make_part(part: Path, source: Path) -> None:
    """Make the file to write to, for no more readers than the directory has; mksquashfs keeps its mode."""
    mode = 0o600 | stat.S_IMODE(os.stat(source).st_mode) & 0o044
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))


def _finish_part(name: str, part: Path, final: Path) -> None:
    """Look at what was written, bring it to the disk, and give it its name."""
    fd = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    try:
        read_content(fd, name)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(part, final)
