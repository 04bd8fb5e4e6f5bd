"""Outcomes of checks, judges and sandboxes: what may be a score, and what never is.

Source: DESIGN.md section 6.
"""

from enum import Enum

from retinue.terms.record import Record


class OutcomeKind(str, Enum):
    """Only `scored`, `timed_out` and `killed` carry a number."""

    SCORED = "scored"
    """The check ran; score is a number."""
    TIMED_OUT = "timed_out"
    """The policy's output ran past its CPU or wall limit; score 0."""
    KILLED = "killed"
    """The policy's output hit a memory, process, disk or output limit, or crashed the checker; score 0."""
    REJECTED = "rejected"
    """The request or the dataset is wrong; the caller's error, no score."""
    INFRA_FAILED = "infra_failed"
    """Our side failed; score null, never a number. Nothing the policy can do produces it."""


class Outcome(Record, frozen=True, omit_defaults=False):
    """What became of one check."""

    outcome: OutcomeKind
    score: float | None
    """0.0 for timed_out and killed; None for rejected and infra_failed."""
    reason: str = ""
    """In words; what the verifier said, which limit was hit, or whose fault it was."""
    wall_s: float = 0.0
    """From the moment the response was handed over."""
    cpu_s: float = 0.0
    """User and system time of the check's whole process tree."""
    rollout_id: str | None = None
    """As the caller sent it."""
    verifier: str = ""
    incarnation: str = ""
    """`checks/0#2`: which launch of the service answered; empty when none did."""
    node: str = ""
    service: str = ""
    event: str = ""
    """infra_failed only: what happened to us (`warm parent died`, `connection lost`, ...)."""


SCORELESS = (OutcomeKind.REJECTED, OutcomeKind.INFRA_FAILED)
