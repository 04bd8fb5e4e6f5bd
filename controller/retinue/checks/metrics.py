"""`GET /metrics`: the host's counts in Prometheus' text format."""

from collections.abc import Iterable

from retinue.checks.host import Host

Sample = tuple[dict[str, str], float]
Family = tuple[str, str, str, list[Sample]]


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
        *_build_single(single),
    ]


def _build_single(rows: Iterable[tuple[str, str, str, float]]) -> list[Family]:
    return [(name, kind, words, [({}, float(value))]) for name, kind, words, value in rows]


def build_metrics(families: Iterable[Family]) -> str:
    """Build the text.

    Source: prometheus.io/docs/instrumenting/exposition_formats.
    """
    lines = []
    for name, kind, words, samples in families:
        lines.append(f"# HELP retinue_checks_{name} {words}")
        lines.append(f"# TYPE retinue_checks_{name} {kind}")
        lines.extend(f"retinue_checks_{name}{_label(labels)} {value:.17g}" for labels, value in samples)
    return "\n".join(lines) + "\n"


def _label(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escape(value)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
