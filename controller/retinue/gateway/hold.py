"""Requests that wait for a backend, and the bytes kept for sending a request again.

Both are bounded per gateway; who finds them full is told so at once. First come,
first woken.
"""

import asyncio
from collections import deque

HELD_MAX = 1000
"""Requests that wait at once, all services together."""
KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Request bodies kept for replay at once, held and in flight together."""


class WaitingRoom:
    """Requests held per service, in order of arrival."""

    def __init__(self, held_max: int = HELD_MAX) -> None:
        self._held_max = held_max
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self.count = 0

    @property
    def is_full(self) -> bool:
        return self.count >= self._held_max

    async def wait(self, service: str, timeout_s: float) -> None:
        """Wait until something changed for this service, or for `timeout_s`; the caller looks again either way."""
        woken = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(service, deque())
        queue.append(woken)
        self.count += 1
        try:
            async with asyncio.timeout(timeout_s):
                await woken
        except TimeoutError:
            pass
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


class ReplayBudget:
    """Bytes of request bodies kept so that a request can be sent again."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.used_bytes = 0

    def take(self, count: int) -> bool:
        """Reserve bytes; False, and nothing reserved, when they do not fit."""
        if self.used_bytes + count > self._bytes_max:
            return False
        self.used_bytes += count
        return True

    def give(self, count: int) -> None:
        """Return reserved bytes."""
        self.used_bytes -= count
