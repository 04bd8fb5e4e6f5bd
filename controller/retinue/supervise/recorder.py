"""Everything the controller writes for others, through the one writer thread.

A full or hung file system costs what is written, never a decision: nothing here
waits for the run directory.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retinue.journal.egress import EgressLine
from retinue.journal.events import EventLine
from retinue.journal.lock import RunLock, release_lock
from retinue.journal.status import JournalStatus
from retinue.journal.writer import Writer
from retinue.supervise.run import Run
from retinue.supervise.snapshot import ReplicaRows, build_endpoints, build_status
from retinue.supervise.state import RunPhase
from retinue.terms import run as files
from retinue.terms.outage import Outage
from retinue.terms.record import to_json, to_pretty_json
from retinue.terms.run import RunRecord

FLUSH_S = 5.0
"""How long the end of a run may wait for its journal."""
LOCK_PERIOD_S = 10.0
STATUS_REST_S = 0.0002
"""Rest between two status files, for each replica in them: ten thousand are written every two seconds at most,
which is 1 % of a core and 1.4 MB/s of a shared file system."""
READABLE = 1000
"""Replicas up to which the status file is indented for people; indenting more takes longer than a decision may wait."""
STUCK_S = 5.0
"""Waiting for longer than this to write is an event."""
EVENTS_PER_START = 10**9
"""More events than one controller can write."""


class Recorder:
    """Implements `edges.Journal`; writes status, endpoints and the lock's sign of life."""

    def __init__(self, record: RunRecord, order: Callable[[dict[str, Any]], None]) -> None:
        self._record = record
        self._order = order
        """Tells the stub something, never waiting for it."""
        self._told_hung: bool | None = None
        """None: nothing has been told yet, and an earlier controller may have said anything."""
        self._is_stuck = False
        self._dir = Path(record.attempt_dir)
        self._events_path = str(self._dir / files.EVENTS)
        self._outages_path = str(self._dir / files.OUTAGES)
        self._egress_path = str(self._dir / files.EGRESS)
        self._writer = Writer()
        self._seq = 0
        self._endpoints = b""
        self._epoch = 0
        self._lock = RunLock(Path(record.run_dir) / files.LOCK, record.run_id)
        self._locked_s = 0.0
        self._status_due_s = 0.0
        self._rows = ReplicaRows()

    def begin(self, starts: int) -> None:
        """Number this controller's events after those of the ones before, without reading what they wrote."""
        self._seq = max(self._seq, (starts - 1) * EVENTS_PER_START)

    def note(self, subject: str, event: str, reason: str, before: str = "", after: str = "", detail: str = "") -> None:
        self._seq += 1
        line = EventLine(self._seq, time.time(), subject, event, reason, before, after, detail)
        self._writer.append(self._events_path, to_json(line) + b"\n", is_vital=True)

    def note_outage(self, outage: Outage) -> None:
        self._writer.append(self._outages_path, to_json(outage) + b"\n", is_vital=True)

    def deny(self, line: EgressLine) -> None:
        self._writer.append(self._egress_path, to_json(line) + b"\n")

    def write_snapshots(self, run: Run, is_urgent: bool = False) -> None:
        """Write what changed: status when its rest is over, endpoints when they differ, the lock now and then."""
        now_s = time.monotonic()
        self._note_trouble(now_s)
        self._tell_hung()
        if now_s >= self._status_due_s or is_urgent or run.state.phase is RunPhase.OVER:
            self._status_due_s = now_s + STATUS_REST_S * len(run.fleet.seats)
            status = build_status(run, self._record, self._rows, os.getpid(), time.time(), self._describe(now_s))
            is_readable = len(run.fleet.seats) <= READABLE
            content = to_pretty_json(status) if is_readable else to_json(status)
            self._writer.replace(self._dir / files.STATUS, content)
        endpoints = to_json(build_endpoints(run, self._record, 0))
        if endpoints != self._endpoints:
            self._endpoints = endpoints
            self._epoch = max(self._epoch + 1, int(time.time() * 1000))
            self._writer.replace(
                self._dir / files.ENDPOINTS, to_pretty_json(build_endpoints(run, self._record, self._epoch))
            )
        if now_s - self._locked_s > LOCK_PERIOD_S:
            self._locked_s = now_s
            self._writer.call("lock", self._lock.refresh)

    @property
    def taken_by(self) -> str:
        """Who took the run directory over, in words; empty while it is ours."""
        owner = self._lock.lost_to
        return "" if owner is None else f"run {owner.run_id}, attempt {owner.attempt}, pid {owner.pid} on {owner.host}"

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is written, or the directory hangs, or the time is over."""
        self._writer.flush(timeout_s)

    def _note_trouble(self, now_s: float) -> None:
        """Say once in the journal, and on the terminal, that the run directory takes nothing, and once that it does."""
        state = self._describe(now_s)
        is_stuck = state.stuck_s > STUCK_S
        if is_stuck == self._is_stuck:
            return
        self._is_stuck = is_stuck
        event, what = ("JournalStuck", "takes nothing") if is_stuck else ("JournalBack", "takes what is written again")
        text = f"the run directory {what}" + (f": {state.last_error}" if state.last_error else "")
        self.note("run", event, text)
        self._order({"op": "say", "text": f"{text}; the run goes on without it" if is_stuck else text})

    def _tell_hung(self) -> None:
        """Tell the stub what it would else find out at the end, by waiting."""
        is_hung = self._writer.is_hung
        if is_hung != self._told_hung:
            self._told_hung = is_hung
            self._order({"op": "run_dir", "is_hung": is_hung})

    def _describe(self, now_s: float) -> JournalStatus:
        writer = self._writer
        return JournalStatus(writer.stuck_s(now_s), writer.lost_lines, writer.last_error)

    def write_last(self, verdict: dict[str, Any]) -> None:
        """Write the verdict and give the directory back, when there is no stub to do it; said on stderr if need be."""
        self._writer.replace(self._dir / files.VERDICT, to_pretty_json(verdict))
        lock = Path(self._record.run_dir) / files.LOCK
        self._writer.call("lock", lambda: release_lock(lock, self._record.run_id))
        if not self._writer.flush(FLUSH_S):
            print(
                f"retinue: cannot write the verdict in {self._dir}; it says {to_json(verdict).decode()}",
                file=sys.stderr,
            )

    def close(self) -> None:
        """Wait for what is written, but never for ever; a directory that hangs since a moment ago is told of too."""
        self._writer.stop(FLUSH_S)
        self._tell_hung()
