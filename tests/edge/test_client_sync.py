"""The client without asyncio: many threads, an early end, a fork, a close in the middle; and what importing costs."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from client_scenes import Asked, answer_all, answer_one, hang, serving_in_thread

from retinue.client import OutcomeKind, SyncRetinue
from retinue.errors import PermanentError, UsageError

CONTROLLER = Path(__file__).parents[2] / "controller"
HEAVY = ("aiohttp", "pydantic", "yaml", "click", "rich", "cryptography", "sympy", "uvloop", "retinue.checks")

FORKS = """
import json, os, sys
from retinue.client import SyncRetinue
r = SyncRetinue(sys.argv[1])
before = r.check("math", response="parent").score
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    scores = [r.check("math", response="child").score]
    scores += [o.score for _, o in r.check_many([{"verifier": "math", "response": "child"}] * 9)]
    os.write(write, json.dumps(scores).encode())
    os._exit(0)
after = r.check("math", response="parent").score
_, status = os.waitpid(pid, 0)
print(json.dumps([before, after, status, json.loads(os.read(read, 1000))]))
r.close()
"""
TIMES = """
import sys, time
started = time.process_time()
import retinue.client
print(time.process_time() - started)
print(*sorted(sys.modules))
"""


def run_python(program: str, *words: str) -> str:
    # -W ignore: Python 3.12 warns of any fork beside a thread, which is what this is about.
    argv = [sys.executable, "-W", "ignore", "-c", program, *words]
    env = {**os.environ, "PYTHONPATH": str(CONTROLLER), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(argv, env=env, check=True, capture_output=True, text=True, timeout=60).stdout


def test_twenty_threads_share_one_client() -> None:
    with serving_in_thread(answer_one) as server, SyncRetinue(server.url) as r:
        with ThreadPoolExecutor(20) as threads:
            found = list(threads.map(lambda n: r.check(f"v{n}", response="4").reason, range(200)))
        assert found == [f"v{n}" for n in range(200)]


def test_a_batch_is_an_ordinary_iterator() -> None:
    rows = [{"verifier": f"v{index}", "response": "4"} for index in range(100)]
    with serving_in_thread(answer_all) as server, SyncRetinue(server.url) as r:
        found = dict(r.check_many(rows))
    assert {index: outcome.reason for index, outcome in found.items()} == {n: f"v{n}" for n in range(100)}


def test_leaving_the_iterator_early_closes_its_streams() -> None:
    async def one_then_hang(asked: Asked) -> None:
        await asked.open_stream()
        await asked.send_row(0)
        await hang(asked)

    rows = [{"verifier": "math", "response": "4"}] * 30
    with serving_in_thread(one_then_hang) as server, SyncRetinue(server.url) as r:
        results = r.check_many(rows)
        next(results)
        results.close()  # type: ignore[attr-defined]
        loop = next(iter(server.tasks)).get_loop()
        asyncio.run_coroutine_threadsafe(server.until_closed(), loop).result(20)


def test_a_closed_client_ends_the_calls_of_other_threads_and_refuses_new_ones() -> None:
    arrived = threading.Event()

    async def hang_loudly(asked: Asked) -> None:
        arrived.set()
        await hang(asked)

    with serving_in_thread(hang_loudly) as server, SyncRetinue(server.url) as r, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(r.check, "math", response="4")
        assert arrived.wait(20)
        r.close()
        with pytest.raises(PermanentError, match="the client was closed"):
            waiting.result(20)
        for call in (
            lambda: r.check("math", response="4"),
            lambda: r.check_many([{"verifier": "math", "response": "4"}]),
            lambda: r.gate(timeout_s=0.1),
            r.endpoints,
            r.__enter__,
        ):
            with pytest.raises(UsageError, match="the client was closed; make another"):
                call()
        r.close()
        assert len(server.asked) == 1


def test_wrong_arguments_raise_in_the_callers_thread() -> None:
    with SyncRetinue("http://127.0.0.1:9") as r:
        with pytest.raises(TypeError, match="row 0: response is missing"):
            r.check_many([{"verifier": "math"}])
        with pytest.raises(ValueError, match="verifier is empty"):
            r.check("", response="4")


def test_an_outage_does_not_raise() -> None:
    with SyncRetinue("unix:/nonexistent/checks.sock") as r:
        outcome = r.check("math", response="4", deadline_s=0.1)
    assert (outcome.outcome, outcome.event) == (OutcomeKind.INFRA_FAILED, "no such file or directory")


def test_a_fork_beside_the_clients_thread_works_in_the_child_and_leaves_the_parent_alone() -> None:
    with serving_in_thread(answer_all) as server:
        before, after, status, child = json.loads(run_python(FORKS, server.url))
        assert (before, after, status, child) == (1.0, 1.0, 0, [1.0] * 10)
        of_parent = {asked.headers["x-retinue-caller"] for asked in server.asked if b'"parent"' in asked.body}
        of_child = {asked.headers["x-retinue-caller"] for asked in server.asked if b'"child"' in asked.body}
        used_by_parent = {asked.connection for asked in server.asked if b'"parent"' in asked.body}
        used_by_child = {asked.connection for asked in server.asked if b'"child"' in asked.body}
    assert len(of_parent) == len(of_child) == 1
    assert of_parent != of_child
    assert len(used_by_parent) == 1
    assert not used_by_parent & used_by_child


def test_importing_the_client_is_quick_and_brings_no_service_along() -> None:
    outputs = [run_python(TIMES).splitlines() for _ in range(3)]
    modules = outputs[0][1].split()
    assert "msgspec" in modules
    assert [name for name in modules if name.startswith(HEAVY)] == []
    rooms = {name.split(".")[1] for name in modules if name.startswith("retinue.")}
    assert rooms == {"client", "terms", "errors"}
    # The number; the processor's time, and the best of three, because these machines are shared.
    assert min(float(lines[0]) for lines in outputs) < 0.3
