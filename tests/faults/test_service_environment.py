"""The caller's environment: another step's place in the job and a dead proxy reach no service and break nothing."""

import json
import os
import sys
from pathlib import Path

import pytest
from service_scenes import build_server, write_script

from support.command import start_in_scene
from support.real_run import RealRun, server_service

DEAD_PROXY = "http://127.0.0.1:9"
PROXIES = dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy"), DEAD_PROXY)
PLACES = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "8",
    "SRUN_DEBUG": "3",
    "PMI_RANK": "3",
    "PMIX_RANK": "3",
    "OMPI_COMM_WORLD_RANK": "3",
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "3",
    "MASTER_ADDR": "elsewhere",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "another",
    "RETINUE_JUDGE_URL": "http://stale",
}
"""What describes the caller's own step, and would make a service join somebody else's process group."""
KEPT = ["SLURM_*", "RANK", "*_proxy", "*_PROXY"]
SAYS_ITS_ENVIRONMENT = """
import json

def answer(path):
    return 200, json.dumps(dict(os.environ)).encode()
"""
TRAINER = """
import json, os, sys, urllib.request
said = {"trainer": dict(os.environ)}
for name in ("PLAIN", "KEEPS"):
    with urllib.request.urlopen(os.environ[f"RETINUE_{name}_URL"], timeout=20) as answer:
        said[name.lower()] = json.load(answer)
with open(sys.argv[1], "w") as file:
    json.dump(said, file)
sys.exit(11)
"""


def test_services_lose_the_callers_place_in_the_job_and_a_dead_proxy_changes_nothing(tmp_path: Path) -> None:
    said_path = tmp_path / "said.json"
    services = {
        "plain": build_server(tmp_path, "plain", SAYS_ITS_ENVIRONMENT, env={"OWN": "a,b\n'c' {{d}}"}),
        "keeps": build_server(tmp_path, "keeps", SAYS_ITS_ENVIRONMENT, keep_env=KEPT),
    }
    run = RealRun(tmp_path, services, [*write_script(tmp_path, "trainer", TRAINER), str(said_path)])
    caller = {**PLACES, **PROXIES, "ORDINARY": "1"}
    try:
        run.start(caller)
        run.wait("the run's id", lambda: run.status().get("run_id"))
        assert run.wait_end() == 11, run.output.read_text()
        run.assert_nothing_left()
    finally:
        run.end_hard()
    assert run.verdict()["clean"] == "true"
    said = json.loads(said_path.read_text())
    check_service(said["plain"])
    stale = {"RETINUE_JUDGE_URL": caller.pop("RETINUE_JUDGE_URL")}
    assert caller.items() <= said["trainer"].items()
    assert not stale.items() & said["trainer"].items(), "another run's address is worse than none"
    assert "127.0.0.1" in said["trainer"]["no_proxy"].split(",")
    assert PROXIES.items() <= said["keeps"].items()
    assert {name for name in PLACES if name in said["keeps"]} == {"SLURM_PROCID", "SLURM_NTASKS", "RANK"}


def check_service(env: dict[str, str]) -> None:
    assert [name for name in PLACES if name in env] == []
    assert (env["ORDINARY"], env["OWN"]) == ("1", "a,b\n'c' {d}")
    assert {"127.0.0.1", "localhost", "::1"} <= set(env["no_proxy"].split(",")) & set(env["NO_PROXY"].split(","))
    assert [name for name in PROXIES if name in env] == [], "what leads out is no service's unless it is named"
    assert (env["RETINUE_REPLICA"], env["CUDA_VISIBLE_DEVICES"], env["PYTHONUNBUFFERED"]) == ("plain/0", "", "1")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads and writes whatever the mode")
@pytest.mark.parametrize(("mask", "seen"), [("777", "0o77"), ("707", "0o7"), ("022", "0o22")])
def test_a_umask_that_takes_the_owners_own_access_away_breaks_nothing(tmp_path: Path, mask: str, seen: str) -> None:
    said_path = tmp_path / "said"
    said_path.touch()
    says_its_mask = 'import os, sys; open(sys.argv[1], "w").write(oct(os.umask(0))); sys.exit(11)'
    run = RealRun(tmp_path, {"server": server_service()}, [sys.executable, "-c", says_its_mask, str(said_path)])
    try:
        start_in_scene(run, prefix=("sh", "-c", f'umask {mask}; exec "$@"', "sh"))
        assert run.wait_end() == 11, run.output.read_text()
        assert said_path.read_text() == seen
        verdict = run.verdict()
        assert (verdict["ended_by"], verdict["clean"]) == ("trainer", "true")
        run.run_id = verdict["run_id"]
        run.assert_nothing_left()
    finally:
        run.end_hard()
