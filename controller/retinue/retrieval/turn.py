"""Whose turn it is to build an index, among all nodes; the others wait, and find it built.

The lock is a file beside the index that is kept fresh (`sandbox/store_lock`). What an earlier builder left is renamed
before it is used again, so one who was stopped for a minute and wakes up finds none of it under its name.
"""

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from retinue.errors import TransientError
from retinue.retrieval.records import STATE, Progress, Recipe
from retinue.sandbox.store_lock import StoreLock
from retinue.terms.record import DecodeError, Record, from_json, to_json

POLL_S = 0.5
REFRESH_S = 10.0


class State(Record, frozen=True):
    """How far an unfinished index is."""

    recipe: Recipe
    done: list[str] = []
    passages: int = 0
    dimension: int = 0


class Turn:
    """One builder's turn; over when somebody took the lock away."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._lock = StoreLock(out.with_name(f"{out.name}.lock"))
        self._lost = ""
        self._is_over = threading.Event()

    @property
    def place(self) -> Path:
        """Where this builder builds."""
        return self._out.with_name(f"{self._out.name}.building-{self._lock.nonce}")

    def check(self) -> None:
        """Errors: TransientError when this builder is no longer the one."""
        if self._lost:
            raise TransientError(f"cannot go on with {self._out}: {self._lost}; ask again")

    def wait(self, progress: Progress) -> None:
        """Wait until it is this builder's turn. Errors: OSError as the file system says."""
        while self._lock.try_take() is None:
            progress(f"waiting for {self._lock.holder}, who builds it", 0, 0)
            time.sleep(POLL_S)

    def find_left(self, recipe: Recipe) -> State | None:
        """Take over what an earlier builder left of the same recipe, and remove what is of no use."""
        state = None
        for left in self._out.parent.glob(f"{self._out.name}.building-*"):
            found = read_state(left)
            if state is None and found is not None and found.recipe == recipe:
                left.rename(self.place)
                state = found
            else:
                shutil.rmtree(left, ignore_errors=True)
        return state

    def keep(self) -> None:
        """Keep the lock fresh until the turn is over; runs in a thread."""
        while not self._is_over.wait(REFRESH_S):
            try:
                self._lock.refresh()
            except OSError as error:
                self._lost = f"the lock is gone ({error.strerror})"

    def end(self) -> None:
        """Give the lock back."""
        self._is_over.set()
        with contextlib.suppress(OSError):  # Stale after a minute all the same.
            self._lock.release()


@contextlib.contextmanager
def take_turn(out: Path, progress: Progress) -> Iterator[Turn]:
    """Wait for the turn to build this index, and have it while the context lasts. Errors: OSError."""
    turn = Turn(out)
    turn.wait(progress)
    keeper = threading.Thread(target=turn.keep, name="retinue-index-lock", daemon=True)
    keeper.start()
    try:
        yield turn
    finally:
        turn.end()
        keeper.join()


def read_state(place: Path) -> State | None:
    """Read how far it is; None when that cannot be said."""
    try:
        return from_json((place / STATE).read_bytes(), State)
    except (OSError, DecodeError):
        return None


def write_state(place: Path, state: State) -> None:
    """Write how far it is, in one step."""
    (place / f"{STATE}.new").write_bytes(to_json(state))
    (place / f"{STATE}.new").rename(place / STATE)
