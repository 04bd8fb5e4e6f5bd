"""The bodies of requests and answers: bytes to records and back, and what is wrong with them in words.

Lone surrogates, which JSON can spell and UTF-8 cannot, become U+FFFD: the check runs
with what any reader of UTF-8 would have seen.
"""

import json
import re
from typing import TypeVar

from retinue.checks.records import CheckRequest
from retinue.terms.outcome import Outcome
from retinue.terms.record import DecodeError, Record, from_json, to_json

BODY_BYTES_MAX = 16 * 2**20
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

Body = TypeVar("Body", bound=Record)


class Batch(Record, frozen=True):
    """Body of `POST /v1/checks`."""

    checks: list[CheckRequest]


class Fault(Exception):
    """A request that cannot be answered with an outcome; it becomes a typed error."""

    def __init__(self, status: int, kind: str, message: str, retry_after_s: int | None = None) -> None:
        self.status = status
        self.kind = kind
        self.retry_after_s = retry_after_s
        super().__init__(message)


class _Error(Record, frozen=True):
    type: str
    message: str
    service: str
    retryable: bool


class _ErrorBody(Record, frozen=True):
    error: _Error


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


def build_error(fault: Fault, service: str) -> bytes:
    """Build the body of a typed error."""
    error = _Error(type=fault.kind, message=str(fault), service=service, retryable=fault.retry_after_s is not None)
    return to_json(_ErrorBody(error)) + b"\n"


def read_lenient(body: bytes, kind: type[Body]) -> Body:
    """Read JSON, lone surrogates replaced.

    Errors: DecodeError or ValueError says where; RecursionError when it is nested too deeply.
    """
    try:
        return from_json(body, kind)
    except DecodeError:
        if _SURROGATE.search(body) is None:
            raise
    return from_json(_replace_surrogates(body), kind)


def _replace_surrogates(body: bytes) -> bytes:
    # The standard library reads a lone surrogate; its own text form keeps pairs together.
    text = json.dumps(json.loads(body), ensure_ascii=False)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
