"""What is dead but for one thread: seen as such, ended, and not waited for."""

import subprocess
import sys
import textwrap
from collections.abc import Generator
from pathlib import Path

import pytest
from stub_rig import Rig, await_true

from retinue.node.scan import is_doomed, is_running, read_process

END_FIRST_THREAD = """
import ctypes, os, signal, threading, time
threading.Thread(target=lambda: time.sleep(600), daemon=True).start()
number = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.c_long(0))
"""
"""exit(2), not exit_group(2): the process lives on in its other thread, and is not reaped."""


@pytest.fixture
def rig(tmp_path: Path) -> Generator[Rig, None, None]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def test_a_process_whose_first_thread_is_dead_still_runs_until_the_last_one_is_dead_too() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", END_FIRST_THREAD]) as child:
        try:
            await_true(lambda: (found := read_process(child.pid)) and found.state == "Z", "its first thread to end")
            process = read_process(child.pid)
            assert process is not None
            assert (process.threads, process.is_exiting, process.is_dead) == (2, True, False)
            assert is_running(process)
        finally:
            child.kill()
    assert not is_running(process)


def test_a_process_that_has_its_sigkill_to_take_is_doomed_and_one_that_sleeps_is_not() -> None:
    with subprocess.Popen(["/bin/sleep", "600"]) as child:
        process = read_process(child.pid)
        assert process is not None
        assert not is_doomed(process)
        child.kill()
        assert is_doomed(process)


def test_a_controller_that_lost_its_first_thread_is_replaced_though_its_socket_stays_open(rig: Rig) -> None:
    first = "if hello['starts'] == 1:\n    trainer('/bin/sleep', '600')\n    hear('trainer_started')\n"
    # No silence is long enough here: it is seen in /proc.
    rig.start(f"{first}{textwrap.indent(END_FIRST_THREAD, '    ')}\nfinish(6)", beat_timeout_s=600.0)
    hello = rig.await_event("hello", 2)
    assert hello["trainer"]["is_running"]
    assert rig.wait() == 6
    assert rig.verdict["controller_starts"] == 2


def test_a_run_ends_after_the_last_controller_that_lost_its_first_thread(rig: Rig) -> None:
    rig.start(f"trainer('/bin/sleep', '600')\nhear('trainer_started')\n{END_FIRST_THREAD}", beat_timeout_s=600.0)
    rig.await_event("hello", 4)
    assert rig.wait() == 5
    assert rig.verdict["ended_by"] == "controller_lost"
