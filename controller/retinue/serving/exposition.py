"""Prometheus' text format, as the services' `GET /metrics` answer it. Pure."""

from collections.abc import Iterable

Sample = tuple[dict[str, str], float]
Family = tuple[str, str, str, list[Sample]]
"""Name without its prefix, kind, help, samples."""


def build_single(rows: Iterable[tuple[str, str, str, float]]) -> list[Family]:
    """Build families of one sample without labels."""
    return [(name, kind, words, [({}, float(value))]) for name, kind, words, value in rows]


def build_metrics(prefix: str, families: Iterable[Family]) -> str:
    """Build the text; every name begins with the prefix.

    Source: prometheus.io/docs/instrumenting/exposition_formats.
    """
    lines = []
    for name, kind, words, samples in families:
        lines.append(f"# HELP {prefix}{name} {words}")
        lines.append(f"# TYPE {prefix}{name} {kind}")
        lines.extend(f"{prefix}{name}{_label(labels)} {value:.17g}" for labels, value in samples)
    return "\n".join(lines) + "\n"


def _label(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escape(value)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
