"""What goes wrong on our side, and what is counted: the ledger, the log, the numbers. Never decides about a sandbox."""

import asyncio
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from retinue.checks.ledger import Ledger
from retinue.checks.ledger_file import LedgerFile
from retinue.checks.sign import Sign
from retinue.sandbox.host_settings import HostSettings

HOST_DOWN = "host_down"
SHARD_DOWN = "shard_down"
SPACE_DOWN = "space_down"
IMAGE_LOST = "image_lost"
NODE_MEMORY = "node_memory"
HOST_CHANGED = "host_settings"
SANDBOX_LOST = "sandbox_lost"


class Standing:
    """How one host stands."""

    def __init__(self, settings: HostSettings) -> None:
        """Begin; a predecessor that was killed is an outage from its last sign of life until we are ready."""
        self._file = LedgerFile(Path(settings.ledger_path) if settings.ledger_path else None)
        self.ledger = Ledger(settings.service, settings.node, self._file.write, settings.replica)
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Set when the host's own clockwork broke: better no service than one whose leases and shards nobody minds."""
        self.counts: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        """Cause -> sandboxes lost by our fault."""
        self.outcomes: Counter[str] = Counter()
        self.wait_s = 0.0
        self.start_s = 0.0
        self.ready_utc = 0.0
        """When it was ready for the first time; 0 before."""
        self._sign = Sign(Path(settings.sign_path) if settings.sign_path else None)
        if (last_utc := self._sign.last_utc) is not None:
            self.ledger.begin(HOST_DOWN, last_utc, "the sandbox host was killed or crashed; its sandboxes went with it")
        if settings.replica:
            self._file.read_left_open(settings.service, settings.replica, time.time())
        self._sign.give()

    def note_life(self) -> None:
        """Give a sign of life, and look whether the predecessor's is known."""
        self._sign.give()
        self._close_left()

    def note_ready(self) -> None:
        """Sandboxes can be made."""
        self.ready_utc = self.ready_utc or time.time()
        self.ledger.end(HOST_DOWN, time.time())
        self._close_left()

    def begin(self, cause: str, detail: str) -> None:
        """Something of ours is wrong from now on."""
        print(f"retinue sandbox: {detail}", file=sys.stderr, flush=True)
        self.ledger.begin(cause, time.time(), detail)

    def end(self, cause: str) -> None:
        """It is right again."""
        self.ledger.end(cause, time.time())

    def note_lost(self, cause: str, kind: str, count: int) -> None:
        """Sandboxes were lost at this moment: an outage without length."""
        self.lost[kind] += count
        now_utc = time.time()
        self.ledger.begin(kind, now_utc, cause)
        self.ledger.end(kind, now_utc)
        print(f"retinue sandbox: {cause}; {count} sandboxes lost", file=sys.stderr, flush=True)

    def note_make(self, wait_s: float, start_s: float) -> None:
        """One was made."""
        self.counts["created"] += 1
        self.wait_s += wait_s
        self.start_s += start_s

    def note_failure(self, task: asyncio.Task[None]) -> None:
        """Take note of a part that must run for ever and ended."""
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            traceback.print_exception(error)
            self.failed.set_result(type(error).__name__)

    def finish(self) -> None:
        """Close what is open: the service ends in order, and with it what was wrong with it."""
        self.ready_utc = self.ready_utc or time.time()
        self._close_left()
        self.ledger.end_all(time.time())
        self._file.close()
        self._sign.take_away()

    def _close_left(self) -> None:
        if not self.ready_utc:
            return
        own = (HOST_DOWN, self._sign.last_utc)
        left = [outage for outage in self._file.take_left_open() if (outage.cause, outage.from_utc) != own]
        self.ledger.close_left(left, self.ready_utc)
