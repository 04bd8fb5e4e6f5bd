"""Whether the node is short, since when, and how far that stretches a check's wall limit. Pure.

A loaded node is ours, never the policy's: wall time counts against a check only
while the node was not short, up to three times its limit. What the checks' own
trees fork beyond one runnable thread each is theirs and makes no node short.
Source: DESIGN.md section 6.
"""

from collections import deque

from retinue.terms.record import Record

LAG_SHORT_S = 0.1
QUEUE_SHORT = 2.0
"""Runnable threads per CPU."""
WINDOW_S = 1.0
"""The run queue is an instant's count and jumps: its mean over this is compared."""
STRETCH_MAX = 3.0
KEPT_S = 3600.0
"""Longer than any check runs."""


class Sample(Record, frozen=True):
    """What the node looked like at one moment."""

    at_s: float
    """Loop clock."""
    lag_s: float
    """How late this process's own loop was."""
    queue_per_cpu: float | None
    """Runnable threads that are not the checks' own surplus, per CPU; None: not known, and then not short."""


class Period(Record, frozen=True):
    """A time in which the node was short; on the loop clock."""

    from_s: float
    to_s: float | None
    """None: it still is."""
    cause: str


def parse_running(loadavg: str) -> int | None:
    """Parse /proc/loadavg; the number of runnable threads, the reader left out.

    Source: proc_loadavg(5): the fourth field is `runnable/existing`.
    """
    fields = loadavg.split()
    if len(fields) < 4 or not fields[3].partition("/")[0].isdigit():
        return None
    return max(int(fields[3].partition("/")[0]) - 1, 0)


def compute_queue(running: int | None, surplus: int, cpus: int) -> float | None:
    """Say how many threads per CPU want to run.

    Shape:  `surplus` what the checks' own trees run beyond one thread each: a policy that forks is no shortage.
    """
    if running is None:
        return None
    return max(running - surplus, 0) / max(cpus, 1)


class Pressure:
    """The node's short periods, from samples in the order of time."""

    def __init__(self) -> None:
        self._window: deque[Sample] = deque()
        self._periods: deque[Period] = deque()

    @property
    def is_short(self) -> bool:
        return bool(self._periods) and self._periods[-1].to_s is None

    @property
    def periods(self) -> tuple[Period, ...]:
        return tuple(self._periods)

    def note(self, sample: Sample) -> Period | None:
        """Take one sample; returns the period that began or ended with it, None when nothing changed.

        A late loop was short from the moment it should have woken, not from when it did.
        """
        self._window.append(sample)
        while self._window[0].at_s < sample.at_s - WINDOW_S:
            self._window.popleft()
        cause = self._find_cause(sample)
        self._forget(sample.at_s)
        if cause and not self.is_short:
            began_s = sample.at_s - (sample.lag_s if sample.lag_s >= LAG_SHORT_S else 0.0)
            last_s = self._periods[-1].to_s if self._periods else None
            period = Period(began_s if last_s is None else max(began_s, last_s), None, cause)
            self._periods.append(period)
            return period
        if not cause and self.is_short:
            return self._end(sample.at_s)
        return None

    def short_between(self, from_s: float, to_s: float) -> float:
        """Sum up how long the node was short within this time; seconds."""
        return sum(
            max(min(to_s if period.to_s is None else period.to_s, to_s) - max(period.from_s, from_s), 0.0)
            for period in self._periods
        )

    def _find_cause(self, sample: Sample) -> str:
        if sample.lag_s >= LAG_SHORT_S:
            return f"own loop {sample.lag_s * 1000:.0f} ms late"
        known = [seen.queue_per_cpu for seen in self._window if seen.queue_per_cpu is not None]
        mean = sum(known) / len(known) if known else 0.0
        return f"run queue {mean:.1f} per CPU" if mean >= QUEUE_SHORT else ""

    def _end(self, at_s: float) -> Period:
        open_period = self._periods.pop()
        period = Period(open_period.from_s, at_s, open_period.cause)
        self._periods.append(period)
        return period

    def _forget(self, now_s: float) -> None:
        while self._periods and (end_s := self._periods[0].to_s) is not None and end_s < now_s - KEPT_S:
            self._periods.popleft()


def find_deadline(began_s: float, limit_s: float, short_s: float) -> float:
    """Say when a check that began then is out of time, with what is known now.

    Shape:  `short_s` how long the node was short since it began.
    """
    return began_s + min(limit_s + max(short_s, 0.0), STRETCH_MAX * limit_s)
