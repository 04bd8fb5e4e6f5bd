"""The agent looks at what an engine does, not at how healthy its server looks: the scripted engine on a real node."""

import asyncio
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

from agent_doubles import wait_for
from agent_stage import Stage, open_stage

from retinue.terms.launch import LaunchSpec, ProbeKind, ProbeSpec
from retinue.terms.replica import Exited, LivenessLost, ReadinessChanged, StartupLost

STARTUP = ProbeSpec(
    ProbeKind.STARTUP, http_path="/health", period_s=0.1, timeout_s=5.0, budget_s=60.0, budget_max_s=90.0
)
READY = ProbeSpec(ProbeKind.READINESS, http_path="/health", period_s=0.1, timeout_s=5.0)


def progress(stall_s: float, engine: str = "vllm") -> ProbeSpec:
    return ProbeSpec(
        ProbeKind.LIVENESS, progress=engine, stall_s=stall_s, period_s=0.1, timeout_s=5.0, failures=1, budget_s=None
    )


def build_engine(stage: Stage, *probes: ProbeSpec, faults: tuple[str, ...] = (), speed: str = "20") -> LaunchSpec:
    words = ("-P", "-m", "retinue.rehearsal", "--port", "{port}", "--speed", speed, "--fault", *faults)
    return LaunchSpec(
        replica="svc/0",
        service="svc",
        index=0,
        incarnation=1,
        argv=(sys.executable, *words),
        wants_port=True,
        probes=(STARTUP, READY, *probes),
        log_path=str(stage.where / "attempt-0" / "logs" / "svc.0" / "launch-1.log"),
    )


def post(port: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data)
    with urllib.request.urlopen(request, timeout=30) as answer:
        said: dict[str, Any] = json.loads(answer.read())
        return said


async def begin_work(port: int, words: int) -> Any:
    """Ask for so many tokens and do not wait for them."""
    schema = {"const": "token " * words}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "x"}], "response_format": form}
    return asyncio.create_task(asyncio.to_thread(post, port, "/v1/chat/completions", body))


async def test_a_hung_engine_behind_a_healthy_server_loses_its_liveness_and_says_what_waited(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        started = await stage.start(build_engine(stage, progress(1.0)))
        assert (await stage.wait_event("svc/0", ReadinessChanged)).is_ready
        assert started.port is not None
        await asyncio.to_thread(post, started.port, "/rehearsal", {"hang": True})
        work = await begin_work(started.port, 3)
        lost = await stage.wait_event("svc/0", LivenessLost)
        stage.stop("svc/0", 1)
        ended = await stage.wait_exit("svc/0")
        await asyncio.gather(work, return_exceptions=True)
    assert "1 running, 0 waiting, and no token for" in lost.cause
    assert ended.was_asked
    assert ended.escapees == 1


async def test_work_that_gets_on_and_idleness_are_both_alive_for_longer_than_a_stall(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        started = await stage.start(build_engine(stage, progress(1.0), speed="4"))
        assert (await stage.wait_event("svc/0", ReadinessChanged)).is_ready
        assert started.port is not None
        said = await (await begin_work(started.port, 10))
        assert said["usage"]["completion_tokens"] >= 10
        prober = stage.agent.slots.by_replica["svc/0"].prober if stage.agent.slots else None
        assert prober is not None
        turn = prober.state.turns[ProbeKind.LIVENESS].next_s
        await wait_for(lambda: prober.state.turns[ProbeKind.LIVENESS].next_s > turn + 1.5, "idle questions")
        assert not [event for event in stage.controller.events("svc/0") if isinstance(event, LivenessLost | Exited)]


async def test_metrics_of_another_engine_never_cost_a_healthy_server_its_life(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        script = (
            "import http.server as h; h.ThreadingHTTPServer(('127.0.0.1', int('{port}')), h.SimpleHTTPRequestHandler)"
        )
        spec = stage.build_spec(f"{script}.serve_forever()", wants_port=True, probes=(progress(0.2),))
        await stage.start(spec)
        prober = stage.agent.slots.by_replica["svc/0"].prober if stage.agent.slots else None
        assert prober is not None
        await wait_for(
            lambda: "/metrics cannot be read" in prober.last_causes.get(ProbeKind.LIVENESS, ""), "a question"
        )
        asked_s = prober.state.turns[ProbeKind.LIVENESS].next_s
        await wait_for(lambda: prober.state.turns[ProbeKind.LIVENESS].next_s > asked_s + 1.0, "more questions")
        assert not [event for event in stage.controller.events("svc/0") if isinstance(event, LivenessLost)]


async def test_a_loader_that_dies_ends_the_start_though_its_parent_waits_on(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await stage.start(build_engine(stage, progress(60.0), faults=("load=60s", "loader-dies=4s")))
        lost = await stage.wait_event("svc/0", StartupLost)
    assert "VLLM::Rehearsal is gone, and the rest waits for it" in lost.cause
