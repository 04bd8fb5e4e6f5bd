"""`retinue doctor` as a person gives it: what it prints, how it ends, and a real run asked through its controller."""

import json
import os
import subprocess
from pathlib import Path

from retinue.doctor.judgement import PROBES
from support.command import MANIFEST, private_scratch, retinue

NODE_LOCAL = [probe for probe in PROBES if probe != "clock"]


def read_findings(done: subprocess.CompletedProcess[str]) -> dict[str, set[str]]:
    """Probe -> the states it has."""
    [node] = json.loads(done.stdout)["nodes"]
    found: dict[str, set[str]] = {}
    for finding in node["findings"]:
        found.setdefault(finding["probe"], set()).add(finding["state"])
    return found


def test_the_exit_code_says_whether_something_is_refused_and_the_table_names_every_probe(tmp_path: Path) -> None:
    as_json, table = retinue("doctor", "--json", cwd=tmp_path), retinue("doctor", cwd=tmp_path)
    found = read_findings(as_json)
    assert list(found) == NODE_LOCAL
    is_refused = any("refused" in states for states in found.values())
    assert (as_json.returncode, table.returncode) == (int(is_refused), int(is_refused))
    first_words = [line.split()[0] for line in table.stdout.splitlines() if line.strip()]
    assert set(NODE_LOCAL) <= set(first_words)
    assert os.listdir(tmp_path) == []


def test_only_what_is_asked_for_decides(tmp_path: Path) -> None:
    env = {"SLURM_TMPDIR": str(tmp_path / "gone")}
    checks = retinue("doctor", "--for", "checks", "--json", cwd=tmp_path, env=env)
    run = retinue("doctor", "--for", "run", "--json", cwd=tmp_path, env=env)
    assert "scratch" not in read_findings(checks)
    assert checks.returncode == 0, checks.stdout
    assert read_findings(run)["scratch"] == {"refused"}
    assert run.returncode == 1
    assert retinue("doctor", "--for", "everything", cwd=tmp_path).returncode == 2


def test_nodes_of_nothing_are_a_usage_error(tmp_path: Path) -> None:
    done = retinue("doctor", "--nodes", cwd=tmp_path)
    assert done.returncode == 2
    assert "retinue: " in done.stderr


def test_every_node_of_a_run_answers_through_its_controller_and_nothing_of_it_stays(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(MANIFEST)
    with private_scratch() as scratch:
        env = {"SLURM_TMPDIR": str(scratch)}
        assert retinue("up", "run.yaml", cwd=tmp_path, env=env).returncode == 0
        try:
            done = retinue("doctor", "--nodes", "--json", cwd=tmp_path)
            [node] = json.loads(done.stdout)["nodes"]
            assert node["error"] == ""
            assert node["facts"]["scratch"]["path"] == str(scratch)
            assert {finding["probe"] for finding in node["findings"]} == set(PROBES)
            [clock] = [finding for finding in node["findings"] if finding["probe"] == "clock"]
            assert clock["state"] == "ok"
            assert [path for path in scratch.rglob("*") if path.name.startswith(("facts-", "retinue-doctor"))] == []
        finally:
            assert retinue("down", cwd=tmp_path, env=env).returncode == 0
        assert retinue("doctor", "--nodes", cwd=tmp_path).returncode == 5
        assert os.listdir(scratch) == []


SRUN = """#!/bin/sh
case "$1" in --version) echo "slurm-wlm 23.02.7"; exit 0;; esac
while [ "${1#-}" != "$1" ]; do shift; done
echo "srun: node n2 is being configured"
SLURMD_NODENAME=n1 "$@"
echo "slurmstepd: error: n2: no such python" >&2
exit 1
"""


def test_inside_a_job_without_a_run_one_step_asks_every_node_and_the_silent_one_is_named(tmp_path: Path) -> None:
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "srun").write_text(SRUN)
    (bin_dir / "srun").chmod(0o755)
    env = {"PATH": f"{bin_dir}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    done = retinue("doctor", "--nodes", "--json", cwd=tmp_path, env=env)
    one, two = json.loads(done.stdout)["nodes"]
    assert (one["node"], one["error"]) == ("n1", "")
    assert one["facts"]["job_id"] == "7"
    assert (two["node"], two["facts"]) == ("n2", None)
    assert "no such python" in two["error"]
    assert done.returncode == 1
    table = retinue("doctor", "--nodes", cwd=tmp_path, env=env)
    assert "n2 did not answer: slurmstepd: error: n2: no such python" in table.stdout
