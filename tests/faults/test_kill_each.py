"""SIGKILL to each process of a run: what DESIGN.md section 3 promises, and nothing left behind."""

import os
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from support.real_run import RealRun, is_running, real_run, server_service, wait_for


class Caller:
    """Asks a service without a pause, through its stable URL; every request must be answered."""

    def __init__(self, url: str) -> None:
        self.url, self.answered, self.lost = url, 0, []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while not self._stop.is_set():
            try:
                with opener.open(urllib.request.Request(self.url, b"hello there"), timeout=30) as answer:
                    answer.read()
                    self.answered += 1
            except (urllib.error.URLError, OSError) as error:
                self.lost.append(str(error))

    def __enter__(self) -> "Caller":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def wait_answers(self, run: RealRun, count: int) -> None:
        goal = self.answered + count
        run.wait(f"{count} more answers", lambda: self.answered >= goal)


@pytest.fixture
def run(tmp_path: Path) -> object:
    with real_run(tmp_path, {"server": server_service(replicas=2)}) as run:
        run.wait_phase("running")
        run.wait("the trainer's pid", lambda: run.status()["trainer"]["pid"])
        yield run


def end_cleanly(run: RealRun) -> dict[str, object]:
    run.signal(signal.SIGTERM)
    assert run.wait_end() == 143
    verdict = run.verdict()
    assert verdict["clean"] == "true", verdict
    run.assert_nothing_left()
    return verdict


def test_a_killed_service_is_started_again_and_no_request_is_lost(run: RealRun) -> None:
    with Caller(run.url("server")) as caller:
        caller.wait_answers(run, 5)
        os.kill(run.replica("server/0")["host_pid"], signal.SIGKILL)
        run.wait_replica("server/0", "ready", incarnation=2)
        caller.wait_answers(run, 5)
    assert caller.lost == []
    end_cleanly(run)


def test_a_killed_agent_is_started_again_with_the_same_service_pids(run: RealRun) -> None:
    pids = [run.replica(f"server/{index}")["host_pid"] for index in (0, 1)]
    agent = run.node()["agent_host_pid"]
    with Caller(run.url("server")) as caller:
        caller.wait_answers(run, 5)
        os.kill(agent, signal.SIGKILL)
        run.wait("another agent", lambda: run.node().get("agent_host_pid") not in (agent, 0, None))
        caller.wait_answers(run, 5)
    assert caller.lost == []
    assert [run.replica(f"server/{index}")["host_pid"] for index in (0, 1)] == pids
    end_cleanly(run)


def test_a_killed_controller_is_started_again_with_the_same_service_pids(run: RealRun) -> None:
    pids = [run.replica(f"server/{index}")["host_pid"] for index in (0, 1)]
    controller, trainer = run.status()["controller_pid"], run.status()["trainer"]["pid"]
    with Caller(run.url("server")) as caller:
        caller.wait_answers(run, 5)
        os.kill(controller, signal.SIGKILL)
        run.wait("another controller", lambda: run.status().get("controller_pid") != controller)
        run.wait_replica("server/0", "ready")
        caller.wait_answers(run, 5)
    assert caller.lost == []
    assert [run.replica(f"server/{index}")["host_pid"] for index in (0, 1)] == pids
    assert run.status()["trainer"]["pid"] == trainer
    end_cleanly(run)


def test_a_killed_gateway_is_started_again_on_the_same_port(run: RealRun) -> None:
    url = run.url("server")
    os.kill(run.role_pid("gateway"), signal.SIGKILL)
    with Caller(url) as caller:
        caller.wait_answers(run, 5)
    assert run.url("server") == url
    end_cleanly(run)


def test_a_hung_gateway_is_started_again_on_the_same_port(run: RealRun) -> None:
    url, hung = run.url("server"), run.role_pid("gateway")
    with Caller(url) as caller:
        caller.wait_answers(run, 5)
    os.kill(hung, signal.SIGSTOP)
    with Caller(url) as caller:
        caller.wait_answers(run, 5)
    assert not is_running(hung)
    assert run.url("server") == url
    run.wait("the reason", lambda: any("no beat for 5 s" in event["reason"] for event in run.events()))
    end_cleanly(run)


def test_a_killed_keeper_is_the_loss_of_the_node(run: RealRun) -> None:
    os.kill(run.node()["keeper_host_pid"], signal.SIGKILL)
    assert run.wait_end() == 5
    assert run.verdict()["ended_by"] == "node_lost"
    assert "the keeper died unasked: signal SIGKILL" in run.verdict()["cause"]
    assert run.verdict()["clean"] == "true"
    run.assert_nothing_left()


def test_a_killed_outer_process_is_the_loss_of_the_node(run: RealRun) -> None:
    os.kill(run.node()["outer_pid"], signal.SIGKILL)
    assert run.wait_end() == 5
    assert run.verdict()["ended_by"] == "node_lost"
    run.assert_nothing_left()


def test_a_killed_stub_ends_the_run_and_the_controller_writes_the_verdict(run: RealRun) -> None:
    trainer = run.status()["trainer"]["pid"]
    run.signal(signal.SIGKILL)
    run.wait_end()
    run.assert_nothing_left()
    assert not is_running(trainer)
    wait_for("the controller's verdict", (run.attempt_dir / "verdict.json").exists)
    assert run.verdict()["ended_by"] == "stub_lost"


def test_a_killed_trainer_ends_the_run_with_137(run: RealRun) -> None:
    os.kill(run.status()["trainer"]["pid"], signal.SIGKILL)
    assert run.wait_end() == 137
    assert run.verdict()["ended_by"] == "trainer"
    assert run.verdict()["clean"] == "true"
    run.assert_nothing_left()
