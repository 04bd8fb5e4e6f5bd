"""What people and programs look at: health, capacity, metrics, outages; and what every answer looks like."""

from typing import Any

from aiohttp import web

from retinue.sandbox.host import Host
from retinue.sandbox.host_settings import HostSettings
from retinue.sandbox.metrics import read_metrics
from retinue.sandbox.requests import ErrorBody, ErrorWords, Fault, refuse
from retinue.serving.exposition import build_metrics
from retinue.serving.pages import Page, build_answer
from retinue.terms.outage import parse_since


def build_pages(host: Host) -> dict[str, dict[str, Page]]:
    """Build the pages that are about no sandbox: path -> method -> page."""

    async def list_outages(request: web.BaseRequest) -> web.StreamResponse:
        try:
            since_utc = parse_since(request.query.get("since", ""))
        except ValueError as error:
            raise refuse(str(error)) from None
        return build_answer({"outages": host.standing.ledger.read(since_utc)})

    async def say_capacity(_request: web.BaseRequest) -> web.StreamResponse:
        return build_answer(describe_capacity(host))

    async def say_health(_request: web.BaseRequest) -> web.StreamResponse:
        return build_answer(describe_health(host), 200 if host.is_ready else 503)

    async def say_metrics(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=build_metrics("retinue_sandbox_", read_metrics(host)), content_type="text/plain")

    return {
        "/v1/outages": {"GET": list_outages},
        "/v1/capacity": {"GET": say_capacity},
        "/health": {"GET": say_health},
        "/metrics": {"GET": say_metrics},
    }


def describe_capacity(host: Host) -> dict[str, Any]:
    """Say how much room there is, and for which images nothing has to be mounted."""
    return {
        "live": len(host.seats),
        "queued": host.admission.queued_count,
        "budget": host.budget.limits,
        "used": host.budget.used,
        "images": sorted({state.name for state in host.ground.images.describe()} if host.ground else ()),
        "creates": host.is_ready and not host.refusal and not host.admission.holds,
        "memory_available_bytes": host.memory.available_bytes,
    }


def describe_health(host: Host) -> dict[str, Any]:
    """Say whether sandboxes are served, and whether new ones are made."""
    causes = [host.refusal, *host.admission.holds.values()]
    return {
        "status": "ok" if host.is_ready else "not ready",
        "cause": "; ".join(filter(None, causes)) if host.is_ready else "no shard or node space runs yet",
        "creates": host.is_ready and not any(causes),
        "live": len(host.seats),
        "queued": host.admission.queued_count,
        "shards": [slot.pid if slot.is_ready.is_set() else 0 for slot in host.shards.slots],
    }


def build_fault(fault: Fault, settings: HostSettings) -> web.Response:
    """Build a typed error."""
    is_retryable = fault.retry_after_s is not None
    words = ErrorWords(
        fault.kind, str(fault), settings.service, settings.node, is_retryable, fault.cause, fault.position
    )
    response = build_answer(ErrorBody(words), fault.status)
    if fault.retry_after_s is not None:
        response.headers["Retry-After"] = str(fault.retry_after_s)
    if fault.kind == "infra_failed":
        response.headers["X-Retinue-Outcome"] = "infra_failed"
    if fault.status in (400, 404, 410, 413):
        # The rest of a body that was not read is not the next request.
        response.force_close()
    return response
