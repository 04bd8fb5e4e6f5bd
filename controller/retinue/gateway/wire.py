"""HTTP by the letter: targets, headers, and the typed errors that are ours.

Pure; never opens a connection. What a backend said is passed on as it said it,
except where the words are about one hop only.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from retinue.errors import RetinueError
from retinue.terms.record import Record, to_json

HOP_HEADERS = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
    )
)
"""RFC 9110, 7.6.1: about one connection, never passed on."""
FAR_REPLICA = "X-Retinue-Far-Replica"
"""`judge/0#3`: what a gateway wants of another node's gateway. Never taken from a client, never shown to a service."""
FAR_FAULT = "X-Retinue-Far-Fault"
"""`broken closed the connection`: why the other gateway has no answer of its replica. Never taken from a service."""
REQUEST_DROPPED = HOP_HEADERS | {"host", "expect", "content-length", "x-forwarded-prefix", FAR_REPLICA.lower()}
"""One-hop headers, and those that are said anew for the backend."""
RESPONSE_DROPPED = HOP_HEADERS | {FAR_FAULT.lower()}

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SEGMENT_END = re.compile(r"[/?#]")

Headers = list[tuple[str, str]]


class Refusal(RetinueError):
    """A request ends in a typed error of ours; becomes one JSON answer."""

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        service: str = "",
        since_utc: float | None = None,
        node: str = "",
        cause: str = "",
    ) -> None:
        self.status = status
        self.kind = kind
        self.service = service
        self.since_utc = since_utc
        self.node = node
        self.cause = cause
        super().__init__(message)

    @property
    def is_ours(self) -> bool:
        """True when the fault is on our side: the outcome is `infra_failed`, never a score."""
        return self.kind in ("retinue_unavailable", "retinue_bad_gateway", "infra_failed")

    @property
    def is_retryable(self) -> bool:
        """True when the service chose a status by which clients ask again."""
        return self.is_ours and (self.status == 429 or self.status >= 500)

    @classmethod
    def unavailable(cls, service: str, message: str, since_utc: float | None, status: int = 409) -> "Refusal":
        """No backend, and none came in time. 409, because clients retry 429 and 5xx for ever."""
        return cls(status, "retinue_unavailable", message, service, since_utc)

    @classmethod
    def bad_gateway(cls, service: str, message: str, status: int = 409) -> "Refusal":
        """A backend failed this request and it may not be sent again. 409 for the same reason."""
        return cls(status, "retinue_bad_gateway", message, service)

    @classmethod
    def gone(cls, service: str, message: str, node: str, cause: str) -> "Refusal":
        """The one replica that could answer is no more, and what it had is lost. Final: 410."""
        return cls(410, "infra_failed", message, service, None, node, cause)

    @classmethod
    def bad_request(cls, message: str, service: str = "") -> "Refusal":
        """The request cannot be read or passed on."""
        return cls(400, "retinue_bad_request", message, service)


class _Error(Record, frozen=True, omit_defaults=True):
    type: str
    service: str
    since: str | None
    retryable: bool
    message: str
    node: str = ""
    cause: str = ""


class _ErrorBody(Record, frozen=True):
    error: _Error


def build_error(refusal: Refusal) -> tuple[bytes, Headers]:
    """Build body and headers of a typed error.

    Units:  `since` is ISO 8601 in UTC, or null.
    Source: `X-Should-Retry` is what the OpenAI and Anthropic clients obey before their own rule, which retries 409.
    """
    since = None
    if refusal.since_utc is not None:
        since = datetime.fromtimestamp(refusal.since_utc, UTC).isoformat(timespec="seconds")
    error = _Error(
        refusal.kind, refusal.service, since, refusal.is_retryable, str(refusal), refusal.node, refusal.cause
    )
    headers = [("Content-Type", "application/json"), ("X-Should-Retry", str(refusal.is_retryable).lower())]
    if refusal.is_ours:
        headers.append(("X-Retinue-Outcome", "infra_failed"))
    return to_json(_ErrorBody(error=error)) + b"\n", headers


def split_target(target: str) -> tuple[str, str]:
    """Split a request target into service name and the target for the backend, byte for byte.

    Shape:  `/judge/v1/a%2Fb?x` -> ("judge", "/v1/a%2Fb?x"); `/judge?x` -> ("judge", "/?x"); `/` -> ("", "/").
    Errors: Refusal 400 for authority and asterisk form.
    """
    if not target.startswith("/"):
        scheme, mark, after = target.partition("://")
        if not mark or scheme.lower() not in ("http", "https"):
            raise Refusal.bad_request(f"cannot route {target[:100]!r}: not a path; call /<service>/...")
        target = _from_end(after, 0)
        target = target if target.startswith("/") else "/" + target
    rest = _from_end(target, 1)
    end = len(target) - len(rest)
    return target[1:end], rest if rest.startswith("/") else "/" + rest


def build_request_headers(headers: Iterable[tuple[str, str]], service: str) -> Headers:
    """Build what the backend is sent: one-hop headers out, the prefix in."""
    pairs = list(headers)
    dropped = REQUEST_DROPPED | _named_by_connection(pairs)
    kept = [(name, value) for name, value in pairs if name.lower() not in dropped]
    kept.append(("X-Forwarded-Prefix", f"/{service}"))
    return kept


def build_response_headers(headers: Iterable[tuple[str, str]], service: str, authority: str) -> Headers:
    """Build what the client is sent: one-hop headers out, redirects through the stable URL.

    Errors: ValueError for control characters, which would be another header, or another answer, to the client.
    """
    pairs = list(headers)
    dropped = RESPONSE_DROPPED | _named_by_connection(pairs)
    if any(name.lower() == "transfer-encoding" for name, _ in pairs):
        # RFC 9112, 6.3: the coding overrides a length; passing both on would let the two disagree.
        dropped |= {"content-length"}
    if any(_CONTROL.search(value) for _, value in pairs):
        raise ValueError("control characters in a header")
    return [
        (name, build_location(value, service, authority) if name.lower() == "location" else value)
        for name, value in pairs
        if name.lower() not in dropped
    ]


def build_location(location: str, service: str, authority: str) -> str:
    """Turn a backend's redirect to itself into one through the gateway; leave any other as it is.

    A redirect to `http://<replica>` would bypass the gateway and die with the replica.
    """
    base = f"http://{authority}"
    if location == base or location.startswith((base + "/", base + "?")):
        rest = location[len(base) :]
        return f"/{service}{rest if rest.startswith('/') else '/' + rest}"
    is_path = location.startswith("/") and not location.startswith("//")
    has_prefix = location == f"/{service}" or location.startswith((f"/{service}/", f"/{service}?"))
    return f"/{service}{location}" if is_path and not has_prefix else location


def is_websocket(headers: Iterable[tuple[str, str]]) -> bool:
    """Tell whether the client asks to leave HTTP for WebSocket."""
    return any(name.lower() == "upgrade" and "websocket" in value.lower() for name, value in headers)


def _named_by_connection(pairs: Headers) -> set[str]:
    values = (value for name, value in pairs if name.lower() == "connection")
    return {token.strip().lower() for value in values for token in value.split(",")}


def _from_end(target: str, start: int) -> str:
    end = _SEGMENT_END.search(target, start)
    return target[end.start() :] if end else ""
