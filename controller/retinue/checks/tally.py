"""What a checks service counts for /metrics, and how long callers should stay away when it is full."""

import math
from collections import Counter

from retinue.checks.ledger import ErrorRates
from retinue.terms.outcome import Outcome, OutcomeKind

RETRY_MIN_S, RETRY_MAX_S = 1, 30
SMOOTHING = 0.05
FIRST_GUESS_S = 0.05


class Tally:
    """Counts of one service since it started."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """(verifier, outcome) -> count."""
        self.wall_s = 0.0
        self.cpu_s = 0.0
        self.refused = 0
        """Checks answered 429."""
        self.cancelled = 0
        """Checks whose caller went away."""
        self.retried_alone = 0
        """Responses judged a second time because the first end could not be explained."""
        self.rates = ErrorRates()
        self._mean_s = FIRST_GUESS_S

    def note(self, outcome: Outcome, is_error: bool, is_known: bool = True, is_bug: bool = False) -> str | None:
        """Count one outcome; returns a warning about its verifier when there is news.

        Shape:  verifiers that do not exist are counted together: callers invent names without end.
        """
        self.outcomes[outcome.verifier if is_known else "", outcome.outcome.value] += 1
        self.wall_s += outcome.wall_s
        self.cpu_s += outcome.cpu_s
        self._mean_s += SMOOTHING * (outcome.wall_s - self._mean_s)
        bug = self.rates.note_bug(outcome.verifier, outcome.reason) if is_bug else None
        if outcome.outcome in (OutcomeKind.REJECTED, OutcomeKind.INFRA_FAILED):
            return bug
        return self.rates.note(outcome.verifier, is_error) or bug

    def retry_after_s(self, waiting: int, workers: int) -> int:
        """Guess when there is room again; whole seconds, as `Retry-After` has them."""
        # A quarter of the line gone is room enough; who waits for all of it comes back to an idle service.
        guess_s = waiting * self._mean_s / max(workers, 1) / 4
        return max(RETRY_MIN_S, min(RETRY_MAX_S, math.ceil(guess_s)))
