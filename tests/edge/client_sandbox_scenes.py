"""A sandbox service that answers what a test says: enough of one to make, use and destroy; every request is kept."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from client_scenes import Asked, Script, build_head

BOX = "sandbox.0-0123456789abcdef"
HERE = f"/v1/sandboxes/{BOX}"

Pages = dict[str, Script]


def made(**more: Any) -> dict[str, Any]:
    return {"id": BOX, "node": "n7", "image": "i", "created_utc": 0.0, "expires_utc": 900.0, "is_new": True, **more}


def result(outcome: str | None = "exited", **more: Any) -> dict[str, Any]:
    return {"outcome": outcome, "code": 0 if outcome == "exited" else None, "node": "n7", **more}


def output(text: str, **more: Any) -> dict[str, Any]:
    whole = {"encoding": "utf-8", "head": text, "tail": "", "dropped_bytes": 0, "total_bytes": len(text.encode())}
    return {**whole, **more}


def say(status: int, value: Any, **headers: str) -> Script:
    async def script(asked: Asked) -> None:
        await asked.answer(status, value, **headers)

    return script


def refuse(status: int, kind: str, **more: Any) -> Script:
    """Answer a typed error."""
    retry = {"Retry_After": more.pop("after")} if "after" in more else {}
    words = {"type": kind, "message": f"cannot: {kind}", "service": "sandbox", "node": "n7", "cause": "", **more}
    return say(status, {"error": words}, **retry)


def cut() -> Script:
    """Take the request and end the connection."""

    async def script(asked: Asked) -> None:
        asked.cut()
        raise ConnectionResetError

    return script


def in_turns(*scripts: Script) -> Script:
    """Each request to this page its own script; the last one stays."""
    left = list(scripts)

    async def script(asked: Asked) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(asked)

    return script


def pages(**more: Script) -> Callable[[Asked], Awaitable[None]]:
    """A whole service; `more` replaces pages: create, exec, destroy, renew, show, processes, or what follows the id."""
    known: Pages = {
        "create": say(201, made()),
        "destroy": say(200, {"id": BOX, "state": "destroyed"}),
        "renew": say(200, {"id": BOX, "expires_utc": 1.0}),
        "show": say(200, {"id": BOX, "limits": {"wall": 5.0}}),
        "exec": say(200, result(stdout=output("hi\n"))),
        **more,
    }

    async def script(asked: Asked) -> None:
        path = asked.path.partition("?")[0]
        name = path.removeprefix(HERE).strip("/").split("/")[0]
        if path == "/v1/sandboxes":
            name = "create"
        elif path == HERE:
            name = "destroy" if asked.method == "DELETE" else "show"
        await known[name](asked)

    return script


async def stream_lines(asked: Asked, *lines: Any) -> None:
    """Begin a streamed answer and send these lines."""
    await asked.write(build_head(200, {"Transfer-Encoding": "chunked", "Content-Type": "application/x-ndjson"}))
    for line in lines:
        text = json.dumps(line).encode() + b"\n"
        await asked.write(b"%x\r\n%s\r\n" % (len(text), text))
