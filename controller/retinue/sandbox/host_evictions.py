"""Who has to go when the node is short of memory: asks the shards what is used, ends one, and says that it was us."""

import asyncio
import sys
from collections.abc import Awaitable, Callable

from retinue.sandbox.host_admission import Admission
from retinue.sandbox.host_seats import Seats
from retinue.sandbox.host_shards import Shards
from retinue.sandbox.host_standing import NODE_MEMORY, Standing
from retinue.sandbox.host_watch import MemoryWatch
from retinue.sandbox.requests import Fault
from retinue.sandbox.shard_box import Ending
from retinue.sandbox.shard_link import ShardLost
from retinue.sandbox.shard_wire import Ask
from retinue.terms.record import from_json

WEIGH_S = 5.0
"""How long a shard may take to say what its sandboxes use."""


class Evictions:
    """The hands of a `MemoryWatch`."""

    def __init__(
        self,
        shards: Shards,
        seats: Seats,
        admission: Admission,
        standing: Standing,
        destroy: Callable[[str, Ending], Awaitable[None]],
    ) -> None:
        self._shards = shards
        self._seats = seats
        self._admission = admission
        self._standing = standing
        self._destroy = destroy

    def build_watch(self, least_bytes: int) -> MemoryWatch:
        """Build the watch that decides; least_bytes 0: by what the node has."""
        return MemoryWatch(least_bytes, self._weigh, self._find_age, self._evict, self._note_short, self._note_relaxed)

    async def _weigh(self) -> dict[str, int]:
        weights: dict[str, int] = {}
        for slot in self._shards.slots:
            try:
                answer = await asyncio.wait_for(slot.peer.ask(Ask("weigh")), WEIGH_S)
            except (ShardLost, TimeoutError):
                continue
            weights |= from_json(answer.body, dict[str, int])
        there = {seat.name for seat in self._seats.list()}
        return {name: weight for name, weight in weights.items() if name in there}

    def _find_age(self, name: str) -> float:
        return self._seats.find(name).created_utc

    async def _evict(self, name: str, cause: str) -> None:
        try:
            await self._destroy(name, Ending("infra_failed", cause))
        except Fault:
            return  # It went by itself.
        self._standing.lost[NODE_MEMORY] += 1
        print(f"retinue sandbox: sandbox {name} ended: {cause}", file=sys.stderr, flush=True)

    def _note_short(self, cause: str) -> None:
        self._admission.hold(NODE_MEMORY, cause)
        self._standing.begin(NODE_MEMORY, cause)

    def _note_relaxed(self) -> None:
        self._admission.let_go(NODE_MEMORY)
        self._standing.end(NODE_MEMORY)
