"""What it answers: chat and completions by script; for other kinds of service, answers that say they are rehearsed.

Any GET is answered 200 once it is ready, whatever path a probe asks.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from retinue.rehearsal.engine import Engine, EngineGone
from retinue.rehearsal.numbers import Numbers, build_metrics
from retinue.rehearsal.script import Line, Script

BODY_BYTES = 32 * 1024 * 1024
NOTE = "rehearsed"
Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class Desk:
    """One rehearsed service."""

    def __init__(self, engine: Engine, script: Script, errors: int, model: str) -> None:
        self.engine = engine
        self.script = script
        self.errors = errors
        """So many requests are still to be answered 500."""
        self.model = model
        self.exit_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def build_server(self) -> web.Server:
        """Build the server."""
        return web.Server(self.answer, access_log=None)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        if request.path == "/metrics":
            engine = self.engine
            numbers = Numbers(engine.running, engine.prompt_tokens, engine.made_tokens)
            return web.Response(text=build_metrics(numbers))
        if not self.engine.ready.done():
            return web.json_response({"error": {"message": "it still loads"}}, status=503)
        if request.method in ("GET", "HEAD"):
            models = {"object": "list", "data": [{"id": self.model, "object": "model"}]}
            return web.json_response(models if request.path == "/v1/models" else {"status": "ok", "note": NOTE})
        pages = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._complete,
            "/retrieve": self._retrieve,
            "/v1/check": self._check,
            "/rehearsal": self._order,
        }
        page = pages.get(request.path)
        if page is None:
            problem = {"message": f"{request.method} {request.path} is not rehearsed", "type": "rehearsal"}
            return web.json_response({"error": problem}, status=501)
        return await self._answer_post(request, page)

    async def _answer_post(self, request: web.BaseRequest, page: Answer) -> web.StreamResponse:
        try:
            body = json.loads(await request.content.read(BODY_BYTES))
            if not isinstance(body, dict):
                raise ValueError("it is no object")
        except ValueError as error:
            return web.json_response({"error": {"message": f"the body cannot be read: {error}"}}, status=400)
        if request.path != "/rehearsal" and self.errors > 0:
            self.errors -= 1
            return web.json_response({"error": {"message": "a rehearsed error"}}, status=500)
        try:
            said = await page(body)
        except EngineGone:
            return web.json_response({"error": {"message": "the engine is dead"}}, status=500)
        if body.get("stream") and request.path.startswith("/v1/c"):
            return await _stream(request, said)
        return web.json_response(said)

    async def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        messages = [message for message in body.get("messages", ()) if isinstance(message, dict)]
        schema = ((body.get("response_format") or {}).get("json_schema") or {}).get("schema")
        line = self.script.choose(messages, schema)
        text = line.reply if isinstance(line.reply, str) else json.dumps(line.reply)
        usage = await self._make(json.dumps(messages), text)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if line.calls:
            message["tool_calls"] = _build_calls(line)
        finish = "tool_calls" if line.calls else line.finish_reason
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return self._wrap("chat.completion", choice, usage)

    async def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = str(body.get("prompt", ""))
        line = self.script.choose([{"role": "user", "content": prompt}], None)
        text = line.reply if isinstance(line.reply, str) else json.dumps(line.reply)
        usage = await self._make(prompt, text)
        return self._wrap("text_completion", {"index": 0, "text": text, "finish_reason": "stop"}, usage)

    async def _make(self, prompt: str, text: str) -> dict[str, int]:
        asked, made = len(prompt.split()), max(1, len(text.split()))
        await self.engine.make(asked, made)
        return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}

    def _wrap(self, kind: str, choice: dict[str, Any], usage: dict[str, int]) -> dict[str, Any]:
        now = int(time.time())
        return {
            "id": f"rehearsed-{now}",
            "object": kind,
            "created": now,
            "model": self.model,
            "choices": [choice],
            "usage": usage,
        }

    async def _retrieve(self, body: dict[str, Any]) -> dict[str, Any]:
        queries = body.get("queries", [body.get("query", "")])
        document = {"id": NOTE, "contents": f'"{NOTE}"\nNothing was searched.'}
        found = {"document": document, "score": 0.0} if body.get("return_scores", True) else document
        return {"result": [[found] for _ in queries]}

    async def _check(self, body: dict[str, Any]) -> dict[str, Any]:
        reason = f"{NOTE}: nothing was checked"
        return {"outcome": "rejected", "score": None, "reason": reason, "rollout_id": body.get("rollout_id")}

    async def _order(self, body: dict[str, Any]) -> dict[str, Any]:
        """A fault, now: `{"hang": true}`, `{"error": 3}`, `{"die": 1}`."""
        if "hang" in body:
            self.engine.tell({"hang": bool(body["hang"])})
        if "error" in body:
            self.errors = int(body["error"])
        if "die" in body and not self.exit_code.done():
            self.exit_code.set_result(int(body["die"]))
        return {"note": NOTE}


def _build_calls(line: Line) -> list[dict[str, Any]]:
    calls = [{"name": call.name, "arguments": json.dumps(call.arguments)} for call in line.calls]
    return [{"id": f"call-{index}", "type": "function", "function": call} for index, call in enumerate(calls)]


async def _stream(request: web.BaseRequest, said: dict[str, Any]) -> web.StreamResponse:
    """Send the whole answer as one event, as a server may."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    choice = said["choices"][0]
    if "message" in choice:
        choice = {"index": 0, "delta": choice["message"], "finish_reason": choice["finish_reason"]}
    chunk = {**said, "object": f"{said['object']}.chunk", "choices": [choice]}
    await response.write(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())
    await response.write_eof()
    return response
