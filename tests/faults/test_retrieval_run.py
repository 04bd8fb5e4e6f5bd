"""A retrieval service of a real run is killed under its callers: nothing is lost, and no outage is an empty result."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "edge"))

from retrieval_scenes import TEXTS, build

from retinue.client import Retinue, RetrievedKind
from support.real_run import RealRun, real_run, wait_for

TRAINER = """
import json, os, sys, time
with open(sys.argv[1] + ".part", "w") as file:
    json.dump(dict(os.environ), file)
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""
SERVICE: dict[str, Any] = {
    "template": "retrieval",
    "with": {"workers": 1},
    "restart": {"backoff": "200ms", "limit": 20, "no_restart": [2, 3]},
    "min_ready": 1,
}


class Stage:
    """The run, and the environment of its trainer."""

    def __init__(self, run: RealRun, env: dict[str, str], index: Path) -> None:
        self.run, self.env, self.index = run, env, index

    def kill(self) -> None:
        os.kill(int(self.run.replica("corpus/0")["host_pid"]), signal.SIGKILL)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    place = tmp_path_factory.mktemp("corpus-run")
    build(place)
    told = place / "env.json"
    service = SERVICE | {"with": {"workers": 1, "index": str(place / "index")}}
    trainer = [sys.executable, "-c", TRAINER, str(told)]
    with real_run(place, {"corpus": service}, trainer, run={"name": "test", "hold": "20s"}) as run:
        wait_for("the trainer's environment", told.exists)
        yield Stage(run, json.loads(told.read_text()), place / "index")


async def test_a_service_killed_under_its_callers_answers_them_all(stage: Stage) -> None:
    async with Retinue.from_env(stage.env) as r:
        assert (await r.retrieve("corpus", "a cat on a mat", 1)).passages[0].id == "p1"
        calls = [asyncio.create_task(r.retrieve("corpus", list(TEXTS), 1)) for _ in range(30)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        stage.kill()
        retrieved = await asyncio.gather(*calls)
    assert {one.outcome for one in retrieved} == {RetrievedKind.FOUND}
    assert len({one.results for one in retrieved}) == 1
    await asyncio.to_thread(stage.run.wait_replica, "corpus/0", "ready", 2)


async def test_an_index_that_is_gone_is_an_outage_that_names_itself(stage: Stage) -> None:
    """Last: the service is not started again afterwards."""
    stage.index.rename(stage.index.with_name("elsewhere"))
    stage.kill()
    await asyncio.to_thread(stage.run.wait_replica, "corpus/0", "failed", 3)
    async with Retinue.from_env(stage.env) as r:
        retrieved = await r.retrieve("corpus", "a cat on a mat", deadline_s=40)
    assert (retrieved.outcome, retrieved.results) == (RetrievedKind.INFRA_FAILED, ())
    assert retrieved.service == "corpus"
    logs = stage.run.attempt_dir / "logs" / "corpus.0"
    assert "there is no index" in (logs / "launch-3.log").read_text()
