"""`node --prove RUN_ID`: the second, short step at the end of a run, on nodes whose outer process gave no report.

Slurm kills all of a step at once when its srun is killed, and a node may lose its outer process in other ways. What
is left there of the run is ended and removed, and the same line printed that an outer process prints. Needs nothing
of the first step but the run's id. Standard library and records only.
"""

import os
import time
from pathlib import Path

from retinue.node.census import LAUNCH_TAG, RUN_ID, Census, build_census, build_tags, find_left, kill_left
from retinue.node.entry import find_node_name
from retinue.node.nodedir import CONTROLLER, find_node_dir, remove_node_dir
from retinue.node.report import NodeReport, print_report
from retinue.node.scan import find_ancestors, read_processes
from retinue.node.wakeup import reap_children

RUNG = "tag"
"""How what was left was found: by the environment that all of the run carries."""
_SETTLE_S = 3.0
"""An outer process or a janitor may be at work: it knows more than a scan does."""
_KILL_S = 4.0
_LOOK_S = 0.05


def prove_node(run_id: str) -> int:
    """End what the run has left on this node, remove its directory, and report; 0 when nothing is left."""
    node = find_node_name(Path(), os.environ)
    node_dir = find_node_dir(os.environ, run_id)
    censuses = _build_censuses(node, node_dir, run_id)
    _wait_for_others(censuses, node_dir)
    ended = set().union(*map(find_left, censuses))
    left = sorted({pid for census in censuses for pid in kill_left(census, _reap, _KILL_S)})
    stuck = remove_node_dir(node_dir)
    notes = ["it gave no report; asked by a second step", f"{len(ended)} processes were left" if ended else "", *stuck]
    note = "; ".join(part for part in notes if part)
    print_report(NodeReport(node, not left and not stuck, RUNG, tuple(left), note))
    return 1 if left or stuck else 0


def _build_censuses(node: str, node_dir: Path, run_id: str) -> tuple[Census, ...]:
    """Say what belongs to the run here: first the processes that kept the node, then all they and the trainer started.

    On the batch host the stub ends what the trainer left, and names it.
    """
    spared = tuple(find_ancestors(read_processes(), os.getpid()))
    is_batch_host = (node_dir / CONTROLLER).exists()
    tags = build_tags(run_id, node) if is_batch_host else {RUN_ID: run_id}
    return build_census({LAUNCH_TAG: run_id}, spared), build_census(tags, spared)


def _wait_for_others(censuses: tuple[Census, ...], node_dir: Path) -> None:
    until_s = time.monotonic() + _SETTLE_S
    while time.monotonic() < until_s and any(map(find_left, censuses)):
        time.sleep(_LOOK_S)


def _reap() -> None:
    for _ in reap_children():
        pass
