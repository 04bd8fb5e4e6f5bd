"""`GET /metrics`: the host's counts in Prometheus' text format."""

from retinue.sandbox.host import Host
from retinue.serving.exposition import Family, Sample, build_single


def read_metrics(host: Host) -> list[Family]:
    """Read every family: name, kind, help, samples."""
    standing, used, limits = host.standing, host.budget.used, host.budget.limits
    single = (
        ("created_total", "counter", "Sandboxes that were made.", standing.counts["created"]),
        ("expired_total", "counter", "Sandboxes whose lease ran out.", standing.counts["expired"]),
        ("late_total", "counter", "Sandboxes that the kernel had not ended 5 s after their destroy.",
         standing.counts["late"]),
        ("refused_total", "counter", "Creates answered 429.", host.admission.refused_count),
        ("wait_seconds_total", "counter", "Time that creates waited for room.", standing.wait_s),
        ("start_seconds_total", "counter", "Time that creates took otherwise.", standing.start_s),
        ("live", "gauge", "Sandboxes that are there.", len(host.seats)),
        ("queued", "gauge", "Creates that wait.", host.admission.queued_count),
        ("zygotes", "gauge", "Zygotes that run.", host.ground.zygote_count if host.ground else 0),
        ("ready", "gauge", "1 while sandboxes can be made, given room.", host.is_ready),
        ("creates_stopped", "gauge", "1 while none is made, whatever room there is.",
         bool(host.refusal or host.admission.holds)),
        ("memory_available_bytes", "gauge", "Of the node, as last seen.", host.memory.available_bytes),
        ("shard_launches_total", "counter", "Launches of shard processes.",
         sum(slot.launches for slot in host.shards.slots)),
    )  # fmt: skip
    parts = ("count", "memory_bytes", "process_count")
    return [
        *build_single(single),
        ("lost_total", "counter", "Sandboxes lost by our fault.", _label_all("cause", standing.lost)),
        ("budget", "gauge", "What sandboxes may take together.",
         [({"part": part}, float(getattr(limits, part))) for part in parts]),
        ("budget_used", "gauge", "What they have taken, by their limits.",
         [({"part": part}, float(getattr(used, part))) for part in parts]),
        ("shard_live", "gauge", "Sandboxes of each shard.",
         [({"shard": str(slot.index)}, float(slot.live_count)) for slot in host.shards.slots]),
    ]  # fmt: skip


def _label_all(label: str, counts: dict[str, int]) -> list[Sample]:
    return [({label: name}, float(count)) for name, count in sorted(counts.items())]
