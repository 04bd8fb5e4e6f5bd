"""What a retrieval comes to: passages, or why there are none."""

from enum import Enum

from retinue.terms.record import Record


class RetrievedKind(str, Enum):
    """Whose doing it is that there are passages, or none."""

    FOUND = "found"
    """Every query was searched for; one may have found nothing, which is an answer."""
    REJECTED = "rejected"
    """The call is wrong: a method that the service has not, too much at once."""
    INFRA_FAILED = "infra_failed"
    """Our side failed: the rollout is to be masked, nothing was found out about its query."""


class Passage(Record, frozen=True):
    """One passage of the corpus."""

    id: str
    contents: str
    score: float = 0.0
    """Comparable within one query's passages only."""

    @property
    def title(self) -> str:
        """The first line, without quotes, as Search-R1's corpora have it."""
        return self.contents.partition("\n")[0].strip().strip('"')

    @property
    def text(self) -> str:
        """What comes after the first line; all of it when there is one line."""
        first, mark, rest = self.contents.partition("\n")
        return rest if mark else first


class Retrieved(Record, frozen=True):
    """What one call came to."""

    outcome: RetrievedKind
    results: tuple[tuple[Passage, ...], ...] = ()
    """One per query, in their order, best passage first. Empty unless `found`."""
    reason: str = ""
    """In words, when not `found`."""
    wall_s: float = 0.0
    node: str = ""
    """infra_failed only: where it was noticed."""
    service: str = ""
    event: str = ""
    """infra_failed only: what happened (`connection refused`, `no replica ready`, ...)."""

    @property
    def is_found(self) -> bool:
        return self.outcome is RetrievedKind.FOUND

    @property
    def passages(self) -> tuple[Passage, ...]:
        """Those of the first query. Errors: LookupError when nothing was searched: never an empty result instead."""
        if not self.results:
            raise LookupError(f"there are no passages: {self.outcome.value}: {self.reason}")
        return self.results[0]
