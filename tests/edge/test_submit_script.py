"""`retinue submit` with a stand-in for sbatch: what is written, sent, refused, and left behind."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_slurm import FakeSlurm

from support.command import private_scratch, retinue
from support.real_run import read_environs

SLEEP = {"command": ["sleep", "600"]}
JUDGE = {"command": ["sleep", "600"], "replicas": 2, "place": {"on": "env", "gpus": 4}}


class Desk:
    """Where a person submits from."""

    def __init__(self, directory: Path, slurm: FakeSlurm) -> None:
        self.cwd = directory / "my project"
        self.cwd.mkdir()
        self.slurm = slurm
        self.slurm.play("sbatch", "print('4711')")
        self.write(services={"server": SLEEP})

    def write(self, **top: Any) -> None:
        manifest = {"retinue": 1, "run": {"name": "demo"}, **top}
        (self.cwd / "run.yaml").write_text(yaml.safe_dump(manifest))

    def submit(self, *words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": self.slurm.path, **env}
        return retinue("submit", "run.yaml", *words, cwd=self.cwd, env=env)

    def sent(self) -> dict[str, Any]:
        [call] = self.slurm.calls("sbatch")
        return call

    def run_dir(self) -> Path:
        # `latest` is a link to it.
        [run_dir] = [path for path in (self.cwd / "retinue-runs").iterdir() if not path.is_symlink()]
        return run_dir

    def look(self) -> list[str]:
        return sorted(str(path.relative_to(self.cwd)) for path in self.cwd.rglob("*"))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, FakeSlurm(tmp_path))


def read_lines(script: str) -> list[str]:
    """The #SBATCH lines."""
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]


def test_a_job_is_sent_with_its_script_and_its_manifest_in_a_new_run_directory(desk: Desk) -> None:
    done = desk.submit("-N1", "--time=2:00:00", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    run_dir = desk.run_dir()
    assert re.fullmatch(r"demo-\d{8}-\d{6}", run_dir.name)
    assert oct(run_dir.stat().st_mode & 0o777) == "0o700"
    assert sorted(path.name for path in run_dir.iterdir()) == ["job.json", "manifest.yaml", "submit.sbatch"]
    script = str(run_dir / "submit.sbatch")
    # A path with a blank cannot be an #SBATCH line.
    output = f"--output={run_dir}/slurm-%j.out"
    assert desk.sent()["argv"][1:] == ["--parsable", output, "-N1", "--time=2:00:00", script]
    assert "4711" in done.stdout
    assert str(run_dir) in done.stdout


def test_a_value_with_commas_newlines_and_quotes_reaches_sbatch_as_it_is_and_is_shown_nowhere(desk: Desk) -> None:
    export = "--export=ALL,SECRET='a,b',\nX=1"
    done = desk.submit(export, "--comment", "two\nlines", "--", "true")
    assert desk.sent()["argv"][3:6] == [export, "--comment", "two\nlines"]
    written = "".join(path.read_text() for path in desk.run_dir().iterdir())
    assert "'a,b'" not in done.stdout + done.stderr + written


def test_dry_run_prints_the_script_and_leaves_nothing(desk: Desk) -> None:
    before = desk.look()
    for words in (("--dry-run", "--", "python", "x y"), ("-N1", "--dry-run", "--", "python", "x y")):
        done = desk.submit(*words)
        assert done.returncode == 0
        assert done.stdout.startswith("#!/bin/bash\n")
        assert "-- python 'x y'\n" in done.stdout
    assert retinue("submit", "--dry-run", "run.yaml", "--", "true", cwd=desk.cwd).returncode == 0
    assert desk.slurm.calls("sbatch") == []
    assert desk.look() == before


def test_the_manifests_needs_become_options_with_their_reasons_unless_mine_say_otherwise(desk: Desk) -> None:
    desk.write(
        run={"name": "demo", "drain": "90s", "requeue": {"on": ["timeout"]}},
        nodes={"train": {"count": 2}, "env": {"count": 1}},
        trainer={"on": "train"},
        services={"judge": JUDGE},
    )
    script = desk.submit("--dry-run", "--", "true").stdout
    # Two replicas with four GPUs each on one node.
    assert read_lines(script) == [
        "--job-name=demo",
        "--nodes=3",
        "--gpus-per-node=8",
        "--no-kill",
        "--signal=B:USR2@90",
        "--requeue",
        "--open-mode=append",
    ]
    mine = ("--nodes=4", "-J", "mine", "--gres=gpu:8", "--no-requeue", "--signal=USR1@5", "-k", "--dry-run")
    assert read_lines(desk.submit(*mine, "--", "true").stdout) == ["--open-mode=append"]
    preset = desk.submit("--dry-run", "--", "true", SBATCH_GRES="gpu:8", SBATCH_SIGNAL="USR1@5")
    assert not {"--gpus-per-node=8", "--signal=B:USR2@90"} & set(read_lines(preset.stdout))


@pytest.mark.parametrize(
    ("words", "exit_code", "says"),
    [
        (("--nodes=2", "--", "true"), 4, "2 nodes"),
        (("--nodes=3", "--gpus-per-node=4", "--", "true"), 4, "judge/1"),
        (("--nodes=3",), 2, "no trainer"),
        (("--nodes=3", "--"), 2, "no trainer"),
        (("train.sh", "--", "true"), 2, "train.sh"),
        (("--array=1-3", "--", "true"), 2, "--array"),
        (("--run-dir", "--", "true"), 2, "--run-dir"),
    ],
)
def test_what_cannot_work_is_refused_before_it_waits_in_a_queue(
    desk: Desk, words: tuple[str, ...], exit_code: int, says: str
) -> None:
    desk.write(nodes={"train": {"count": 2}, "env": {"count": 1}}, trainer={"on": "train"}, services={"judge": JUDGE})
    before = desk.look()
    done = desk.submit(*words)
    assert done.returncode == exit_code, done.stderr
    assert says in done.stderr
    assert (desk.look(), desk.slurm.calls("sbatch")) == (before, [])


def test_a_manifest_with_mistakes_is_refused_by_line(desk: Desk) -> None:
    desk.write(services={"a": {"comand": ["x"]}})
    done = desk.submit("--", "true")
    assert done.returncode == 2
    assert "did you mean 'command'" in done.stderr


def test_a_manifest_that_cannot_be_checked_against_the_options_is_sent_and_that_is_said(desk: Desk) -> None:
    desk.write(nodes={"train": {"count": 1}, "env": {"count": "rest"}}, services={"judge": JUDGE})
    done = desk.submit("-n", "64", "--exclusive", "--", "true")
    assert done.returncode == 0, done.stderr
    assert "not checked against an allocation" in done.stderr


@pytest.mark.parametrize(
    ("part", "exit_code"),
    [
        ("sys.exit('sbatch: error: invalid partition specified: nosuch')", 3),
        ("print('allocation would start at ...')", 0),
        ("print('')", 0),
    ],
)
def test_what_slurm_does_not_take_leaves_nothing(desk: Desk, part: str, exit_code: int) -> None:
    desk.slurm.play("sbatch", part)
    before = desk.look()
    done = desk.submit("-p", "nosuch", "--", "true")
    assert done.returncode == exit_code
    assert desk.look() == before
    if exit_code:
        assert "nosuch" in done.stderr


def test_without_sbatch_it_says_so(desk: Desk, tmp_path: Path) -> None:
    done = desk.submit("--", "true", PATH=str(tmp_path))
    assert done.returncode == 3
    assert "sbatch" in done.stderr
    assert not (desk.cwd / "retinue-runs").exists()


def test_wait_gives_the_jobs_exit_code_and_its_number_before_its_end(desk: Desk) -> None:
    desk.slurm.play("sbatch", "print('4711;cluster', flush=True)\nsys.exit(9)")
    done = desk.submit("--wait", "--", "true")
    assert done.returncode == 9
    assert "submitted job 4711\n" in done.stdout
    assert (desk.run_dir() / "submit.sbatch").exists()


def test_from_inside_a_job_nothing_of_that_job_goes_with_it_and_that_is_said(desk: Desk) -> None:
    outer = {
        "SLURM_JOB_ID": "12",
        "SLURM_RESTART_COUNT": "2",
        "SLURM_CPU_BIND": "cores",
        "SLURM_NTASKS": "64",
        "RETINUE_RUN_ID": "abcdef",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SBATCH_ACCOUNT": "team",
    }
    done = desk.submit("--", "true", **outer)
    env = desk.sent()["env"]
    assert {name for name in env if name.startswith(("SLURM_", "RETINUE_", "SBATCH_"))} == {
        "SLURM_CONF",
        "SBATCH_ACCOUNT",
    }
    assert "SLURM_CPU_BIND" in done.stderr
    assert "RETINUE_RUN_ID" in done.stderr


def test_a_secret_is_never_written_and_a_missing_one_is_named(desk: Desk) -> None:
    desk.write(services={"a": {**SLEEP, "env": {"KEY": "env:JUDGE_KEY"}}})
    done = desk.submit("--", "true", JUDGE_KEY="s3cret")
    assert desk.sent()["env"]["JUDGE_KEY"] == "s3cret"
    written = "".join(path.read_text() for path in desk.run_dir().iterdir())
    assert "s3cret" not in written + done.stdout + done.stderr
    assert "services.a.env.KEY" in desk.submit("--", "true").stderr


def test_two_submissions_in_one_second_have_a_directory_each(desk: Desk) -> None:
    argv = [sys.executable, "-P", "-m", "retinue", "submit", "run.yaml", "--", "true"]
    env = {**os.environ, "PATH": desk.slurm.path}
    children = [subprocess.Popen(argv, cwd=desk.cwd, env=env, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [child.wait(60) for child in children] == [0] * 4
    scripts = {call["argv"][-1] for call in desk.slurm.calls("sbatch")}
    assert len(scripts) == 4
    for script in scripts:
        assert str(Path(script).parent) in Path(script).read_text()


def test_a_directory_that_holds_something_else_is_not_taken(desk: Desk) -> None:
    (desk.cwd / "thesis.tex").write_text("x")
    mode = desk.cwd.stat().st_mode
    done = desk.submit("--run-dir", ".", "--", "true")
    assert done.returncode == 2
    assert "other files" in done.stderr
    assert desk.cwd.stat().st_mode == mode


# --- the script is run ----------------------------------------------------------------------

AWKWARD = ["", "two words", "it's", '"$HOME"', "`id`", "a\nb", "#SBATCH --nodes=9", "\\", "dos\r\n", "ü"]


@pytest.fixture
def scratch() -> Iterator[Path]:
    with private_scratch() as scratch:
        yield scratch
        mark = f"SLURM_TMPDIR={scratch}".encode()
        for pid, environ in read_environs():
            if mark in environ.split(b"\0"):
                os.kill(pid, signal.SIGKILL)


BATCH = """
print("4711", flush=True)
open("run.yaml", "w").write("edited while the job waits")
pid = os.spawnv(os.P_NOWAIT, "/bin/bash", ["bash", sys.argv[-1]])
open("batch-pid", "w").write(str(pid))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
"""As slurmd does it: the script is executed, and its exit code is the job's."""


def test_the_script_becomes_the_run_of_the_manifest_as_it_was_with_every_argument_as_it_was(
    desk: Desk, scratch: Path
) -> None:
    write = "import json, os, sys; json.dump([os.getppid(), sys.argv[1:]], open('said.json', 'w')); sys.exit(7)"
    desk.slurm.play("sbatch", BATCH)
    path = f"{desk.slurm.path}:{Path(sys.executable).parent}"
    words = ("--wait", "--", sys.executable, "-c", write, *AWKWARD)
    done = desk.submit(*words, PATH=path, SLURM_TMPDIR=str(scratch))
    assert done.returncode == 7, done.stderr
    parent, said = json.loads((desk.cwd / "said.json").read_text())
    assert said == AWKWARD
    # No shell is left between Slurm's signals and the run.
    assert parent == int((desk.cwd / "batch-pid").read_text())
    verdict = json.loads((desk.run_dir() / "current" / "verdict.json").read_text())
    assert (verdict["name"], verdict["ended_by"], verdict["exit_code"]) == ("demo", "trainer", 7)
    assert verdict["clean"] == "true"
    assert os.listdir(scratch) == []
