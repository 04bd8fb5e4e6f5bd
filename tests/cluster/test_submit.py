"""`retinue submit` on a real Slurm: what the job is, what it must not inherit, and being queued again."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from retinue.manifest.files import find_shipped
from support.cluster import Cluster, wait_for
from support.cluster_clean import assert_nothing_left

SPY = [
    sys.executable,
    "-c",
    "import json, os, time; json.dump(dict(os.environ), open('service.json', 'w')); time.sleep(9e3)",
]
TWO_GROUPS = {
    "nodes": {"train": {"count": 1}, "env": {"count": 1}},
    "trainer": {"on": "train", "stop": {"grace": "2s"}},
}
QUEUE_S = 150.0
"""A job that is queued again begins only when the credential of its last attempt has expired."""


class Desk:
    """A project directory on `login`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.cwd = cluster.scratch / "project"
        self.cwd.mkdir()
        self.run_dir = self.cwd / "retinue-runs" / "r"

    def write(self, run: dict[str, Any] | None = None, **top: Any) -> None:
        services = {"spy": {"command": SPY, "place": {"on": "env"}, "stop": {"grace": "2s"}}}
        manifest = {"retinue": 1, "run": {"name": "demo", **(run or {})}, "services": services, **TWO_GROUPS, **top}
        (self.cwd / "run.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))

    def submit(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-P", "-m", "retinue", "submit", "run.yaml", "--run-dir", str(self.run_dir), *words]
        done = subprocess.run(
            argv, cwd=self.cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=200
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def send(self, *words: str, **env: str) -> str:
        """Submit, and return the job's number."""
        done = self.submit(*words, **env)
        assert done.returncode == 0, done.stderr
        return done.stdout.split("submitted job ")[1].split()[0]

    def verdict(self, attempt: int = 0) -> dict[str, Any]:
        path = self.run_dir / f"attempt-{attempt}" / "verdict.json"
        verdict: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return verdict

    def read(self, name: str) -> dict[str, str]:
        said: dict[str, str] = json.loads((self.cwd / name).read_text())
        return said

    def output(self, job: str) -> str:
        return (self.run_dir / f"slurm-{job}.out").read_text()


@pytest.fixture
def desk(cluster: Cluster) -> Desk:
    desk = Desk(cluster)
    desk.write()
    return desk


def write_environ(name: str) -> list[str]:
    return [sys.executable, "-c", f"import json, os; json.dump(dict(os.environ), open({name!r}, 'w'))"]


def test_a_submitted_run_has_the_nodes_its_manifest_needs_and_leaves_nothing(desk: Desk) -> None:
    job = desk.send("--time=10", "--", "srun", "-w", "{train.nodelist}", "bash", "-c", "echo on $(hostname)")
    fields = desk.cluster.wait_job(job, "COMPLETED")
    assert (fields["NumNodes"], fields["JobName"], fields["TimeLimit"]) == ("2", "demo", "00:10:00")
    assert f"on {fields['BatchHost']}\n" in desk.output(job)
    verdict = desk.verdict()
    assert (verdict["ended_by"], verdict["exit_code"], verdict["clean"]) == ("trainer", 0, "true")
    assert len(verdict["nodes"]) == 2
    assert_nothing_left(desk.cluster, desk.run_dir)


def test_a_dry_run_queues_nothing_and_its_script_is_one_that_sbatch_takes(desk: Desk) -> None:
    done = desk.submit("--dry-run", "--", "true")
    assert desk.cluster.call("squeue", "-h") == ""
    assert not desk.run_dir.exists()
    script = desk.cluster.scratch / "dry.sbatch"
    script.write_text(done.stdout)
    desk.cluster.call("sbatch", "--test-only", str(script))


def test_the_script_that_people_copy_runs_with_its_lines_as_they_are(desk: Desk) -> None:
    copied = (find_shipped("sbatch") / "retinue.sbatch").read_text()
    copied = copied.replace("exec retinue", f"exec {sys.executable} -P -m retinue").replace(
        "python train.py", "hostname"
    )
    # This cluster's nodes are smaller, and its partition shorter.
    copied = copied.replace("--gpus-per-node=8", "--gpus-per-node=4").replace("--time=24:00:00", "--time=10")
    (desk.cwd / "mine.sbatch").write_text(copied)
    env = {**os.environ, "SLURM_CPU_BIND": "cores", "RETINUE_RUN_ID": "outer"}
    sent = subprocess.run(
        ["sbatch", "--parsable", "mine.sbatch"], cwd=desk.cwd, env=env, capture_output=True, text=True
    )
    assert sent.returncode == 0, sent.stderr
    fields = desk.cluster.wait_job(sent.stdout.strip(), "COMPLETED")
    assert (fields["NumNodes"], fields["JobName"], fields["TimeLimit"]) == ("2", "my-run", "00:10:00")
    # The group `train` begins at the batch host.
    assert fields["BatchHost"] in (desk.cwd / f"slurm-{sent.stdout.strip()}.out").read_text().split()


def test_values_with_commas_and_newlines_arrive(desk: Desk) -> None:
    desk.write(nodes={}, trainer={}, services={"idle": {"command": ["sleep", "9000"]}})
    export = "--export=ALL,COMMAS='one,two',LINES=a\nb"
    job = desk.send(export, "--", *write_environ("trainer.json"))
    desk.cluster.wait_job(job, "COMPLETED")
    env = desk.read("trainer.json")
    assert (env["COMMAS"].strip("'"), env["LINES"]) == ("one,two", "a\nb")
    assert "one,two" not in (desk.run_dir / "submit.sbatch").read_text()


def test_a_binding_that_leaks_into_the_batch_script_pins_no_service_and_stays_the_trainers(desk: Desk) -> None:
    # A service without a port is ready when started: it may not have written its file by then.
    write = f"until [ -s service.json ]; do sleep 0.1; done; exec {shlex.join(write_environ('trainer.json'))}"
    job = desk.send("--export=ALL,SLURM_CPU_BIND=cores,SLURM_LABELIO=1", "--", "bash", "-c", write)
    desk.cluster.wait_job(job, "COMPLETED")
    assert [name for name in desk.read("service.json") if name.startswith(("SLURM_", "PMI"))] == []
    assert desk.read("trainer.json")["SLURM_CPU_BIND"] == "cores"
    # A labelled step would have made the nodes' reports unreadable.
    assert desk.verdict()["clean"] == "true"


def test_a_job_sent_from_inside_another_is_none_of_it(desk: Desk) -> None:
    desk.write(nodes={}, trainer={}, services={"idle": {"command": ["sleep", "9000"]}})
    words = ["--run-dir", str(desk.run_dir), "--wait", "-N1", "--", *write_environ("inner.json")]
    inner = " ".join(f"'{word}'" for word in [sys.executable, "-P", "-m", "retinue", "submit", "run.yaml"])
    script = (
        f"cd {desk.cwd}\nexport RETINUE_RUN_ID=outer SLURM_RESTART_COUNT=3\n{inner} {subprocess.list2cmdline(words)}"
    )
    outer = desk.cluster.sbatch("-N2", "--ntasks-per-node=1", "--gres=gpu:4", "-c", "2", script=script)
    assert desk.cluster.wait_job(outer)["JobState"] == "COMPLETED", desk.cluster.output(outer)
    assert "left out of the job's environment" in desk.cluster.output(outer)
    env = desk.read("inner.json")
    assert env["SLURM_JOB_ID"] != outer
    assert (env["RETINUE_ATTEMPT"], env["SLURM_JOB_NUM_NODES"]) == ("0", "1")
    assert {name for name in env if "GPU" in name or name.startswith("SLURM_NTASKS")} == set()
    assert env["RETINUE_RUN_ID"] != "outer"
    assert desk.verdict()["clean"] == "true"


# --- queued again -----------------------------------------------------------------------------

TRAINER = "echo attempt $RETINUE_ATTEMPT; exec sleep 9000"


def wait_verdict(desk: Desk, attempt: int) -> dict[str, Any]:
    found: dict[str, Any] = wait_for(f"the verdict of attempt {attempt}", lambda: desk.verdict(attempt), QUEUE_S)
    return found


def wait_output(desk: Desk, job: str, text: str) -> None:
    path = desk.run_dir / f"slurm-{job}.out"
    wait_for(f"{text!r} in the job's output", lambda: path.exists() and text in path.read_text(), QUEUE_S)


def test_a_run_that_time_ends_is_queued_again_as_often_as_its_policy_says(desk: Desk) -> None:
    desk.write(run={"requeue": {"on": ["timeout"], "max": 1}})
    job = desk.send("--", "bash", "-c", TRAINER)
    wait_output(desk, job, "attempt 0\n")
    # What --signal=B:USR2@N does some time before the limit, without waiting for it.
    desk.cluster.call("scancel", "--batch", "--signal=USR2", job)
    first = wait_verdict(desk, 0)
    assert (first["ended_by"], first["requeued"], first["clean"]) == ("timeout", True, "true")
    assert "attempt 1 of 1" in first["requeue"]
    wait_output(desk, job, "attempt 1\n")
    assert desk.cluster.job(job)["Restarts"] == "1"
    desk.cluster.call("scancel", "--batch", "--signal=USR2", job)
    second = wait_verdict(desk, 1)
    assert (second["ended_by"], second["requeued"], second["clean"]) == ("timeout", False, "true")
    assert desk.cluster.wait_job(job)["Restarts"] == "1"
    assert Path(os.readlink(desk.run_dir / "current")) == Path("attempt-1")
    assert_nothing_left(desk.cluster, desk.run_dir)


def test_a_run_that_is_preempted_is_queued_again_once_and_goes_on(desk: Desk) -> None:
    desk.write(run={"requeue": {"on": ["preempted"], "max": 3}})
    job = desk.send("-p", "low", "--exclusive", "-N4", "--", "bash", "-c", TRAINER)
    wait_output(desk, job, "attempt 0\n")
    high = desk.cluster.sbatch("-p", "high", "-N4", "--exclusive", script="true")
    first = wait_verdict(desk, 0)
    assert (first["ended_by"], first["requeued"]) == ("preempted", True)
    desk.cluster.wait_job(high, "COMPLETED", patience_s=QUEUE_S)
    wait_output(desk, job, "attempt 1\n")
    assert desk.cluster.job(job)["Restarts"] == "1"
    desk.cluster.call("scancel", job)
    last = wait_verdict(desk, 1)
    assert (last["ended_by"], last["requeued"]) == ("signal", False)
    assert "final" in last["requeue"]
