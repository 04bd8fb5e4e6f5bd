"""The bodies of requests and answers: bytes to records and back, and what is wrong with them in words."""

from retinue.checks.records import CheckRequest
from retinue.serving.faults import Fault
from retinue.serving.lenient import Body, read_lenient
from retinue.terms.outcome import Outcome
from retinue.terms.record import Record, to_json

BODY_BYTES_MAX = 16 * 2**20


class Batch(Record, frozen=True):
    """Body of `POST /v1/checks`."""

    checks: list[CheckRequest]


def parse_body(body: bytes, kind: type[Body]) -> Body:
    """Read a request's body.

    Errors: Fault 400 names the field, or says what makes it unreadable.
    """
    try:
        return read_lenient(body, kind)
    except RecursionError:
        raise Fault(400, "checks_unreadable", "cannot read the body: it is nested too deeply") from None
    except ValueError as error:
        raise Fault(400, "checks_unreadable", f"cannot read the body: {error}") from None


def build_line(index: int, outcome: Outcome) -> bytes:
    """Build one line of a batch's answer."""
    return b'{"index":%d,' % index + to_json(outcome)[1:] + b"\n"
