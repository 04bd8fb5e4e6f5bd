"""Reads a run's directory for `top`, in a thread of its own: a file system that hangs costs freshness, never a key.

Reads what other processes write and nothing else; asks neither Slurm nor the controller.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from pathlib import Path
from typing import TypeVar

from retinue.cli.follow import Follower, find_log_dirs
from retinue.cli.top_rows import WELL
from retinue.cli.top_sight import LogTail, Sight
from retinue.errors import RetinueError, TransientError, UsageError
from retinue.journal.events import EventLine, EventTail
from retinue.journal.finding import find_attempt
from retinue.journal.life import AgeWatch, LifeWatch
from retinue.journal.status import Status, read_status
from retinue.journal.verdict import read_verdict
from retinue.terms import run as files
from retinue.terms.record import replace

PERIOD_S = 1.0
LIMIT_S = 10.0
"""For the first look: before it there is no screen that could say what is waited for."""
EVENTS_BYTES = 64 * 1024
EVENTS_KEPT = 200
LOG_BYTES = 32 * 1024
"""As far back as a log is read, every second, for each replica that is shown."""
LOG_LINES = 200
LOGS_AT_ONCE = 8
"""Replicas of a focused service whose lines are shown together."""

T = TypeVar("T")


def read_within(limit_s: float, work: Callable[[], T]) -> T:
    """Do some reading in a thread that may be left behind.

    Errors: TransientError when it takes too long; whatever the reading raises of ours or of the system.
    """
    done: Future[T] = Future()

    def do() -> None:
        try:
            done.set_result(work())
        except (OSError, RetinueError) as error:
            done.set_exception(error)

    threading.Thread(target=do, daemon=True).start()
    try:
        return done.result(limit_s)
    except LateError:
        raise TransientError(f"the run directory has not answered for {limit_s:g} s; is its file system up?") from None


class Attempt:
    """The files of one attempt, read on from where the last round stopped."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._age = AgeWatch(directory / files.STATUS)
        self._life = LifeWatch(directory.parent)
        self._journal = EventTail(directory / files.EVENTS, EVENTS_BYTES)
        self._events: deque[EventLine] = deque(maxlen=EVENTS_KEPT)
        self._status: Status | None = None

    def read(self) -> Sight:
        """Read once.

        Errors: OSError as the file system says.
        """
        # Before the verdict is looked for: a run that ends in between is over, not dead.
        death = self._life.find_death()
        verdict = read_verdict(self.directory / files.VERDICT)
        age_s = self._read_status()
        self._events.extend(self._journal.read_new())
        return Sight(
            place=str(self.directory.parent),
            status=self._status,
            age_s=age_s,
            verdict=verdict,
            death="" if verdict else death,
            events=tuple(self._events),
        )

    def _read_status(self) -> float:
        """Keep the last whole snapshot while a new one is half written, or says nothing new; returns its age."""
        stamp = self._age.stamp
        try:
            age_s = self._age.measure_s()
        except (FileNotFoundError, NotADirectoryError):
            return 0.0
        if self._status is None or self._age.stamp != stamp:
            self._status = read_status(self.directory / files.STATUS) or self._status
        return age_s


class Reader:
    """Goes on reading; `sight` is what the last round saw."""

    def __init__(
        self, run_dir: Path, on_sight: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._run_dir = run_dir
        self._on_sight = on_sight
        self._clock = clock
        self._soon = threading.Event()
        self._focus = ""
        self._began_s: float | None = None
        self._attempt: Attempt | None = None
        self.sight = Sight(str(run_dir))

    def start(self) -> None:
        """Begin; the thread is left behind when the process ends."""
        threading.Thread(target=self._read_on, name="reader", daemon=True).start()

    @property
    def stalled_s(self) -> float:
        """How long the present round takes already; 0 between two."""
        began_s = self._began_s
        return 0.0 if began_s is None else self._clock() - began_s

    def focus(self, target: str) -> None:
        """Read the log of this service or replica too, from now on; empty: none."""
        if target != self._focus:
            self._focus = target
            self._soon.set()

    def read_once(self) -> Sight:
        """Read one round; trouble is part of what is seen, beside what was seen before."""
        try:
            return replace(self._read(), read_s=self._clock())
        except OSError as error:
            where = f" {error.filename}" if error.filename else ""
            return replace(self.sight, trouble=f"cannot read{where}: {error.strerror or error}")

    def _read_on(self) -> None:
        while True:
            self._soon.clear()
            self._began_s = self._clock()
            self.sight = self.read_once()
            self._began_s = None
            self._on_sight()
            self._soon.wait(PERIOD_S)

    def _read(self) -> Sight:
        directory = find_attempt(self._run_dir)
        if self._attempt is None or self._attempt.directory != directory:
            # The job was requeued, or this is the first look.
            self._attempt = Attempt(directory)
        seen = self._attempt.read()
        if not directory.is_dir():
            seen = replace(seen, trouble=f"the run directory is gone: {directory}")
        focus = self._focus
        return replace(seen, log=read_log(directory, focus, seen.status)) if focus else seen


def read_log(attempt_dir: Path, target: str, status: Status | None) -> LogTail:
    """Read the last lines of a replica, or of a service's replicas, those first that are not well."""
    try:
        found = find_log_dirs(attempt_dir, target)
    except (UsageError, FileNotFoundError):
        return LogTail(target, (), "nothing was launched yet")
    phases = {replica.id: replica.phase for replica in (status.replicas if status else ())}
    found.sort(key=lambda item: phases.get(item[0]) in WELL)
    lines: list[str] = []
    for name, directory in found[:LOGS_AT_ONCE]:
        tail = Follower(directory).read_tail(LOG_LINES // min(len(found), LOGS_AT_ONCE), LOG_BYTES)
        lines += tail if len(found) == 1 else [f"{name} | {line}" for line in tail]
    if len(found) == 1:
        newest = Follower(found[0][1]).path
        return LogTail(target, tuple(lines), newest.name if newest else "nothing was launched yet")
    shown = f"{min(len(found), LOGS_AT_ONCE)} of {len(found)} replicas" if len(found) > LOGS_AT_ONCE else ""
    return LogTail(target, tuple(lines), shown)
