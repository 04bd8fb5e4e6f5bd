"""Who may be called now: services, their backends, and which are left out.

Pure state; the caller passes the loop time. Never opens a connection.

A backend (one incarnation of a replica) is left out
- by word: the agent said `DropReplica`. Back when a membership with a newer epoch still lists it.
- by sight: its connect failed, or three requests in a row failed. Back 5 s later, if it is still listed.
Either way it comes back *on trial*: one request at a time, replayable ones unless nothing else is
usable, until it answers; a failure then leaves it out for another 5 s. A newer incarnation is a new backend.
"""

import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from retinue.channel.messages import Backend, Membership, Peer, Route
from retinue.terms.calls import CallRules

STREAK = 3
"""Failed requests in a row after which a backend is left out."""
RETRY_AFTER_S = 5.0
"""How long a backend left out by sight is not tried."""
_DEFAULTS = CallRules()


@dataclass(slots=True, eq=False)
class Slot:
    """One backend as this gateway sees it. Identity counts: a newer incarnation is another slot."""

    service: str
    backend: Backend
    limit: int = 0
    """Requests it is given at once; 0: no bound."""
    in_flight: int = 0
    streak: int = 0
    """Failed requests in a row."""
    used: int = 0
    """Turn at which it was last chosen; the smallest goes first among equals."""
    is_out_by_word: bool = False
    out_until_s: float | None = None
    """Loop time; None unless left out by sight."""
    is_on_trial: bool = False
    cause: str = ""
    """Why it is, or was last, left out."""

    @property
    def is_trusted(self) -> bool:
        """True when it is neither left out nor on trial."""
        return not (self.is_out_by_word or self.is_on_trial or self.out_until_s is not None)

    @property
    def is_full(self) -> bool:
        """True when it has as many requests as it is given at once."""
        return 0 < self.limit <= self.in_flight

    def can_serve(self, now_s: float) -> bool:
        """Tell whether a request may go here now."""
        if self.is_out_by_word or self.is_full:
            return False
        if self.out_until_s is not None and now_s < self.out_until_s:
            return False
        return self.is_trusted or self.in_flight == 0

    def answered(self) -> bool:
        """Note that a response began; True when that ended a trial. The agent's word stands above it."""
        was_doubted = not self.is_trusted
        if self.is_out_by_word:
            return False
        self.is_on_trial = False
        self.out_until_s = None
        return was_doubted

    def completed(self) -> None:
        """Note that a response arrived whole: the only thing that clears a streak."""
        self.streak = 0

    def failed(self, now_s: float, cause: str, is_unreached: bool) -> bool:
        """Note a failed request; True when the backend is left out by it."""
        self.streak += 1
        if not (is_unreached or self.is_on_trial or self.streak >= STREAK):
            return False
        self.out_until_s = now_s + RETRY_AFTER_S
        self.is_on_trial = True
        self.cause = cause
        return True


@dataclass(slots=True)
class Service:
    """One route and its slots."""

    route: Route
    slots: list[Slot] = field(default_factory=list)
    unready: list[Slot] = field(default_factory=list)
    """Sandboxes only: never chosen, but asked for what they have."""
    pinned: dict[str, Slot] = field(default_factory=dict)
    """Sandboxes only: replica -> its slot, ready or not."""


class RouteTable:
    """The last membership, and what this gateway learnt since."""

    def __init__(
        self,
        on_change: Callable[[str | None], None],
        on_free: Callable[[str, str], None] = lambda service, replica: None,
    ) -> None:
        self.node = ""
        """Own node; empty until an agent attached, where nobody said it at the start."""
        self.epoch: int | None = None
        """None: no membership yet, so no service is known to be unknown."""
        self.has_controller = False
        """The agent is connected to the controller, as far as it has said."""
        self.services: dict[str, Service] = {}
        self.peers: dict[str, Peer] = {}
        """Node -> its gateway, for the other nodes that routes name."""
        self._own: dict[str, Slot] = {}
        """Replica -> its slot, for those of the own node: what other nodes' gateways may ask for."""
        self.in_flight: dict[str, int] = {}
        """Service -> clients' requests in flight, those on withdrawn backends included; no zeros."""
        self._on_change = on_change
        """Told a service that may have become usable; None: any of them."""
        self._on_free = on_free
        """Told the service and the replica that has room for one more request."""
        self._turn = 0

    def apply(self, membership: Membership, is_first: bool) -> bool:
        """Take a full set of routes; False when its epoch is stale.

        `is_first`: the first one of a connection is believed whatever its epoch, so that a
        controller that lost its counter is not ignored for ever.
        """
        if self.epoch is not None and membership.epoch <= self.epoch and not is_first:
            return False
        is_newer = self.epoch is None or membership.epoch > self.epoch
        self.epoch = membership.epoch
        known = {slot.backend: slot for slot in self._list_slots()}
        self.services = {}
        for route in membership.routes:
            slots = [_keep_slot(known.get(backend), route.service, backend, is_newer) for backend in route.backends]
            service = self.services[route.service] = Service(route, slots)
            if route.is_sandbox:
                service.unready = [known.get(one) or Slot(route.service, one) for one in route.unready]
                service.pinned = {slot.backend.replica: slot for slot in _list_running(service)}
        hidden = [
            _keep_slot(known.get(backend), _name_service(backend), backend, is_newer) for backend in membership.hidden
        ]
        listed = [slot for service in self.services.values() for slot in _list_running(service)]
        self._own = {slot.backend.replica: slot for slot in [*hidden, *listed] if slot.backend.node == self.node}
        for slot in (*hidden, *listed):
            slot.limit = self.find_rules(slot.service).concurrency
        self._learn_peers(membership, {slot.backend.node for slot in listed})
        self._on_change(None)
        return True

    def _learn_peers(self, membership: Membership, named: set[str]) -> None:
        """Take over where other gateways are; what was known of a node that is named stays until it is said anew."""
        told = {peer.node: peer for peer in membership.peers}
        self.peers = {node: peer for node, peer in (self.peers | told).items() if node in named}

    def find_own(self, replica: str, incarnation: int) -> Slot | None:
        """Find the own node's backend that another node's gateway asks for; None when no membership lists it yet.

        Shape:  a newer incarnation is found for an older one's number: it is for the caller to compare.
        """
        slot = self._own.get(replica)
        return slot if slot is not None and slot.backend.incarnation >= incarnation else None

    def drop(self, replica: str, incarnation: int, cause: str) -> bool:
        """Leave a backend out by word; False when it is not listed."""
        found = False
        for slot in self._list_slots():
            if slot.backend.replica == replica and slot.backend.incarnation <= incarnation:
                slot.is_out_by_word = found = True
                slot.is_on_trial = True
                slot.cause = cause
        return found

    def choose(self, name: str, now_s: float, tried: set[Slot], is_replayable: bool) -> Slot | None:
        """Choose where one request goes: trusted before on trial, own node first where asked, least in flight, in turn.

        `tried` backends already failed this request; they are chosen again only when there is no other.
        """
        service, pool = self.services.get(name), self.list_usable(name, now_s, tried, is_replayable)
        if service is None or not pool:
            return None
        if service.route.is_per_node:
            pool = [slot for slot in pool if slot.backend.node == self.node] or pool
        return self.take(min(pool, key=lambda slot: (slot.in_flight, slot.used)))

    def take(self, slot: Slot) -> Slot:
        """Note that a slot was chosen: it goes last among equals next time."""
        self._turn += 1
        slot.used = self._turn
        return slot

    def list_usable(self, name: str, now_s: float, tried: set[Slot], is_replayable: bool) -> list[Slot]:
        """List where a request may go: trusted before on trial, not tried before tried."""
        service = self.services.get(name)
        if service is None:
            return []
        usable = [slot for slot in service.slots if slot.can_serve(now_s)]
        fresh = [slot for slot in usable if slot not in tried]
        usable = fresh or usable
        trusted = [slot for slot in usable if slot.is_trusted]
        # A replayable request risks nothing on a trial, and somebody has to try.
        return usable if is_replayable or not trusted else trusted

    @contextmanager
    def count(self, slot: Slot, is_from_far: bool = False) -> Iterator[None]:
        """Count one request onto a slot while the context lasts; another node's is counted there as its client's."""
        if not is_from_far:
            self.begin(slot)
        else:
            slot.in_flight += 1
        try:
            yield
        finally:
            self.end(slot, is_from_far)

    def begin(self, slot: Slot) -> None:
        """Count one request onto a slot."""
        slot.in_flight += 1
        self.in_flight[slot.service] = self.in_flight.get(slot.service, 0) + 1

    def end(self, slot: Slot, is_from_far: bool = False) -> None:
        """Count one request off a slot; the next trial may begin."""
        slot.in_flight -= 1
        left = 0 if is_from_far else self.in_flight.pop(slot.service) - 1
        if left:
            self.in_flight[slot.service] = left
        if not slot.is_trusted:
            self._on_change(slot.service)
        if slot.limit:
            self._on_free(slot.service, slot.backend.replica)

    def answered(self, slot: Slot) -> None:
        """Note that a response began; ends a trial and lets the waiting in."""
        if slot.answered():
            self._on_change(slot.service)

    def next_trial_s(self, name: str) -> float | None:
        """Return the loop time at which a backend may next be tried, or None."""
        service = self.services.get(name)
        if service is None:
            return None
        times = [s.out_until_s for s in service.slots if s.out_until_s is not None and not s.is_out_by_word]
        return min(times, default=None)

    def dropped(self) -> tuple[str, ...]:
        """Return the replicas left out or on trial, sorted."""
        slots = (slot for service in self.services.values() for slot in service.slots)
        return tuple(sorted({slot.backend.replica for slot in slots if not slot.is_trusted}))

    def _list_slots(self) -> list[Slot]:
        listed = [slot for service in self.services.values() for slot in _list_running(service)]
        return list(dict.fromkeys([*listed, *self._own.values()]))

    def is_known(self, name: str) -> bool:
        """Tell whether a service of this name is listed."""
        return name in self.services

    def find_rules(self, name: str) -> CallRules:
        """Find how a service may be called; the defaults for one that no membership lists."""
        service = self.services.get(name)
        return service.route.rules if service is not None else _DEFAULTS

    def wants_token(self, name: str) -> bool:
        """Say whether a service is sent the run's token."""
        service = self.services.get(name)
        return service is not None and service.route.wants_token

    def nearest(self, name: str) -> str | None:
        """Return the known service whose name is most like this one."""
        return next(iter(difflib.get_close_matches(name, self.services, n=1)), None)


def _list_running(service: Service) -> list[Slot]:
    return [*service.slots, *service.unready]


def _name_service(backend: Backend) -> str:
    return backend.replica.partition("/")[0]


def _keep_slot(old: Slot | None, service: str, backend: Backend, is_newer: bool) -> Slot:
    if old is None:
        return Slot(service, backend)
    if old.is_out_by_word and is_newer:
        old.is_out_by_word = False
    return old
