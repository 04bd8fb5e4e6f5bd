"""Which sandboxes there are and which there were: ids, keys, leases, and how each ended. Asks nobody anything."""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from retinue.sandbox.budget import Weight
from retinue.sandbox.host_shards import ShardSlot
from retinue.sandbox.images import Image
from retinue.sandbox.leases import Leases
from retinue.sandbox.requests import Fault, Limits
from retinue.sandbox.shard_box import Ending, build_gone_fault
from retinue.terms.record import Record

GONE_KEPT = 100_000
"""Sandboxes that are gone and remembered; the oldest goes first."""
EPOCH_CHARS, RANDOM_CHARS = 4, 12
EARLIER = Ending("infra_failed", "the sandbox host was started again")


class SeatView(Record, frozen=True, omit_defaults=False):
    """A sandbox as callers see it."""

    id: str
    image: str
    state: str
    caller: str
    node: str
    created_utc: float
    expires_utc: float
    limits: Limits


@dataclass(eq=False, slots=True)
class Seat:
    """One sandbox as the front knows it."""

    name: str
    slot: ShardSlot
    image: Image
    limits: Limits
    weight: Weight
    caller: str
    key: str | None
    created_utc: float = field(default_factory=time.time)
    is_ready: bool = False
    ending: Ending | None = None
    """Set once it shall end, or has."""


class Seats:
    """All of them."""

    def __init__(self, prefix: str, on_left: Callable[[Seat], None]) -> None:
        """on_left is told once of each that is gone and had been ready."""
        self._prefix = prefix
        self._epoch = secrets.token_hex(EPOCH_CHARS // 2)
        self._on_left = on_left
        self._seats: dict[str, Seat] = {}
        self._gone: OrderedDict[str, tuple[Ending, str | None]] = OrderedDict()
        self.leases = Leases()
        self.forget_key: Callable[[str], None] = lambda key: None
        """Told when a sandbox is remembered no more, and its key with it."""

    def __contains__(self, name: str) -> bool:
        return name in self._seats

    def __len__(self) -> int:
        return len(self._seats)

    def list(self) -> list[Seat]:
        """Those that are there."""
        return [seat for seat in self._seats.values() if seat.is_ready]

    def make_name(self) -> str:
        """Make an id that was never used."""
        return f"{self._prefix}{self._epoch}{secrets.token_hex(RANDOM_CHARS // 2)}"

    def add(self, seat: Seat) -> None:
        """Take one that is about to be made."""
        self._seats[seat.name] = seat
        seat.slot.live_count += 1

    def admit(self, seat: Seat, lease_s: float) -> bool:
        """It is ready; False when it was lost meanwhile."""
        if seat.ending is not None:
            return False
        seat.is_ready = True
        self.leases.begin(seat.name, lease_s, now_s())
        return True

    def abandon(self, seat: Seat) -> None:
        """It was not made; nobody has heard of it."""
        if self._seats.pop(seat.name, None) is not None:
            seat.slot.live_count -= 1

    def find(self, name: str) -> Seat:
        """Find one that can be used. Errors: Fault 404 or 410."""
        seat = self._seats.get(name)
        if seat is not None and seat.ending is None and seat.is_ready:
            return seat
        if seat is not None and seat.ending is not None:
            raise build_gone_fault(name, seat.ending)
        ending = self.find_ending(name)
        if ending is None:
            raise Fault(404, "sandbox_unknown", f"cannot find sandbox {name[:100]!r}")
        raise build_gone_fault(name, ending)

    def find_ending(self, name: str) -> Ending | None:
        """Say how one ended; None: it is there, or never was."""
        if name in self._gone:
            return self._gone[name][0]
        rest = name.removeprefix(self._prefix)
        is_ours = rest != name and len(rest) == EPOCH_CHARS + RANDOM_CHARS and set(rest) <= set("0123456789abcdef")
        return EARLIER if is_ours and not rest.startswith(self._epoch) else None

    def leave(self, seat: Seat, ending: Ending) -> None:
        """It is gone; a second time changes nothing."""
        if self._seats.pop(seat.name, None) is None:
            return
        seat.ending = seat.ending or ending
        seat.slot.live_count -= 1
        if not seat.is_ready:
            return  # Whoever makes it gives back what it took.
        self.leases.end(seat.name)
        self._gone[seat.name] = (seat.ending, seat.key)
        while len(self._gone) > GONE_KEPT:
            _, (_, key) = self._gone.popitem(last=False)
            if key is not None:
                self.forget_key(key)
        self._on_left(seat)

    def lose(self, name: str, ending: Ending) -> bool:
        """One was lost; False when it had left already."""
        seat = self._seats.get(name)
        if seat is not None:
            self.leave(seat, ending)
        return seat is not None

    def lose_slot(self, slot: ShardSlot, ending: Ending) -> int:
        """All of a shard are lost; gives how many."""
        lost = [seat for seat in self._seats.values() if seat.slot is slot]
        for seat in lost:
            self.leave(seat, ending)
        return len(lost)

    def view(self, seat: Seat, node: str) -> SeatView:
        """Show one."""
        expires_utc = time.time() + self.leases.ends_s(seat.name) - now_s()
        return SeatView(
            seat.name, seat.image.name, "ready", seat.caller, node, seat.created_utc, round(expires_utc, 3), seat.limits
        )


def now_s() -> float:
    """The loop's clock."""
    return asyncio.get_running_loop().time()
