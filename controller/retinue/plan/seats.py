"""What a launch owes to its node: filled in when a replica is placed, and again when it is moved.

Knows no manifest: the controller moves replicas and reads plans only.
"""

from retinue.plan.expand import expand, find_placeholders
from retinue.terms.launch import LaunchSpec
from retinue.terms.record import replace

NODE_KEEP = frozenset({"port", "host", "node_dir", "python", "inner_port"})
"""Placeholders that only the node can fill."""


def place_launch(launch: LaunchSpec, node: str, gpus: tuple[int, ...]) -> LaunchSpec:
    """Fill {node} and the devices of a launch."""
    known = {"node": node}
    return replace(
        launch,
        argv=tuple(expand(word, known, NODE_KEEP) for word in launch.argv),
        env={key: expand(value, known, NODE_KEEP) for key, value in launch.env.items()},
        probes=tuple(
            replace(probe, exec_argv=tuple(expand(word, known, NODE_KEEP) for word in probe.exec_argv))
            for probe in launch.probes
        ),
        gpus=gpus,
    )


def has_node_placeholder(launch: LaunchSpec) -> bool:
    """Tell whether a launch mentions its node, so that another place gives another launch."""
    texts = [*launch.argv, *launch.env.values(), *(word for probe in launch.probes for word in probe.exec_argv)]
    return any("node" in find_placeholders(text) for text in texts)
