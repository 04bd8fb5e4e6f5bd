"""A service whose children leave its session: gone before its next launch, and gone with the run.

A sign of life is a locked file: it needs no pid, and a lock is gone exactly when its last holder is.
"""

import os
import signal
from pathlib import Path

from service_scenes import build_program, build_server, end_cleanly, find_events, get, is_locked, running

from support.real_run import RealRun, read_environs

LEAVES_A_CHILD = """
HOLD = '''
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
open(sys.argv[2], "a").close()
time.sleep(300)
'''
lock, sign = sys.argv[2], f"{sys.argv[2]}.{INCARNATION}"
with open(lock, "a") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = "free"
    except BlockingIOError:
        found = "held"
subprocess.Popen([sys.executable, "-c", HOLD, lock, sign], start_new_session=True)
while not os.path.exists(sign):
    time.sleep(0.02)

def answer(path):
    return 200, f"{INCARNATION} {found}".encode()
"""

CHAIN = """
import os, sys, time
until = time.monotonic() + 90  # should the test itself be killed
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        break
else:
    print("lit", flush=True)
    time.sleep(600)
while time.monotonic() < until:
    os.setsid()
    time.sleep(0.005)
    if os.fork():
        os._exit(0)
"""
"""Each link leaves its session, forks the next one and exits: the width stays, the pids never do."""

DAEMONISES = """
import os, sys, time
HOLD = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); time.sleep(300)"
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.execve(sys.executable, [sys.executable, "-c", HOLD, sys.argv[1]], {})
os.wait()
time.sleep(600)
"""
WIDTH = 30


def test_an_escapee_of_a_killed_leader_is_gone_before_the_next_launch_and_at_the_stop(tmp_path: Path) -> None:
    """A daemon without a trace of its service outlives it, but never the node: nothing says whose it is."""
    lock, daemon_lock = tmp_path / "lock", tmp_path / "daemon-lock"
    service = build_server(tmp_path, "server", LEAVES_A_CHILD)
    service["command"].append(str(lock))
    daemon = build_program(tmp_path, "daemon", DAEMONISES)
    daemon["command"].append(str(daemon_lock))
    with running(tmp_path, {"server": service, "daemon": daemon}) as run:
        assert get(run.url("server")) == "1 free"
        assert is_locked(lock)
        os.kill(run.replica("server/0")["host_pid"], signal.SIGKILL)
        run.wait_replica("server/0", "ready", incarnation=2)
        assert get(run.url("server")) == "2 free"
        assert is_locked(lock)
        run.wait("the daemon", lambda: is_locked(daemon_lock))
        end_cleanly(run)
        assert (is_locked(lock), is_locked(daemon_lock)) == (False, False)
        died, stopped = find_events(run, "server/0", "Exited")
    assert "1 escapee" in died["reason"]
    assert "1 escapee" in stopped["reason"]


def test_a_bomb_of_escapees_costs_neither_its_neighbour_nor_the_end(tmp_path: Path) -> None:
    bomb = build_program(tmp_path, "bomb", CHAIN, stop={"grace": "1s"})
    bomb["command"].append(str(WIDTH))
    with running(tmp_path, {"bomb": bomb, "server": build_server(tmp_path, "server")}) as run:
        wait_lit(run, 1)
        agent = run.node()["agent_host_pid"]
        os.kill(run.replica("bomb/0")["host_pid"], signal.SIGKILL)
        run.wait_replica("bomb/0", "ready", incarnation=2)
        assert count_processes(run, incarnation=1) == 0
        wait_lit(run, 2)
        assert get(run.url("server")) == "server/0 1"
        assert run.node()["agent_host_pid"] == agent
        end_cleanly(run)
        reasons = [event["reason"] for event in find_events(run, "bomb/0", "Exited")]
    assert ["escapees ended (namespace)" in reason for reason in reasons] == [True, True], reasons
    assert find_events(run, "server/0", "ReadinessChanged")[1:] == []


def wait_lit(run: RealRun, incarnation: int) -> None:
    log = run.attempt_dir / "logs" / "bomb.0" / f"launch-{incarnation}.log"
    run.wait("the whole width of the bomb", lambda: log.exists() and "lit" in log.read_text())


def count_processes(run: RealRun, incarnation: int) -> int:
    tags = {b"RETINUE_REPLICA=bomb/0", f"RETINUE_INCARNATION={incarnation}".encode()}
    tags.add(f"RETINUE_RUN_ID={run.run_id}".encode())
    return sum(tags <= set(environment.split(b"\0")) for _, environment in read_environs())
