"""A request that cannot be answered as it was asked, and the typed error that it becomes."""

from retinue.terms.record import Record, to_json

OURS = 409
"""Our side failed: never a status that clients ask again for ever. A header says whose fault it was."""


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


def build_error(fault: Fault, service: str) -> bytes:
    """Build the body of a typed error."""
    error = _Error(type=fault.kind, message=str(fault), service=service, retryable=fault.retry_after_s is not None)
    return to_json(_ErrorBody(error)) + b"\n"
