"""How many replicas of each service are where: kept while they move, so that nobody counts ten thousand. Pure."""

from collections import Counter
from collections.abc import Mapping

from retinue.terms.replica import Phase


class Counts:
    """Begins with every replica pending."""

    def __init__(self, planned: Mapping[str, int]) -> None:
        self.ready = dict.fromkeys(planned, 0)
        self.live = Counter(planned)
        """Replicas in a phase that is not terminal; a service without any is not in it."""
        self.pending = Counter(planned)
        """Replicas that wait to be started; a service without any is not in it."""

    def move(self, service: str, before: Phase, after: Phase) -> None:
        """Note that a replica changed its phase."""
        self.ready[service] += int(after is Phase.READY) - int(before is Phase.READY)
        _change(self.live, service, int(before.is_terminal) - int(after.is_terminal))
        _change(self.pending, service, int(after is Phase.PENDING) - int(before is Phase.PENDING))


def _change(counts: Counter[str], service: str, by: int) -> None:
    counts[service] += by
    if not counts[service]:
        del counts[service]
