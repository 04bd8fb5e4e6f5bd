"""What the environment of a run says to a client: addresses, token, node, hold.

Everything is what `retinue run` gave the trainer and its services; nothing has to
be configured. Reads files of the run directory, never writes.
"""

from collections.abc import Mapping
from pathlib import Path

from retinue.client.endpoints import Endpoints, read_endpoints
from retinue.errors import UsageError
from retinue.terms.record import DecodeError, Record, from_json
from retinue.terms.run import PLAN

CHECKS = "checks"
"""The default service of a kind, and the kind that stands in for it when no service has that name."""
SANDBOX = "sandbox"
RETRIEVAL = "retrieval"
DEFAULTS = (CHECKS, SANDBOX, RETRIEVAL)
HOLD_S = 900.0
"""`run.hold` when the plan does not say."""
HOLD_OUTSIDE_S = 60.0
"""Outside a run nothing holds a request; for so long a server may be away."""


class Site(Record, frozen=True):
    """Where this client is, and how it reaches services."""

    urls: dict[str, str] = {}
    """Service -> URL: given explicitly, or found before."""
    variables: dict[str, str] = {}
    """`RETINUE_<SERVICE>_URL` of the environment."""
    endpoints_path: str = ""
    """Empty: outside a run."""
    token: str = ""
    """Empty: none is sent; the run's owner needs none."""
    node: str = ""
    hold_s: float = HOLD_OUTSIDE_S
    """How long the gateway may keep a request while nothing is ready."""


class _Hold(Record, frozen=True):
    hold_s: float = HOLD_S


def read_site(env: Mapping[str, str], node: str) -> Site:
    """Read what the environment says.

    Shape:  `node` is used where the environment does not name one.
    Errors: UsageError outside a run.
    """
    endpoints_path = env.get("RETINUE_ENDPOINTS", "")
    variables = {name: url for name, url in env.items() if name.startswith("RETINUE_") and name.endswith("_URL")}
    if not endpoints_path and not variables:
        raise UsageError(
            "cannot find a run: neither RETINUE_ENDPOINTS nor RETINUE_CHECKS_URL is set; start this program with"
            ' `retinue run MANIFEST -- COMMAND`, or name the server: Retinue("http://127.0.0.1:8000")'
        )
    return Site(
        variables=variables,
        endpoints_path=endpoints_path,
        token=_read_token(env.get("RETINUE_TOKEN_FILE", "")),
        node=env.get("RETINUE_NODE", "") or node,
        hold_s=_read_hold_s(endpoints_path) if endpoints_path else HOLD_OUTSIDE_S,
    )


def find_url(site: Site, service: str) -> str:
    """Find the URL of a service.

    Shape:  for "checks", "sandbox" and "retrieval", when nothing has that name, the one service of that kind.
    Errors: UsageError names the services there are.
    """
    url = site.urls.get(service) or site.variables.get(f"RETINUE_{name_variable(service)}_URL")
    if url:
        return url
    if not site.endpoints_path:
        known = ", ".join(site.urls) or ", ".join(site.variables)
        raise UsageError(f"cannot call {service!r}: there are {known}")
    return _pick_url(read_endpoints(site.endpoints_path), service)


def name_variable(service: str) -> str:
    """`judge-small` -> `JUDGE_SMALL`."""
    return "".join(char if char.isalnum() else "_" for char in service).upper()


def _pick_url(found: Endpoints, service: str) -> str:
    named = found.services.get(service)
    if named is not None and named.url:
        return named.url
    if named is not None:
        raise UsageError(f"cannot call {service!r}: it is not an HTTP service")
    of_kind = {name: endpoint.url for name, endpoint in found.services.items() if endpoint.kind == service}
    urls = [url for url in of_kind.values() if url] if service in DEFAULTS else []
    if len(urls) == 1:
        return urls[0]
    if urls:
        raise UsageError(f"cannot choose among {', '.join(of_kind)}: give service=NAME")
    known = ", ".join(found.services) or "no services with a port"
    raise UsageError(f"cannot call {service!r}: this run has {known}")


def _read_token(path: str) -> str:
    """Return the run's token; empty where it is not readable: another user's run, and the gateway will say so."""
    try:
        return Path(path).read_text(encoding="ascii").strip() if path else ""
    except (OSError, UnicodeError):
        return ""


def _read_hold_s(endpoints_path: str) -> float:
    try:
        return from_json(Path(endpoints_path).with_name(PLAN).read_bytes(), _Hold).hold_s
    except (OSError, DecodeError):
        return HOLD_S
