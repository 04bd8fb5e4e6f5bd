"""The images of one node: each is mounted once, for as long as somebody uses it and a while longer.

What a name means is settled when it is first used, and stays so until its image is unmounted: all rollouts of a run
see the same files, and a create on a mounted image touches no storage.
"""

import asyncio
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from retinue.sandbox.image_errors import ImageFailed
from retinue.sandbox.mounts import Mount, MountPlace, check_fuse
from retinue.sandbox.space import NodeSpace
from retinue.sandbox.store import Opened, Store
from retinue.sandbox.tools import find_program
from retinue.sandbox.unpack import Unpacked

_TRIES = 3
_MOUNTING_MAX = 8
"""Images that are mounted or unpacked at once."""
_FIRST_IDLE_S = 1.0
"""At least so long a new image stays mounted, that whoever waited for it can take it."""
CLOSED = "cannot use an image: the service is stopping"


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """What `Images` is told."""

    base: Path
    """The directory that the node space was started with."""
    store: Path
    """Where images are, and packed directories go; shared by all nodes."""
    logs: Path
    """In the node directory: what squashfuse says, one file per image."""
    idle_s: float = 600.0
    """How long an image that nobody uses stays mounted."""
    unpack_to: Path | None = None
    """A directory of the node's own disk: images are unpacked there instead of mounted. None: they are mounted."""
    hang_s: float = 10.0
    """How long squashfuse may give no answer until it is killed."""
    storage_s: float = 30.0
    """How long the shared file system may take for one look."""
    squashfuse: str = "squashfuse_ll"


@dataclass(frozen=True, slots=True)
class Image:
    """One image that is mounted; another mount of the same one is not equal."""

    id: str
    name: str
    """By which it was first asked for."""
    path: Path

    @property
    def lowers(self) -> tuple[Path, ...]:
        """For `NodeSpace.start_zygote`."""
        return (self.path,)


@dataclass(frozen=True, slots=True)
class ImageState:
    """One image, for people and metrics."""

    name: str
    id: str
    """Empty while it is being found or packed."""
    user_count: int
    state: str
    """`mounted`, `idle`, or how far it is."""


class Lower(Protocol):
    """What an image is made usable by."""

    path: Path

    async def watch(self) -> str: ...

    async def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Entry:
    image: Image
    lower: Lower
    watching: "asyncio.Task[str]"
    user_count: int = 0
    is_live: bool = True
    names: set[str] = field(default_factory=set)
    idle: asyncio.TimerHandle | None = None


def check_node(settings: ImageSettings) -> None:
    """Refuse a node that cannot do what the settings ask. Errors: NodeRefused with the remedy."""
    if settings.unpack_to is None:
        check_fuse(settings.squashfuse)
    else:
        find_program("unsquashfs")


class Images:
    """Made by `open`, for one node space."""

    def __init__(
        self,
        place: MountPlace,
        settings: ImageSettings,
        on_lost: Callable[[str, str], None],
        on_idle: Callable[[str], None],
    ) -> None:
        self._place = place
        self._settings = settings
        self._on_lost = on_lost
        self._on_idle = on_idle
        self._store = Store(place.space, settings.store.absolute(), settings.storage_s)
        self._by_name: dict[str, _Entry] = {}
        self._by_id: dict[str, _Entry] = {}
        self._opening: dict[str, asyncio.Task[_Entry]] = {}
        self._mounting: dict[str, asyncio.Task[_Entry]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._turns = asyncio.Semaphore(_MOUNTING_MAX)
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        space: NodeSpace,
        settings: ImageSettings,
        on_lost: Callable[[str, str], None],
        on_idle: Callable[[str], None] = lambda image_id: None,
    ) -> "Images":
        """Get ready; nothing is mounted yet.

        Shape:  on_lost gets id and cause when an image does not serve any more: its sandboxes are lost, and the next
                `acquire` mounts it anew. on_idle gets the id just before an image that nobody uses is unmounted.
        Errors: LinkLost.
        """
        base_fd = await space.open_base()
        place = MountPlace(
            space, settings.base, base_fd, settings.logs, hang_s=settings.hang_s, program=settings.squashfuse
        )
        return cls(place, settings, on_lost, on_idle)

    async def acquire(self, name: str) -> Image:
        """Have an image usable until `release`; who asks at the same time shares the work.

        Errors: ImageRefused, NodeRefused, ImageFailed; Refused and LinkLost of the node space.
        """
        for _ in range(_TRIES):
            if self._is_closed:
                raise ImageFailed(CLOSED)
            entry = self._by_name.get(name) or await self._wait_open(name)
            if entry.is_live:
                self._use(entry)
                return entry.image
        raise ImageFailed(f"cannot use image {name!r}: its squashfuse ends as soon as it has started")

    def release(self, image: Image) -> None:
        """Say that one user less needs it. Harmless for one that was lost."""
        entry = self._by_id.get(image.id)
        if entry is None or entry.image != image or entry.user_count == 0:
            return
        entry.user_count -= 1
        self._start_idling(entry)

    def describe(self) -> list[ImageState]:
        """Say what there is."""
        states = [
            ImageState(entry.image.name, entry.image.id, entry.user_count, "mounted" if entry.user_count else "idle")
            for entry in self._by_id.values()
        ]
        progress = self._store.progress
        return states + [ImageState(name, "", 0, progress.get(name, "mounting")) for name in self._opening]

    async def close(self) -> None:
        """Unmount everything; on_lost is not called."""
        if self._is_closed:
            return
        self._is_closed = True
        # Mounts first: they use files that who opened them closes at its end.
        for tasks in ([*self._mounting.values()], [*self._opening.values()]):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for entry in list(self._by_id.values()):
            self._end(entry)
        if self._ending:
            await asyncio.wait(self._ending)
        os.close(self._place.base_fd)

    # --- opening ----------------------------------------------------------------------

    async def _wait_open(self, name: str) -> _Entry:
        opening = self._opening.get(name)
        if opening is None:
            opening = asyncio.create_task(self._find(name))
            self._opening[name] = opening
            opening.add_done_callback(lambda task: self._note_opened(name, task))
        # Whoever goes away leaves the work to the others, and to the next one who asks.
        return await _share(opening)

    def _note_opened(self, name: str, task: "asyncio.Task[_Entry]") -> None:
        del self._opening[name]
        if not task.cancelled() and task.exception() is None and task.result().is_live:
            task.result().names.add(name)
            self._by_name[name] = task.result()

    async def _find(self, name: str) -> _Entry:
        opened = await self._store.open(name)
        try:
            entry = self._by_id.get(opened.id)
            if entry is not None:
                return entry
            mounting = self._mounting.get(opened.id)
            if mounting is None:
                mounting = asyncio.create_task(self._mount(opened))
                self._mounting[opened.id] = mounting
                mounting.add_done_callback(lambda _: self._mounting.pop(opened.id))
            return await _share(mounting)
        finally:
            opened.close()

    async def _mount(self, opened: Opened) -> _Entry:
        name = f"{opened.id[:16]}.{next(self._numbers)}"
        unpack_to = self._settings.unpack_to
        async with self._turns:
            lower: Lower
            if unpack_to is None:
                lower = await Mount.open(self._place, opened, name)
            else:
                lower = await Unpacked.open(self._place.space, opened, unpack_to / name)
        entry = _Entry(Image(opened.id, opened.name, lower.path), lower, asyncio.create_task(lower.watch()))
        self._by_id[opened.id] = entry
        entry.watching.add_done_callback(lambda task: self._lose(entry, task))
        self._start_idling(entry, _FIRST_IDLE_S)
        return entry

    # --- living and ending ------------------------------------------------------------

    def _use(self, entry: _Entry) -> None:
        entry.user_count += 1
        if entry.idle is not None:
            entry.idle.cancel()
            entry.idle = None

    def _start_idling(self, entry: _Entry, least_s: float = 0.0) -> None:
        if entry.user_count == 0 and entry.idle is None:
            loop = asyncio.get_running_loop()
            entry.idle = loop.call_later(max(self._settings.idle_s, least_s), self._end_idle, entry)

    def _end_idle(self, entry: _Entry) -> None:
        if entry.is_live:
            self._end(entry)
            self._on_idle(entry.image.id)

    def _lose(self, entry: _Entry, watching: "asyncio.Task[str]") -> None:
        if watching.cancelled() or not entry.is_live:
            return
        self._end(entry)
        self._on_lost(entry.image.id, watching.result())

    def _end(self, entry: _Entry) -> None:
        """Forget an image at once, and take it down."""
        entry.is_live = False
        if entry.idle is not None:
            entry.idle.cancel()
        self._by_id.pop(entry.image.id, None)
        for name in entry.names:
            self._by_name.pop(name, None)
        entry.watching.cancel()
        ending = asyncio.create_task(entry.lower.close())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


async def _share(task: "asyncio.Task[_Entry]") -> _Entry:
    """Wait for work of others; being cancelled does not cancel it. Errors: ImageFailed when it was."""
    await asyncio.wait({task})
    if task.cancelled():
        raise ImageFailed(CLOSED)
    return task.result()
