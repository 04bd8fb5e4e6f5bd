"""What an answer means: an outcome, or a reason to ask again.

Pure. A number is believed only from an outcome that may carry one; what cannot be
understood is never a score.
"""

import math

from retinue.client.answer import Broken
from retinue.client.patience import Again, Trouble
from retinue.client.question import Check
from retinue.terms.outcome import SCORELESS, Outcome, OutcomeKind
from retinue.terms.record import DecodeError, Record, from_json, replace

BUSY = 429
OURS = 409
TOO_LARGE = 413
UNREADABLE = (400, 422)
LATER = (408, 425)
NEVER = (501, 505)
"""5xx that stay as they are."""
TEXT_MAX = 300


class _Index(Record, frozen=True):
    index: int


class _Error(Record, frozen=True):
    type: str = ""
    service: str = ""
    message: str = ""


class _ErrorBody(Record, frozen=True):
    error: _Error | str | None = None


def parse_outcome(body: bytes) -> Outcome:
    """Parse one outcome.

    Errors: Broken when it is none.
    """
    try:
        outcome = from_json(body, Outcome)
    except DecodeError as error:
        raise Broken(f"unreadable outcome: {error}") from None
    if outcome.outcome in SCORELESS:
        return outcome if outcome.score is None else replace(outcome, score=None)
    if outcome.score is None or not math.isfinite(outcome.score):
        # Asking again gives the same; and no score is safer than a made-up one.
        reason = f"the service answered {outcome.outcome.value} with score {outcome.score}: {outcome.reason}"
        return replace(outcome, outcome=OutcomeKind.REJECTED, score=None, reason=reason)
    return outcome


def parse_line(line: bytes) -> tuple[int, Outcome]:
    """Parse one line of a batch: its index within the request, and its outcome.

    Errors: Broken.
    """
    try:
        index = from_json(line, _Index).index
    except DecodeError as error:
        raise Broken(f"unreadable line: {error}") from None
    return index, parse_outcome(line)


def read_refusal(status: int, headers: dict[str, str], body: bytes, service: str) -> Outcome | Again:
    """Read an answer that is not 200.

    Shape:  what is our side's fault is `infra_failed`, what is the caller's is `rejected`, the rest may be asked again.
    """
    error = _read_error(body)
    reason = f"{service} answered {status}: {error.message}" if error.message else f"{service} answered {status}"
    if status == BUSY:
        return Again(Trouble.BUSY, "busy", reason, after_s=parse_retry_after(headers.get("retry-after", "")))
    if status in LATER or (status >= 500 and status not in NEVER):
        return Again(Trouble.BROKEN, f"status {status}", reason, parse_retry_after(headers.get("retry-after", "")))
    if headers.get("x-retinue-outcome") == OutcomeKind.INFRA_FAILED.value:
        if error.type == "retinue_bad_gateway":
            return Again(Trouble.LOST, "replica lost", reason)
        event = "no replica ready" if error.type == "retinue_unavailable" else error.type or f"status {status}"
        kind, service = OutcomeKind.INFRA_FAILED, error.service or service
        return Outcome(kind, None, reason=reason, service=service, event=event)
    return Outcome(OutcomeKind.REJECTED, None, reason=reason, service=service)


def judge_too_large(check: Check, body_bytes: int, service: str) -> Outcome:
    """Say whose fault a check is that is larger than a service takes.

    The policy's, when its response is most of it: an output limit. Else a policy could avoid its score by talking long.
    """
    what = f"the check is {body_bytes} bytes, more than {service} takes"
    if len(check.response.encode("utf-8", "surrogatepass")) * 2 >= body_bytes:
        return Outcome(OutcomeKind.KILLED, 0.0, reason=f"{what}; most of it is the response", service=service)
    return Outcome(OutcomeKind.REJECTED, None, reason=f"{what}; most of it is gold and args", service=service)


def parse_retry_after(value: str) -> float | None:
    """Parse seconds; None for a date, which would need the server's clock."""
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None


def _read_error(body: bytes) -> _Error:
    """Read our typed error, `{"error": "..."}`, or plain text."""
    try:
        found = from_json(body, _ErrorBody).error
    except DecodeError:
        found = None
    if isinstance(found, _Error):
        return replace(found, message=found.message[:TEXT_MAX])
    text = found if isinstance(found, str) else body[: TEXT_MAX * 4].decode("utf-8", "replace")
    return _Error(message=" ".join(text.split())[:TEXT_MAX])
