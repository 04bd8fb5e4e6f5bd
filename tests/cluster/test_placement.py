"""Groups, replicas and GPUs land where the plan says, and an unmodified trainer step starts beside them."""

import json
import sys

import pytest

from support.cluster import Cluster
from support.cluster_clean import assert_nothing_left

MANIFEST = """\
retinue: 1
run: {name: placed}
nodes: {train: {count: 2}, env: {count: rest}}
trainer: {on: train}
services:
  two:
    command: [bash, -c, 'echo $(hostname) $CUDA_VISIBLE_DEVICES > SEEN/two-{index}; exec sleep 1000']
    replicas: 4
    place: {on: env, gpus: 2}
  each:
    command: [bash, -c, 'echo $(hostname) $CUDA_VISIBLE_DEVICES > SEEN/each-{index}; exec sleep 1000']
    per_node: all
  packed:
    command: [bash, -c, 'echo $(hostname) $CUDA_VISIBLE_DEVICES > SEEN/packed-{index}; exec sleep 1000']
    replicas: 3
    place: {on: train, gpus: 1, share_gpus: true, strategy: pack}
"""
WAIT_FOR_FILES = "until [ $(ls {seen} | wc -l) = 11 ]; do :; done"
STEP = """srun --immediate=2 -w $RETINUE_NODELIST_TRAIN -N $RETINUE_NNODES_TRAIN --gres=gpu:4 \\
  bash -c 'echo trainer $(hostname) $CUDA_VISIBLE_DEVICES'"""


@pytest.fixture
def seen(cluster: Cluster) -> dict[str, list[str]]:
    """What each replica and the trainer's step saw: name -> [host, devices]."""
    place = cluster.scratch / "seen"
    place.mkdir()
    (cluster.scratch / "run.yaml").write_text(MANIFEST.replace("SEEN", str(place)))
    trainer = f"{WAIT_FOR_FILES.format(seen=place)}; {STEP}; squeue -h -s -j $SLURM_JOB_ID -o 'step %i %j'"
    run_dir = cluster.scratch / "run"
    (cluster.scratch / "trainer.sh").write_text(trainer)
    run = f"exec {sys.executable} -m retinue run --run-dir {run_dir} run.yaml -- bash trainer.sh"
    job = cluster.sbatch("-N4", "--gres=gpu:4", script=f"cd {cluster.scratch}; {run}")
    assert cluster.wait_job(job)["JobState"] == "COMPLETED", cluster.output(job)
    assert json.loads((run_dir / "current" / "verdict.json").read_text())["clean"] == "true"
    assert_nothing_left(cluster, run_dir)
    found = {path.name: path.read_text().split() for path in place.iterdir()}
    for line in cluster.output(job).splitlines():
        if line.startswith("trainer "):
            found[f"trainer {line.split()[1]}"] = line.split()[1:]
        if line.startswith("step "):
            found.setdefault("steps", []).append(line.removeprefix("step "))
    return found


def test_groups_replicas_and_gpus_land_where_the_plan_says(seen: dict[str, list[str]]) -> None:
    two = [tuple(seen[f"two-{index}"]) for index in range(4)]
    assert sorted(two) == [("node3", "0,1"), ("node3", "2,3"), ("node4", "0,1"), ("node4", "2,3")]
    # A service that asked for none sees none: it cannot take the trainer's by mistake.
    assert sorted(seen[f"each-{index}"][0] for index in range(4)) == ["node1", "node2", "node3", "node4"]
    assert all(len(seen[f"each-{index}"]) == 1 for index in range(4))
    assert {seen[f"packed-{index}"][0] for index in range(3)} == {"node1"}
    assert seen["trainer node1"][1] == seen["trainer node2"][1] == "0,1,2,3"
    ours = [step for step in seen["steps"] if step.endswith(" retinue")]
    assert len(ours) == 1
