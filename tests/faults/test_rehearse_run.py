"""`retinue rehearse` on a manifest that wants four nodes and GPUs: a hung engine is launched again behind its URL."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TEXT = """\
retinue: 1
run: {name: big, hold: 60s}
nodes: {train: {count: 2}, env: {count: rest}}
trainer: {on: train}
services:
  judge:
    template: judge-vllm
    with: {model: /models/j, tensor_parallel: 4, stall: 2s}
    place: {on: env, gpus: 4}
    restart: {backoff: 200ms}
    probes: {liveness: {period: 300ms}, startup: {period: 300ms}, readiness: {period: 300ms}}
  prep: {command: [prepare]}
  files:
    command: [serve, "{port}"]
    per_node: env
    depends_on: {prep: completed}
"""
TRAINER = """
import asyncio, json, sys
from retinue.client import Retinue
async def main():
    async with Retinue.from_env() as r:
        judged = await r.judge("judge", "Is it so?", schema={"enum": ["yes", "no"]}, deadline_s=60)
        print(json.dumps([judged.outcome.value, judged.answer]))
asyncio.run(main())
"""
DEADLINE_S = 120


def rehearse(
    tmp_path: Path, *words: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any], list[dict[str, Any]]]:
    """Run it; what it printed, its verdict, its events."""
    (tmp_path / "m.yaml").write_text(TEXT)
    run_dir = tmp_path / "run"
    argv = [sys.executable, "-P", "-m", "retinue", "rehearse", "--run-dir", str(run_dir), *words]
    done = subprocess.run(
        argv, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    attempt = run_dir / "attempt-0"
    events = [json.loads(line) for line in (attempt / "events.jsonl").read_text().splitlines()]
    return done, json.loads((attempt / "verdict.json").read_bytes()), events


@pytest.mark.timeout(200)
def test_a_hung_engine_costs_the_caller_a_wait_and_the_run_ends_clean(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(TRAINER)
    fault = ("--fault", "judge:1:hang=0s")
    done, verdict, events = rehearse(tmp_path, *fault, "m.yaml", "--", sys.executable, "t.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[0]) == ["answered", "yes"]
    lost = [event for event in events if event["event"] == "LivenessLost"]
    assert "1 running, 0 waiting, and no token for" in lost[0]["reason"]
    assert verdict["clean"] == "true"


@pytest.mark.timeout(200)
def test_without_a_trainer_every_service_is_asked_once(tmp_path: Path) -> None:
    done, verdict, _ = rehearse(tmp_path, "m.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if " ready " in line}
    assert set(rows) == {"judge", "files"}
    assert "/v1/chat/completions answered 200" in rows["judge"]
    assert verdict["clean"] == "true"
