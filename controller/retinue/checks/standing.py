"""What is wrong on our side, told to whom it concerns: the ledger, the log, and whoever runs the service.

Never decides about a check.
"""

import asyncio
import sys
import time
import traceback
from pathlib import Path

from retinue.checks.ledger import Ledger
from retinue.checks.ledger_file import LedgerFile
from retinue.checks.nursery import Nursery
from retinue.checks.settings import Settings
from retinue.checks.sign import Sign

WARM_DOWN = "warm_parent_down"
HOST_DOWN = "host_down"


class Standing:
    """How one host stands."""

    def __init__(self, settings: Settings) -> None:
        """Begin; a predecessor that was killed is an outage from its last sign of life until we are warm."""
        self._file = LedgerFile(Path(settings.ledger_path) if settings.ledger_path else None)
        self.ledger = Ledger(settings.service, settings.node, self._file.write, settings.replica)
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Set when the host's own clockwork broke: better no service than one whose deadlines stand still."""
        self.broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Set to the cause when a verifier cannot be used and none ever could."""
        self._said = ""
        """What was last written about the warm parent."""
        self._ready_utc = 0.0
        """When it was warm for the first time; 0 before."""
        self._sign = Sign(Path(settings.sign_path) if settings.sign_path else None)
        if (last_utc := self._sign.last_utc) is not None:
            self.ledger.begin(HOST_DOWN, last_utc, "the checks host was killed or crashed")
        if settings.replica:
            # Without a sign too: a predecessor on a node that was lost left its sign there.
            self._file.read_left_open(settings.service, settings.replica, time.time())
        self._sign.give()

    def note_life(self) -> None:
        """Give a sign of life, and look whether the predecessor's is known; called twice a second."""
        self._sign.give()
        self._close_left()

    def note_failure(self, task: asyncio.Task[None]) -> None:
        """Take note of a part that must run for ever and ended: deadlines may stand still from now on."""
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            traceback.print_exception(error)
            self.failed.set_result(type(error).__name__)

    def note_warm(self, nursery: Nursery, is_stopping: bool) -> None:
        """Take note of a warm parent that came or went."""
        is_down = nursery.down_since_s is not None
        now_utc = time.time()
        if not is_down:
            self.ledger.end(WARM_DOWN, now_utc)
            self.ledger.end(HOST_DOWN, now_utc)
            self._ready_utc = self._ready_utc or now_utc
            self._close_left()
        elif nursery.ever_warm and not is_stopping:
            wrong_s = asyncio.get_running_loop().time() - nursery.wrong_since_s
            self.ledger.begin(WARM_DOWN, now_utc - wrong_s, nursery.cause)
        if nursery.is_broken and not nursery.ever_warm and not self.broken.done():
            self.broken.set_result(nursery.cause)
        state = f"down: {nursery.cause}" if is_down else f"warm ({nursery.rung})"
        if state != self._said and not is_stopping:
            print(f"retinue checks: warm parent {state}", file=sys.stderr, flush=True)
        self._said = state

    def end(self) -> None:
        """Close what is open: the service ends in order, and with it what was wrong with it."""
        self._ready_utc = self._ready_utc or time.time()
        self._close_left()
        self.ledger.end_all(time.time())
        self._file.close()
        self._sign.take_away()

    def _close_left(self) -> None:
        """Close what the predecessor left open, once it is known and we are back."""
        if not self._ready_utc:
            return
        # Our own first line may be in the file already.
        own = (HOST_DOWN, self._sign.last_utc)
        left = [outage for outage in self._file.take_left_open() if (outage.cause, outage.from_utc) != own]
        self.ledger.close_left(left, self._ready_utc)
