"""Sandbox hosts as a gateway sees them: each answers who it is, and what it has room for."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from gateway_scenes import Scene, make_backend

from retinue.channel.messages import Backend, Gone, Route

RANDOM = "0123456789abcdef"


@dataclass
class HostDouble:
    """A scripted sandbox host: what it was asked, and what it says of itself."""

    name: str
    capacity: dict[str, Any] | None = None
    """None: it does not say."""
    asked: list[str] = field(default_factory=list)
    backend: Backend | None = None

    async def answer(self, request: web.BaseRequest) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        await request.read()
        if request.path == "/v1/capacity":
            return web.json_response(self.capacity, status=200 if self.capacity is not None else 500)
        return web.Response(text=self.name)

    def count(self, line: str) -> int:
        return self.asked.count(line)


def say_capacity(used: int, count: int = 100, creates: bool = True, images: Iterable[str] = ()) -> dict[str, Any]:
    budget = {"count": count, "memory_bytes": 2**40, "process_count": 10**6}
    spent = {"count": used, "memory_bytes": 0, "process_count": 0}
    return {"queued": 0, "budget": budget, "used": spent, "creates": creates, "images": list(images)}


async def open_host(scene: Scene, index: int, node: str = "n1", **fields: Any) -> HostDouble:
    double = HostDouble(f"sandbox/{index}", **fields)
    port = await scene.open_backend(double.answer)
    double.backend = make_backend(port, f"sandbox/{index}", node=node)
    return double


def make_sandbox_route(
    *ready: HostDouble | Backend, unready: tuple[Backend, ...] = (), gone: tuple[Gone, ...] = (), **fields: Any
) -> Route:
    backends = tuple(one.backend if isinstance(one, HostDouble) else one for one in ready)
    assert all(backends)
    return Route("sandbox", backends, is_sandbox=True, unready=unready, gone=gone, **fields)  # type: ignore[arg-type]


def name_sandbox(index: int) -> str:
    return f"sandbox.{index}-{RANDOM}"


def build_create(image: str = "img", key: str | None = None) -> bytes:
    return json.dumps({"image": image, "key": key}).encode()
