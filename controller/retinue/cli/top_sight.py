"""What `top` knows at one moment: what was read of the run, and what the person at the keys chose. Records only."""

from retinue.journal.events import EventLine
from retinue.journal.status import Status
from retinue.journal.verdict import Verdict
from retinue.terms.record import Record

SORTS = ("manifest", "phase", "restarts", "in flight", "name")
SERVICES, NODES = "services", "nodes"


class LogTail(Record, frozen=True):
    """The last lines of a service or one replica, as they are in the files."""

    target: str
    lines: tuple[str, ...]
    note: str = ""
    """Which file, or why there are no lines."""


class Sight(Record, frozen=True):
    """One round of reading the run directory."""

    place: str
    """The run directory."""
    status: Status | None = None
    """The last whole snapshot; None while there was none."""
    age_s: float = 0.0
    """Of the snapshot's file, when it was read."""
    verdict: Verdict | None = None
    death: str = ""
    """Why there will never be a verdict."""
    events: tuple[EventLine, ...] = ()
    """The newest, oldest first."""
    log: LogTail | None = None
    """Of what is focused."""
    trouble: str = ""
    """What the file system said instead."""
    read_s: float = 0.0
    """When this round ended, by our monotonic clock."""


class Choice(Record, frozen=True):
    """What the person chose."""

    pane: str = SERVICES
    """Where the arrows move: `services` | `nodes`."""
    service: str = ""
    """Selected row, `judge` or `judge/0`; empty or gone: the first."""
    node: str = ""
    sort: str = SORTS[0]
    shows_all: bool | None = None
    """All replicas, or only those that are not ready; None: all while they are few."""
    focus: str = ""
    """Service or replica whose log is shown; empty: none."""
    asks: str = ""
    """Service or replica that is restarted when `y` is pressed."""
    shows_help: bool = False
    said: str = ""
    """The answer to the last order, until the next key."""
