"""Requests that wait for a backend, and the bytes kept for sending a request again.

Both are bounded per gateway; who finds them full is told so at once. First come,
first woken.
"""

import asyncio
from collections import deque

HELD_MAX = 8192
"""Requests that wait at once, all services together; each service has a bound of its own below it."""
KEPT_BYTES_MAX = 256 * 1024 * 1024
"""Request bodies kept for replay at once, held and in flight together, of all services."""


class WaitingRoom:
    """Requests held per service, and for other nodes' gateways per replica (`judge/0`), in order of arrival."""

    def __init__(self, held_max: int = HELD_MAX) -> None:
        self._held_max = held_max
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self.count = 0
        self._is_replicas_turn = False

    @property
    def is_full(self) -> bool:
        return self.count >= self._held_max

    def is_full_for(self, service: str, queue_max: int) -> bool:
        """Tell whether one more request of this service would be too many, of its own or of all."""
        return self.is_full or self.count_waiting(service) >= queue_max

    def has_waiting(self, service: str) -> bool:
        """Tell whether any request waits for this service."""
        return service in self._waiting

    def count_waiting(self, service: str) -> int:
        """Count the requests that wait for this service."""
        return len(self._waiting.get(service, ()))

    async def wait(self, service: str, timeout_s: float, is_first: bool = False) -> None:
        """Wait until something changed for this service, or for `timeout_s`; the caller looks again either way.

        `is_first`: it waited before, was woken in vain, and keeps its place.
        """
        woken = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(service, deque())
        if is_first:
            queue.appendleft(woken)
        else:
            queue.append(woken)
        self.count += 1
        try:
            async with asyncio.timeout(timeout_s):
                await woken
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if woken.done() and not woken.cancelled():
                # Woken for a free place and gone in the same moment: the place is the next one's.
                self.wake_one(service)
            raise
        finally:
            self.count -= 1
            if woken in queue:
                queue.remove(woken)
            if not queue and self._waiting.get(service) is queue:
                del self._waiting[service]

    def wake(self, service: str | None) -> None:
        """Let everybody who waits for this service (None: for any) look again, oldest first."""
        for name in list(self._waiting) if service is None else [service]:
            for woken in self._waiting.pop(name, ()):
                if not woken.done():
                    woken.set_result(None)

    def wake_one(self, service: str) -> None:
        """Let the one who waits longest for this service look again."""
        queue = self._waiting.get(service)
        while queue:
            woken = queue.popleft()
            if not queue:
                del self._waiting[service]
            if not woken.done():
                woken.set_result(None)
                return

    def wake_for_place(self, service: str, replica: str) -> None:
        """A replica has a free place: let one who waits for any of the service, and one who waits for it, look again.

        Who comes second finds it taken and keeps his place in his queue; they take turns in being first.
        """
        self._is_replicas_turn = not self._is_replicas_turn
        for name in (replica, service) if self._is_replicas_turn else (service, replica):
            self.wake_one(name)


class ReplayBudget:
    """Bytes of request bodies kept so that a request can be sent again."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.used_bytes = 0
        self._used: dict[str, int] = {}
        """By service; no zeros."""

    def count_bytes(self, service: str) -> int:
        """Count what is reserved for one service."""
        return self._used.get(service, 0)

    def take(self, service: str, count: int, service_max: int) -> bool:
        """Reserve bytes; False, and nothing reserved, when they do not fit the service's bound or that of all."""
        used = self._used.get(service, 0) + count
        if used > service_max or self.used_bytes + count > self._bytes_max:
            return False
        if used:
            self._used[service] = used
        self.used_bytes += count
        return True

    def give(self, service: str, count: int) -> None:
        """Return reserved bytes."""
        if not count:
            return
        self.used_bytes -= count
        left = self._used.pop(service) - count
        if left:
            self._used[service] = left
