"""A node that cannot take part is refused by its name at the start: exit 5, nothing started, nothing left.

All runs stand side by side; each has one node on which one thing is wrong.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import retinue
from support.cluster import Cluster
from support.cluster_clean import assert_nothing_left
from support.slurm_run import SMALL, SlurmRun, server_service

BAD = "node3"
SERVICES = {"web": server_service(per_node="all")}
PACKAGE = Path(retinue.__file__).parent


@dataclass
class Refused:
    run: SlurmRun
    verdict: dict[str, Any]
    output: str


def build_run(cluster: Cluster, name: str, **run: Any) -> SlurmRun:
    made = SlurmRun(cluster, name, services=SERVICES)
    lines = "".join(f"\n  {key}: {value}" for key, value in run.items())
    made.manifest.write_text(made.manifest.read_text().replace(f"name: {name}", f"name: {name}{lines}"))
    return made


def give_other_version(cluster: Cluster) -> None:
    """The bad node sees a copy of the package that says another version."""
    copy = cluster.scratch / "other" / "__init__.py"
    copy.parent.mkdir()
    copy.write_text((PACKAGE / "__init__.py").read_text().replace(retinue.__version__, "0.0.1"))
    cluster.shadow(copy, PACKAGE / "__init__.py", BAD)


def build_python(cluster: Cluster, name: str) -> Path:
    """A path of its own to this interpreter, so that hiding it on a node hurts one run only."""
    bin_dir = cluster.scratch / name / "bin"
    bin_dir.mkdir(parents=True)
    (bin_dir / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (bin_dir / "python").chmod(0o755)
    return bin_dir / "python"


def hide_python(cluster: Cluster, python: Path) -> None:
    empty = cluster.scratch / "empty"
    empty.mkdir()
    cluster.shadow(empty, python.parent, BAD)


def submit_private(cluster: Cluster) -> SlurmRun:
    """A run directory below /tmp, which each node has for itself."""
    run = build_run(cluster, "private")
    run.run_dir = Path("/tmp") / f"private-{cluster.scratch.name}"
    keep = f"mkdir -p {run.place}/run; trap 'cp -r {run.run_dir}/. {run.place}/run/; rm -r {run.run_dir}' EXIT"
    command = f"{sys.executable} -P -m retinue run --run-dir {run.run_dir} {run.manifest} -- true"
    run.job = cluster.sbatch("-N2", f"-wnode1,{BAD}", *SMALL, script=f"cd {run.place}; {keep}; {command}")
    return run


@pytest.fixture(scope="module")
def refused(module_cluster: Cluster) -> dict[str, Refused]:
    cluster = module_cluster
    where = ("-N3", "-wnode[1-3]", *SMALL)
    runs = {"private": submit_private(cluster)}
    python = build_python(cluster, "pythons")
    hide_python(cluster, python)
    runs["missing"] = build_run(cluster, "missing")
    runs["missing"].manifest.write_text(runs["missing"].manifest.read_text() + f"launch: {{python: {python}}}\n")
    runs["missing"].submit(*where)
    ends = {name: over(run) for name, run in runs.items()}
    give_other_version(cluster)
    runs["version"] = build_run(cluster, "version").submit(*where)
    ends["version"] = over(runs["version"])
    cluster.ask("unshadow", BAD)
    return ends


def over(run: SlurmRun) -> Refused:
    run.cluster.wait_job(run.job)
    if not run.verdict():
        run.run_dir = run.place / "run"
    return Refused(run, run.verdict(), run.output())


SAYS = {
    "private": "does not see the run directory",
    "missing": "No such file or directory",
    "version": "has retinue 0.0.1",
}


@pytest.mark.parametrize("name", SAYS)
def test_a_node_that_cannot_take_part_is_named_and_nothing_is_left(refused: dict[str, Refused], name: str) -> None:
    verdict, said = refused[name].verdict, SAYS[name]
    assert (verdict["ended_by"], verdict["exit_code"]) == ("not_ready", 5), refused[name].output
    assert said in verdict["cause"], verdict["cause"]
    assert BAD in verdict["cause"], verdict["cause"]
    assert not verdict["trainer"] or not verdict["trainer"]["was_started"]
    assert all(service["incarnations"] == 0 for service in verdict["services"].values())
    assert BAD in refused[name].output
    assert_nothing_left(refused[name].run.cluster, refused[name].run.run_dir)


def test_a_node_that_does_not_join_in_time_is_named(module_cluster: Cluster) -> None:
    python = build_python(module_cluster, "slow")
    slow = module_cluster.scratch / "slow-python"
    slow.mkdir()
    # An interpreter that never gets anywhere: as on a file system that hangs.
    (slow / "python").write_text("#!/bin/sh\nexec sleep 100\n")
    (slow / "python").chmod(0o755)
    module_cluster.shadow(slow, python.parent, BAD)
    run = build_run(module_cluster, "late", join_timeout="4s")
    run.manifest.write_text(run.manifest.read_text() + f"launch: {{python: {python}}}\n")
    run.submit("-N3", "-wnode[1-3]", *SMALL)
    end = over(run)
    assert (end.verdict["ended_by"], end.verdict["exit_code"]) == ("not_ready", 5), end.output
    assert end.verdict["cause"] == f"did not join within 4 s: {BAD}"
    assert_nothing_left(module_cluster, run.run_dir)
    shutil.rmtree(slow)
