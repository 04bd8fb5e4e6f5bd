"""The sandboxes of one node: who gets one, where it lives, when it goes, and what happens when something of ours dies.

Holds no sandbox itself: the shards do. Whatever dies, the others go on.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from retinue.errors import RetinueError
from retinue.node.host_settings import Drift
from retinue.sandbox.budget import Budget
from retinue.sandbox.host_admission import Admission
from retinue.sandbox.host_evictions import Evictions
from retinue.sandbox.host_ground import Ground
from retinue.sandbox.host_makes import Made, Makes, Wanted
from retinue.sandbox.host_seats import Seat, Seats, SeatView, now_s
from retinue.sandbox.host_settings import HostSettings
from retinue.sandbox.host_shards import Shards, ShardSlot
from retinue.sandbox.host_standing import (
    HOST_CHANGED,
    IMAGE_LOST,
    SANDBOX_LOST,
    SHARD_DOWN,
    SPACE_DOWN,
    Standing,
)
from retinue.sandbox.host_watch import describe_drifts, watch_drift
from retinue.sandbox.images import ImageSettings
from retinue.sandbox.requests import Fault
from retinue.sandbox.shard_box import Ending
from retinue.sandbox.shard_link import Exchange, ShardLost
from retinue.sandbox.shard_wire import Answer, Ask, Happening
from retinue.terms.record import from_json

SWEEP_S = 0.5
GROUND_BACKOFF_S = 0.5
TELL_S = 2.0
"""How long a request waits to hear how the shard died that it was with."""
TOGETHER_S = 0.1
"""Losses within so long are told as one."""
DESTROYED = Ending("sandbox_destroyed", "it was destroyed")
EXPIRED = Ending("sandbox_expired", "its lease ran out")
STOPPING = "the sandbox host is stopping"


class Host:
    """Made by `open_host`."""

    def __init__(self, settings: HostSettings) -> None:
        self.settings = settings
        self.standing = Standing(settings)
        self.budget = Budget(settings.budget)
        self.admission = Admission(self.budget, settings.queue)
        self.seats = Seats(settings.id_prefix, self._note_left)
        self.shards = Shards(settings.shards, settings.service, settings.node, self._hear, self._lose_shard)
        self.makes = Makes(self.seats, self.shards, self.admission, self.standing)
        evictions = Evictions(self.shards, self.seats, self.admission, self.standing, self.destroy)
        self.memory = evictions.build_watch(settings.memory_min_bytes)
        self.ground: Ground | None = None
        self.refusal = ""
        """Why no sandbox is made now, in words; empty: they are."""
        self.is_stopping = False
        self._lost_now: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def is_ready(self) -> bool:
        """Whether sandboxes can be made, given room."""
        return self.ground is not None and any(slot.is_ready.is_set() for slot in self.shards.slots)

    # --- what callers ask -------------------------------------------------------------------

    async def make(self, wanted: Wanted) -> Made:
        """Make a sandbox. Errors: Fault."""
        if self.refusal:
            raise Fault(503, "infra_failed", f"cannot make a sandbox: {self.refusal}", self.refusal)
        return await self.makes.make(wanted)

    async def destroy(self, name: str, ending: Ending = DESTROYED) -> None:
        """Destroy one, and wait until nothing of it is left. Errors: Fault 404 or 410."""
        seat = self.seats.find(name)
        seat.ending = ending
        # Its own task: a caller who hangs up shall not call it off half way.
        await asyncio.shield(self._spawn(self._destroy(seat, ending)))

    @asynccontextmanager
    async def opened(self, name: str, op: str, words: dict[str, str], body: bytes) -> AsyncIterator[Exchange]:
        """Ask a sandbox's shard; its lease does not run out meanwhile, and begins anew afterwards.

        Errors: Fault 404 or 410; ShardLost becomes 410.
        """
        seat = self.seats.find(name)
        leases = self.seats.leases
        leases.hold(name)
        try:
            peer = seat.slot.peer
            exchange = peer.open(Ask(op, name, words), body)
            is_over = False
            try:
                yield exchange
                is_over = True
            finally:
                peer.forget(exchange, is_cancelled=not is_over)
        except ShardLost:
            # Its socket ends a moment before it is known how it died.
            await asyncio.wait([asyncio.ensure_future(seat.slot.is_told_lost.wait())], timeout=TELL_S)
            self.seats.find(name)
            raise Fault(410, "infra_failed", f"cannot use sandbox {name}: its shard died", "its shard died") from None
        finally:
            leases.let_go(name, now_s())

    async def ask(self, name: str, op: str, words: dict[str, str] | None = None, body: bytes = b"") -> Answer:
        """Ask a sandbox's shard something that has one answer. Errors: Fault."""
        async with self.opened(name, op, words or {}, body) as exchange:
            return await exchange.answer

    def renew(self, name: str, lease_s: float | None) -> SeatView:
        """Begin a lease anew. Errors: Fault."""
        seat = self.seats.find(name)
        self.seats.leases.renew(name, now_s(), lease_s)
        return self.view(seat)

    def view(self, seat: Seat) -> SeatView:
        """Show one."""
        return self.seats.view(seat, self.settings.node)

    def stop(self) -> None:
        """Make no more."""
        self.refusal = STOPPING
        self.is_stopping = True

    async def _destroy(self, seat: Seat, ending: Ending) -> None:
        words = {"type": ending.type, "cause": ending.cause}
        try:
            answer = await seat.slot.peer.ask(Ask("destroy", seat.name, words))
            self.standing.counts["late"] += from_json(answer.body, dict[str, bool]).get("is_late", False)
        except ShardLost:
            pass  # It went with its shard.
        finally:
            self.seats.leave(seat, ending)

    # --- what happens to us -------------------------------------------------------------------

    def _hear(self, slot: ShardSlot, happening: Happening) -> None:
        if happening.what == "zygote_lost" and self.ground is not None:
            self.ground.forget_zygote(happening.zygote)
        elif happening.what == "box_lost":
            is_ours = happening.type == "infra_failed" and not self.is_stopping
            if self.seats.lose(happening.box, Ending(happening.type, happening.cause)) and is_ours:
                self._note_lost_soon(happening.cause)

    def _note_lost_soon(self, cause: str) -> None:
        """Note a lost sandbox together with those that went with it: one zygote has thousands."""
        if not self._lost_now:
            asyncio.get_running_loop().call_later(TOGETHER_S, self._note_lost_now)
        self._lost_now[cause] += 1

    def _note_lost_now(self) -> None:
        for cause, count in self._lost_now.items():
            self.standing.note_lost(cause, SANDBOX_LOST, count)
        self._lost_now.clear()

    def _lose_shard(self, slot: ShardSlot, cause: str) -> None:
        if self.ground is not None:
            self.ground.forget_slot(slot)
        count = self.seats.lose_slot(slot, Ending("infra_failed", cause))
        self.standing.lost[SHARD_DOWN] += count
        self.standing.begin(SHARD_DOWN, f"{cause}; {count} sandboxes lost")
        self._spawn(self._wait_shard(slot))

    async def _wait_shard(self, slot: ShardSlot) -> None:
        await slot.is_ready.wait()
        if all(other.is_ready.is_set() for other in self.shards.slots):
            self.standing.end(SHARD_DOWN)

    def _lose_image(self, image_id: str, cause: str) -> None:
        lost = [seat for seat in self.seats.list() if seat.image.id == image_id]
        for seat in lost:
            self.seats.leave(seat, Ending("infra_failed", cause))
        self.standing.note_lost(cause, IMAGE_LOST, len(lost))

    def _note_left(self, seat: Seat) -> None:
        self.standing.counts["left"] += 1
        self.admission.give_back(seat.weight)
        if self.ground is not None:
            self.ground.images.release(seat.image)

    def _note_drift(self, drifts: tuple[Drift, ...]) -> None:
        if drifts:
            words = describe_drifts(drifts)
            self.refusal = self.refusal or words
            self.standing.begin(HOST_CHANGED, words)
        else:
            self.refusal = STOPPING if self.is_stopping else ""
            self.standing.end(HOST_CHANGED)

    # --- clockwork --------------------------------------------------------------------------------

    def list_clockwork(self) -> list[Coroutine[Any, Any, None]]:
        """What runs for as long as the host does."""
        watching = watch_drift(self.settings.node_dir, self._note_drift)
        return [slot.run() for slot in self.shards.slots] + [
            self._keep_ground(),
            self._sweep(),
            self.memory.run(),
            watching,
        ]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.standing.note_life()
            for name in self.seats.leases.pop_expired(now_s()):
                self.standing.counts["expired"] += 1
                self._spawn(self._expire(name))

    async def _expire(self, name: str) -> None:
        try:
            await self.destroy(name, EXPIRED)
        except Fault:
            pass  # It went by itself.

    async def _keep_ground(self) -> None:
        """Keep a node space; when it dies, all in it is lost and another is made."""
        try:
            while True:
                try:
                    await self._live_on_ground()
                except RetinueError as error:
                    self.standing.begin(SPACE_DOWN, f"cannot start the node space: {error}")
                    await asyncio.sleep(GROUND_BACKOFF_S)
        finally:
            if self.ground is not None:
                await self.ground.close()

    async def _live_on_ground(self) -> None:
        settings = self.settings
        images = ImageSettings(
            Path(settings.base),
            Path(settings.store),
            Path(settings.logs),
            idle_s=settings.image_idle_s,
            unpack_to=Path(settings.unpack_to) if settings.unpack_to else None,
        )
        ground = await Ground.open(images, self.shards.slots, Path(settings.program), self._lose_image)
        self.ground = ground
        self.makes.set_ground(ground)
        self.standing.end(SPACE_DOWN)
        await self.shards.wait_any()
        self.standing.note_ready()
        await asyncio.shield(ground.lost)
        self.ground = None
        self.makes.set_ground(None)
        lost = self.seats.list()
        for seat in lost:
            self.seats.leave(seat, Ending("infra_failed", "the node space died"))
        self.standing.lost[SPACE_DOWN] += len(lost)
        self.standing.begin(SPACE_DOWN, f"the node space died; {len(lost)} sandboxes lost")
        await ground.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def end_tasks(self) -> None:
        """End what was begun on the side."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


@asynccontextmanager
async def open_host(settings: HostSettings) -> AsyncIterator[Host]:
    """Run a host while the context lasts; afterwards none of its processes runs and none of its sandboxes lives."""
    host = Host(settings)
    clockwork = [asyncio.create_task(work) for work in host.list_clockwork()]
    for task in clockwork:
        task.add_done_callback(host.standing.note_failure)
    try:
        yield host
    finally:
        host.stop()
        await host.end_tasks()
        for task in clockwork:
            task.cancel()
        await asyncio.wait(clockwork)
        host.standing.finish()
