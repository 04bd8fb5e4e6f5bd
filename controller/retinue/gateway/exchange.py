"""One client request, what of it is sent on, what was tried for it, and the counts of all. No behaviour."""

from dataclasses import dataclass, field

from aiohttp import web

from retinue.gateway.bodies import NoBody, RequestBody
from retinue.gateway.routes import Slot
from retinue.gateway.wire import Headers


@dataclass(slots=True)
class Counts:
    """What happened so far."""

    requests: int = 0
    failed: int = 0
    """Requests that ended in a typed error of our side, or were cut off."""
    retried: int = 0
    held: int = 0
    """Requests that had to wait for a backend."""
    far: int = 0
    """Requests that another node's gateway sent here."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request as it is sent on."""

    method: str
    target: str
    headers: Headers
    """Without Host, which says whose they are."""
    body: RequestBody | NoBody


@dataclass(slots=True, eq=False)
class Exchange:
    """One client request and what was tried for it."""

    request: web.BaseRequest
    headers: Headers
    """What of the request's the backend may see."""
    service: str
    target: str
    """For the backend: prefix stripped, byte for byte."""
    body: RequestBody
    wants_retry: bool
    waiting_since_s: float
    sends: int = 0
    """Times the request may have been seen by a backend that then broke."""
    tried: set[Slot] = field(default_factory=set)
    was_held: bool = False
    sandbox: str = ""
    """The sandbox that it is about: only one replica can answer it."""
