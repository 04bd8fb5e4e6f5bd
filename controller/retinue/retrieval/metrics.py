"""`GET /metrics`: the host's counts in Prometheus' text format."""

from retinue.retrieval.host import Host
from retinue.serving.exposition import Family, build_single


def read_metrics(host: Host) -> list[Family]:
    """Read every family: name, kind, help, samples."""
    tally = host.tally
    passages = host.index.facts.passages if host.index is not None else 0
    return build_single(
        (
            ("queries_total", "counter", "Queries that were searched.", tally.queries),
            ("empty_total", "counter", "Queries that found no passage.", tally.empty),
            ("failed_total", "counter", "Queries that our side failed at.", tally.failed),
            ("refused_total", "counter", "Queries refused because the queue was full.", tally.refused),
            ("cancelled_total", "counter", "Queries whose caller went away.", tally.cancelled),
            ("search_seconds_total", "counter", "Time spent in searches.", tally.search_s),
            ("search_seconds_mean", "gauge", "Time of a search, lately.", tally.mean_s),
            ("queued", "gauge", "Queries that wait.", host.queued),
            ("running", "gauge", "Queries that are searched.", host.running),
            ("workers", "gauge", "Queries that are searched at once at most.", host.settings.workers),
            ("passages", "gauge", "Passages of the index.", passages),
            ("ready", "gauge", "1 while queries are answered.", host.is_ready),
        )
    )
