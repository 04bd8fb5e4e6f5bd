"""A service whose probes hang, flap, never pass, or are lost once."""

from pathlib import Path
from typing import Any

from service_scenes import build_server, end_cleanly, find_events, get, running, wait_event

from support.real_run import RealRun

HANGS = """
def answer(path):
    time.sleep(600)
"""
FLAPS = """
asked = 0

def answer(path):
    global asked
    if path != "/health":
        return 200, str(asked).encode()
    asked += 1
    return (200 if asked % 3 == 0 else 503), b""
"""
NEVER_STARTS = """
def answer(path):
    return 503, b"loading"
"""
SICKENS = """
import pathlib
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sick, asked = pathlib.Path(sys.argv[2]), 0

def answer(path):
    global asked
    if path == "/alive" and INCARNATION == 1 and sick.exists():
        asked += 1
        (sick.parent / "asked").write_text(str(asked))
        return 500, b"no token for 60 s"
    return 200, f"{REPLICA} {INCARNATION}".encode()
"""
BUDGET = {"startup": {"http": "/health", "period": "100ms", "budget": "600ms"}}
LIVENESS = {
    "startup": {"http": "/health", "period": "100ms", "budget": "30s"},
    "readiness": {"http": "/health", "period": "150ms"},
    "liveness": {"http": "/alive", "period": "100ms", "failures": 2},
}


def build_services(directory: Path) -> dict[str, Any]:
    hanging = {"readiness": {"http": "/health", "period": "200ms", "timeout": "300ms", "failures": 1}}
    flapping = {"readiness": {"http": "/health", "period": "50ms", "failures": 3}}
    sick = build_server(directory, "sick", SICKENS, probes=LIVENESS, stop={"grace": "1500ms"})
    sick["command"].append(str(directory / "sick-now"))
    budget = {"backoff": "50ms", "limit": 1}
    return {
        "hangs": build_server(directory, "hangs", HANGS, probes=hanging, min_ready=0, stop={"grace": "500ms"}),
        "flaps": build_server(directory, "flaps", FLAPS, probes=flapping),
        "slow": build_server(directory, "slow", NEVER_STARTS, probes=BUDGET, min_ready=0, restart=budget),
        "sick": sick,
    }


def test_each_probe_moves_its_own_replica_and_only_in_a_row(tmp_path: Path) -> None:
    with running(tmp_path, build_services(tmp_path)) as run:
        check_lost_liveness(run, tmp_path)
        check_startup_budget(run)
        check_flapping(run)
        check_hanging(run)
        verdict = end_cleanly(run)
    assert verdict["services"]["sick"]["restarts"] == 1
    assert verdict["services"]["slow"]["failed"] == ["slow/0"]


def check_lost_liveness(run: RealRun, directory: Path) -> None:
    """It is asked no more once it is lost, though it takes its whole grace to go; the next launch starts afresh."""
    (directory / "sick-now").touch()
    lost = wait_event(run, "sick/0", "LivenessLost")
    assert "liveness probe failed 2 times in a row: GET /alive on port" in lost["reason"]
    wait_event(run, "sick/0", "Exited")
    run.wait_replica("sick/0", "ready", incarnation=2)
    assert get(run.url("sick")) == "sick/0 2"
    assert (directory / "asked").read_text() == "2"
    assert len(find_events(run, "sick/0", "LivenessLost")) == 1
    assert "killed when its grace was over" in find_events(run, "sick/0", "Exited")[0]["reason"]


def check_startup_budget(run: RealRun) -> None:
    fired = [wait_event(run, "slow/0", "TimerFired", count)["reason"] for count in (1, 2)]
    assert "startup probe did not pass in 0.6 s" in fired[0]
    failed = run.wait_replica("slow/0", "failed")
    assert failed["incarnation"] == 2
    assert "given up" in failed["reason"]


def check_flapping(run: RealRun) -> None:
    """Two failures in a row, again and again, where three count: ready all the time."""
    run.wait("thirty probes", lambda: int(get(run.url("flaps"))) > 30)
    changes = find_events(run, "flaps/0", "ReadinessChanged")
    assert [change["after"] for change in changes] == ["ready"]


def check_hanging(run: RealRun) -> None:
    """Never ready, never restarted: readiness restarts nothing."""
    replica = run.replica("hangs/0")
    assert (replica["phase"], replica["incarnation"]) == ("starting", 1)
