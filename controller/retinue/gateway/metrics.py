"""`GET /metrics`: what this gateway counts, in Prometheus' text format."""

from retinue.gateway.proxy import Proxy
from retinue.serving.exposition import Family, build_metrics, build_single

PREFIX = "retinue_gateway_"


def say_metrics(proxy: Proxy) -> str:
    """Say all counts of this gateway."""
    return build_metrics(PREFIX, [*_read_single(proxy), *_read_services(proxy)])


def _read_single(proxy: Proxy) -> list[Family]:
    counts, epoch = proxy.counts, proxy.table.epoch
    return build_single(
        (
            ("requests_total", "counter", "Requests that arrived for a service.", counts.requests),
            (
                "failed_total",
                "counter",
                "Requests that ended in a typed error of our side, or were cut off.",
                counts.failed,
            ),
            ("retried_total", "counter", "Times a request was sent again.", counts.retried),
            ("held_total", "counter", "Requests that had to wait for a backend.", counts.held),
            (
                "far_total",
                "counter",
                "Requests that other nodes' gateways sent here for replicas of this node.",
                counts.far,
            ),
            ("held", "gauge", "Requests that wait for a backend.", proxy.room.count),
            ("replay_bytes", "gauge", "Bytes of request bodies kept for sending again.", proxy.budget.used_bytes),
            (
                "membership_epoch",
                "gauge",
                "Epoch of the last membership; -1 before the first.",
                -1 if epoch is None else epoch,
            ),
        )
    )


def _read_services(proxy: Proxy) -> list[Family]:
    table, names = proxy.table, list(proxy.table.services)
    slots = [slot for service in table.services.values() for slot in service.slots]
    usable = {name: sum(slot.is_trusted for slot in service.slots) for name, service in table.services.items()}
    waiting = {name: proxy.room.count_waiting(name) for name in names}
    kept = {name: proxy.budget.count_bytes(name) for name in names}
    flights = {name: table.in_flight.get(name, 0) for name in names}
    return [
        _label("in_flight", "Requests at a backend.", flights),
        _label("backends_usable", "Backends that are neither left out nor on trial.", usable),
        _label("service_held", "Requests that wait for a backend of the service.", waiting),
        _label("service_replay_bytes", "Bytes of the service's request bodies kept for sending again.", kept),
        (
            "replica_in_flight",
            "gauge",
            "Requests at one replica, as this gateway sees it.",
            [({"service": slot.service, "replica": slot.backend.replica}, float(slot.in_flight)) for slot in slots],
        ),
    ]


def _label(name: str, words: str, values: dict[str, int]) -> Family:
    return name, "gauge", words, [({"service": service}, float(value)) for service, value in values.items()]
