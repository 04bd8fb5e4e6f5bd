"""The user's processes or descriptors are at their limit: the run still ends, and nothing of it stays."""

import errno
import json
import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from stub_rig import Rig

from retinue.node import spawn
from retinue.supervise.stub_bounded import run_bounded
from retinue.supervise.to_stub import parse_stub_line
from support.command import MANIFEST, RETINUE

NO_MORE_CHILDREN = """
import resource
def allow_no_more_children():
    resource.prlimit(os.getppid(), resource.RLIMIT_NPROC, (0, 0))
"""


@pytest.fixture
def rig(tmp_path: Path) -> Generator[Rig, None, None]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def refuse_fork() -> int:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


@pytest.mark.skipif(os.geteuid() == 0, reason="root has no limit of processes")
def test_a_stub_that_may_not_fork_removes_the_keys_and_writes_the_verdict_itself(rig: Rig) -> None:
    (rig.controller_dir / "keys.json").write_text("the authority's key")
    assert rig.run(f"{NO_MORE_CHILDREN}\nallow_no_more_children()\nfinish(3)") == 3
    assert "cannot look at every process: cannot fork" in rig.stderr, "the limit did not bind"
    assert not rig.node_dir.exists()
    assert (rig.verdict["exit_code"], rig.verdict["clean"]) == (3, "true")


@pytest.mark.skipif(os.geteuid() == 0, reason="root has no limit of processes")
def test_a_launch_that_cannot_be_forked_is_refused_with_the_cause(rig: Rig) -> None:
    launch = "say(op='launch', argv=['/bin/true'], env={}, nodes=['n1'])\nhear('launch_refused')\nfinish(5)"
    assert rig.run(f"{NO_MORE_CHILDREN}\nallow_no_more_children()\n{launch}") == 5
    happening = parse_stub_line(json.dumps(rig.heard("launch_refused")[0]).encode())
    assert getattr(happening, "cause", "").startswith("cannot start '/bin/true' (fork): Resource temporarily")


def test_only_a_vital_act_is_done_without_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", refuse_fork)
    before = len(os.listdir("/proc/self/fd"))
    assert run_bounded(lambda: 1, 10).problem.startswith("cannot fork: Resource temporarily")
    vital = run_bounded(lambda: 1, 10, is_vital=True)
    assert (vital.pid, vital.value, vital.problem) == (0, 1, "")
    failed = run_bounded(lambda: os.listdir(tmp_path / "none"), 10, is_vital=True)
    assert "No such file" in failed.problem
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("number", "hint"), [(errno.EAGAIN, "`ulimit -u`"), (errno.EMFILE, "`ulimit -n`")])
def test_a_shortage_names_the_limit_to_raise(number: int, hint: str) -> None:
    def fork() -> int:
        raise OSError(number, os.strerror(number))

    with pytest.raises(spawn.SpawnError, match=hint):
        spawn.spawn(spawn.Command(argv=["/bin/true"], env={}), fork=fork)


def test_a_working_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    child = spawn.spawn(spawn.Command(argv=["/bin/true"], env={}, cwd=str(tmp_path / "gone")))
    with pytest.raises(spawn.SpawnError) as caught:
        spawn.wait_exec(child, 20.0)
    assert str(caught.value) == f"cannot start '/bin/true' in directory '{tmp_path}/gone': No such file or directory"


def test_too_few_descriptors_for_a_run_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(MANIFEST)
    argv = ["prlimit", "--nofile=63:", *RETINUE, "run", "run.yaml", "--", "true"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        3,
        "retinue: cannot run with 63 open files a process; raise `ulimit -n` to 64\n",
    )
    assert os.listdir(tmp_path) == ["run.yaml"]
