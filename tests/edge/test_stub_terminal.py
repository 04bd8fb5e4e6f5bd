"""The stub on a real terminal (a pty): Ctrl-C, reading, hanging up, a trainer that takes the foreground; and nohup."""

import os
import signal
import sys
import termios
from collections.abc import Generator
from pathlib import Path

import pytest
from stub_rig import Rig, is_running

COUNTER = """
import os, signal, time
counts = {}
def take(number, frame):
    counts[number] = counts.get(number, 0) + 1
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    signal.signal(number, take)
open("up", "w").write(str(os.getpid()))
while not os.path.exists("go"):
    time.sleep(0.02)
open("counts", "w").write(repr((counts.get(2, 0), counts.get(3, 0), counts.get(15, 0))))
"""

GRABBER = """
import os, signal, termios
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
os.setpgid(0, 0)
os.tcsetpgrp(0, os.getpid())
open("up", "w").write("grabbed")
while not os.path.exists("go"):
    pass
"""


@pytest.fixture
def rig(tmp_path: Path) -> Generator[Rig, None, None]:
    rig = Rig(tmp_path)
    (rig.start_dir / "counter.py").write_text(COUNTER)
    (rig.start_dir / "grabber.py").write_text(GRABBER)
    yield rig
    rig.close()


class Terminal:
    """Both ends of a pty."""

    def __init__(self) -> None:
        self.keyboard, self.slave = os.openpty()

    def press(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)

    def hang_up(self) -> None:
        for name in ("keyboard", "slave"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)


@pytest.fixture
def terminal() -> Generator[Terminal, None, None]:
    terminal = Terminal()
    yield terminal
    terminal.hang_up()


def run_script(name: str) -> str:
    return f"trainer({sys.executable!r}, '-S', {name!r})\n"


@pytest.mark.parametrize(("key", "name", "counts"), [(b"\x03", "INT", (1, 0, 0)), (b"\x1c", "QUIT", (0, 1, 0))])
def test_a_key_reaches_the_trainer_once_and_the_controller_not_at_all(
    rig: Rig, terminal: Terminal, key: bytes, name: str, counts: tuple[int, int, int]
) -> None:
    rig.start_on_terminal(run_script("counter.py") + "hear('stop')\nuntil_trainer_ends()", terminal.slave)
    rig.await_file("up")
    terminal.press(key)
    stop = rig.await_event("stop")
    assert (stop["signal"], stop["count"], stop["from_terminal"]) == (name, 1, True)
    (rig.start_dir / "go").touch()
    assert rig.wait() == 0
    assert (rig.start_dir / "counts").read_text() == repr(counts)
    assert len(rig.heard("hello")) == 1


def test_the_same_signal_by_kill_is_not_from_the_terminal(rig: Rig, terminal: Terminal) -> None:
    rig.start_on_terminal(run_script("counter.py") + "hear('stop')\nuntil_trainer_ends()", terminal.slave)
    rig.await_file("up")
    os.kill(rig.stub_pid, signal.SIGINT)
    assert rig.await_event("stop")["from_terminal"] is False
    (rig.start_dir / "go").touch()
    assert rig.wait() == 0
    assert (rig.start_dir / "counts").read_text() == "(0, 0, 0)"


def test_the_trainer_reads_from_the_terminal(rig: Rig, terminal: Terminal) -> None:
    rig.start_on_terminal(
        "shell('echo up > up; read line; echo \"$line\" > line')\nuntil_trainer_ends()", terminal.slave
    )
    rig.await_file("up")
    terminal.press(b"typed by a person\n")
    assert rig.wait() == 0
    assert (rig.start_dir / "line").read_text() == "typed by a person\n"


def test_a_stub_in_the_background_of_its_terminal_is_not_stopped_by_what_it_prints(
    rig: Rig, terminal: Terminal
) -> None:
    mode = termios.tcgetattr(terminal.slave)
    mode[3] |= termios.TOSTOP
    termios.tcsetattr(terminal.slave, termios.TCSANOW, mode)
    rig.start_on_terminal(run_script("grabber.py") + "say(op='dance')\nuntil_trainer_ends()", terminal.slave)
    rig.await_file("up")
    (rig.start_dir / "go").touch()
    assert rig.wait() == 0
    assert b"verdict" in os.read(terminal.keyboard, 1 << 16)


def test_a_terminal_that_hangs_up_is_a_stop_and_no_reason_to_fall(rig: Rig, terminal: Terminal) -> None:
    body = run_script("counter.py") + "hear('stop')\nsay(op='signal_trainer', signal='KILL')\nuntil_trainer_ends()"
    rig.start_on_terminal(body, terminal.slave)
    trainer = int(rig.await_file("up"))
    terminal.hang_up()
    assert rig.await_event("stop")["signal"] == "HUP"
    assert rig.wait() == 137
    assert not is_running(trainer)
    assert rig.verdict["exit_code"] == 137


def test_nohup_is_inherited_by_the_trainer(rig: Rig) -> None:
    body = "shell('echo $$ > up; until [ -e go ]; do sleep 0.02; done')\nuntil_trainer_ends()"
    rig.start(body, wrap=("/bin/sh", "-c", "trap '' HUP; exec \"$@\"", "sh"))
    trainer = int(rig.await_file("up"))
    for pid in (rig.stub_pid, trainer):
        os.kill(pid, signal.SIGHUP)
    ignored = int(Path(f"/proc/{trainer}/status").read_text().split("SigIgn:")[1].split()[0], 16)
    # 32 and 33 are glibc's own: a child of its posix_spawn (make is one) ignores them, and nobody can change it.
    assert ignored & ~(3 << 31) == 1 << (signal.SIGHUP - 1)
    (rig.start_dir / "go").touch()
    assert rig.wait() == 0
    assert rig.heard("stop") == []
