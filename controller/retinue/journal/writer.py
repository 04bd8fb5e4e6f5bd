"""The one writer thread of a process: a full or hung file system is its problem alone.

Callers never wait and never see an OSError. Log lines are lost first and decisions last, and how
many were lost is on record. Order is kept per path; what is replaced or called is coalesced to the
newest.

A file system that hangs blocks the thread, and every path behind it: what must survive that (a
node directory) is written by a `Writer` of its own, or directly. The thread is a daemon, so a
process ends though it hangs; at the end the interpreter does not wait for it, and `os._exit` skips
even its clean-up. Only a thread in uninterruptible sleep (a dead hard mount, close(2) on FUSE) keeps
a dead process in the table until the kernel gives up that call; it has a table of descriptors of its
own, so that the process's sockets are at their end all the same. The thread is started once, in the
process that made the writer, with all signals blocked; such a process must not fork without exec.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from retinue.journal.backlog import MAX_BYTES, MAX_ENTRIES, Backlog, Batch, Entry, Kind, drop_bytes
from retinue.journal.files import AppendFiles, append_whole_lines, replace_file
from retinue.journal.own_table import leave_descriptors

RETRY_S = 0.5
RETRY_MAX_S = 5.0
ERROR_S = 10.0
"""How long an error is still `last_error` when nothing waits because of it."""
HANG_S = 1.0
"""In one call into the file system for so long, it hangs: others are told, and need not find out themselves."""
PATIENCE_S = 2.0
"""After so long in one call nobody waits at the end for what is left."""

AnyPath = str | os.PathLike[str]


class Writer:
    """Append, replace, touch and call, in a thread."""

    def __init__(
        self,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._backlog = Backlog(max_entries, max_bytes)
        self._files = AppendFiles(clock)
        self._begun: set[str] = set()
        self._changed = threading.Condition()
        self._is_ended = False
        self._oldest_s: float | None = None
        self._busy_s: float | None = None
        """Since when the thread is with the file system; None while it waits for work."""
        self._error = ""
        self._error_s = float("-inf")
        self._retrying: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        # Inherited by the thread: signals are for the thread that has handlers or a signalfd.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    # --- what to write ----------------------------------------------------------------

    def append(self, path: AnyPath, data: bytes, is_vital: bool = False) -> bool:
        """Append to a file, 0600; False when there was no room and it is lost.

        Vital means whole lines that are tried again until they are written. A line may then be there
        twice, when the file system failed at the wrong moment: readers drop a number they have seen.
        """
        return not data or self._add(path, Entry(Kind.LINE if is_vital else Kind.LOG, data, self._clock()))

    def replace(self, path: AnyPath, data: bytes, mode: int = 0o644) -> bool:
        """Replace a file in one step; supersedes everything that still waits for this path."""
        return self._add(path, Entry(Kind.REPLACE, data, self._clock(), mode))

    def touch(self, path: AnyPath) -> bool:
        """Set a file's times to the file system's now; nothing when it is gone."""
        text = os.fspath(path)
        return self.call(f"touch {text}", lambda: os.utime(text))

    def call(self, name: str, work: Callable[[], None]) -> bool:
        """Run something that touches files and may hang; supersedes a waiting one of that name.

        Errors: an OSError it raises becomes `last_error`; nothing is tried again.
        """
        return self._add(name, Entry(Kind.CALL, b"", self._clock(), work=work))

    def _add(self, path: AnyPath, entry: Entry) -> bool:
        with self._changed:
            if self._is_ended:
                self._backlog.lose([entry])
                return False
            is_taken = self._backlog.add(os.fspath(path), entry)
            if self._oldest_s is None:
                self._oldest_s = entry.since_s
            self._changed.notify_all()
            return is_taken

    # --- how it goes: read without a lock ------------------------------------------------

    def stuck_s(self, now_s: float) -> float:
        """Say how long the oldest thing waits, on the monotonic clock; 0 when nothing does."""
        oldest_s = self._oldest_s
        return max(0.0, now_s - oldest_s) if oldest_s is not None else 0.0

    @property
    def is_hung(self) -> bool:
        """Whether the file system has not come back from one call for a second; a full one always comes back."""
        return self._find_busy_s() >= HANG_S

    def _find_busy_s(self) -> float:
        busy_s = self._busy_s
        return max(0.0, self._clock() - busy_s) if busy_s is not None else 0.0

    @property
    def lost_lines(self) -> int:
        """Log lines that will not be written."""
        return self._backlog.lost_lines

    @property
    def lost_vital(self) -> int:
        """Decisions that will not be written."""
        return self._backlog.lost_vital

    @property
    def last_error(self) -> str:
        """What the file system said last; empty once it has been taking everything for 10 s."""
        return self._error if self._retrying or self._clock() - self._error_s < ERROR_S else ""

    # --- the end --------------------------------------------------------------------------

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is written; False when it is not by then, or the file system hangs."""
        end_s = time.monotonic() + timeout_s
        with self._changed:
            self._backlog.hurry()
            self._changed.notify_all()
            while not self._backlog.is_empty:
                wait_s = min(end_s - time.monotonic(), PATIENCE_S - self._find_busy_s())
                if wait_s <= 0:
                    return False
                self._changed.wait(wait_s)
            return True

    def stop(self, timeout_s: float) -> bool:
        """Flush, then end the thread; what is added later is lost. False when something was not written."""
        is_written = self.flush(timeout_s)
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        if is_written:
            self._thread.join(timeout_s)
        return is_written

    # --- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        leave_descriptors()
        try:
            while (batch := self._wait_for_batch()) is not None:
                rest, error = self._write(batch)
                self._settle(batch, rest, error)
            self._note(self._files.close())
        finally:
            bug = sys.exception()
            if bug is not None:
                # The thread's stderr is its own: what would be printed there is said where an error is looked for.
                self._error, self._error_s = f"the writer thread ended: {bug!r}", float("inf")

    def _wait_for_batch(self) -> Batch | None:
        while True:
            with self._changed:
                now_s = self._busy_s = self._clock()
                if self._is_ended:
                    return None
                batch = self._backlog.take(now_s)
                if batch is not None:
                    return batch
                retry_s = self._backlog.get_next_retry_s()
                # Old files are closed between waits; a second is as long as they may stay open.
                wait_s = 1.0 if self._files.is_any_open else None
                if retry_s is not None:
                    wait_s = min(wait_s or retry_s - now_s, max(0.0, retry_s - now_s))
                self._busy_s = None
                self._changed.wait(wait_s)
                self._busy_s = self._clock()
            self._note(self._files.close_old())

    def _write(self, batch: Batch) -> tuple[list[Entry], OSError | None]:
        """Do it; returns what was not written, and why."""
        path, first = batch.lane.path, batch.entries[0]
        content = b"".join(entry.content for entry in batch.entries)
        if first.kind is Kind.LOG:
            count, error = self._files.append(path, content)
            return drop_bytes(batch.entries, count), error
        if first.kind is Kind.LINE:
            count, error = append_whole_lines(path, content, is_first=path not in self._begun)
            if count:
                self._begun.add(path)
            return drop_bytes(batch.entries, count), error
        try:
            if first.work is not None:
                first.work()
            else:
                replace_file(path, content, first.mode)
                self._files.forget(path)
        except OSError as error:
            return batch.entries, error
        return [], None

    def _settle(self, batch: Batch, rest: list[Entry], error: OSError | None) -> None:
        wants_retry = bool(rest) and batch.kind in (Kind.LINE, Kind.REPLACE)
        retry_s = None
        if wants_retry:
            retry_s = self._clock() + min(RETRY_S * 2**batch.lane.failures, RETRY_MAX_S)
        self._note(error)
        (self._retrying.add if wants_retry else self._retrying.discard)(batch.lane.path)
        with self._changed:
            self._backlog.finish(rest, retry_s)
            self._oldest_s = self._backlog.oldest_s
            self._changed.notify_all()
        self._note(self._files.close_old())

    def _note(self, error: OSError | None) -> None:
        if error is not None:
            where = f" ({error.filename})" if error.filename else ""
            self._error = f"{error.strerror or error}{where}"
            self._error_s = self._clock()
