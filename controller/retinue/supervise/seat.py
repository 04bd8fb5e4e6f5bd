"""One replica's seat: its state, its place, and what is known of its present incarnation. Pure."""

from collections.abc import Mapping

from retinue.plan.records import ReplicaPlan
from retinue.terms.outage import Outage
from retinue.terms.record import Record, replace
from retinue.terms.replica import (
    AnyAction,
    AnyEvent,
    CancelTimer,
    Exited,
    LaunchRefused,
    Replica,
    SetTimer,
    Started,
    TimerFired,
)


class Seat(Record, frozen=True):
    """One replica with all that is known of its present incarnation; saved whole."""

    replica: Replica
    place: ReplicaPlan
    """Where it is now: the plan's place until its node was lost."""
    pid: int = 0
    host_pid: int = 0
    port: int | None = None
    changed_utc: float = 0.0
    timers: dict[str, float] = {}
    """Armed timers: name -> due, loop seconds (CLOCK_MONOTONIC: comparable after a restart)."""
    killed_hard: int = 0
    """Incarnations that needed SIGKILL."""
    left: tuple[int, ...] = ()
    """Host pids that would not die."""
    last_lines: str = ""
    """Of the last incarnation that ended."""
    outage: Outage | None = None
    """It took requests and takes none now; kept until it does again."""


def remember(seat: Seat, event: AnyEvent) -> Seat:
    """Keep what an event of the present incarnation tells about it."""
    match event:
        case Started(pid=pid, host_pid=host_pid, port=port):
            return replace(seat, pid=pid, host_pid=host_pid, port=port)
        case Exited(is_killed_hard=is_killed_hard, left=left, last_lines=last_lines):
            return replace(
                seat,
                pid=0,
                host_pid=0,
                port=None,
                killed_hard=seat.killed_hard + int(is_killed_hard),
                left=tuple(dict.fromkeys(seat.left + left)),
                last_lines=last_lines or seat.last_lines,
            )
        case LaunchRefused(cause=cause):
            return replace(seat, pid=0, host_pid=0, port=None, last_lines=cause)
        case _:
            return seat


def find_next_timers(
    timers: Mapping[str, float], actions: tuple[AnyAction, ...], event: AnyEvent, now_s: float
) -> dict[str, float]:
    """Armed timers after a decision: what fired is gone, what was set or cancelled is so."""
    armed = dict(timers)
    if isinstance(event, TimerFired):
        armed.pop(event.timer, None)
    for action in actions:
        if isinstance(action, SetTimer):
            armed[action.timer] = now_s + action.after_s
        elif isinstance(action, CancelTimer):
            armed.pop(action.timer, None)
    return armed
