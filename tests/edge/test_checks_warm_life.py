"""The life of warm parent and children: who ends whom, and what is said about it."""

import os
import signal
from pathlib import Path

import pytest
from warm_rig import Child, Warm, build_env, kill, open_warm

from retinue.checks.records import Judge, Seal, WarmConfig
from retinue.node.kernel import read_pidfd_pid, signal_pidfd

SOURCE = '''
import os, sys, time

state = {"patched": False}


def ok(response, gold, args):
    return 0.5, str(state["patched"])


def hang(response, gold, args):
    while True:
        pass


def patch(response, gold, args):
    global ok
    state["patched"] = True
    ok.__code__ = (lambda response, gold, args: (1.0, "forged")).__code__
    return 0.0


def pid(response, gold, args):
    return 1.0, str(os.getpid())


def kill_all(response, gold, args):
    for target in (-1, 0, os.getppid(), 1, 2):
        try:
            os.kill(target, 0 if target == 0 else 9)
        except OSError:
            pass
    return 0.25


def bomb(response, gold, args):
    """Fork without end; every copy of it goes on for ever."""
    count = 0
    while True:
        try:
            if os.fork() == 0:
                os.setsid()
        except OSError:
            count += 1


def daemon(response, gold, args):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                time.sleep(60)
        os._exit(0)
    return 1.0, "left one behind"


def allocate(response, gold, args):
    blocks = []
    while True:
        blocks.append(bytearray(16 * 2**20))


def leave(response, gold, args):
    os._exit(int(response))


def crash(response, gold, args):
    import ctypes
    ctypes.string_at(8)


def spin(response, gold, args):
    sys.setswitchinterval(1)
    while True:
        pass
'''
NAMES = ("ok", "hang", "patch", "pid", "kill_all", "bomb", "daemon", "allocate", "leave", "crash", "spin")


def start(child: Child, verifier: str, response: str = "") -> None:
    """Hand over a check whose result nobody waits for."""
    assert child.prepare(verifier).rejected is None
    child.send(Judge(response), Seal("s"))


def count_descendants(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = [int(word) for word in file.read().split()]
    except OSError:
        return 0
    return len(children) + sum(count_descendants(child) for child in children)


def test_a_taken_spare_is_replaced_without_being_asked_for(tmp_path: Path) -> None:
    with open_warm(tmp_path, SOURCE, NAMES) as warm:
        first = warm.take()
        assert first.prepare("ok").rejected is None
        second = warm.take()
        assert second.number != first.number
        assert second.ask("ok").score == 0.5
        assert first.judge().score == 0.5


def test_a_child_that_dies_as_a_spare_is_replaced(tmp_path: Path) -> None:
    with open_warm(tmp_path, SOURCE, NAMES) as warm:
        spare = warm.take()
        signal_pidfd(spare.pidfd, signal.SIGKILL)
        assert warm.wait_ended(spare).signal == signal.SIGKILL
        assert warm.take().ask("ok").score == 0.5


def test_a_patched_verifier_does_not_reach_the_next_child(tmp_path: Path) -> None:
    with open_warm(tmp_path, SOURCE, NAMES) as warm:
        warm.take().ask("patch")
        judged = warm.take().ask("ok")
        assert (judged.score, judged.reason) == (0.5, "False")


def test_every_child_is_pid_1_and_kill_all_harms_nobody(tmp_path: Path) -> None:
    with open_warm(tmp_path, SOURCE, NAMES) as warm:
        warm.want(3)
        sibling = warm.take()
        start(sibling, "hang")
        assert warm.take().ask("kill_all").score == 0.25
        assert warm.take().tell("pid") == "1"
        assert warm.process.poll() is None
        assert sibling.number not in warm.ended


@pytest.mark.skipif(os.geteuid() == 0, reason="cannot here: as root no check may start a process")
def test_a_fork_bomb_stays_small_and_ends_with_its_child(tmp_path: Path) -> None:
    with open_warm(tmp_path, SOURCE, NAMES, limits={"pids": 8}) as warm:
        bomber = warm.take()
        start(bomber, "bomb")
        # A spare is forked, used and reaped meanwhile: the bomb's processes are counted alone.
        neighbour = warm.take()
        assert neighbour.ask("ok").score == 0.5
        pid = read_pidfd_pid(bomber.pidfd)
        while (seen := count_descendants(pid)) < 7:
            assert warm.process.poll() is None
        assert seen == 7
        signal_pidfd(bomber.pidfd, signal.SIGKILL)
        bomber.wait_gone()
        assert count_descendants(pid) == 0
        assert warm.wait_ended(bomber).signal == signal.SIGKILL


@pytest.mark.skipif(os.geteuid() == 0, reason="cannot here: as root no check may start a process")
def test_a_grandchild_that_left_its_session_dies_with_the_result(tmp_path: Path) -> None:
    with open_warm(tmp_path, SOURCE, NAMES) as warm:
        child = warm.take()
        pid = read_pidfd_pid(child.pidfd)
        assert child.tell("daemon") == "left one behind"
        child.wait_gone()
        assert count_descendants(pid) == 0
        warm.wait_ended(child)


def test_memory_without_end_is_an_error_of_the_response(tmp_path: Path) -> None:
    with open_warm(tmp_path, SOURCE, NAMES, limits={"memory_bytes": 128 * 2**20}) as warm:
        judged = warm.take().ask("allocate")
        assert judged.error is not None
        assert judged.error.startswith("MemoryError")
        child = warm.take()
        assert child.prepare("allocate", memory_bytes=32 * 2**20).rejected is None
        assert child.judge().error is not None
        assert warm.wait_ended(child).max_rss_bytes < 128 * 2**20


def test_what_warming_up_takes_is_not_taken_from_the_checks(tmp_path: Path) -> None:
    source = (
        "kept = []\ndef ask(response, gold, args):\n    return bytearray(int(response) * 2**20)[0] + 1\n"
        "ask.warm = lambda: kept.append(bytearray(200 * 2**20))"
    )
    with open_warm(tmp_path, source, ["ask"], limits={"memory_bytes": 128 * 2**20}) as warm:
        assert warm.take().ask("ask", "64").score == 1.0
        assert "MemoryError" in (warm.take().ask("ask", "160").error or "")


def test_an_exit_without_a_result_is_reported_with_its_code(tmp_path: Path) -> None:
    with open_warm(tmp_path, SOURCE, NAMES) as warm:
        for code in (0, 71):
            child = warm.take()
            with pytest.raises(EOFError):
                child.ask("leave", str(code))
            ended = warm.wait_ended(child)
            assert (ended.code, ended.signal) == (code, None)


def test_a_crash_is_reported_with_its_signal(tmp_path: Path) -> None:
    with open_warm(tmp_path, SOURCE, NAMES) as warm:
        child = warm.take()
        with pytest.raises(EOFError):
            child.ask("crash")
        assert warm.wait_ended(child).signal == signal.SIGSEGV


def test_cpu_without_end_is_ended_by_the_kernel_when_nobody_looks(tmp_path: Path) -> None:
    with open_warm(tmp_path, SOURCE, NAMES, limits={"cpu_s": 0.5}) as warm:
        child = warm.take()
        start(child, "spin")
        ended = warm.wait_ended(child)
        assert ended.signal == signal.SIGKILL
        assert ended.cpu_s > 1.5


def test_a_slow_check_is_reniced_and_the_next_child_is_not(tmp_path: Path) -> None:
    with open_warm(tmp_path, SOURCE, NAMES) as warm:
        child = warm.take()
        start(child, "hang")
        warm.take()
        warm.want(2, slow=[child.number, 4711])
        # The answer to the second wish says that the first was heard.
        fresh = warm.take()
        niceness = [os.getpriority(os.PRIO_PROCESS, read_pidfd_pid(one.pidfd)) for one in (child, fresh)]
        assert niceness == [10, 0]


def test_children_end_with_the_warm_parent_whichever_half_is_killed(tmp_path: Path) -> None:
    for half in ("outer", "inner"):
        with open_warm(tmp_path, SOURCE, NAMES) as warm:
            warm.want(3)
            children = [warm.take() for _ in range(3)]
            start(children[0], "hang")
            outer = warm.process.pid
            with open(f"/proc/{outer}/task/{outer}/children", encoding="ascii") as file:
                (inner,) = map(int, file.read().split())
            kill(outer if half == "outer" else inner)
            for child in children:
                child.wait_gone()
            assert warm.process.wait(30) == (-9 if half == "outer" else 128 + 9)


def test_the_warm_parent_ends_with_its_children_when_the_host_hangs_up(tmp_path: Path) -> None:
    with open_warm(tmp_path, SOURCE, NAMES) as warm:
        child = warm.take()
        start(child, "hang")
        warm.sock.close()
        assert warm.process.wait(30) == 0
        child.wait_gone()


def test_a_host_that_reads_nothing_delays_no_reaping(tmp_path: Path) -> None:
    with open_warm(tmp_path, SOURCE, NAMES) as warm:
        warm.want(64)
        spares = [warm.take() for _ in range(64)]
        for spare in spares:
            spare.sock.close()
        # More ends and new spares than one socket buffer takes; all are heard in the end.
        for spare in spares:
            spare.wait_gone()
        assert {warm.wait_ended(spare).code for spare in spares} == {0}


def test_the_oom_killer_takes_a_check_before_the_warm_parent(tmp_path: Path) -> None:
    with open_warm(tmp_path, SOURCE, NAMES) as warm:
        outer = warm.process.pid
        (inner,) = map(int, Path(f"/proc/{outer}/task/{outer}/children").read_text().split())
        child = read_pidfd_pid(warm.take().pidfd)
        scores = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (outer, inner, child)]
        assert scores == [scores[0], scores[0], 1000]


def test_no_secret_of_the_host_is_in_the_warm_parents_environment(tmp_path: Path) -> None:
    (tmp_path / "awkward.py").write_text(SOURCE)
    config = WarmConfig(verifiers={"ok": "awkward:ok"}, path=[str(tmp_path)])
    with Warm(config, env=build_env(HF_TOKEN="hunter2", RETINUE_RUN_ID="kept")) as warm:
        warm.hear_warmed()
        environ = Path(f"/proc/{warm.process.pid}/environ").read_bytes()
        assert b"hunter2" not in environ
        assert b"RETINUE_RUN_ID=kept" in environ
