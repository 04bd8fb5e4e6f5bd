"""A job that was queued again while its first batch host was only unreachable: two attempts of one run are alive."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.real_run import RealRun, server_service, wait_for

JOB = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": os.uname().nodename,
    "SLURMD_NODENAME": os.uname().nodename,
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_JOB_CPUS_PER_NODE": "2",
}


class Attempt(RealRun):
    """One attempt; all of them share the run directory."""

    number = 0

    @property
    def attempt_dir(self) -> Path:
        return self.run_dir / f"attempt-{self.number}"

    def start_as(self, number: int) -> "Attempt":
        self.number = number
        self.output = self.directory / f"output-{number}.txt"
        self.start({**JOB, "SLURM_RESTART_COUNT": str(number)} if number else JOB)
        return self


@pytest.fixture
def attempts(tmp_path: Path) -> Iterator[tuple[Attempt, Attempt]]:
    done = tmp_path / "done"
    trainer = [sys.executable, "-c", f"import os, time\nwhile not os.path.exists({str(done)!r}): time.sleep(0.1)"]
    both = [Attempt(tmp_path, {"server": server_service()}, trainer) for _ in range(2)]
    yield both[0], both[1]
    for attempt in both:
        attempt.end_hard()


def test_an_older_attempt_that_still_lives_stops_all_of_its_own_and_writes_nothing(
    attempts: tuple[Attempt, Attempt],
) -> None:
    old, new = attempts
    old.start_as(0).wait_phase("running")
    new.start_as(1).wait_phase("running")
    assert old.run_id != new.run_id
    assert old.wait_end() == 5
    old.assert_nothing_left()
    assert not (old.attempt_dir / "verdict.json").exists()
    owner = json.loads((new.run_dir / "lock").read_text())
    assert (owner["run_id"], owner["attempt"]) == (new.run_id, 1)
    assert os.readlink(new.run_dir / "current") == "attempt-1"
    # The new one has noticed nothing.
    assert new.status()["phase"] == "running"
    (new.directory / "done").touch()
    assert new.wait_end() == 0
    assert (new.verdict()["attempt"], new.verdict()["clean"]) == (1, "true")
    new.assert_nothing_left()


def test_an_older_attempt_that_begins_late_does_not_begin(attempts: tuple[Attempt, Attempt]) -> None:
    old, new = attempts
    new.start_as(1).wait_phase("running")
    old.start_as(0)
    assert old.wait_end() == 2
    assert "attempt 1 of job 4711" in old.output.read_text()
    assert not old.attempt_dir.exists()
    wait_for("the new attempt to go on", lambda: new.status().get("phase") == "running")
