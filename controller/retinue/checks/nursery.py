"""Keeps one warm parent running and hands out its children.

Starts it again when it is lost, is stuck, or stays silent while it warms up: at once
the first time, then with a doubling wait. Who wants a child waits for it meanwhile.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from retinue.checks.records import WarmConfig
from retinue.checks.spare import Child
from retinue.checks.warm_link import WARM_ARGV, WarmLink

START_LIMIT_S = 180.0
"""Before it says what it loads, and between two such words."""
LOAD_GRACE_S = 5.0
"""Beyond the limit of an import: it says itself where it hangs, unless it hangs in C."""
STUCK_S = 10.0
"""Spares are wanted and none came for so long: it hangs, or cannot fork."""
STABLE_S = 30.0
"""It has run so long: the next restart is at once again."""
BACKOFF_S = 0.25
BACKOFF_MAX_S = 15.0
LOOK_S = 0.5
REAP_S = 5.0
"""A killed process that is not gone by then hangs in the kernel."""


class Nursery:
    """One warm parent, launched as often as it takes."""

    def __init__(
        self, config: WarmConfig, spares: int, on_change: Callable[[], None], argv: Sequence[str] = WARM_ARGV
    ) -> None:
        self._config = config
        self._argv = argv
        self._spares = spares
        self._on_change = on_change
        self._waiting: deque[asyncio.Future[Child | None]] = deque()
        self._hungry_since_s = 0.0
        """Since when somebody waits for a child; loop clock."""
        self._link: WarmLink | None = None
        self.launches = 0
        self.down_since_s: float | None = asyncio.get_running_loop().time()
        """When that was noticed; loop clock. None while it is warm and gives spares."""
        self.wrong_since_s = self.down_since_s
        """Since when no child came: before that, when it was found stuck; loop clock."""
        self._stuck_since_s: float | None = None
        self.cause = "it has not been warm yet"
        """Why it is down, in words."""
        self.is_broken = False
        """A verifier cannot be imported or exercised: its cause is in `cause`."""
        self.ever_warm = False

    @property
    def is_ready(self) -> bool:
        """Warm, and a spare is there or was just taken."""
        link = self._link
        if link is None or link.warmed is None or link.lost.done():
            return False
        moved_s = max(link.last_spare_s, link.last_taken_s)
        return bool(link.spares) or asyncio.get_running_loop().time() - moved_s < STUCK_S

    @property
    def spare_count(self) -> int:
        return len(self._link.spares) if self._link is not None else 0

    @property
    def verifiers(self) -> dict[str, str]:
        """Name -> description, as the warm parent says; empty before."""
        return self._link.warmed.verifiers if self._link is not None and self._link.warmed is not None else {}

    @property
    def rung(self) -> str:
        return self._link.warmed.rung if self._link is not None and self._link.warmed is not None else ""

    @property
    def pid(self) -> int | None:
        """Of the process that was launched; None while there is none."""
        return self._link.pid if self._link is not None and not self._link.lost.done() else None

    async def run(self) -> None:
        """Launch, watch and launch again, until cancelled; nothing runs afterwards."""
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            await self._run_once()
            failures = 0 if loop.time() - began_s > STABLE_S else failures + 1
            if failures > 1 or self.is_broken:
                await asyncio.sleep(min(BACKOFF_S * 2 ** min(failures, 10), BACKOFF_MAX_S))

    async def take(self, until_s: Callable[[], float]) -> Child | None:
        """Wait for a child; None when `until_s()` (loop clock, asked again as it comes) has passed first.

        First come, first served. A caller that is cancelled gives its child back.
        """
        child = self._link.take() if self._link is not None and not self._waiting else None
        if child is not None:
            return child
        loop = asyncio.get_running_loop()
        wanted: asyncio.Future[Child | None] = loop.create_future()
        if not self._waiting:
            self._hungry_since_s = loop.time()
        self._waiting.append(wanted)
        try:
            while not wanted.done() and (left_s := until_s() - loop.time()) > 0:
                await asyncio.wait([wanted], timeout=min(left_s, LOOK_S))
        except asyncio.CancelledError:
            if wanted.done() and (given := wanted.result()) is not None:
                given.close()
            raise
        finally:
            if wanted in self._waiting:
                self._waiting.remove(wanted)
        return wanted.result() if wanted.done() else None

    async def _run_once(self) -> None:
        self.launches += 1
        try:
            self._link = link = WarmLink(self._config, self._hear, self._argv)
        except OSError as error:
            self._go_down(f"it cannot be started: {error.strerror}")
            return
        self._stuck_since_s = None
        link.keep(self._spares)
        try:
            while not link.lost.done():
                await asyncio.wait([link.lost], timeout=LOOK_S)
                self._check_silence(link)
        finally:
            link.kill("the service stops")
            await asyncio.wait([link.reaped], timeout=REAP_S)
        self._hear()

    def _check_silence(self, link: WarmLink) -> None:
        now_s = asyncio.get_running_loop().time()
        since_s = max(link.last_spare_s, self._hungry_since_s)
        if link.warmed is None and link.loading is not None:
            limit_s = self._config.import_limit_s
            if now_s - link.last_word_s > limit_s + LOAD_GRACE_S:
                link.blame(f"was not done after {limit_s:g} s")
                link.kill(f"{link.loading.verifier!r} was not loaded after {limit_s:g} s")
        elif link.warmed is None:
            if now_s - link.last_word_s > START_LIMIT_S:
                link.kill(f"it was not warm after {START_LIMIT_S:g} s")
        elif self._waiting and now_s - since_s > STUCK_S:
            self._stuck_since_s = since_s
            link.kill(f"it gave no child for {STUCK_S:g} s")

    def _hear(self) -> None:
        """Something came from the warm parent, or it is gone."""
        link = self._link
        if link is None:
            return
        while self._waiting and (child := link.take()) is not None:
            wanted = self._waiting.popleft()
            if wanted.done():
                link.spares.appendleft(child)
            else:
                wanted.set_result(child)
        if link.broken is not None:
            name = link.broken.verifier
            # Without a name it is the parent itself that could not be set up: that may work the next time.
            self.is_broken = bool(name)
            self._go_down(f"verifier {name!r} cannot be used: {link.broken.cause}" if name else link.broken.cause)
        elif link.lost.done():
            self._go_down(link.lost.result())
        elif link.warmed is not None and self.down_since_s is not None:
            self.down_since_s, self.cause, self.is_broken, self.ever_warm = None, "", False, True
            self._on_change()

    def _go_down(self, cause: str) -> None:
        self.cause = cause
        if self.down_since_s is None:
            self.down_since_s = asyncio.get_running_loop().time()
            self.wrong_since_s = self._stuck_since_s or self.down_since_s
        self._on_change()
