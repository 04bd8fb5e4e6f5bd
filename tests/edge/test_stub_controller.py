"""A controller that crashes, hangs or is not there: restarted, replaced, given up; and the stub that is killed."""

import os
import signal
import socket
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from stub_rig import Rig, await_true, is_running

SLEEPER = "trainer('/bin/sh', '-c', 'echo $$ > pid; exec sleep 600')\n"
ONCE = "if hello['starts'] == 1:\n    " + SLEEPER


@pytest.fixture
def rig(tmp_path: Path) -> Generator[Rig, None, None]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def test_a_killed_controller_is_started_again_on_the_same_port_and_told_of_the_running_trainer(rig: Rig) -> None:
    body = (
        "note(ev='port', port=listener.getsockname()[1])\n"
        "if hello['starts'] == 1:\n    shell('until [ -e go ]; do sleep 0.05; done; exit 4')\n    hear('nothing')\n"
        "listener.accept()[0].sendall(b'second')\n"
        "until_trainer_ends()"
    )
    rig.start(body)
    port = rig.await_event("port")["port"]
    rig.await_event("trainer_started")
    with socket.create_connection(("127.0.0.1", port)) as caller:
        # Connected while only the first one lives; answered by the second.
        os.kill(rig.heard("hello")[0]["controller"], signal.SIGKILL)
        assert caller.recv(10) == b"second"
    hello = rig.await_event("hello", 2)
    assert hello["starts"] == 2
    assert hello["trainer"]["pid"] == rig.heard("trainer_started")[0]["pid"]
    assert (hello["trainer"]["is_running"], hello["trainer"]["is_started"]) == (True, True)
    assert rig.await_event("port", 2)["port"] == port
    (rig.start_dir / "go").touch()
    assert rig.wait() == 4
    assert len(rig.heard("trainer_started")) == 1


def test_what_happened_while_no_controller_lived_is_in_the_next_hello(rig: Rig) -> None:
    report = """echo '{"retinue_node": "n1", "clean": true}'; exit 9"""
    body = f"""
if hello["starts"] == 1:
    say(op="launch", argv=["/bin/sh", "-c", {report!r}])
    shell("exit 6")
    hear("trainer_exited"); hear("launch_exited"); hear("stop")
    os.kill(os.getpid(), signal.SIGKILL)
finish(code_of(hello["trainer"]))
"""
    rig.start(body)
    rig.await_event("launch_exited")
    rig.await_event("trainer_exited")
    rig.signal_stub(signal.SIGTERM)
    assert rig.wait() == 6
    hello = rig.heard("hello")[1]
    assert (hello["launch"]["code"], hello["launch"]["is_running"]) == (9, False)
    assert hello["stops"] == [{"signal": "TERM", "count": 1, "from_terminal": False}]
    assert hello["nodes"] == {"n1": {"retinue_node": "n1", "clean": True}}


def test_the_fourth_death_stops_the_trainer_and_fails_the_run(rig: Rig) -> None:
    rig.start(
        ONCE + "else:\n    print('last words', flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)\nhear('nothing')"
    )
    trainer = int(rig.await_file("pid"))
    os.kill(rig.await_event("hello")["controller"], signal.SIGKILL)
    assert rig.wait() == 5
    assert not is_running(trainer)
    assert [hello["starts"] for hello in rig.heard("hello")] == [1, 2, 3, 4]
    assert (rig.verdict["ended_by"], rig.verdict["exit_code"]) == ("controller_lost", 5)
    assert rig.verdict["trainer"] == {"code": None, "signal": signal.SIGTERM, "was_started": True}
    assert (rig.verdict["clean"], rig.verdict["controller_starts"]) == ("true", 4)
    assert "last words" in rig.stderr


def test_a_trainer_that_ended_before_the_controllers_were_lost_keeps_its_exit_code(rig: Rig) -> None:
    body = "if hello['starts'] == 1:\n    shell('exit 0')\n    hear('trainer_exited')\nsys.exit(1)"
    assert rig.run(body) == 0
    assert rig.verdict["ended_by"] == "trainer"
    assert any("after 3 restarts" in warning for warning in rig.verdict["warnings"])


def test_a_lost_controllers_last_verdict_is_the_base_of_the_final_one(rig: Rig) -> None:
    said = {"ended_by": "", "cause": "", "services": {"judge": {"restarts": 7}}}
    assert rig.run(f"say(op='verdict', verdict={said!r})\nsys.exit(1)") == 5
    assert rig.verdict["services"] == {"judge": {"restarts": 7}}
    assert rig.verdict["ended_by"] == "controller_lost"


def test_a_controller_that_stops_beating_is_replaced(rig: Rig) -> None:
    rig.start(ONCE + "    hear('nothing')\nfinish(3)", beat_timeout_s=1.0)
    trainer = int(rig.await_file("pid"))
    hung = rig.await_event("hello")["controller"]
    os.kill(hung, signal.SIGSTOP)
    assert rig.wait() == 3
    assert not is_running(hung)
    assert not is_running(trainer)
    assert "gave no beat for 1 s" in rig.stderr


def test_a_stub_that_was_stopped_itself_blames_no_controller(rig: Rig) -> None:
    rig.start("hear('stop')\nfinish(0)", beat_timeout_s=1.5)
    hello = rig.await_event("hello")
    for pid in (hello["controller"], rig.stub_pid):
        os.kill(pid, signal.SIGSTOP)
    # Real time has to pass: longer than the limit, and than what the stub takes for mere load.
    due_s = time.monotonic() + 4.0
    await_true(lambda: time.monotonic() > due_s, "four seconds")
    for pid in (rig.stub_pid, hello["controller"]):
        os.kill(pid, signal.SIGCONT)
    rig.signal_stub(signal.SIGTERM)
    assert rig.wait() == 0
    assert len(rig.heard("hello")) == 1


def test_a_controller_that_closed_its_socket_and_lives_on_is_replaced(rig: Rig) -> None:
    assert rig.run("if hello['starts'] == 1:\n    stub.close()\n    time.sleep(600)\nfinish(6)") == 6
    assert "closed its socket" in rig.stderr


def test_finish_in_the_last_breath_is_obeyed(rig: Rig) -> None:
    assert rig.run("say(op='finish', exit_code=8, verdict=None)\nos.kill(os.getpid(), signal.SIGKILL)") == 8
    assert len(rig.heard("hello")) == 1
    assert "started again" not in rig.stderr


def test_lines_that_are_no_orders_are_said_and_survived(rig: Rig) -> None:
    body = """
stub.sendall(b'garbage\\n[1]\\n{"op": 5}\\n')
say(op="dance"); say(op="launch"); say(op="signal_trainer", signal="NOSUCH"); say(op="signal_launch", signal="TERM")
finish(2)
"""
    assert rig.run(body) == 2
    for word in ("garbage", "dance", "'launch'", "NOSUCH", "never started"):
        assert word in rig.stderr


def test_a_trainer_is_signalled_as_ordered(rig: Rig) -> None:
    body = "trainer('/bin/sh', '-c', 'trap \"exit 21\" USR2; echo up > up; while :; do sleep 0.05; done')\n"
    body += "hear('stop')\nsay(op='signal_trainer', signal='USR2')\nuntil_trainer_ends()"
    rig.start(body)
    rig.await_file("up")
    rig.signal_stub(signal.SIGTERM)
    assert rig.wait() == 21


def test_usr1_is_for_the_trainer_and_no_stop(rig: Rig) -> None:
    body = "trainer('/bin/sh', '-c', 'trap \"exit 22\" USR1; echo up > up; while :; do sleep 0.05; done')\n"
    rig.start(body + "until_trainer_ends()")
    rig.await_file("up")
    os.kill(rig.stub_pid, signal.SIGUSR1)
    assert rig.wait() == 22
    assert not rig.heard("stop")


def test_stops_are_counted_and_named(rig: Rig) -> None:
    rig.start("hear('stop'); hear('stop'); finish(0)")
    rig.await_event("hello")
    rig.signal_stub(signal.SIGINT)
    rig.signal_stub(signal.SIGUSR2)
    assert rig.wait() == 0
    named = [(stop["signal"], stop["count"], stop["from_terminal"]) for stop in rig.heard("stop")]
    assert named == [("INT", 1, False), ("USR2", 2, False)]


def test_a_stop_before_the_controller_said_anything_is_obeyed_by_the_stub(rig: Rig) -> None:
    rig.start("", beat_timeout_s=4.0, controller_argv=["/bin/sh", "-c", "echo $$ > pid; exec sleep 600"])
    mute = int(rig.await_file("pid"))
    rig.signal_stub(signal.SIGTERM)
    assert rig.wait() == 128 + signal.SIGTERM
    assert not is_running(mute)
    assert rig.verdict["ended_by"] == "signal"


def test_a_stop_that_a_living_controller_takes_its_time_for_is_left_to_it(rig: Rig) -> None:
    body = "trainer('/bin/sh', '-c', 'trap \"sleep 1.5; exit 23\" TERM; echo up > up; while :; do sleep 0.05; done')\n"
    body += "hear('stop')\nsay(op='signal_trainer', signal='TERM')\nuntil_trainer_ends()"
    rig.start(body, beat_timeout_s=2.0)
    rig.await_file("up")
    rig.signal_stub(signal.SIGTERM)
    assert rig.wait() == 23
    assert "no controller to act" not in rig.stderr


def test_the_third_stop_ends_a_trainer_that_ignores_term_without_the_controllers_word(rig: Rig) -> None:
    body = "trainer('/bin/sh', '-c', 'trap \"\" TERM; echo $$ > pid; while :; do sleep 0.05; done')\nhear('nothing')"
    rig.start(body)
    trainer = int(rig.await_file("pid"))
    for _ in range(3):
        rig.signal_stub(signal.SIGTERM)
    assert rig.wait() == 128 + signal.SIGKILL
    assert not is_running(trainer)
    assert rig.verdict["ended_by"] == "signal"


def test_a_killed_stub_takes_the_trainer_along_and_the_controller_sees_the_end_of_the_stop_pipe(rig: Rig) -> None:
    body = SLEEPER + "assert os.read(stop_fd, 1) == b''\nnote(ev='end_of_stop_pipe')"
    rig.start(body)
    trainer = int(rig.await_file("pid"))
    os.kill(rig.stub_pid, signal.SIGKILL)
    rig.await_event("end_of_stop_pipe")
    await_true(lambda: not is_running(trainer), "the trainer's end")


def test_a_controller_that_cannot_be_executed_is_given_up(rig: Rig) -> None:
    assert rig.run("", controller_argv=["/no/such/python"]) == 5
    assert "/no/such/python" in rig.verdict["cause"]
