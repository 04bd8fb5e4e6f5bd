"""Until when each sandbox is wanted: a rollout that vanished frees what it had. Pure; the caller brings the clock.

A lease counts from the last time somebody asked something of the sandbox, and does not run out while that is answered.
"""

import heapq
from dataclasses import dataclass


@dataclass(slots=True)
class _Lease:
    lease_s: float
    ends_s: float
    held: int = 0
    is_queued: bool = False


class Leases:
    """Units: seconds on one monotonic clock."""

    def __init__(self) -> None:
        self._leases: dict[str, _Lease] = {}
        self._queue: list[tuple[float, str]] = []
        """When to look again at whom; an entry may be earlier than the lease's end, never later."""

    def begin(self, name: str, lease_s: float, now_s: float) -> None:
        """Begin a lease."""
        self._leases[name] = _Lease(lease_s, now_s + lease_s)
        self._enqueue(name)

    def renew(self, name: str, now_s: float, lease_s: float | None = None) -> float:
        """Begin it anew, with another length if one is given; says when it ends."""
        lease = self._leases[name]
        if lease_s is not None:
            lease.lease_s = lease_s
        is_sooner = now_s + lease.lease_s < lease.ends_s
        lease.ends_s = now_s + lease.lease_s
        if is_sooner:
            lease.is_queued = False
            self._enqueue(name)
        return lease.ends_s

    def hold(self, name: str) -> None:
        """Keep it from running out until `let_go`, as often as it was held."""
        self._leases[name].held += 1

    def let_go(self, name: str, now_s: float) -> None:
        """Let it run again, from now on; one that has ended meanwhile stays so."""
        lease = self._leases.get(name)
        if lease is None:
            return
        lease.held -= 1
        lease.ends_s = max(lease.ends_s, now_s + lease.lease_s)
        self._enqueue(name)

    def end(self, name: str) -> None:
        """Forget it."""
        self._leases.pop(name, None)

    def ends_s(self, name: str) -> float:
        """When it runs out, as it is now."""
        return self._leases[name].ends_s

    def pop_expired(self, now_s: float) -> list[str]:
        """Take those that have run out; they are forgotten."""
        expired = []
        while self._queue and self._queue[0][0] <= now_s:
            _, name = heapq.heappop(self._queue)
            lease = self._leases.get(name)
            if lease is None:
                continue
            lease.is_queued = False
            if lease.held:
                continue  # `let_go` looks after it.
            if lease.ends_s <= now_s:
                del self._leases[name]
                expired.append(name)
            else:
                self._enqueue(name)
        return expired

    def _enqueue(self, name: str) -> None:
        lease = self._leases[name]
        if not lease.is_queued:
            lease.is_queued = True
            heapq.heappush(self._queue, (lease.ends_s, name))
