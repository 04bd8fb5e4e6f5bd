"""A whole sandbox service for tests: front, shards, node space, and a small image made on the spot."""

import json
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from sandbox_scenes import copy_into, find_libraries, get_program, list_descendants, until

from retinue.sandbox.budget import Weight
from retinue.sandbox.host import Host, open_host
from retinue.sandbox.host_settings import HostSettings
from retinue.sandbox.requests import Limits
from retinue.sandbox.server import Desk

TOOLS = (
    "sh cat ls true false sleep id mkdir rm dd cp head tail wc seq yes kill touch mkfifo tar pwd env ln printf setsid"
)
MIB = 2**20
LIMITS = Limits(disk=32 * MIB, inodes=1000, memory=128 * MIB, pids=64, wall=60.0, output=64 * 1024)
BUDGET = Weight(1000, 2**42, 10**7)


def make_small_image(root: Path) -> Path:
    """A shell and a few tools of this machine."""
    for tool in TOOLS.split():
        found = os.path.realpath(str(shutil.which(tool)))
        copy_into(root, found, f"/bin/{tool}")
        for path in find_libraries(found):
            copy_into(root, path)
    for name in ("tmp", "proc", "dev", "root", "etc", "app"):
        (root / name).mkdir(exist_ok=True)
    (root / "app" / "file").write_text("of the image\n")
    return root


@cache
def prepare_service(base: Path) -> tuple[Path, Path, Path]:
    """Program, image, and the store that it is packed into: once per test process."""
    store = base / "sandbox-store"
    store.mkdir()
    return get_program(base), make_small_image(base / "sandbox-small-image"), store


class Refusal(Exception):
    """A typed error of the service."""

    def __init__(self, status: int, error: dict[str, Any], headers: dict[str, str]) -> None:
        self.status, self.error, self.headers = status, error, headers
        super().__init__(f"{status} {error}")

    @property
    def kind(self) -> str:
        return str(self.error["type"])


class Service:
    """What a caller sees, and the host behind it."""

    def __init__(self, host: Host, session: aiohttp.ClientSession, image: Path) -> None:
        self.host = host
        self.session = session
        self.image = str(image)

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Ask, with a JSON body; gives the JSON of the answer. Errors: Refusal."""
        given = {"json": body} if body is not None else {}
        async with self.session.request(method, path, **given, **options) as response:
            return await self._read(response)

    async def ask_raw(self, method: str, path: str, data: Any = None, **options: Any) -> bytes:
        """The same with bytes both ways."""
        async with self.session.request(method, path, data=data, **options) as response:
            if response.status >= 400:
                await self._read(response)
            return await response.read()

    async def _read(self, response: aiohttp.ClientResponse) -> Any:
        answer = json.loads(await response.read())
        if response.status >= 400:
            raise Refusal(response.status, answer["error"], dict(response.headers))
        return answer

    async def create(self, **fields: Any) -> str:
        """Make a sandbox; its id."""
        made = await self.ask("POST", "/v1/sandboxes", {"image": self.image} | fields)
        return str(made["id"])

    async def exec(self, name: str, script: str, **fields: Any) -> dict[str, Any]:
        """Run a script; its result."""
        result: dict[str, Any] = await self.ask("POST", f"/v1/sandboxes/{name}/exec", {"script": script} | fields)
        return result

    async def text(self, name: str, script: str, **fields: Any) -> str:
        """What a script that succeeds prints."""
        result = await self.exec(name, script, **fields)
        assert (result["outcome"], result["code"]) == ("exited", 0), result
        return str(result["stdout"]["head"]).strip()

    async def stream(self, name: str, script: str, **fields: Any) -> AsyncIterator[dict[str, Any]]:
        """The lines of a streamed command as they come."""
        body = {"script": script, "stream": True} | fields
        async with self.session.post(f"/v1/sandboxes/{name}/exec", json=body) as response:
            assert (response.status, response.content_type) == (200, "application/x-ndjson")
            async for line in response.content:
                yield json.loads(line)

    async def refusal(self, method: str, path: str, body: Any = None, **options: Any) -> Refusal:
        """Ask for what is refused; the refusal."""
        try:
            answer = await self.ask(method, path, body, **options)
        except Refusal as refusal:
            return refusal
        raise AssertionError(f"{method} {path} was answered: {answer}")

    async def outage_causes(self) -> list[str]:
        return [outage["cause"] for outage in (await self.ask("GET", "/v1/outages"))["outages"]]


@asynccontextmanager
async def real_service(base: Path, **fields: Any) -> AsyncGenerator[Service, None]:
    """A service on a port of its own, ready; afterwards nothing of it runs."""
    program, image, store = prepare_service(base)
    before = list_descendants(os.getpid())
    with tempfile.TemporaryDirectory(prefix="retinue-sbx-") as folder:
        place = Path(folder)
        (place / "space").mkdir(mode=0o700)
        (place / "logs").mkdir()
        known = {"limits": LIMITS, "budget": BUDGET, "shards": 2, "node": "n1", "program": str(program)}
        settings = HostSettings(str(store), str(place / "space"), str(place / "logs"), **(known | fields))
        async with open_host(settings) as host:
            runner = web.ServerRunner(Desk(host).build_server(), shutdown_timeout=0.1)
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                port = runner.addresses[0][1]
                await until(lambda: host.is_ready and all(slot.is_ready.is_set() for slot in host.shards.slots), 60)
                connector = aiohttp.TCPConnector(limit=0)
                async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector) as session:
                    yield Service(host, session, image)
            finally:
                await runner.cleanup()
    await until(lambda: not list_descendants(os.getpid()) - before)
