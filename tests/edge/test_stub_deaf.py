"""A program that takes signals by sigwait, as srun does, is deaf to those of others and hears its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from retinue.node import spawn
from retinue.supervise.stub_deaf import Ears, build_filter

PATIENCE_S = 20.0
PROGRAM = """
import os, signal, sys, threading
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
def listen():
    number = signal.sigwait([signal.SIGTERM, signal.SIGINT])
    os.write(1, f"heard {int(number)}\\n".encode())
thread = threading.Thread(target=listen)
thread.start()
os.write(1, b"ready\\n")
sys.stdin.readline()
signal.pthread_kill(thread.ident, signal.SIGINT)
thread.join()
os.write(1, b"end\\n")
"""


class Deaf:
    """Such a program, its input and its output."""

    def __init__(self) -> None:
        self.ears = Ears()
        near, self._in = os.pipe()
        self._out, far = os.pipe()
        command = spawn.Command([sys.executable, "-S", "-c", PROGRAM], os.environ, stdin=near, stdout=far)
        self.child = spawn.spawn(command, steps=[("ears", self.ears.close_in_child)])
        os.close(near)
        os.close(far)
        assert spawn.wait_exec(self.child, PATIENCE_S)
        self.is_deaf = self.ears.take_listener()
        self.said = b""

    def leave(self) -> None:
        os.write(self._in, b"\n")

    def wait_for(self, text: bytes) -> None:
        until_s = time.monotonic() + PATIENCE_S
        os.set_blocking(self._out, False)
        while text not in self.said:
            assert time.monotonic() < until_s, self.said
            self.ears.check()
            try:
                self.said += os.read(self._out, 4096)
            except BlockingIOError:
                continue

    def wait_until_asked(self) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not self.ears.is_waited_for:
            assert time.monotonic() < until_s
            self.ears.check()

    def close(self) -> None:
        os.kill(self.child.pid, signal.SIGKILL)
        os.waitpid(self.child.pid, 0)
        os.close(self._in)
        os.close(self._out)
        self.ears.close()


@pytest.fixture
def deaf() -> Iterator[Deaf]:
    program = Deaf()
    if not program.is_deaf:
        program.close()
        pytest.skip("this kernel has no such filter")
    yield program
    program.close()


def test_a_signal_of_others_is_not_heard_until_it_says_something_to_itself(deaf: Deaf) -> None:
    deaf.wait_for(b"ready")
    os.kill(deaf.child.pid, signal.SIGTERM)
    deaf.wait_until_asked()
    for _ in range(100):
        deaf.ears.check()
    assert b"heard" not in deaf.said
    deaf.leave()
    deaf.wait_for(b"end")
    assert b"heard 2" in deaf.said, "its own signal comes before the TERM that had waited"


def test_kill_works_as_ever(deaf: Deaf) -> None:
    deaf.wait_for(b"ready")
    subprocess.run(["kill", "-KILL", str(deaf.child.pid)], check=True)
    _, status = os.waitpid(deaf.child.pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    deaf.ears.check()
    deaf.child = spawn.spawn(spawn.Command(["sleep", "60"], os.environ))


def test_a_machine_that_is_not_known_gets_no_filter() -> None:
    assert build_filter("pdp11") == b""
    assert len(build_filter("x86_64")) == len(build_filter("aarch64")) == 6 * 8
