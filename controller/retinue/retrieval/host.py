"""The host: who is searched for next, in which thread, and what became of it.

Queries wait in one bounded queue, callers in turn, and are searched one by one by as many threads as there are CPUs to
use. A caller that goes takes its queries along. The loop itself never searches.
"""

import asyncio
import contextlib
import math
import sys
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from retinue.errors import PermanentError, RetinueError
from retinue.retrieval.index import Index, Wanted, open_index
from retinue.retrieval.passages import Damaged
from retinue.retrieval.requests import build_piece
from retinue.retrieval.settings import Settings
from retinue.serving.queue import FairQueue

RETRY_MIN_S, RETRY_MAX_S = 1, 60
MEAN_SHARE = 0.05
"""Of the last query in the mean time of all."""


class Full(Exception):
    """The queue is full; come again in so many seconds."""

    def __init__(self, queued: int, retry_after_s: int) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(f"cannot take more queries: the queue is full ({queued} wait)")


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One query that waits or is searched."""

    wanted: Wanted
    caller: str
    piece: asyncio.Future[bytes]
    """Its part of the answer; a RetinueError or OSError when our side failed."""


@dataclass(slots=True)
class Tally:
    """What was counted."""

    queries: int = 0
    failed: int = 0
    refused: int = 0
    cancelled: int = 0
    empty: int = 0
    """Queries that found nothing."""
    search_s: float = 0.0
    mean_s: float = 0.0


class Host:
    """One index and its threads."""

    def __init__(self, settings: Settings, view: Path) -> None:
        self.settings = settings
        self.tally = Tally()
        self.running = 0
        self.cause = "the index is being opened"
        """Why it is not ready; empty when it is."""
        loop = asyncio.get_running_loop()
        self.broken: asyncio.Future[RetinueError] = loop.create_future()
        """Set when the index cannot be used: opening it again will not help."""
        self.failed: asyncio.Future[BaseException] = loop.create_future()
        """Set when opening failed in another way."""
        self._loop = loop
        self._view = view
        self._queue: FairQueue[Job] = FairQueue(settings.queue, settings.queue_bytes)
        self._threads = ThreadPoolExecutor(settings.workers, thread_name_prefix="search")
        self._index: Index | None = None
        self._idle = asyncio.Event()
        """Set when nothing waits or runs."""

    @property
    def is_ready(self) -> bool:
        """Whether it answers."""
        return not self.cause

    @property
    def index(self) -> Index | None:
        """The open index."""
        return self._index

    @property
    def queued(self) -> int:
        """Queries that wait."""
        return len(self._queue)

    async def open(self) -> None:
        """Open the index in a thread of the pool; what goes wrong is in `broken` or `failed`."""
        opening = self._loop.run_in_executor(self._threads, open_index, self.settings, self._view)
        await asyncio.wait([opening])
        error = opening.exception()
        if isinstance(error, RetinueError):
            self._break(error)
        elif error is not None:
            self.cause = f"cannot open the index: {error}"
            self.failed.set_result(error)
        else:
            self._index = opening.result()
            self.cause = ""
            print(f"retinue retrieval: ready, {self._index.facts.passages} passages", file=sys.stderr, flush=True)

    def has_room(self, count: int, weight_bytes: int) -> bool:
        """Say whether so much can wait now."""
        return self._queue.has_room(count, weight_bytes)

    def refuse(self, count: int) -> Full:
        """Build a refusal, and count it."""
        self.tally.refused += count
        wait_s = self.queued * self.tally.mean_s / self.settings.workers
        return Full(self.queued, min(RETRY_MAX_S, max(RETRY_MIN_S, math.ceil(wait_s))))

    def submit(self, wanted: Sequence[Wanted], caller: str, weight_bytes: int) -> list[Job]:
        """Take queries, all or none. Errors: Full."""
        if not self._queue.has_room(len(wanted), weight_bytes):
            raise self.refuse(len(wanted))
        share = weight_bytes // max(1, len(wanted))
        jobs = [Job(one, caller, self._loop.create_future()) for one in wanted]
        for job in jobs:
            self._queue.put(caller, job, share)
        self._start_more()
        return jobs

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Drop what nobody waits for any more; what is being searched is finished for nobody."""
        for job in jobs:
            if job.piece.done():
                continue
            if self._queue.remove(job.caller, job):
                self.tally.cancelled += 1
            job.piece.cancel()

    async def drain(self, patience_s: float) -> None:
        """Give what waits and runs so long to be finished."""
        self.cause = "it stops"
        self._note_idle()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), patience_s)

    def close(self) -> None:
        """End the threads; a search that runs is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- searching ------------------------------------------------------------------

    def _start_more(self) -> None:
        while self.running < self.settings.workers and (job := self._queue.pop()) is not None:
            self.running += 1
            search = self._loop.run_in_executor(self._threads, self._search, job.wanted)
            search.add_done_callback(lambda done, job=job: self._finish(job, done))  # type: ignore[misc]

    def _search(self, wanted: Wanted) -> tuple[bytes, bool, float]:
        """Search in a worker's thread: (piece of the answer, whether something was found, seconds)."""
        began_s = self._loop.time()
        assert self._index is not None
        self._index.prepare_thread()
        found = self._index.search(wanted)
        return build_piece(wanted, found), bool(found), self._loop.time() - began_s

    def _finish(self, job: Job, done: "asyncio.Future[tuple[bytes, bool, float]]") -> None:
        self.running -= 1
        self.tally.queries += 1
        if done.cancelled():
            job.piece.cancel()
        elif (error := done.exception()) is not None:
            self._note_failure(job, error)
        else:
            piece, has_found, took_s = done.result()
            self.tally.empty += not has_found
            self.tally.search_s += took_s
            self.tally.mean_s += MEAN_SHARE * (took_s - self.tally.mean_s)
            if not job.piece.done():
                job.piece.set_result(piece)
        self._start_more()
        self._note_idle()

    def _note_idle(self) -> None:
        if not (self.running or self.queued):
            self._idle.set()
        else:
            self._idle.clear()

    def _note_failure(self, job: Job, error: BaseException) -> None:
        self.tally.failed += 1
        known = error if isinstance(error, RetinueError) else PermanentError(f"{type(error).__name__}: {error}")
        if not job.piece.done():
            job.piece.set_exception(known)
            # Whoever waits for the first of a batch never looks at the others.
            job.piece.exception()
        if isinstance(error, Damaged):
            self._break(error)

    def _break(self, error: RetinueError) -> None:
        self.cause = str(error)
        if not self.broken.done():
            self.broken.set_result(error)


@asynccontextmanager
async def open_host(settings: Settings, view: Path) -> AsyncIterator[Host]:
    """A host that opens its index while the context lasts; opening takes as long as it takes."""
    host = Host(settings, view)
    opening = asyncio.create_task(host.open())
    try:
        yield host
    finally:
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        host.close()
