"""What several nodes answered, side by side: equal findings once, and every way in which the nodes differ. Pure."""

from collections.abc import Mapping, Sequence

from retinue.doctor.judgement import PROBES
from retinue.doctor.records import Facts, Finding, State
from retinue.terms.record import Record

WORST = (State.REFUSED, State.FALLBACK, State.OK)


class Row(Record, frozen=True):
    """One finding, and the nodes that have it."""

    finding: Finding
    nodes: tuple[str, ...]
    differs: bool = False
    """Another node has something else to say about the same probe and parts."""


class Difference(Record, frozen=True):
    """One thing that is not the same on all nodes."""

    what: str
    values: dict[str, tuple[str, ...]]
    """Value -> the nodes that have it; empty: a node has none."""


def build_rows(by_node: Mapping[str, Sequence[Finding]]) -> tuple[Row, ...]:
    """Put together what nodes have in common.

    Shape:  probes in their order, worst first within one; amounts in `saw` may differ, the first node's are shown.
    """
    groups: dict[tuple[object, ...], list[str]] = {}
    first: dict[tuple[object, ...], Finding] = {}
    ways: dict[str, set[tuple[object, ...]]] = {}
    for node, findings in by_node.items():
        said: dict[str, list[object]] = {}
        for finding in findings:
            key = (finding.probe, finding.parts, finding.state, finding.means, finding.remedy)
            groups.setdefault(key, []).append(node)
            first.setdefault(key, finding)
            said.setdefault(finding.probe, []).append(key)
        for probe, keys in said.items():
            ways.setdefault(probe, set()).add(tuple(keys))
    rows = [Row(first[key], tuple(nodes), len(ways[first[key].probe]) > 1) for key, nodes in groups.items()]
    return tuple(sorted(rows, key=lambda row: (PROBES.index(row.finding.probe), WORST.index(row.finding.state))))


def find_differences(by_node: Mapping[str, Facts]) -> tuple[Difference, ...]:
    """Name every setting, limit, version and trial that is not the same on all nodes."""
    described = {node: _describe(facts) for node, facts in by_node.items()}
    found = []
    for what in dict.fromkeys(name for values in described.values() for name in values):
        values: dict[str, tuple[str, ...]] = {}
        for node, known in described.items():
            value = known.get(what, "")
            values[value] = (*values.get(value, ()), node)
        if len(values) > 1:
            found.append(Difference(what, values))
    return tuple(found)


def _describe(facts: Facts) -> dict[str, str]:
    """What should be equal on the nodes of a partition; amounts that are free at the moment are not in it."""
    return {
        "kernel": facts.kernel,
        "system": facts.system,
        "python": facts.python,
        "security modules": facts.lsm,
        "control groups": facts.cgroup.version,
        "scratch": f"{facts.scratch.path} ({facts.scratch.kind})",
        "sandbox program": facts.runtime,
        **facts.settings,
        **{f"ulimit {name}": f"{soft}:{hard}" for name, (soft, hard) in facts.limits.items()},
        **{f"trial of {name}": "ok" if trial.is_ok else trial.text for name, trial in facts.trials.items()},
        **{name: facts.versions.get(name, path) for name, path in facts.programs.items()},
    }
