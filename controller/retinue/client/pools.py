"""Which pool belongs to the loop that runs now, in the process that runs now.

Safe after fork: a child never touches what its parent opened, not even to close
it. The parent's selector is shared with the child, and taking a descriptor out of
it there takes it out for the parent.
"""

import asyncio
import os
from weakref import WeakSet

from retinue.client.http import Pool
from retinue.errors import UsageError


class Pools:
    """One pool per process and event loop, opened when it is first needed."""

    def __init__(self) -> None:
        self._by_pid: dict[int, dict[asyncio.AbstractEventLoop, Pool]] = {}
        self._closed: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        """Loops that said they were done."""

    def check_open(self) -> None:
        """See that the running loop, if one runs, did not close the client.

        Errors: UsageError.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if loop in self._closed:
            raise UsageError("cannot call: the client was closed; make another, or call inside its `async with`")

    def find(self) -> Pool:
        """Return the pool of the running loop."""
        self.check_open()
        loop = asyncio.get_running_loop()
        # setdefault is atomic; a lock could be held by a thread that does not exist in a forked child.
        pools = self._by_pid.setdefault(os.getpid(), {})
        pool = pools.get(loop)
        if pool is None:
            for ended in [other for other in list(pools) if other.is_closed()]:
                pools.pop(ended, None)
            pool = pools.setdefault(loop, Pool())
        return pool

    async def close(self) -> None:
        """Close the running loop's idle connections; it gets no more. Closing twice is harmless."""
        loop = asyncio.get_running_loop()
        self._closed.add(loop)
        pool = self._by_pid.get(os.getpid(), {}).pop(loop, None)
        if pool is not None:
            await pool.close()
