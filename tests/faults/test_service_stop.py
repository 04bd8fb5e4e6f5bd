"""A service that does not end when it is asked: every wait for it is bounded, and what was needed is told."""

import os
import signal
from pathlib import Path

from service_scenes import build_program, end_cleanly, find_events, running

OBEYS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("heard it", flush=True), sys.exit(0)))
print("up", flush=True)
time.sleep(600)
"""
IGNORES = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""
STOPS_ITSELF = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGSTOP))
print("up", flush=True)
while True:
    time.sleep(600)
"""
GRACE_S = 1.5
PATIENCE_S = 4.0
"""Beyond the grace, for SIGKILL and two empty scans on a loaded machine."""


def test_what_ignores_term_or_is_stopped_ends_within_its_grace_and_the_verdict_says_how(tmp_path: Path) -> None:
    stop = {"grace": f"{GRACE_S}s"}
    services = {
        "obeys": build_program(tmp_path, "obeys", OBEYS, stop=stop),
        "ignores": build_program(tmp_path, "ignores", IGNORES, stop=stop),
        "frozen": build_program(tmp_path, "frozen", OBEYS, stop=stop),
        "refreezes": build_program(tmp_path, "refreezes", STOPS_ITSELF, stop=stop),
    }
    with running(tmp_path, services) as run:
        for name in services:
            log = run.attempt_dir / "logs" / f"{name}.0" / "launch-1.log"
            run.wait(f"{name} to be up", lambda log=log: log.exists() and "up" in log.read_text())
        os.kill(run.replica("frozen/0")["host_pid"], signal.SIGSTOP)
        verdict = end_cleanly(run)
        asked = {name: find_events(run, f"{name}/0", "StopAsked")[0] for name in services}
        ends = {name: find_events(run, f"{name}/0", "Exited")[0] for name in services}
    took = {name: ends[name]["t_utc"] - asked[name]["t_utc"] for name in services}
    assert max(took.values()) < GRACE_S + PATIENCE_S, took
    assert min(took["ignores"], took["refreezes"]) >= GRACE_S, took
    killed = {name: entry["killed_hard"] for name, entry in verdict["services"].items()}
    assert killed == {"obeys": 0, "ignores": 1, "frozen": 0, "refreezes": 1}
    assert "heard it" in ends["frozen"]["detail"]
    assert "exited with code 0" in ends["obeys"]["reason"]
    for name in ("ignores", "refreezes"):
        assert "ended by SIGKILL, killed when its grace was over" in ends[name]["reason"]
