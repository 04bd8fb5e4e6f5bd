"""Makes sandboxes: image, room, shard, zygote, and once more when one of them died under it.

The same key makes one sandbox, however often it is asked, at the same time or later.
"""

import asyncio
import hashlib
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NoReturn, Protocol

from retinue.errors import TransientError
from retinue.sandbox.budget import Weight
from retinue.sandbox.host_admission import Admission
from retinue.sandbox.host_ground import Ground
from retinue.sandbox.host_seats import Seat, Seats
from retinue.sandbox.host_shards import Shards, ShardSlot
from retinue.sandbox.image_errors import ImageFailed, ImageRefused, NodeRefused, Reason
from retinue.sandbox.images import Image
from retinue.sandbox.link import LinkLost, Refused
from retinue.sandbox.requests import BoxOrder, CreateRequest, ErrorBody, Fault, Limits
from retinue.sandbox.shard_box import Ending
from retinue.sandbox.shard_config import find_filter
from retinue.sandbox.shard_link import ShardLost
from retinue.sandbox.shard_wire import Ask
from retinue.terms.record import from_json, to_json

TRIES = 6
TRY_AGAIN_S = 0.1
"""Before the second try, then twice as long each time: an image whose squashfuse died is noticed within a second."""
SHARD_S = GROUND_S = 10.0
"""How long a create waits for a shard, or for the node space, that is being started again."""
PROCESSES_OF_OURS = 1
NO_ZYGOTE = "no_zygote"
WENT = Ending("sandbox_destroyed", "whoever wanted it went away")


class Again(TransientError):
    """Something died under a create; another try finds another one."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A create that was checked."""

    request: CreateRequest
    limits: Limits
    uid: int
    caller: str
    lease_s: float
    queue_s: float

    @property
    def weight(self) -> Weight:
        return Weight(1, self.limits.weight_bytes, self.limits.pids + PROCESSES_OF_OURS)

    @property
    def digest(self) -> bytes:
        """The same for the same contents."""
        return hashlib.sha256(to_json((self.request, self.limits))).digest()


@dataclass(frozen=True, slots=True)
class Made:
    """A sandbox that was made."""

    seat: Seat
    wait_s: float
    """For room."""
    start_s: float
    """For everything else."""
    is_new: bool = True


class Standing(Protocol):
    """What is told of failures."""

    def note_make(self, wait_s: float, start_s: float) -> None: ...


class Makes:
    """The creates of a node."""

    def __init__(self, seats: Seats, shards: Shards, admission: Admission, standing: Standing) -> None:
        self._seats = seats
        self._shards = shards
        self._admission = admission
        self._standing = standing
        self._keys: dict[str, tuple[bytes, asyncio.Task[Made]]] = {}
        self._ground: asyncio.Future[Ground] = asyncio.get_running_loop().create_future()
        self._after: set[asyncio.Task[None]] = set()
        seats.forget_key = self._forget_key

    def set_ground(self, ground: Ground | None) -> None:
        """There is a space to make sandboxes in; None: it died, and creates wait for the next one."""
        if ground is None or self._ground.done():
            self._ground = asyncio.get_running_loop().create_future()
        if ground is not None:
            self._ground.set_result(ground)

    async def make(self, wanted: Wanted) -> Made:
        """Make one, or find the one that this key made. Errors: Fault."""
        key = wanted.request.key
        if key is None:
            return await self._make(wanted)
        digest, task = self._keys.get(key, (b"", None))
        if task is not None:
            if digest != wanted.digest:
                raise Fault(409, "sandbox_key_reused", f"cannot use key {key!r}: it made a sandbox of other contents")
            made = await asyncio.shield(task)
            self._seats.find(made.seat.name)
            return replace(made, is_new=False)
        # Its own task: whoever asks again after his connection broke shall find it, done or under way.
        task = asyncio.get_running_loop().create_task(self._make(wanted))
        self._keys[key] = (wanted.digest, task)
        task.add_done_callback(lambda done: self._note_keyed(key, done))
        return await asyncio.shield(task)

    def _forget_key(self, key: str) -> None:
        self._keys.pop(key, None)

    def _note_keyed(self, key: str, task: asyncio.Task[Made]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._forget_key(key)

    async def _make(self, wanted: Wanted) -> Made:
        began_s = time.monotonic()
        room = _Room(self._admission, wanted)
        with ExitStack() as unless_made:
            unless_made.callback(room.give_back)
            for attempt in range(TRIES):
                try:
                    seat = await self._try(wanted, room)
                except (Again, ShardLost, LinkLost) as error:
                    cause = str(error)
                    await asyncio.sleep(TRY_AGAIN_S * 2**attempt)
                    continue
                unless_made.pop_all()
                start_s = time.monotonic() - began_s - room.wait_s
                self._standing.note_make(room.wait_s, start_s)
                return Made(seat, round(room.wait_s, 6), round(start_s, 6))
            raise Fault(503, "infra_failed", f"cannot make a sandbox: {cause}", cause, retry_after_s=1)

    async def _try(self, wanted: Wanted, room: "_Room") -> Seat:
        ground = await self._wait_ground()
        image = await self._acquire(ground, wanted.request.image)
        with ExitStack() as unless_placed:
            unless_placed.callback(ground.images.release, image)
            await room.take()
            seat = await self._place(ground, image, wanted)
            unless_placed.pop_all()
        return seat

    async def _wait_ground(self) -> Ground:
        try:
            return await asyncio.wait_for(asyncio.shield(self._ground), GROUND_S)
        except TimeoutError:
            cause = "the node space is being started again"
            raise Fault(503, "infra_failed", f"cannot make a sandbox: {cause}", cause, retry_after_s=1) from None

    async def _acquire(self, ground: Ground, name: str) -> Image:
        try:
            return await ground.images.acquire(name)
        except ImageRefused as refused:
            status = 404 if refused.reason is Reason.NOT_FOUND else 422
            kind = "sandbox_no_image" if status == 404 else "sandbox_bad_image"
            raise Fault(status, kind, str(refused), refused.reason.value) from None
        except (NodeRefused, ImageFailed, Refused, LinkLost) as error:
            if ground.lost.done():
                raise Again("the node space died") from None
            retry_s = None if isinstance(error, NodeRefused) else 1
            raise Fault(503, "infra_failed", str(error), str(error), retry_s) from None

    async def _place(self, ground: Ground, image: Image, wanted: Wanted) -> Seat:
        """Have a shard make it. Errors: Again, ShardLost, LinkLost; Fault."""
        request, slot = wanted.request, await self._choose()
        seat = Seat(self._seats.make_name(), slot, image, wanted.limits, wanted.weight, wanted.caller, request.key)
        self._seats.add(seat)
        with ExitStack() as unless_made:
            unless_made.callback(self._drop, seat)
            try:
                number = await ground.find_zygote(image, slot, find_filter(request.net))
            except Refused as refused:
                raise Again(str(refused)) from None
            order = BoxOrder(
                number, wanted.limits, request.env, request.workdir, wanted.uid, request.hostname, request.net
            )
            answer = await slot.peer.ask(Ask("create", seat.name), to_json(order))
            if answer.status != 200:
                self._refuse(from_json(answer.body, ErrorBody), answer.status, ground, number)
            if not self._seats.admit(seat, wanted.lease_s):
                raise Again("the sandbox was lost while it was made")
            unless_made.pop_all()
        return seat

    def _refuse(self, body: ErrorBody, status: int, ground: Ground, number: int) -> NoReturn:
        error = body.error
        if error.type == NO_ZYGOTE:
            ground.forget_zygote(number)
            raise Again(error.message)
        if error.type == "infra_failed":
            raise Again(error.message)
        raise Fault(status, error.type, error.message, error.cause, 1 if error.retryable else None)

    async def _choose(self) -> ShardSlot:
        try:
            async with asyncio.timeout(SHARD_S):
                await self._shards.wait_any()
        except TimeoutError:
            raise Fault(503, "infra_failed", "cannot make a sandbox: no shard runs", "no shard runs", 1) from None
        return self._shards.choose()

    def _drop(self, seat: Seat) -> None:
        """Forget one that was not made; a shard that made it all the same ends it."""
        self._seats.abandon(seat)
        task = asyncio.get_running_loop().create_task(_destroy(seat))
        self._after.add(task)
        task.add_done_callback(self._after.discard)


class _Room:
    """What one create takes of the budget, once, whatever it tries."""

    def __init__(self, admission: Admission, wanted: Wanted) -> None:
        self._admission = admission
        self._wanted = wanted
        self._is_taken = False
        self.wait_s = 0.0

    async def take(self) -> None:
        """Wait for it, the first time. Errors: Fault."""
        if not self._is_taken:
            wanted = self._wanted
            self.wait_s = await self._admission.enter(wanted.caller, wanted.weight, wanted.queue_s)
            self._is_taken = True

    def give_back(self) -> None:
        """Give it back, if it was taken."""
        if self._is_taken:
            self._admission.give_back(self._wanted.weight)


async def _destroy(seat: Seat) -> None:
    try:
        await seat.slot.peer.ask(Ask("destroy", seat.name, {"type": WENT.type, "cause": WENT.cause}))
    except ShardLost:
        pass  # Its sandboxes went with it.
