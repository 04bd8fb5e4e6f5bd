"""What srun says on every start is for nobody; whatever else it says reaches the terminal and the controller."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.slurm.words import NOISE
from retinue.supervise.stub_proof import Asked
from retinue.supervise.stub_run import Run
from retinue.supervise.stub_srun import has_srun
from retinue.supervise.stub_work import Work
from retinue.terms.record import to_json
from retinue.terms.run import RunRecord
from support.real_run import wait_for

SAYS = f"echo '{NOISE[0]}.' >&2; echo 'srun: error: n1: task 0: Killed' >&2"


@pytest.fixture
def work(tmp_path: Path) -> tuple[Work, list[dict[str, Any]]]:
    place = str(tmp_path)
    record = RunRecord("0123456789ab", "noise", 0, place, place, f"{place}/node", place, python="python3")
    (tmp_path / "run.json").write_bytes(to_json(record))
    told: list[dict[str, Any]] = []
    return Work(Run(f"{place}/run.json"), stop_fd=-1, inherited=(), ignored=(), tell=told.append), told


@pytest.mark.parametrize("noise", [NOISE, ()])
def test_of_the_launch_noise_is_neither_shown_nor_told(
    work: tuple[Work, list[dict[str, Any]]], noise: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    launch, told = work
    order = {"argv": ["sh", "-c", SAYS], "env": dict(os.environ), "has_words": True, "noise": list(noise)}
    launch.start_launch(order)
    assert launch.launch is not None
    launch.take_exit(*os.waitpid(launch.launch.pid, 0))
    lines = [event["line"] for event in told if event["ev"] == "launch_said"]
    assert lines == capfd.readouterr().err.splitlines()
    assert lines[-1] == "srun: error: n1: task 0: Killed"
    assert len(lines) == (1 if noise else 2)


def test_of_the_step_that_asks_silent_nodes_reports_are_read_and_the_rest_is_shown_without_noise(
    capfd: pytest.CaptureFixture[str],
) -> None:
    asked = Asked(["sh", "-c", f"""{SAYS}; echo '{{"retinue_node": "n1"}}'; echo '{{"a": 1}}'"""], dict(os.environ))
    until_s = time.monotonic() + 20.0
    while not asked.said.endswith(b"1}\n") and time.monotonic() < until_s:
        asked.is_over()
    os.waitpid(asked.child.pid, 0)
    assert asked.close(tuple(words.encode() for words in NOISE)) == [{"retinue_node": "n1"}]
    assert capfd.readouterr().err.splitlines() == ["srun: error: n1: task 0: Killed", '{"a": 1}']


@pytest.fixture
def srun(tmp_path: Path) -> Path:
    """A program of that name."""
    path = tmp_path / "srun"
    path.write_bytes(Path("/bin/sleep").read_bytes())
    path.chmod(0o755)
    return path


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(20)


@pytest.mark.parametrize(
    ("script", "is_found"), [("exec {srun} 60", True), ("{srun} 60; :", True), ("exec sleep 60", False)]
)
def test_an_srun_client_is_found_as_the_trainer_itself_or_below_it(
    srun: Path, children: list[subprocess.Popen[bytes]], script: str, is_found: bool
) -> None:
    child = subprocess.Popen(["sh", "-c", f"echo; {script.format(srun=srun)}"], start_new_session=True)
    children.append(child)
    if is_found:
        wait_for("srun to run", lambda: has_srun(child.pid))
    else:
        wait_for("sleep to run", lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n")
        assert not has_srun(child.pid)
    assert not has_srun(children[0].pid + 10**9)
