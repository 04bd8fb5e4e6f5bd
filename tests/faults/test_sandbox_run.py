"""Sandboxes of a real run through its gateway: parts of it are killed under commands; every end has its right name."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "edge"))

from sandbox_scenes import list_descendants
from sandbox_service import prepare_service

from retinue.client import Ended, Process, Retinue, Sandbox, SandboxLost
from retinue.client.sandbox_asking import Call, ask
from support.real_run import RealRun, is_running, real_run, wait_for

TRAINER = """
import json, os, sys, time
with open(sys.argv[1] + ".part", "w") as file:
    json.dump(dict(os.environ), file)
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""


class Stage:
    """The run, the environment of its trainer, and an image."""

    def __init__(self, run: RealRun, env: dict[str, str], image: Path) -> None:
        self.run, self.env, self.image = run, env, image

    def host_pid(self) -> int:
        return int(self.run.replica("sandbox/0")["host_pid"])

    def role_pid(self, role: str) -> int:
        """Host pid of one of our own processes; 0 when there is none, or others ended while it was looked for."""
        try:
            return self.run.role_pid(role)
        except FileNotFoundError:
            return 0

    async def wait_ready(self, incarnation: int) -> None:
        await asyncio.to_thread(self.run.wait_replica, "sandbox/0", "ready", incarnation)


def build_service(program: Path, store: Path) -> dict[str, Any]:
    argv = [sys.executable, "-P", "-m", "retinue.sandbox", "--port", "{port}", "--store", str(store), "--shards", "1"]
    return {
        "kind": "sandbox",
        "command": [*argv, "--program", str(program)],
        "probes": {"readiness": {"http": "/health", "period": "200ms", "failures": 3}},
        "restart": {"backoff": "200ms", "limit": 20},
        "stop": {"grace": "5s"},
    }


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    place = tmp_path_factory.mktemp("sandboxes")
    program, image, store = prepare_service(tmp_path_factory.getbasetemp())
    trainer = [sys.executable, "-c", TRAINER, str(place / "env.json")]
    with real_run(place, {"sandbox": build_service(program, store)}, trainer) as run:
        run.wait_phase("running")
        run.wait("the trainer's environment", (place / "env.json").exists)
        yield Stage(run, json.loads((place / "env.json").read_text()), image)
        run.signal(signal.SIGTERM)
        run.wait_end()
        assert run.verdict()["clean"] == "true"
        run.assert_nothing_left()


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[Retinue]:
    async with Retinue.from_env(stage.env) as client:
        yield client


async def begin(box: Sandbox, then: str) -> "asyncio.Task[Ended]":
    """Start a command and return when it runs."""
    running = asyncio.create_task(box.exec(f"echo once >> /begun; {then}", timeout_s=40))
    async with asyncio.timeout(30):
        while not await box.files.exists("/begun"):
            assert not running.done(), running.result()
    return running


def kill(pid: int) -> None:
    assert pid > 1
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("role", ["gateway", "agent"])
async def test_a_command_outlives_the_death_of_a_part_of_the_run_and_runs_once(
    stage: Stage, client: Retinue, role: str
) -> None:
    async with client.sandbox(stage.image) as box:
        running = await begin(box, "while [ ! -e /go ]; do sleep 0.05; done; cat /begun")
        before = stage.role_pid(role)
        kill(before)
        await asyncio.to_thread(wait_for, f"another {role}", lambda: stage.role_pid(role) not in (0, before))
        await box.files.write("/go", "")
        ended = await running
        assert (ended.code, ended.stdout.text) == (0, "once\n")


async def test_a_host_that_is_killed_loses_its_sandboxes_by_name_and_the_next_one_makes_new_ones(
    stage: Stage, client: Retinue
) -> None:
    incarnation = stage.run.replica("sandbox/0")["incarnation"]
    async with client.sandbox(stage.image) as box, client.sandbox(stage.image) as idle:
        process: Process = await idle.start("sleep 100")
        running = await begin(box, "sleep 100")
        node, pid = box.node, stage.host_pid()
        below = list_descendants(pid)
        assert below
        kill(pid)
        for work in (running, idle.exec("true"), process.wait(), idle.files.read("/begun")):
            with pytest.raises(SandboxLost) as caught:
                await work
            assert caught.value.node == node
            assert caught.value.cause
        await asyncio.to_thread(wait_for, "all of it to be gone", lambda: not any(map(is_running, below)))
    await stage.wait_ready(incarnation + 1)
    # The new host knows nothing of the old one's, and says so itself.
    with pytest.raises(SandboxLost, match="started again"):
        await idle.exec("true")
    async with client.sandbox(stage.image) as box:
        assert (await box.exec("echo new")).stdout.text == "new\n"


async def test_nobody_is_left_when_all_rollouts_are_cancelled_at_once(stage: Stage, client: Retinue) -> None:
    async def roll_out() -> None:
        async with client.sandbox(stage.image) as box:
            await box.exec("sleep 100")

    rollouts = [asyncio.create_task(roll_out()) for _ in range(20)]
    counted = 0
    async with asyncio.timeout(60), client.sandbox(stage.image) as box:
        while counted < 21:
            counted = len(await list_live(client))
        for rollout in rollouts:
            rollout.cancel()
        ended = await asyncio.gather(*rollouts, return_exceptions=True)
        assert {type(one) for one in ended} == {asyncio.CancelledError}
        assert await list_live(client) == [box.id]


async def list_live(client: Retinue) -> list[str]:
    reply = await ask(client._open_line("sandbox"), Call("GET", "/v1/sandboxes", "list"))
    return [one["id"] for one in json.loads(reply.body)["sandboxes"]]
