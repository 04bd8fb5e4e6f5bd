"""Which pool belongs to the loop that runs now, in the process that runs now.

Safe after fork: a child never touches what its parent opened, not even to close
it. The parent's selector is shared with the child, and taking a descriptor out of
it there takes it out for the parent.
"""

import asyncio
import os

from retinue.client.http import Pool


class Pools:
    """One pool per process and event loop, opened when it is first needed."""

    def __init__(self) -> None:
        self._by_pid: dict[int, dict[asyncio.AbstractEventLoop, Pool]] = {}

    def find(self) -> Pool:
        """Return the pool of the running loop."""
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
        """Close the running loop's idle connections; the next request opens new ones."""
        pool = self._by_pid.get(os.getpid(), {}).pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()
