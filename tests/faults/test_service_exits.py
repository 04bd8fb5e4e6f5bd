"""A service that exits: at once, later, with success, for good, or before it ever ran."""

import sys
from pathlib import Path

import pytest
from service_scenes import build_program, build_server, end_cleanly, find_events, get, running, wait_event

from support.real_run import RealRun, real_run

DIES_AT_ONCE = """
import sys
for number in range(40):
    print("line", number)
sys.exit("no model at /models/x")
"""
DIES_WHEN_TOLD = """
def answer(path):
    if path == "/die":
        print("as I was told", flush=True)
        threading.Timer(0.1, os._exit, [9]).start()  # a request that is not answered would be sent again
    return 200, f"{REPLICA} {INCARNATION}".encode()
"""


def test_every_kind_of_exit_leads_where_its_code_says(tmp_path: Path) -> None:
    services = {
        "quick": build_program(tmp_path, "quick", DIES_AT_ONCE, restart={"backoff": "50ms", "limit": 1}),
        "seed": build_program(tmp_path, "seed", "print('seeded')"),
        "after": build_server(tmp_path, "after", depends_on={"seed": "completed"}),
        "refuser": build_program(tmp_path, "refuser", "raise SystemExit(3)"),
        "late": build_server(tmp_path, "late", DIES_WHEN_TOLD),
    }
    with running(tmp_path, services) as run:
        check_death_at_once(run)
        check_success(run)
        refused = wait_event(run, "refuser/0", "Exited")
        assert (refused["after"], run.replica("refuser/0")["incarnation"]) == ("failed", 1)
        check_later_death(run)
        verdict = end_cleanly(run)
    assert verdict["services"]["quick"]["failed"] == ["quick/0"]
    assert verdict["services"]["quick"]["incarnations"] == 2


def check_death_at_once(run: RealRun) -> None:
    first, second = (wait_event(run, "quick/0", "Exited", count) for count in (1, 2))
    assert first["after"] == "backoff"
    assert "right after its start" in first["reason"]
    lines = first["detail"].splitlines()
    assert len(lines) == 20
    assert lines[-1] == "no model at /models/x"
    assert second["after"] == "failed"


def check_success(run: RealRun) -> None:
    """`after` runs: so its dependency was seen to complete; and the completed one is not started again."""
    assert get(f"{run.url('after')}/") == "after/0 1"
    assert run.replica("seed/0")["phase"] == "stopped"
    seeds = [line["event"] for line in run.events() if line["subject"] == "seed/0"]
    begun = [line["event"] for line in run.events() if line["subject"] == "after/0"]
    assert seeds.count("Exited") == 1
    assert begun[0] == "DependenciesReady"


def check_later_death(run: RealRun) -> None:
    assert get(f"{run.url('late')}/die") == "late/0 1"
    run.wait_replica("late/0", "ready", incarnation=2)
    died = find_events(run, "late/0", "Exited")[0]
    assert (died["before"], died["after"], died["detail"]) == ("ready", "backoff", "as I was told")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"command": ["no-such-program", "--port", "{port}"]}, "cannot start 'no-such-program'"),
        (
            {"command": [sys.executable, "-c", "", "{port}"], "cwd": "no/such/directory"},
            "no/such/directory': No such file",
        ),
    ],
    ids=["program", "directory"],
)
def test_what_can_never_run_ends_the_run_with_5_and_its_name(
    tmp_path: Path, fields: dict[str, object], words: str
) -> None:
    with real_run(tmp_path, {"judge": fields}) as run:
        assert run.wait_end() == 5
        run.status()
        refused = find_events(run, "judge/0", "LaunchRefused")
        verdict = run.verdict()
        run.assert_nothing_left()
        said = run.output.read_text()
    assert len(refused) == 1
    assert words in refused[0]["reason"]
    assert words in verdict["cause"]
    assert words in said
    assert "judge" in said
    assert (verdict["ended_by"], verdict["clean"]) == ("not_ready", "true")


def test_a_service_that_completed_does_not_hold_the_trainer_back(tmp_path: Path) -> None:
    """It is over before the other one is ready: it counts as there all the same."""
    seed = build_program(tmp_path, "seed", "print('seeded')")
    del seed["min_ready"]
    other = build_server(tmp_path, "other", depends_on={"seed": "completed"})
    with real_run(tmp_path, {"seed": seed, "other": other}, [sys.executable, "-c", "pass"]) as run:
        assert run.wait_end() == 0
        assert [line["event"] for line in run.events() if line["subject"] == "run"][1] == "ServicesReady"
        run.status()
        run.assert_nothing_left()
    assert run.verdict()["clean"] == "true"
