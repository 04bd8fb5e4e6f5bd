"""How many replicas of each service are where: kept while they move, so that nobody counts ten thousand. Pure."""

from collections import Counter
from collections.abc import Mapping

from retinue.terms.replica import Phase, Replica


class Counts:
    """Begins with every replica pending. Of `live` and `pending` a service without any is left out."""

    def __init__(self, planned: Mapping[str, int]) -> None:
        self.there = dict.fromkeys(planned, 0)
        """Ready, or completed: what `min_ready` is compared with."""
        self.ready = dict.fromkeys(planned, 0)
        """Published."""
        self.live = Counter(planned)
        """In a phase that is not terminal."""
        self.pending = Counter(planned)
        """Wait to be started."""

    def move(self, service: str, before: Replica, after: Replica) -> None:
        """Note what became of a replica."""
        self.there[service] += int(after.is_there) - int(before.is_there)
        self.ready[service] += int(after.phase is Phase.READY) - int(before.phase is Phase.READY)
        _change(self.live, service, int(before.phase.is_terminal) - int(after.phase.is_terminal))
        _change(self.pending, service, int(after.phase is Phase.PENDING) - int(before.phase is Phase.PENDING))


def _change(counts: Counter[str], service: str, by: int) -> None:
    counts[service] += by
    if not counts[service]:
        del counts[service]
