"""A simulator of a real run asks its model by the run's own URL: the model's death is waited for, not scored."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from retinue.client import JudgedKind, Retinue
from support.real_run import RealRun, real_run, wait_for

TRAINER = """
import json, os, sys, time
with open(sys.argv[1] + ".part", "w") as file:
    json.dump(dict(os.environ), file)
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""
RESTART = {"backoff": "200ms", "limit": 20}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealRun, dict[str, str]]]:
    place = tmp_path_factory.mktemp("simulator-run")
    (place / "personas.jsonl").write_text('{"id": "anna", "persona": "A teacher.", "goal": "a lamp"}\n')
    (place / "script.jsonl").write_text('{"reply": "My lamp is dark."}\n')
    told = place / "env.json"
    services = {
        "judge": {"template": "rehearsal", "with": {"script": str(place / "script.jsonl")}, "restart": RESTART},
        "customer": {
            "template": "user-simulator",
            "with": {"model_service": "judge", "personas": str(place / "personas.jsonl")},
            "depends_on": {"judge": "ready"},
        },
    }
    trainer = [sys.executable, "-c", TRAINER, str(told)]
    with real_run(place, services, trainer, run={"name": "test", "hold": "20s"}) as run:
        wait_for("the trainer's environment", told.exists)
        yield run, json.loads(told.read_text())


async def test_a_model_killed_under_the_simulator_costs_time_and_no_row(stage: tuple[RealRun, dict[str, str]]) -> None:
    run, env = stage
    async with Retinue.from_env(env) as r:
        for _ in range(2):
            said = await r.judge("customer", [{"role": "assistant", "content": "Hello?"}], model="anna")
            assert (said.outcome, said.text) == (JudgedKind.ANSWERED, "My lamp is dark."), said.reason
            if run.replica("judge/0")["incarnation"] == 1:
                os.kill(int(run.replica("judge/0")["host_pid"]), signal.SIGKILL)
    await asyncio.to_thread(run.wait_replica, "judge/0", "ready", 2)
