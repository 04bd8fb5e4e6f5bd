"""Which host makes a new sandbox: the better of two, by what each says of its room.

Asks `/v1/capacity`, at most once a second for each host, and believes it for so long. A host that does not say is
better than one that refuses, and worse than any that takes. A key of the caller's always goes to the same host, as
long as that is usable: the same key is to give the same sandbox, whoever asks on whichever node.
"""

import asyncio
import hashlib
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp

from retinue.gateway.bodies import NoBody
from retinue.gateway.exchange import Outgoing
from retinue.gateway.far import Far
from retinue.gateway.faults import Fault
from retinue.gateway.routes import RouteTable, Slot
from retinue.gateway.upstream import build_authority, build_url
from retinue.terms.record import DecodeError, Record, from_json

BELIEVED_S = 1.0
ASK_S = 0.5
"""A host that does not say within this is chosen among the unknown."""
COLD = 0.25
"""Of its budget: so much more in use may a host be that has the image mounted."""
ONCE = "once-"
"""How a client's key begins that is for sending one create again, and for nothing else."""
ONCE_KEPT = 10_000

Sample = Callable[[Sequence[Slot], int], list[Slot]]


class Amounts(Record, frozen=True):
    """Of a budget."""

    count: int = 0
    memory_bytes: int = 0
    process_count: int = 0


class Capacity(Record, frozen=True):
    """What a host says."""

    queued: int = 0
    budget: Amounts = Amounts()
    used: Amounts = Amounts()
    images: tuple[str, ...] = ()
    """Mounted."""
    creates: bool = True


class Create(Record, frozen=True):
    """What of a create's body matters here."""

    image: str = ""
    key: str | None = None


@dataclass(slots=True)
class _Word:
    """What one host said last, and what was sent there since."""

    slot: Slot
    asked_s: float
    capacity: "asyncio.Task[Capacity | None]"
    sent: int = 0


class Placing:
    """Chooses hosts for creates."""

    def __init__(
        self, table: RouteTable, session: aiohttp.ClientSession, far: Far | None, sample: Sample = random.sample
    ) -> None:
        self._table = table
        self._session = session
        self._far = far
        self._sample = sample
        self._words: dict[str, _Word] = {}
        """By replica."""
        self._once: OrderedDict[str, Slot] = OrderedDict()

    async def choose(self, usable: list[Slot], body: bytes) -> Slot | None:
        """Choose one of the usable hosts; None: there is none."""
        if not usable:
            return None
        wanted = parse_create(body)
        key = wanted.key or ""
        if key and not key.startswith(ONCE):
            return self._table.take(max(usable, key=lambda slot: compute_rank(key, slot.backend.replica)))
        before = self._once.get(key)
        if before is not None and before in usable:
            return before
        slot = self._table.take(await self._choose_better(usable, wanted.image))
        if key:
            self._remember(key, slot)
        return slot

    async def _choose_better(self, usable: list[Slot], image: str) -> Slot:
        if len(usable) == 1:
            return usable[0]
        pair = self._sample(usable, 2)
        words = [self._find_word(slot) for slot in pair]
        # Whoever else waits for an answer is not to lose it with this request.
        said = await asyncio.gather(*(asyncio.shield(word.capacity) for word in words))
        _, chosen = min(zip(said, words, strict=True), key=lambda pair: self._weigh(pair[0], pair[1], image))
        chosen.sent += 1
        return chosen.slot

    def _weigh(self, said: Capacity | None, word: _Word, image: str) -> tuple[int, float, bool, int]:
        """Weigh a host; the smallest is chosen."""
        is_far = word.slot.backend.node != self._table.node
        if said is None:
            return 1, 0.0, is_far, word.slot.in_flight
        load = compute_load(said, word.sent) + (COLD if image not in said.images else 0.0)
        return (0 if said.creates else 2), round(load, 2), is_far, word.slot.in_flight

    def _find_word(self, slot: Slot) -> _Word:
        loop, replica = asyncio.get_running_loop(), slot.backend.replica
        word = self._words.get(replica)
        if word is None or word.slot is not slot or loop.time() - word.asked_s >= BELIEVED_S:
            word = self._words[replica] = _Word(slot, loop.time(), loop.create_task(self._ask(slot)))
        return word

    async def _ask(self, slot: Slot) -> Capacity | None:
        """Ask a host; None: it does not say."""
        backend, target = slot.backend, "/v1/capacity"
        try:
            async with asyncio.timeout(ASK_S):
                if self._far is not None and backend.node != self._table.node:
                    answer = await self._far.send(backend, Outgoing("GET", target, [], NoBody()))
                else:
                    answer = await self._session.get(
                        build_url(backend, target), headers=[("Host", build_authority(backend))]
                    )
                async with answer:
                    return from_json(await answer.read(), Capacity) if answer.status == 200 else None
        except (aiohttp.ClientError, OSError, ValueError, Fault, DecodeError):
            # Whether it is there at all is found out by the create itself.
            return None

    def _remember(self, key: str, slot: Slot) -> None:
        self._once[key] = slot
        if len(self._once) > ONCE_KEPT:
            self._once.popitem(last=False)


def parse_create(body: bytes) -> Create:
    """Read image and key; what cannot be read is for the host to refuse."""
    try:
        return from_json(body, Create)
    except DecodeError:
        return Create()


def compute_load(said: Capacity, sent: int) -> float:
    """Compute how much of its scarcest means a host has given away; above 1: creates wait there."""
    used, budget = said.used, said.budget
    return max(
        (used.count + said.queued + sent) / max(1, budget.count),
        used.memory_bytes / max(1, budget.memory_bytes),
        used.process_count / max(1, budget.process_count),
    )


def compute_rank(key: str, replica: str) -> bytes:
    """Compute a host's rank for a key: the same on every node, and little changed when a host comes or goes."""
    return hashlib.blake2b(f"{key}\0{replica}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
