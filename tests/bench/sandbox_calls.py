"""What measurements of the sandbox service share: start it, call it over its unix socket, read what it costs.

The HTTP client has a few lines and no library, so that what is measured is the service.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

END_S = 60.0
"""How long a service with many sandboxes may take to end."""


class Refusal(Exception):
    """An answer that is an error."""


class Caller:
    """One keep-alive connection; one request at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Ask; gives the JSON of the answer. Errors: Refusal, OSError."""
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(self._path)
        reader, writer = self._streams
        data = b"" if body is None else json.dumps(body).encode()
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line[15:]) for line in head.splitlines() if line.lower().startswith("content-length:"))
        answer = await reader.readexactly(length)
        status = head.split()[1]
        if status not in ("200", "201"):
            raise Refusal(f"{status} {answer.decode()[:600]}")
        return json.loads(answer)

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()


async def measure(work: Awaitable[Any], into: list[float]) -> Any:
    """Wait for something, and note how long that took."""
    began = time.perf_counter()
    result = await work
    into.append(time.perf_counter() - began)
    return result


async def wait_ready(caller: Caller, service: "subprocess.Popen[bytes]") -> None:
    """Wait until sandboxes can be made. Errors: Refusal when the service has ended."""
    while service.poll() is None:
        try:
            if (await caller.ask("GET", "/health"))["status"] == "ok":
                return
        except (OSError, Refusal):
            await asyncio.sleep(0.1)
    raise Refusal(f"the service ended with {service.returncode}")


@contextmanager
def running_service(words: list[str], **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a service while the context lasts."""
    service = subprocess.Popen([sys.executable, "-P", "-m", "retinue.sandbox", *words], **options)
    try:
        yield service
    finally:
        if service.poll() is None:
            service.send_signal(signal.SIGTERM)
            try:
                service.wait(END_S)
            except subprocess.TimeoutExpired:
                service.kill()
                service.wait()


def read_meminfo_kib(name: str) -> int:
    """One line of /proc/meminfo."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def list_own(pid: int) -> list[str]:
    """The service's own processes: the front, then its shards."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [str(pid), *(one for one in children if "shard_main" in Path(f"/proc/{one}/cmdline").read_text())]


def read_pss_kib(pid: int) -> int:
    """Of the service's own processes together."""
    rollups = [Path(f"/proc/{one}/smaps_rollup").read_text().splitlines() for one in list_own(pid)]
    return sum(int(line.split()[1]) for rollup in rollups for line in rollup if line.startswith("Pss:"))


def read_cpu_ms(pid: int) -> tuple[float, float]:
    """Of the front, and of all shards."""
    used = []
    for one in list_own(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        used.append((int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK"))
    return used[0], sum(used[1:])
