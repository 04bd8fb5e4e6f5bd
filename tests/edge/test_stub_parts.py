"""Parts of the stub that a whole run shows too rarely: hanging file systems, budgets, stuck controllers, verdicts."""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from retinue.journal.verdict import read_verdict
from retinue.node import spawn
from retinue.supervise.stub_bounded import run_bounded
from retinue.supervise.stub_children import Child
from retinue.supervise.stub_leftovers import Leftover, end_left
from retinue.supervise.stub_lines import WAITING_BYTES, Link
from retinue.supervise.stub_run import Run
from retinue.supervise.stub_signals import parse_signal
from retinue.supervise.stub_verdict import Facts, OwnEnd, build_verdict, remove_own_dir, write_verdict
from retinue.supervise.stub_watch import FORGIVEN_AFTER_S, RESTARTS, Watch
from retinue.supervise.stub_work import Work
from retinue.terms.record import to_json
from retinue.terms.run import RunRecord
from support.real_run import is_running


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """The stub's own reading of a record that the pre-flight would write."""
    record = RunRecord(
        run_id="0123456789ab",
        name="parts",
        attempt=2,
        run_dir=str(tmp_path),
        attempt_dir=str(tmp_path),
        node_dir=str(tmp_path / "node"),
        start_dir=str(tmp_path),
        python="/usr/bin/python3",
        started_utc=5.0,
    )
    path = tmp_path / "run.json"
    path.write_bytes(to_json(record))
    return Run(str(path))


@pytest.fixture
def child() -> Child:
    """A child that ran and exited 0."""
    return reap(Child(spawn.Command(argv=["/bin/true"], env={})))


def reap(child: Child) -> Child:
    while not child.settle_exec():
        time.sleep(0.01)
    child.note_status(os.waitpid(child.pid, 0)[1])
    return child


def end_bounded(pid: int) -> None:
    os.waitpid(pid, 0)


def test_the_record_has_the_real_controller_and_twenty_seconds_by_default(run: Run) -> None:
    assert run.controller_argv == ["/usr/bin/python3", "-P", "-m", "retinue", "controller"]
    assert run.beat_timeout_s == 20.0


def test_an_act_that_hangs_is_given_up_and_its_child_killed() -> None:
    answer = run_bounded(lambda: time.sleep(600), 0.2)
    assert answer.problem == "no answer within 0.2 s"
    assert os.WTERMSIG(os.waitpid(answer.pid, 0)[1]) == 9


def test_what_a_late_act_had_started_ends_with_it_whatever_session_it_is_in(tmp_path: Path) -> None:
    def act() -> None:
        command = subprocess.Popen(["sleep", "600"], start_new_session=True)
        (tmp_path / "pid").write_text(str(command.pid))
        command.wait()

    answer = run_bounded(act, 1.0)
    os.waitpid(answer.pid, 0)
    pid = int((tmp_path / "pid").read_text())
    until_s = time.monotonic() + 10.0
    while is_running(pid) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not is_running(pid)


def test_a_hanging_act_would_hold_no_end_of_a_pipe_of_ours() -> None:
    ours = [*os.pipe(), *os.pipe()]
    answer = run_bounded(lambda: [int(name) for name in os.listdir("/proc/self/fd")], 10)
    # Beside the standard ones: the pipe of the answer, and the listing itself.
    assert len([fd for fd in answer.value if fd > 2]) == 2
    for fd in ours:
        os.close(fd)
    end_bounded(answer.pid)


def test_an_act_answers_more_than_a_pipe_holds_or_says_what_went_wrong(tmp_path: Path) -> None:
    big = run_bounded(lambda: ["x" * 1000] * 1000, 10)
    assert (len(big.value), big.problem) == (1000, "")
    end_bounded(big.pid)
    failed = run_bounded(lambda: os.listdir(tmp_path / "none"), 10)
    assert "No such file" in failed.problem
    end_bounded(failed.pid)
    broken = run_bounded(lambda: {}["nothing"], 10)
    assert broken.problem == "the child ended without an answer"
    end_bounded(broken.pid)


def build_watch(child: Child, link: Link, now_s: float) -> Watch:
    watch = Watch(20.0)
    watch.note_start(child, link, now_s)
    return watch


def test_ten_good_minutes_forgive_earlier_restarts(child: Child) -> None:
    link = Link()
    watch = Watch(20.0)
    for restart in range(RESTARTS):
        watch.note_start(child, link, 0.0)
        assert watch.note_end(1.0), restart
    watch.note_start(child, link, 10.0)
    watch.note_beat(10.0 + FORGIVEN_AFTER_S - 1)
    assert watch.used == RESTARTS
    watch.note_beat(10.0 + FORGIVEN_AFTER_S)
    assert watch.used == 0
    for restart in range(RESTARTS):
        assert watch.note_end(700.0), restart
    assert not watch.note_end(700.0)
    link.close()


def test_a_controller_that_reads_nothing_is_stuck_before_it_is_silent() -> None:
    link = Link()
    link.near.setsockopt(1, 7, 4096)  # SOL_SOCKET, SO_SNDBUF
    sleeper = Child(spawn.Command(argv=["/bin/sleep", "600"], env={}))
    watch = build_watch(sleeper, link, 0.0)
    for _ in range(WAITING_BYTES // 1000 + 500):
        link.send({"ev": "x" * 1000})
    assert watch.find_kill_cause(0.0) == "does not read what it is told"
    watch.kill_cause = "does not read"
    assert watch.find_kill_cause(100.0) == ""
    sleeper.send_signal(9)
    reap(sleeper)
    link.close()


def test_orders_cut_anywhere_arrive_whole() -> None:
    link = Link()
    text = b'{"op": "beat"}\n{"op": "trainer", "argv": ["\xc3\xa9"]}\n'
    orders: list[dict[str, Any]] = []
    for byte in text:
        link.far.send(bytes([byte]))
        orders += link.read()
    assert [order["op"] for order in orders] == ["beat", "trainer"]
    assert orders[1]["argv"] == ["é"]
    link.far.close()
    assert link.read() == []
    assert link.is_closed
    link.close()


@pytest.mark.parametrize(
    ("name", "number"), [("TERM", 15), ("SIGINT", 2), (9, 9), ("NOPE", None), (0, None), (None, None), ([], None)]
)
def test_signals_by_name_or_number(name: object, number: int | None) -> None:
    assert parse_signal(name) == number


@pytest.mark.parametrize(
    ("nodes", "expected", "clean"),
    [
        ({"n1": {"clean": True}}, ["n1"], "true"),
        ({"n1": {"clean": True}}, ["n1", "n2"], "unknown"),
        ({"n1": {"clean": False}}, ["n1", "n2"], "false"),
        ({"n1": {"clean": "yes"}}, ["n1"], "unknown"),
        ({}, [], "unknown"),
    ],
)
def test_a_launched_run_is_clean_only_when_every_node_proved_it(
    run: Run, nodes: dict[str, dict[str, Any]], expected: list[str], clean: str
) -> None:
    facts = Facts(run, None, {"exit_code": 0}, None)
    facts.is_launched, facts.nodes, facts.expected = True, nodes, expected
    assert build_verdict(facts)["clean"] == clean


def test_a_survivor_or_a_directory_that_stays_is_not_clean(run: Run) -> None:
    facts = Facts(run, None, {"exit_code": 0}, None)
    assert build_verdict(facts)["clean"] == "true"
    facts.is_dir_left = True
    assert build_verdict(facts)["clean"] == "false"
    facts.is_dir_left = False
    facts.found = facts.survivors = [Leftover(12, 1, "stuck")]
    verdict = build_verdict(facts)
    assert verdict["clean"] == "false"
    assert verdict["leftovers"] == [{"pid": 12, "cmd": "stuck", "survived": True}]


def test_the_stubs_verdict_is_the_journals_verdict(run: Run, tmp_path: Path, child: Child) -> None:
    own = OwnEnd("controller_lost", "gone", 5, 10.0)
    facts = Facts(run, {"services": {"judge": {"incarnations": 2, "restarts": 1, "killed_hard": 0}}}, None, own)
    facts.trainer, facts.controller_starts, facts.is_launched = child, 4, True
    facts.nodes = {"n1": {"clean": True, "rung": "namespace", "left": [], "note": ""}}
    facts.found = [Leftover(12, 1, "daemon")]
    write_verdict(run, build_verdict(facts))
    verdict = read_verdict(tmp_path / "verdict.json")
    assert verdict is not None
    assert (verdict.ended_by, verdict.exit_code, verdict.attempt, verdict.controller_starts) == (
        "controller_lost",
        5,
        2,
        4,
    )
    assert verdict.trainer is not None
    assert verdict.trainer.was_started
    assert (verdict.nodes["n1"].clean, verdict.clean, verdict.services["judge"].restarts) == ("true", "true", 1)


def test_a_run_that_began_to_end_before_we_ended_it_keeps_its_first_cause(run: Run) -> None:
    own = OwnEnd("signal", "SIGTERM was received for the third time", 143, 5.0)
    verdict = build_verdict(Facts(run, {"ended_by": "fail_run", "cause": "judge/0"}, None, own))
    assert (verdict["ended_by"], verdict["warnings"]) == ("fail_run", [own.cause])


def test_the_last_words_of_a_launch_are_told_before_its_end(run: Run) -> None:
    told: list[dict[str, Any]] = []
    work = Work(run, stop_fd=-1, inherited=(), ignored=(), tell=told.append)
    script = """echo '{"retinue_node": "n1", "clean": true, "note": "the keeper died"}'; exit 9"""
    work.start_launch({"argv": ["/bin/sh", "-c", script], "env": {}})
    assert work.launch is not None
    # Its end may be seen in a turn of the loop in which nothing was read yet.
    work.take_exit(*os.waitpid(work.launch.pid, 0))
    names = [event["ev"] for event in told]
    assert names.index("node") < names.index("launch_exited")


def test_a_link_in_our_directory_is_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "data").write_text("kept")
    own = tmp_path / "node" / "controller"
    own.mkdir(parents=True)
    (own / "link").symlink_to(tmp_path / "precious")
    remove_own_dir(str(own), str(own.parent))
    assert not own.parent.exists()
    assert (tmp_path / "precious" / "data").read_text() == "kept"


def test_a_pid_that_was_given_to_somebody_else_gets_no_signal() -> None:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as neighbour:
        stale = Leftover(neighbour.pid, 1, "the one before")
        scans = iter([[stale]] * 6 + [[]] * 40)
        found, survivors = end_left(lambda: next(scans), lambda _is_so, _limit_s: True, lambda: 0)
        assert (len(found), survivors) == (1, [])
        assert neighbour.stdin
        assert neighbour.stdout
        neighbour.stdin.write(b"still here")
        assert neighbour.stdout.read(10) == b"still here"
        neighbour.stdin.close()
