"""What a submission says before and after it is sent: misspelt words, too little time, hosts, and where the job is."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_slurm import FakeSlurm

from support.command import private_scratch, retinue

SLEEP = {"command": ["sleep", "600"]}
GROUPS = {"train": {"count": 2}, "env": {"count": 1}}


class Desk:
    """Where a person submits from; sbatch takes everything as job 4711."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self.slurm = FakeSlurm(cwd)
        self.slurm.play("sbatch", "print('4711')")
        self.write(nodes=GROUPS)

    def write(self, **top: Any) -> None:
        manifest = {"retinue": 1, "run": {"name": "demo"}, "services": {"server": SLEEP}, **top}
        (self.cwd / "run.yaml").write_text(yaml.safe_dump(manifest))

    def give(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return retinue(*words, cwd=self.cwd, env={"PATH": self.slurm.path, **env})

    @property
    def run_dir(self) -> Path:
        return (self.cwd / "retinue-runs" / "submitted").resolve()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.mark.parametrize("options", [(), ("-n", "9"), ("-N1",)])
def test_a_misspelt_placeholder_is_refused_whatever_is_known_of_the_nodes(desk: Desk, options: tuple[str, ...]) -> None:
    done = desk.give("submit", "run.yaml", *options, "--", "srun", "-w", "{trian.nodelist}", "x")
    assert done.returncode == 2
    assert "cannot fill {trian.nodelist} in the trainer's command: did you mean {train.nodelist}?" in done.stderr
    assert desk.slurm.calls("sbatch") == []
    assert not (desk.cwd / "retinue-runs").exists()


def test_a_run_with_a_misspelt_placeholder_starts_nothing(desk: Desk) -> None:
    desk.write()
    with private_scratch() as scratch:
        done = desk.give("run", "run.yaml", "--", "echo", "{all.nodes}", SLURM_TMPDIR=str(scratch))
        assert list(scratch.iterdir()) == []
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean {all.nodelist}?" in done.stderr
    assert not (desk.cwd / "retinue-runs").exists()


def test_a_time_limit_that_the_drain_takes_up_is_a_note_and_a_longer_one_is_none(desk: Desk) -> None:
    short = desk.give("submit", "run.yaml", "-t2", "--dry-run", "--", "true")
    assert short.returncode == 0
    assert "note: the time limit is 120 s, and run.drain takes 120 s off its end" in short.stderr
    assert "time limit" not in desk.give("submit", "run.yaml", "-t", "4", "--dry-run", "--", "true").stderr


@pytest.mark.parametrize(
    ("hosts", "nodes"),
    [("n1", "#SBATCH --nodes=3"), ("n[1-2],n1", "#SBATCH --nodes=3"), ("n[1-3]", ""), ("n[1-4]", "")],
)
def test_hosts_that_are_fewer_than_the_groups_need_are_a_part_of_the_job(desk: Desk, hosts: str, nodes: str) -> None:
    done = desk.give("submit", "run.yaml", "-w", hosts, "--dry-run", "--", "true")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("#SBATCH --nodes")] == [nodes][: bool(nodes)]


def test_hosts_and_a_number_that_is_too_small_are_refused(desk: Desk) -> None:
    done = desk.give("submit", "run.yaml", "-N2", "--nodelist=n1", "--", "true")
    assert done.returncode == 4
    assert "2 nodes" in done.stderr


def test_a_job_that_waits_and_one_that_failed_are_told_of_by_every_command(desk: Desk) -> None:
    assert desk.give("submit", "run.yaml", "--", "true").returncode == 0
    assert json.loads((desk.run_dir / "job.json").read_text())["output"] == f"{desk.run_dir}/slurm-4711.out"
    for words in (("status",), ("why", "4711"), ("top", "--once"), ("logs", "server"), ("events",)):
        done = desk.give(*words)
        assert done.returncode == 2
        assert done.stderr.startswith("retinue: job 4711 is pending (submitted "), done.stderr
    (desk.run_dir / "slurm-4711.out").write_text("retinue: cannot find the trainer\n")
    assert "last: retinue: cannot find the trainer" in desk.give("status").stderr


@pytest.mark.parametrize(
    ("options", "output"),
    [(("-o", "x-%j.txt"), "x-4711.txt"), (("-D", "sub", "-o", "x.txt"), "sub/x.txt"), (("-o", "%x.txt"), "")],
)
def test_where_the_jobs_output_goes_is_written_down_where_it_can_be_known(
    desk: Desk, options: tuple[str, ...], output: str
) -> None:
    assert desk.give("submit", "run.yaml", *options, "--", "true").returncode == 0
    noted = json.loads((desk.run_dir / "job.json").read_text())["output"]
    assert noted == (str(desk.cwd / output) if output else "")


def test_an_older_run_is_shown_behind_a_note_about_the_job_that_was_sent_after_it(desk: Desk) -> None:
    desk.write()
    with private_scratch() as scratch:
        assert desk.give("run", "run.yaml", "--", "true", SLURM_TMPDIR=str(scratch)).returncode == 0
    assert desk.give("status").stderr == ""
    assert desk.give("submit", "run.yaml", "--", "true").returncode == 0
    for words in (("status",), ("why",), ("top", "--once")):
        done = desk.give(*words)
        assert done.returncode == 0
        assert done.stderr.startswith("note: job 4711 is pending")
        assert "what follows is about an older run" in done.stderr
        assert "ended" in done.stdout
    assert desk.give("status", "latest").stderr == ""
