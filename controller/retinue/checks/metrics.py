"""`GET /metrics`: the host's counts in Prometheus' text format."""

from retinue.checks.host import Host
from retinue.serving.exposition import Family, build_single


def read_metrics(host: Host) -> list[Family]:
    """Read every family: name, kind, help, samples."""
    tally = host.tally
    outcomes = [
        ({"verifier": verifier, "outcome": outcome}, float(count))
        for (verifier, outcome), count in sorted(tally.outcomes.items())
    ]
    rates = [({"verifier": name}, tally.rates.rate(name)) for name in sorted(host.settings.config.verifiers)]
    single = (
        ("refused_total", "counter", "Checks refused because the queue was full.", tally.refused),
        ("cancelled_total", "counter", "Checks whose caller went away.", tally.cancelled),
        ("retried_alone_total", "counter", "Responses judged again because the first end was not explained.",
         tally.retried_alone),
        ("wall_seconds_total", "counter", "Wall time of all checks.", tally.wall_s),
        ("cpu_seconds_total", "counter", "CPU time of all checks.", tally.cpu_s),
        ("queued", "gauge", "Checks that wait.", host.queued_count),
        ("running", "gauge", "Checks that run, slow ones too.", host.running_count),
        ("workers", "gauge", "Slots.", host.settings.workers),
        ("suspects", "gauge", "Checks that wait to be judged alone.", len(host.quarantine)),
        ("spares", "gauge", "Children that wait for a check.", host.nursery.spare_count),
        ("warm_launches_total", "counter", "Launches of the warm parent.", host.nursery.launches),
        ("ready", "gauge", "1 while checks are answered.", host.nursery.is_ready),
        ("node_short", "gauge", "1 while the node is short and wall limits stretch.", host.watch.pressure.is_short),
        ("loop_lag_seconds", "gauge", "How late the last tick of the own loop was.", host.watch.lag_s),
    )  # fmt: skip
    warned = [
        ({"verifier": name}, float(name in tally.rates.warned)) for name in sorted(host.settings.config.verifiers)
    ]
    return [
        ("outcomes_total", "counter", "Checks by verifier and outcome.", outcomes),
        ("verifier_error_ratio", "gauge", "Share of a verifier's last 50 checks on which it raised.", rates),
        ("verifier_suspect", "gauge", "1 while that share is above 0.2.", warned),
        *build_single(single),
    ]
