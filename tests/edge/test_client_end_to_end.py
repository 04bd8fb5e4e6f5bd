"""The client and the real checks service: hangs, a service killed in the middle, one started again."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.client import OutcomeKind, Retinue, SyncRetinue
from support.real_run import is_running, real_run, wait_for

HANG = {"verifier": "math", "response": r"\boxed{2^{4^{8^{16}}}}", "gold": "7", "timeout_s": 1.0}
PATIENCE_S = 90.0


TRAINER = """
import json, os, pathlib, sys
from retinue.client import SyncRetinue
rows = [{"verifier": "exact", "response": str(i % 2), "gold": "0"} for i in range(400)]
found = []
with SyncRetinue.from_env() as r:
    r.gate(["scorer"], 60)
    for index, outcome in r.check_many(rows, deadline_s=90):
        found.append([index, outcome.outcome.value, outcome.score, outcome.service])
        if len(found) == 20:
            pathlib.Path("twenty").touch()
pathlib.Path("found.json").write_text(json.dumps(found))
"""


class Service:
    """`python -m retinue.checks` on a unix socket, as often as it is started."""

    def __init__(self, directory: Path) -> None:
        self.socket = directory / "d" / "checks.sock"
        self.url = f"unix:{self.socket}"
        self.output = directory / "output.txt"
        self.process: subprocess.Popen[bytes] | None = None
        self.seen: dict[int, str] = {}
        """Every process of it that was ever seen: pid -> start time, because pids come back."""

    def start(self) -> None:
        argv = [sys.executable, "-P", "-m", "retinue.checks", "--unix", str(self.socket), "--workers", "2"]
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def look(self) -> int:
        """Note the whole tree; returns the service's own pid."""
        assert self.process is not None
        found = [self.process.pid]
        for pid in found:
            found.extend(read_children(pid))
        self.seen.update({pid: read_start(pid) for pid in found})
        return self.process.pid

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.look(), signal.SIGKILL)
        self.process.wait(20)

    def end(self) -> None:
        """SIGTERM, and proof that nothing of any start is left."""
        assert self.process is not None
        if self.process.poll() is None:
            self.look()
            self.process.terminate()
            assert self.process.wait(20) == 0, self.output.read_text()
        wait_for("the service's processes to be gone", lambda: not self.find_left(), 20.0)

    def find_left(self) -> list[int]:
        return [pid for pid, start in self.seen.items() if is_running(pid) and read_start(pid) == start]

    def end_hard(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        for pid in self.find_left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def read_start(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def read_children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@pytest.fixture
def service() -> Iterator[Service]:
    # Not tmp_path: a unix socket's path is 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="rt-") as directory:
        service = Service(Path(directory))
        service.start()
        try:
            yield service
            service.end()
        finally:
            service.end_hard()


def build_rows(count: int) -> list[dict[str, Any]]:
    """Even rows are right, odd ones wrong; the policy's text is long enough that streams are several."""
    return [
        {"verifier": "exact", "response": str(index % 2), "gold": "0", "rollout_id": f"r{index}"}
        for index in range(count)
    ]


async def test_each_outcome_comes_as_what_it_is_and_a_hang_costs_its_own_row_alone(service: Service) -> None:
    rows = [
        *build_rows(60),
        HANG,
        {"verifier": "nope", "response": ""},
        {"verifier": "regex", "response": "", "gold": "("},
    ]
    async with Retinue(service.url) as r:
        found = {index: outcome async for index, outcome in r.check_many(rows, deadline_s=PATIENCE_S)}
        alone = await r.check("math", response=r"so \boxed{\frac{1}{2}}", gold="0.5", deadline_s=PATIENCE_S)
    assert sorted(found) == list(range(63))
    assert [found[index].score for index in range(60)] == [1.0, 0.0] * 30
    assert [found[index].rollout_id for index in range(60)] == [f"r{index}" for index in range(60)]
    assert (found[60].outcome, found[60].score) == (OutcomeKind.TIMED_OUT, 0.0)
    assert [(found[index].outcome, found[index].score) for index in (61, 62)] == [(OutcomeKind.REJECTED, None)] * 2
    assert (alone.outcome, alone.score) == (OutcomeKind.SCORED, 1.0)


def test_a_service_killed_in_the_middle_of_a_batch_and_started_again_loses_no_row(service: Service) -> None:
    scores: dict[int, float | None] = {}
    kinds = set()
    with SyncRetinue(service.url) as r:
        for index, outcome in r.check_many(build_rows(400), deadline_s=PATIENCE_S):
            assert index not in scores
            scores[index] = outcome.score
            kinds.add(outcome.outcome)
            if len(scores) == 50:
                service.kill()
                service.start()
    assert kinds == {OutcomeKind.SCORED}
    assert [scores[index] for index in range(400)] == [1.0, 0.0] * 200


def test_a_service_that_is_gone_for_good_gives_no_row_a_number(service: Service) -> None:
    with SyncRetinue(service.url) as r:
        assert r.check("exact", response="0", gold="0", deadline_s=PATIENCE_S).score == 1.0
        service.kill()
        outcome = r.check("exact", response="0", gold="0", deadline_s=0.5)
    assert (outcome.outcome, outcome.score, outcome.event) == (OutcomeKind.INFRA_FAILED, None, "connection refused")


def test_a_trainer_needs_no_configuration_and_does_not_notice_that_its_checks_were_killed(tmp_path: Path) -> None:
    scorer = {
        "command": [sys.executable, "-P", "-m", "retinue.checks", "--port", "{port}", "--workers", "2"],
        "kind": "checks",
        "probes": {"readiness": {"http": "/health", "period": "200ms"}},
        "restart": {"backoff": "200ms"},
    }
    with real_run(tmp_path, {"scorer": scorer}, [sys.executable, "-c", TRAINER]) as run:
        run.wait("the first rows", (tmp_path / "twenty").exists)
        os.kill(run.replica("scorer/0")["host_pid"], signal.SIGKILL)
        assert run.wait_end(PATIENCE_S) == 0, run.output.read_text()
        run.assert_nothing_left()
    found = json.loads((tmp_path / "found.json").read_text())
    assert sorted(found) == [[index, "scored", float(index % 2 == 0), "scorer"] for index in range(400)]
