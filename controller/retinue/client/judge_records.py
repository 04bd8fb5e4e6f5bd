"""What asking a judge comes to: an answer that can be read, or why there is none."""

from enum import Enum
from typing import Any

from retinue.terms.record import Record


class JudgedKind(str, Enum):
    """Whose doing it is that there is an answer, or none."""

    ANSWERED = "answered"
    """The judge answered, and the answer has the form that was asked for."""
    REJECTED = "rejected"
    """The call is wrong: a schema the judge cannot take, a prompt longer than its context."""
    INFRA_FAILED = "infra_failed"
    """Our side failed: the judge was away, or nothing it said could be read. Never the policy's doing."""


class Judged(Record, frozen=True):
    """What one question came to."""

    outcome: JudgedKind
    answer: Any = None
    """With a schema the value that fits it, without one the text. None unless `answered`."""
    text: str = ""
    """What the judge said last, also when it could not be read."""
    reason: str = ""
    """In words, when not `answered`."""
    attempts: int = 0
    """Times the judge said something, unreadable answers included."""
    wall_s: float = 0.0
    node: str = ""
    """infra_failed only: where it was noticed."""
    service: str = ""
    event: str = ""
    """infra_failed only: what happened (`unreadable answer`, `no replica ready`, ...)."""
    rollout_id: str | None = None
    """As the caller gave it."""

    @property
    def is_answered(self) -> bool:
        return self.outcome is JudgedKind.ANSWERED
