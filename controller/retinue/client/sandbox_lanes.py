"""Connections to a sandbox service, apart by how long they are held.

A command may run for an hour and a create may wait ten minutes for room that only the end of a command gives: neither
may keep the other, a renewal or a destroy from its connection.
"""

import asyncio
import resource
from dataclasses import dataclass

from retinue.client.http import CONNECTIONS_MAX, Pool, Target

EXEC_MAX = 4096
SPARE = 2
"""One in so many of the descriptors that this process may have is for commands that run."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A bounded part of the connections of one event loop to one service."""

    name: str
    is_wide: bool = False

    def find_slots(self, pool: Pool, target: Target) -> asyncio.Semaphore:
        """Return what bounds it, for `async with`."""
        return pool.find_slots(target, self.name, _compute_wide() if self.is_wide else CONNECTIONS_MAX)


SHORT = Lane("short")
CREATE = Lane("create")
EXEC = Lane("exec", is_wide=True)


def _compute_wide() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(CONNECTIONS_MAX, EXEC_MAX if soft < 0 else min(EXEC_MAX, soft // SPARE))
