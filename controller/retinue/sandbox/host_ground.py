"""What sandboxes stand on: the node space, the images that are mounted in it, and their zygotes.

The space has one life; when it dies everything in it is gone, and the host makes another one.
"""

import asyncio
import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path

from retinue.errors import RetinueError
from retinue.sandbox.aside import run_aside
from retinue.sandbox.host_shards import ShardSlot
from retinue.sandbox.images import Image, Images, ImageSettings
from retinue.sandbox.link import Refused
from retinue.sandbox.shard_link import ShardLost
from retinue.sandbox.shard_wire import Ask
from retinue.sandbox.space import NodeSpace
from retinue.sandbox.wire import Flag

Key = tuple[Image, int, Flag]
"""Image, shard, and what its filter depends on."""
OPEN_S = 5.0
_OPEN = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class Ground:
    """Made by `open`."""

    def __init__(self, space: NodeSpace, base: Path, base_fd: int, slots: list[ShardSlot]) -> None:
        self._slots = slots
        self._space = space
        self._base = base
        self._base_fd = base_fd
        self._zygotes: dict[Key, asyncio.Task[int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.images: Images

    @classmethod
    async def open(
        cls,
        settings: ImageSettings,
        slots: list[ShardSlot],
        program: Path,
        on_image_lost: Callable[[str, str], None],
    ) -> "Ground":
        """Start the space.

        Shape:  on_image_lost gets id and cause, after the zygotes of that image were told to end.
        Errors: PermanentError, Refused with step and errno.
        """
        space = await NodeSpace.start(settings.base, program)
        ground = cls(space, settings.base, await space.open_base(), slots)

        def lose(image_id: str, cause: str) -> None:
            ground.drop_image(image_id, cause)
            on_image_lost(image_id, cause)

        ground.images = await Images.open(space, settings, lose, lambda image_id: ground.drop_image(image_id, "idle"))
        return ground

    @property
    def lost(self) -> asyncio.Future[None]:
        """Done when the space has died."""
        return self._space.lost

    @property
    def pid(self) -> int:
        """Of the process that holds the space."""
        return self._space.pid

    @property
    def zygote_count(self) -> int:
        return len(self._zygotes)

    async def find_zygote(self, image: Image, slot: ShardSlot, flags: Flag) -> int:
        """Find the zygote of an image in a shard, or start it. Errors: Refused, LinkLost, ShardLost."""
        key = image, slot.index, flags
        starting = self._zygotes.get(key)
        if starting is None or (starting.done() and (starting.cancelled() or starting.exception() is not None)):
            starting = self._zygotes[key] = asyncio.get_running_loop().create_task(
                self._start_zygote(image, slot, flags)
            )
        return await asyncio.shield(starting)

    def forget_zygote(self, number: int) -> None:
        """Take note of one that died."""
        for key, task in list(self._zygotes.items()):
            if task.done() and not task.cancelled() and task.exception() is None and task.result() == number:
                del self._zygotes[key]

    def forget_slot(self, slot: ShardSlot) -> None:
        """Take note of a shard that died, and its zygotes with it."""
        for key in [key for key in self._zygotes if key[1] == slot.index]:
            del self._zygotes[key]

    def drop_image(self, image_id: str, cause: str) -> None:
        """End the zygotes of an image, and the sandboxes on it for this cause."""
        for key in [key for key in self._zygotes if key[0].id == image_id]:
            task = asyncio.get_running_loop().create_task(self._drop(key[1], self._zygotes.pop(key), cause))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End the space and everything in it."""
        for task in self._zygotes.values():
            task.cancel()
        await self.images.close()
        await self._space.close()
        os.close(self._base_fd)

    async def _start_zygote(self, image: Image, slot: ShardSlot, flags: Flag) -> int:
        image_fd = await self._open_image(image)
        try:
            sock, ended = await self._space.open_zygote(image.lowers, flags=flags)
            ended.add_done_callback(lambda future: future.cancelled() or future.exception())
            with sock:
                number = next(_NUMBERS)
                slot.send_zygote(number, sock, image_fd)
            return number
        finally:
            os.close(image_fd)

    async def _open_image(self, image: Image) -> int:
        """Open the image as the space sees it, to ask whether it still serves. Errors: Refused."""
        place, dir_fd = image.path, None
        if place.is_relative_to(self._base):
            place, dir_fd = place.relative_to(self._base), self._base_fd
        try:
            return await run_aside(lambda: os.open(place, _OPEN, dir_fd=dir_fd), OPEN_S, os.close)
        except (OSError, TimeoutError) as error:
            raise Refused("open the image", getattr(error, "errno", None) or errno.ETIMEDOUT) from None

    async def _drop(self, index: int, starting: asyncio.Task[int], cause: str) -> None:
        try:
            number = await starting
            await self._slots[index].peer.ask(Ask("drop_zygote", words={"zygote": str(number), "cause": cause}))
        except (ShardLost, RetinueError):
            pass  # It never started, or its shard is gone: there is nothing to end.


_NUMBERS = itertools.count(1)
"""Of zygotes; never used twice, whichever space they are in."""
