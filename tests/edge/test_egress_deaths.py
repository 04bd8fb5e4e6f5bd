"""The egress supervisor dies, hangs, or dies over a call: nobody waits for long, and no answer is lost."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from egress_scenes import HELLO, OUTSIDE, Guarded, Stage, needs_ip
from keeper_rig import wait_for

from retinue.egress.trial import find_obstacle
from retinue.node.orders import DeniedSeen, RoleRestarted, Signal
from retinue.terms.egress import EgressRule

pytestmark = needs_ip
HALF = Path(__file__).with_name("egress_half.py")
BOUND_S = 5.0
"""What is promised, whatever becomes of the supervisor."""
TIMED = "[began := time.monotonic(), tcp('{0}', PORT, timeout=None), time.monotonic() - began][1:]"


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        port = stage.start("outside/0", None).ask("serve()")
        stage.start("a/0", EgressRule()).ask(f"globals().update(PORT={port})")
        yield stage


@pytest.fixture
def service(stage: Stage) -> Guarded:
    service = next(each for each in stage.guarded if each.replica == "a/0")
    assert service.ask("tcp('127.0.0.1', PORT)") == HELLO
    return service


def kill_and_wait(stage: Stage) -> int:
    """Kill the supervisor and wait for the next one."""
    before = stage.find_supervisor()
    os.kill(before, signal.SIGKILL)
    return wait_for("the next supervisor", lambda: (pid := stage.find_supervisor()) != before and pid)


def test_a_killed_supervisor_is_followed_by_another_that_knows_the_rules(stage: Stage, service: Guarded) -> None:
    kill_and_wait(stage)
    restarted = stage.agent.hear(RoleRestarted)
    assert restarted.role == "egress supervisor"
    assert "SIGKILL" in restarted.reason
    assert service.ask("tcp('127.0.0.1', PORT)") == HELLO
    assert service.ask(f"tcp('{OUTSIDE}', PORT)") == "EACCES"


def test_a_call_that_waits_for_a_stopped_supervisor_is_answered_within_the_bound(
    stage: Stage, service: Guarded
) -> None:
    os.kill(stage.find_supervisor(), signal.SIGSTOP)
    answer, took_s = service.ask(TIMED.format("127.0.0.1"))
    assert answer == HELLO
    assert took_s < BOUND_S
    assert "no beat" in stage.agent.hear(RoleRestarted).reason


def test_a_supervisor_that_is_killed_while_it_is_stopped_holds_nobody_up(stage: Stage, service: Guarded) -> None:
    os.kill(stage.find_supervisor(), signal.SIGSTOP)
    service.begin(TIMED.format("127.0.0.1"))
    os.kill(stage.find_supervisor(), signal.SIGKILL)
    answer, took_s = service.finish()
    assert answer == HELLO
    assert took_s < BOUND_S
    assert "SIGKILL" in stage.agent.hear(RoleRestarted).reason


def test_a_service_under_fire_loses_no_call(stage: Stage, service: Guarded) -> None:
    """Connects in a row while the supervisor is killed again and again: each has its answer."""
    service.begin("[tcp('127.0.0.1', PORT, timeout=None) for _ in range(300)].count('inside out')")
    for _ in range(3):
        kill_and_wait(stage)
    assert service.finish() == 300


def test_what_signals_a_whole_job_does_not_end_the_supervisor(stage: Stage, service: Guarded) -> None:
    supervisor = stage.find_supervisor()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(supervisor, number)
    assert service.ask("tcp('127.0.0.1', PORT)") == HELLO
    assert stage.find_supervisor() == supervisor


def test_what_ended_is_watched_no_longer(stage: Stage, service: Guarded) -> None:
    before = count_listeners(stage)
    stage.start("brief/0", EgressRule())
    assert count_listeners(stage) == before + 1
    stage.agent.send(Signal("brief/0", 1, signal.SIGKILL))
    wait_for("its listener to be closed", lambda: count_listeners(stage) == before)
    assert service.ask("tcp('127.0.0.1', PORT)") == HELLO


def test_a_new_agent_is_told_everything_that_was_denied(stage: Stage, service: Guarded) -> None:
    for _ in range(3):
        assert service.ask(f"tcp('{OUTSIDE}', 7777)") == "EACCES"
    stage.wait_denied("a/0", "tcp", OUTSIDE, 7777)
    os.kill(stage.node.inventory.agent_host_pid or stage.agent.pid, signal.SIGKILL)
    stage.agent = stage.node.first_agent()
    told = stage.agent.hear(DeniedSeen).lines
    assert [line.count for line in told if line.port == 7777] == [3]
    assert service.ask(f"tcp('{OUTSIDE}', 7777)") == "EACCES"


def count_listeners(stage: Stage) -> int:
    place = Path(f"/proc/{stage.node.keeper_pid}/fd")
    return sum(is_listener(fd) for fd in place.iterdir())


def is_listener(fd: Path) -> bool:
    try:
        return "seccomp" in os.readlink(fd)
    except FileNotFoundError:
        return False


# --- dead over a call, at a chosen moment -------------------------------------------------


@pytest.mark.parametrize("when", ["taken", "begun"])
def test_a_call_whose_supervisor_died_over_it_is_answered_by_the_next_one(when: str) -> None:
    """The kernel offers a call once; and a connect that had happened is not an error because it is tried again."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        said = run_half(when, server.getsockname()[1])
    assert said == {"code": 0, "starts": 2, "denied": []}


def test_a_refusal_whose_answer_died_is_still_a_refusal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert run_half("begun", port)["code"] == 111  # ECONNREFUSED


def test_a_call_that_kills_every_supervisor_is_denied_in_the_end() -> None:
    said = run_half("always", 9)
    assert said["code"] == 13  # EACCES
    assert said["starts"] == 4
    assert said["denied"] == ["unreadable"]


def run_half(when: str, port: int) -> dict[str, object]:
    obstacle = find_obstacle(has_namespace=False)
    if obstacle:
        pytest.skip(f"no guard here: {obstacle}")
    ended = subprocess.run([sys.executable, str(HALF), when, str(port)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert isinstance(said, dict)
    return said
