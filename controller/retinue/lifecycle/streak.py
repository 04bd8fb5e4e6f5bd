"""Probe verdicts in, changes out: Kubernetes' three probes, exactly. Runs in the agent.

A verdict counts only in a row: fewer than the threshold leaves everything as it is.
UNKNOWN (the probe could not be asked) moves nothing, it does not even break a row.
Never asks anything itself, never reads a clock: the agent's prober drives it.
"""

from typing import NamedTuple

from retinue.terms.launch import ProbeKind, ProbeSpec
from retinue.terms.record import Record, replace
from retinue.terms.replica import LivenessLost, ReadinessChanged, StartupPassed, Verdict

Change = StartupPassed | ReadinessChanged | LivenessLost

_FIRST = {
    ProbeKind.STARTUP: Verdict.UNKNOWN,
    ProbeKind.READINESS: Verdict.FAIL,
    ProbeKind.LIVENESS: Verdict.PASS,
}
"""What a new incarnation is taken for before its first streak (kubelet prober, newWorker)."""


class Streak(Record, frozen=True):
    """One probe of one incarnation: what it is taken for, and the verdicts in a row."""

    kind: ProbeKind
    failures: int = 3
    """FAIL in a row that change what it is taken for."""
    successes: int = 1
    """PASS in a row that change it."""
    settled: Verdict = Verdict.UNKNOWN
    """What it is taken for."""
    last: Verdict = Verdict.UNKNOWN
    """The verdict of the current row; UNKNOWN before the first."""
    row: int = 0
    """How many of `last` in a row."""
    is_held: bool = False
    """Its liveness was lost: nothing is asked until a new incarnation."""
    since_s: float = 0.0
    """When `settled` last changed; seconds on the caller's clock."""


def build_streak(spec: ProbeSpec, now_s: float = 0.0) -> Streak:
    """Build the streak of a new incarnation: startup unknown, readiness failed, liveness passed."""
    successes = spec.successes if spec.kind is ProbeKind.READINESS else 1
    return Streak(
        kind=spec.kind,
        failures=max(spec.failures, 1),
        successes=max(successes, 1),
        settled=_FIRST[spec.kind],
        since_s=now_s,
    )


def observe(streak: Streak, verdict: Verdict, now_s: float) -> tuple[Streak, Verdict | None]:
    """Count one verdict.

    Shape:  (next streak, what it is taken for now; None when that did not change).
    Source: kubelet prober/worker.go, doProbe.
    """
    if streak.is_held or verdict is Verdict.UNKNOWN:
        return streak, None
    row = streak.row + 1 if verdict is streak.last else 1
    streak = replace(streak, last=verdict, row=row)
    threshold = streak.successes if verdict is Verdict.PASS else streak.failures
    if row < threshold or verdict is streak.settled:
        return streak, None
    is_lost = streak.kind is ProbeKind.LIVENESS and verdict is Verdict.FAIL
    return replace(streak, settled=verdict, since_s=now_s, is_held=is_lost), verdict


class _Turn(NamedTuple):
    """When a probe is asked next."""

    next_s: float
    is_asked: bool = False
    """Asked and not answered: it is not asked a second time meanwhile."""


class ProbeState(Record, frozen=True):
    """All probes of one incarnation. Frozen; every method returns the next one.

    The prober's loop: `due(now)`, for each kind `note_asked(kind, now)` and ask it,
    then `observe(kind, verdict, now)`; sleep until `next_due_s()`.
    """

    incarnation: int
    specs: dict[ProbeKind, ProbeSpec]
    streaks: dict[ProbeKind, Streak]
    turns: dict[ProbeKind, _Turn]
    is_startup_passed: bool
    """True from the start when there is no startup probe."""

    @property
    def is_ready(self) -> bool:
        """Readiness as it is settled; without a readiness probe, whether startup passed."""
        readiness = self.streaks.get(ProbeKind.READINESS)
        return self.is_startup_passed and (readiness is None or readiness.settled is Verdict.PASS)

    def is_open(self, kind: ProbeKind) -> bool:
        """Say whether this probe counts now: startup until it passed, the others after."""
        if kind not in self.streaks or self.streaks[kind].is_held:
            return False
        return (kind is ProbeKind.STARTUP) != self.is_startup_passed

    def due(self, now_s: float) -> tuple[ProbeKind, ...]:
        """Find the probes to be asked now; one that is asked and not answered is not among them."""
        return tuple(kind for kind, at_s in self._open_turns() if at_s <= now_s)

    def next_due_s(self) -> float | None:
        """Find when the next probe is to be asked; None when all wait for an answer or for ever."""
        return min((at_s for _, at_s in self._open_turns()), default=None)

    def note_asked(self, kind: ProbeKind, now_s: float) -> "ProbeState":
        """Note that a probe is on its way; the next one comes a period after this one was *asked*."""
        return self._turn(kind, _Turn(now_s + self.specs[kind].period_s, is_asked=True))

    def observe(
        self, kind: ProbeKind, verdict: Verdict, now_s: float, cause: str = ""
    ) -> tuple["ProbeState", tuple[Change, ...]]:
        """Count one answer and say what changed; an answer that no longer counts is thrown away.

        Shape: at most one change. A startup probe that keeps failing changes nothing:
               its budget is the controller's timer.
        """
        state = self._settle_turn(kind, now_s)
        if not self.is_open(kind):
            return state, ()
        streak, settled = observe(self.streaks[kind], verdict, now_s)
        state = replace(state, streaks=self.streaks | {kind: streak})
        if settled is None or (kind is ProbeKind.STARTUP and settled is Verdict.FAIL):
            return state, ()
        if kind is ProbeKind.STARTUP:
            return replace(state, is_startup_passed=True), (StartupPassed(self.incarnation),)
        words = _describe(streak, cause)
        if kind is ProbeKind.LIVENESS:
            return state, (LivenessLost(self.incarnation, words),)
        return state, (ReadinessChanged(self.incarnation, settled is Verdict.PASS, words),)

    def _open_turns(self) -> list[tuple[ProbeKind, float]]:
        turns = self.turns.items()
        return [(kind, turn.next_s) for kind, turn in turns if not turn.is_asked and self.is_open(kind)]

    def _settle_turn(self, kind: ProbeKind, now_s: float) -> "ProbeState":
        turn = self.turns.get(kind)
        if turn is None:
            return self
        next_s = turn.next_s if turn.is_asked else now_s + self.specs[kind].period_s
        return self._turn(kind, _Turn(next_s))

    def _turn(self, kind: ProbeKind, turn: _Turn) -> "ProbeState":
        return replace(self, turns=self.turns | {kind: turn})


def build_probe_state(
    probes: tuple[ProbeSpec, ...],
    incarnation: int,
    now_s: float,
    *,
    is_startup_passed: bool = False,
    is_readopted: bool = False,
) -> ProbeState:
    """Build the probes of an incarnation that started now, or was found running by a new agent.

    Shape:  one per kind; initial delays count from the start of the incarnation, not from StartupPassed.
            is_startup_passed: its startup probe passed before (re-adoption).
            is_readopted: what its readiness was is not known here, so the first row is told whatever it says.
    """
    specs = {spec.kind: spec for spec in probes}
    streaks = {kind: build_streak(spec, now_s) for kind, spec in specs.items()}
    if is_readopted and ProbeKind.READINESS in streaks:
        streaks[ProbeKind.READINESS] = replace(streaks[ProbeKind.READINESS], settled=Verdict.UNKNOWN)
    return ProbeState(
        incarnation=incarnation,
        specs=specs,
        streaks=streaks,
        turns={kind: _Turn(now_s + spec.initial_delay_s) for kind, spec in specs.items()},
        is_startup_passed=is_startup_passed or ProbeKind.STARTUP not in specs,
    )


def _describe(streak: Streak, cause: str) -> str:
    what = "passed" if streak.last is Verdict.PASS else "failed"
    times = "once" if streak.row == 1 else f"{streak.row} times in a row"
    tail = f": {cause}" if cause else ""
    return f"{streak.kind.value} probe {what} {times}{tail}"
