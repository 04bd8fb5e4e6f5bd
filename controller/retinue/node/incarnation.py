"""One incarnation from its launch order to its one Exited or LaunchRefused.

Never two answers, never none: every wait here is bounded, and what the keeper
says late is cleaned up without a word. Decides nothing but how to carry out an order.
"""

import asyncio
import signal
from collections.abc import Callable

from retinue.errors import EdgeError, TransientError
from retinue.lifecycle.streak import Change, ProbeState, build_probe_state
from retinue.node.capture import Capture, LogFiles
from retinue.node.ending import build_exited, build_tree
from retinue.node.ladder import Leader, StopClock, stop_group, sweep_tree
from retinue.node.launching import Prepared, prepare
from retinue.node.memory import Note, Remembered
from retinue.node.orders import Reaped, Release, Signal, Spawned, SpawnRefused
from retinue.node.prober import Prober
from retinue.node.questions import Questions
from retinue.node.redact import Redactor
from retinue.node.site import Site
from retinue.terms.launch import LaunchSpec
from retinue.terms.replica import Exited, LaunchRefused, LivenessLost, Started

SPAWN_LIMIT_S = 60.0
"""For fork and exec; a binary on a hung file system takes for ever."""
REFUSED_WAIT_S = 5.0


class Incarnation:
    """One launch of one replica, on the running loop."""

    def __init__(self, site: Site, spec: LaunchSpec) -> None:
        self.site = site
        self.spec = spec
        self.port: int | None = None
        self.pid = 0
        self.host_pid = 0
        self.started_s = 0.0
        self.is_running = False
        self.exited: Exited | None = None
        self.refused: LaunchRefused | None = None
        self.over = asyncio.Event()
        """Answered: nothing of it runs."""
        self.liveness_lost = ""
        self.prober: Prober | None = None
        self.capture: Capture | None = None
        self.stop_clock: StopClock | None = None
        self.held: set[str] = set()
        """Names of what the keeper holds for it."""
        self.is_known_to_keeper = False
        self._questions: Questions | None = None
        self._stop_asked = asyncio.Event()
        self._spawned: asyncio.Future[Spawned | SpawnRefused] = asyncio.get_running_loop().create_future()
        self._reaped: Reaped | None = None
        self._gone = asyncio.Event()

    # --- what happens to it ------------------------------------------------------

    def stop(self, number: int, grace_s: float) -> None:
        """Run the ladder; again: only a sooner end of the grace counts."""
        deadline_s = asyncio.get_running_loop().time() + grace_s
        if self.stop_clock is None:
            self.stop_clock = StopClock(number, deadline_s)
        else:
            self.stop_clock.shorten(deadline_s)
        self._stop_asked.set()
        self.site.on_change()

    def take(self, packet: Spawned | SpawnRefused | Reaped) -> None:
        """Take the keeper's word."""
        if isinstance(packet, Reaped):
            self._reaped = packet
            self._gone.set()
            if self.over.is_set():
                self.forget()  # it was given up; nobody waits for this any more
        elif not self._spawned.done():
            self._spawned.set_result(packet)
        elif isinstance(packet, Spawned) and self.refused is not None:
            self._signal_group(signal.SIGKILL)

    def tell_again(self) -> None:
        """Repeat the last answer: whoever orders twice has not heard it."""
        answer = self.exited or self.refused
        if answer is None and self.is_running:
            answer = Started(self.spec.incarnation, self.pid, self.host_pid, self.port)
        if answer is not None:
            self.site.report(self.spec.replica, answer)

    def forget(self) -> None:
        """Let the keeper forget it."""
        if self.is_known_to_keeper:
            self.is_known_to_keeper = False
            self.site.keeper.send(Release(self.spec.replica, self.spec.incarnation))

    # --- its life ------------------------------------------------------------------

    async def run(self) -> None:
        """Launch it and live with it until it is over."""
        try:
            await self._launch()
        except EdgeError as error:
            self._refuse(str(error), retryable=isinstance(error, TransientError))
            return
        self._begin()
        self.site.report(
            self.spec.replica, Started(self.spec.incarnation, self.pid, self.host_pid, self.port)
        )
        await self._live()

    async def adopt(self, note: Note, spawned: Spawned, pipe: int, seen: Remembered | None) -> None:
        """Live on with what an earlier agent launched; says nothing that was said before."""
        self._take_over(note, spawned, pipe)
        if seen is not None:
            self.port = seen.port or self.port
            self.started_s = seen.started_s
            self.liveness_lost = seen.liveness_lost
            if seen.stop_number:
                self.stop_clock = StopClock(seen.stop_number, seen.stop_deadline_s)
                self._stop_asked.set()
        self._begin(seen, is_readopted=True)
        await self._live()
