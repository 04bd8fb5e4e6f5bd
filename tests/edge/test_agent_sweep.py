"""What escapes from a replica is found and ended, and nothing else is."""

import signal
from pathlib import Path

from agent_doubles import is_alive
from agent_stage import PYTHON, open_stage

from retinue.node.census import build_census, find_left

WAIT = "import signal\nwhile True: signal.pause()\n"
ESCAPE = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    {extra}
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open('{where}/escapee', 'w') as f: f.write(str(os.getpid()) + '\\n')
        while True: signal.pause()
    os._exit(0)
os.wait()
while not os.path.exists('{where}/escapee'): pass
"""
SCRUBBED = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        code = "import os, signal; f = open('{where}/escapee', 'w'); f.write(str(os.getpid()) + chr(10));"
        code += " f.close(); signal.pause()"
        os.execve(sys.executable, [sys.executable, '-S', '-c', code], {'PATH': '/usr/bin'})
    os._exit(0)
os.wait()
while not os.path.exists('{where}/escapee'): pass
"""
BOMB = """
import os, signal
count = 0
for _ in range(8):
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for _ in range(40):
            if os.fork() == 0:
                os.setsid()
        open('{where}/armed', 'w').write('x\\n')
        while True: signal.pause()
signal.pause()
"""
CHAIN = """
import os
beat = os.open('{where}/beat', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
if os.fork() == 0:
    while True:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        os.write(beat, b'x')
while os.path.getsize('{where}/beat') == 0: pass
"""


async def test_a_setsid_grandchild_is_gone_before_the_exit_is_told(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await stage.start(stage.build_spec(ESCAPE.replace("{extra}", "pass")))
        escapee = int(await stage.wait_file("escapee"))
        exited = await stage.wait_exit("svc/0")
        assert not is_alive(escapee)
        assert (exited.code, exited.escapees, exited.left, exited.rung) == (0, 1, (), "subreaper")


async def test_a_daemon_with_a_scrubbed_environment_is_found_by_the_log_pipe_it_kept(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await stage.start(stage.build_spec(SCRUBBED))
        escapee = int(await stage.wait_file("escapee"))
        exited = await stage.wait_exit("svc/0")
        assert not is_alive(escapee)
        assert exited.escapees == 1


async def test_a_daemon_that_left_the_log_but_kept_its_environment_is_found_by_its_tags(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        extra = "null = os.open('/dev/null', os.O_RDWR); os.dup2(null, 1); os.dup2(null, 2)"
        await stage.start(stage.build_spec(ESCAPE.replace("{extra}", extra)))
        escapee = int(await stage.wait_file("escapee"))
        await stage.wait_exit("svc/0")
        assert not is_alive(escapee)


async def test_an_escapee_that_ignores_term_does_not_survive_a_stop(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await stage.start(stage.build_spec(ESCAPE.replace("{extra}", "pass") + WAIT))
        escapee = int(await stage.wait_file("escapee"))
        stage.stop("svc/0", 1)
        exited = await stage.wait_exit("svc/0")
        assert not is_alive(escapee)
        assert (exited.was_asked, exited.is_killed_hard, exited.escapees) == (True, False, 1)


async def test_hundreds_of_setsid_children_are_ended_whole(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await stage.start(stage.build_spec(BOMB.replace("range(40)", "range(5)")))
        await stage.wait_file("armed")
        stage.stop("svc/0", 1, grace_s=0.2)
        exited = await stage.wait_exit("svc/0")
        assert exited.left == ()
        assert exited.escapees >= 8


async def test_a_neighbour_and_its_children_are_never_swept(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        neighbour = stage.build_spec(ESCAPE.replace("{extra}", "pass") + WAIT, replica="svc/1", index=1)
        other = await stage.start(neighbour)
        escapee = int(await stage.wait_file("escapee"))
        await stage.start(stage.build_spec(WAIT))
        stage.stop("svc/0", 1)
        await stage.wait_exit("svc/0")
        assert is_alive(other.pid)
        assert is_alive(escapee)


async def test_children_that_outlive_a_crashed_leader_are_ended_with_it(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        script = f"import subprocess; p = subprocess.Popen([{PYTHON!r}, '-S', '-c', 'import signal; signal.pause()'])\n"
        script += "f = open('{where}/child', 'w'); f.write(str(p.pid) + '\\n'); f.close()\n"
        script += "import os; os.kill(os.getpid(), 9)"
        await stage.start(stage.build_spec(script))
        child = int(await stage.wait_file("child"))
        exited = await stage.wait_exit("svc/0")
        assert not is_alive(child)
        assert (exited.signal, exited.escapees) == (signal.SIGKILL, 0)


async def test_a_chain_of_processes_that_each_leave_at_once_is_caught(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await stage.start(stage.build_spec(CHAIN))
        exited = await stage.wait_exit("svc/0")
        assert exited.left == ()
        assert exited.escapees >= 1
        # Every link of the chain writes a byte, about a thousand a second; twenty scans take far longer than one.
        size = (tmp_path / "beat").stat().st_size
        left = [
            find_left(build_census({"RETINUE_RUN_ID": stage.run_id, "RETINUE_REPLICA": "svc/0"})) for _ in range(20)
        ]
        assert left == [set()] * 20
        assert (tmp_path / "beat").stat().st_size == size > 0
