"""What sandboxes stand on: the node space, the images that are mounted in it, and a zygote for each image and shard.

The space has one life; when it dies everything in it is gone, and the host makes another one.
"""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

from retinue.errors import RetinueError
from retinue.sandbox.host_shards import ShardSlot
from retinue.sandbox.images import Image, Images, ImageSettings
from retinue.sandbox.shard_link import ShardLost
from retinue.sandbox.shard_wire import Ask
from retinue.sandbox.space import NodeSpace

Key = tuple[Image, int]


class Ground:
    """Made by `open`."""

    def __init__(self, space: NodeSpace, slots: list[ShardSlot], uppers: Path | None) -> None:
        self._slots = slots
        self._space = space
        self._uppers = uppers
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
        ground = cls(space, slots, None)

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

    async def find_zygote(self, image: Image, slot: ShardSlot) -> int:
        """Find the zygote of an image in a shard, or start it. Errors: Refused, LinkLost, ShardLost."""
        key = image, slot.index
        starting = self._zygotes.get(key)
        if starting is None or (starting.done() and (starting.cancelled() or starting.exception() is not None)):
            starting = self._zygotes[key] = asyncio.get_running_loop().create_task(self._start_zygote(image, slot))
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

    async def _start_zygote(self, image: Image, slot: ShardSlot) -> int:
        sock, ended = await self._space.open_zygote(image.lowers, self._uppers)
        ended.add_done_callback(lambda future: future.cancelled() or future.exception())
        with sock:
            number = next(_NUMBERS)
            slot.send_zygote(number, sock)
        return number

    async def _drop(self, index: int, starting: asyncio.Task[int], cause: str) -> None:
        try:
            number = await starting
            await self._slots[index].peer.ask(Ask("drop_zygote", words={"zygote": str(number), "cause": cause}))
        except (ShardLost, RetinueError):
            pass  # It never started, or its shard is gone: there is nothing to end.


_NUMBERS = itertools.count(1)
"""Of zygotes; never used twice, whichever space they are in."""
