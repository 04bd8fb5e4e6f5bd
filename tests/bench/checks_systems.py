"""The systems of the checks bench, asked alike: a peer program on a pipe, or our service through `retinue.client`."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from retinue.client import Retinue

HERE = Path(__file__).parent
END_S = 20.0
WARM_S = 120.0


@dataclass(frozen=True)
class Reply:
    """What one check came to."""

    outcome: str
    score: float | None
    took_s: float
    """Without the pipe between bench and peer; for ours as the client's caller sees it."""


class System(Protocol):
    """Something that checks."""

    @property
    def pid(self) -> int:
        """The root of its processes."""
        ...

    async def ask(self, response: str, gold: str, limit_s: float) -> Reply: ...


class Peer:
    """A program of `checks_peers` or `checks_bare`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._asked: dict[int, asyncio.Future[Reply]] = {}
        self._number = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, response: str, gold: str, limit_s: float) -> Reply:
        assert self._process.stdin is not None
        self._number += 1
        request = {"id": self._number, "response": response, "gold": gold, "limit_s": limit_s}
        self._asked[self._number] = reply = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        return await reply

    async def read(self) -> None:
        """Take answers in until the program ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            answer: dict[str, Any] = json.loads(line)
            asked = self._asked.pop(answer["id"])
            if not asked.done():
                asked.set_result(Reply(answer["outcome"], answer["score"], answer["took_s"]))


@asynccontextmanager
async def open_peer(program: str, name: str, workers: int) -> AsyncIterator[Peer]:
    """Start a peer program in a session of its own; afterwards none of its processes runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / program), name, str(workers),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        first = await asyncio.wait_for(process.stdout.readline(), WARM_S)
        if not first:
            raise RuntimeError(f"cannot start {name}: it ended")
        peer = Peer(process)
        reading = asyncio.create_task(peer.read())
        try:
            yield peer
        finally:
            reading.cancel()
    finally:
        await _end_group(process)


async def _end_group(process: asyncio.subprocess.Process) -> None:
    # The leader is not reaped before its group was signalled: the number is still its own.
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass
    await process.wait()


class Ours:
    """`python -m retinue.checks`, asked by the real client."""

    def __init__(self, pid: int, client: Retinue) -> None:
        self._pid = pid
        self._client = client
        self.rung = ""

    @property
    def pid(self) -> int:
        return self._pid

    async def ask(self, response: str, gold: str, limit_s: float) -> Reply:
        began_s = time.perf_counter()
        outcome = await self._client.check("math", response=response, gold=gold, timeout_s=limit_s)
        return Reply(outcome.outcome.value, outcome.score, time.perf_counter() - began_s)

    def through(self, client: Retinue) -> "Ours":
        """The same service by another way."""
        return Ours(self._pid, client)


@asynccontextmanager
async def open_ours(directory: Path, workers: int) -> AsyncIterator[tuple[Ours, Ours]]:
    """Start our service; yields it by its unix socket and by TCP, once it is warm."""
    unix, port_file, said = directory / "sockets" / "checks.sock", directory / "port", directory / "service.log"
    argv = ["-P", "-m", "retinue.checks", "--unix", str(unix), "--port", "0", "--workers", str(workers)]
    env = {**os.environ, "RETINUE_PORT_FILE": str(port_file)}
    with said.open("wb") as log:
        process = await asyncio.create_subprocess_exec(sys.executable, *argv, env=env, stderr=log)
    try:
        await _wait_until_warm(process, said)
        async with Retinue(f"unix:{unix}") as near, Retinue(f"http://127.0.0.1:{port_file.read_text().strip()}") as tcp:
            ours = Ours(process.pid, near)
            ours.rung = said.read_text().partition("warm parent warm (")[2].partition("\n")[0].rstrip(")")
            yield ours, ours.through(tcp)
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), END_S)


async def _wait_until_warm(process: asyncio.subprocess.Process, said: Path) -> None:
    async with asyncio.timeout(WARM_S):
        while "warm parent warm" not in said.read_text():
            if process.returncode is not None:
                raise RuntimeError(f"cannot start the service: {said.read_text()}")
            await asyncio.sleep(0.05)


def read_cpu_s(root: int) -> float:
    """Add up the CPU time of a process tree, of those that it reaped too."""
    ticks = 0
    for pid in _list_tree(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def read_memory_mb(root: int) -> dict[str, float]:
    """Add up the memory of a process tree.

    Shape:  `rss` and `pss` in MB, `processes`; what forbids to be looked at (the warm parent, its children) counts
            with its RSS in `rss` and not at all in `pss`.
    """
    found = {"rss": 0.0, "pss": 0.0, "host rss": 0.0, "processes": 0.0}
    for pid in _list_tree(root):
        rss = _read_kib(f"/proc/{pid}/status", "VmRSS:") / 1024
        found["rss"] += rss
        found["pss"] += _read_kib(f"/proc/{pid}/smaps_rollup", "Pss:") / 1024
        found["processes"] += 1
        if pid == root:
            found["host rss"] = rss
    return {name: round(value, 1) for name, value in found.items()}


def _list_tree(root: int) -> list[int]:
    pids = [root]
    for pid in pids:
        try:
            pids += [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            pass
    return pids


def _read_kib(path: str, field: str) -> float:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) for line in lines if line.startswith(field)), 0.0)
