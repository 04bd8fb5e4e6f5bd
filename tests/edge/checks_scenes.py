"""A checks host, or a whole service, on plugins of a test; and the fake warm parent where only that can fail so."""

import asyncio
import io
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from retinue.checks.host import Host, open_host
from retinue.checks.records import CheckRequest, Limits, WarmConfig
from retinue.checks.server import Desk
from retinue.checks.settings import Settings
from retinue.checks.warm_link import WARM_ARGV
from retinue.terms.outcome import Outcome

PATIENCE_S = 60.0
FAKE_WARM = (sys.executable, str(Path(__file__).with_name("checks_fake_warm.py")))
PLUGIN = '''
import os, time

def check(response, gold, args):
    """Compares; obeys a few responses that hurt."""
    word, _, rest = response.partition(" ")
    if word == "hang":
        time.sleep(600)
    elif word == "spin":
        while True:
            pass
    elif word == "exit":
        os._exit(int(rest))
    elif word == "crash":
        import ctypes
        ctypes.string_at(0)
    elif word == "eat":
        kept = []
        while True:
            kept.append(bytearray(10**7))
    elif word == "raise":
        raise ValueError(rest)
    elif word == "length":
        return float(len(rest))
    elif word == "wait":
        until = time.monotonic() + float(rest)
        while time.monotonic() < until:
            time.sleep(0.01)
    return (1.0 if response == gold else 0.0), ascii(response)[:60]

def prepare(gold, args):
    if gold == "wrong":
        raise ValueError("the gold is wrong")
    if gold == "slow":
        time.sleep(600)
    if gold == "exit":
        os._exit(0)
    return gold

check.prepare = prepare
'''


def build_settings(tmp_path: Path, **fields: Any) -> Settings:
    """Settings with the test's plugin as verifier `mine`."""
    (tmp_path / "mine.py").write_text(PLUGIN)
    limits = Limits(wall_s=1.0, cpu_s=1.0, memory_bytes=256 * 2**20)
    limits = fields.pop("limits", limits)
    verifiers = fields.pop("verifiers", {"mine": "mine:check"})
    config = WarmConfig(verifiers=verifiers, path=[str(tmp_path)], limits=limits)
    return Settings(config=config, **{"workers": 2, "node": "n1", "incarnation": "checks/0#1"} | fields)


def ask(response: str, gold: Any = "right", **fields: Any) -> CheckRequest:
    return CheckRequest(**{"verifier": "mine", "response": response, "gold": gold} | fields)


async def judge(host: Host, *requests: CheckRequest, caller: str = "test") -> list[Outcome]:
    """Have requests judged; outcomes in the same order."""
    checks = host.submit(requests, caller, sum(len(request.response) for request in requests))
    async with asyncio.timeout(PATIENCE_S):
        return [await check.outcome for check in checks]


async def until(what: str, condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """Wait until a condition is true and return its value."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + patience_s
    while not (value := condition()):
        assert loop.time() < end_s, f"waited {patience_s:g} s for {what}"
        await asyncio.sleep(0.005)
    return value


@asynccontextmanager
async def real_host(
    settings: Settings, warm_argv: Sequence[str] = WARM_ARGV, waits: bool = True
) -> AsyncIterator[Host]:
    """A host that is ready (unless the test does not wait for that); afterwards nothing of it runs."""
    before = find_children()
    async with open_host(settings, warm_argv) as host:
        if waits:
            await until("a spare", lambda: host.nursery.is_ready and host.nursery.spare_count)
        yield host
    await until("no process to be left", lambda: not find_children() - before)


@asynccontextmanager
async def real_service(
    settings: Settings, warm_argv: Sequence[str] = WARM_ARGV, waits: bool = True
) -> AsyncIterator["Service"]:
    """A service on a port of its own."""
    async with real_host(settings, warm_argv, waits) as host:
        runner = web.ServerRunner(Desk(host).build_server(), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        timeout = aiohttp.ClientTimeout(PATIENCE_S)
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=timeout) as session:
                yield Service(host, session, port)
        finally:
            await runner.cleanup()


class Service:
    """What a test needs of a running service."""

    def __init__(self, host: Host, session: aiohttp.ClientSession, port: int) -> None:
        self.host = host
        self.session = session
        self.port = port

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Post JSON, or bytes as they are; status and what came back."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(path, data=io.BytesIO(data), headers=headers) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(path) as response:
            return response.status, await response.json()


def find_children() -> set[int]:
    """Pids of all descendants of this process that run."""
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        try:
            tasks = os.listdir(f"/proc/{pid}/task")
            words = [Path(f"/proc/{pid}/task/{task}/children").read_text().split() for task in tasks]
        except OSError:
            continue
        children = {int(word) for line in words for word in line} - found
        found |= children
        waiting += children
    return found
