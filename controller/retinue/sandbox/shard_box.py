"""A sandbox as its shard holds it: its commands, and how it ended. Never decides that it shall."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from retinue.sandbox.box import Box
from retinue.sandbox.requests import BoxOrder, Fault

GONE_S = 5.0
"""How long the kernel may take to end everything in a sandbox."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a sandbox is not there any more."""

    type: str
    """`infra_failed` | `sandbox_killed` | `sandbox_destroyed` | `sandbox_expired`."""
    cause: str


class LiveBox:
    """One sandbox."""

    def __init__(self, name: str, box: Box, order: BoxOrder, has_image: Callable[[], Awaitable[bool]]) -> None:
        self.name = name
        self.has_image = has_image
        """Whether its image serves; for a command that failed and may not be to blame."""
        self.box = box
        self.zygote = order.zygote
        self.limits = order.limits
        self.workdir = order.workdir
        self.ending: Ending | None = None
        """Set before it is closed by us, or when it was found gone."""
        self.is_ordered = False
        """Whoever wanted it to end knows."""
        self.running_count = 0
        """Commands that run in it."""
        self.ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        """Done when nothing of it is left."""
        box.gone.add_done_callback(self._find_gone)

    def close(self, ending: Ending) -> None:
        """Destroy it."""
        if self.ending is None:
            self.ending = ending
            self.is_ordered = True
        self.box.close()

    async def wait_ended(self) -> Ending:
        """Wait until nothing of it is left, for a moment; gives why."""
        await asyncio.wait([self.ended], timeout=GONE_S)
        return self.ending or Ending("infra_failed", "the sandbox does not answer")

    def build_fault(self) -> Fault:
        """Build the answer to requests that come too late."""
        ending = self.ending or Ending("infra_failed", "the sandbox does not answer")
        return build_gone_fault(self.name, ending)

    def _find_gone(self, gone: asyncio.Future[int]) -> None:
        if self.ending is None:
            self.ending = judge_gone(gone.result(), self.running_count > 0)
        if not self.ended.done():
            self.ended.set_result(self.ending)


def judge_gone(status: int, is_busy: bool) -> Ending:
    """Say whose fault it is that a sandbox has ended without being told to.

    Its pid 1 cannot be signalled from inside; from outside the kernel kills it when memory is short. While commands
    run that may be their doing, and what they can do is never `infra_failed`; an idle sandbox is never to blame.
    """
    if status == -1:
        return Ending("infra_failed", "the zygote of its image died")
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if killed and is_busy:
        return Ending("sandbox_killed", "everything in the sandbox was killed while commands ran: it was out of memory")
    return Ending("infra_failed", f"its first process ended (wait status {status})")


def build_gone_fault(name: str, ending: Ending) -> Fault:
    """Build the answer to a request about a sandbox that is gone."""
    return Fault(410, ending.type, f"cannot use sandbox {name}: {ending.cause}", ending.cause)
