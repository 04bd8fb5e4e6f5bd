"""A background process of a sandbox, by its handle; and the stream of a command in the foreground."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from urllib.parse import urlencode

from retinue.client.answer import Answer, Broken
from retinue.client.asking import Line
from retinue.client.question import check_seconds
from retinue.client.sandbox_asking import CALL_S, Call, Reply, ask, open_answer
from retinue.client.sandbox_errors import SandboxUnsure
from retinue.client.sandbox_exec import dump, judge_result
from retinue.client.sandbox_lanes import EXEC, SHORT
from retinue.client.sandbox_records import (
    INFRA_FAILED,
    Ended,
    Output,
    Piece,
    Result,
    Running,
    Stretch,
    View,
    build_running,
    parse_line,
)
from retinue.terms.record import Record, replace

POLL_S = 30.0
"""How long one question waits for an end."""


class _Left(Record, frozen=True):
    left: int = 0


class _Signalled(Record, frozen=True):
    signalled: int = 0


class Process:
    """A command that runs in the background of a sandbox."""

    def __init__(self, line: Line, sandbox: str, name: str) -> None:
        self._line = line
        self._sandbox = sandbox
        self.name = name
        """`p1`, as the sandbox calls it."""

    async def wait(self, timeout_s: float | None = None) -> Ended | None:
        """Wait for its end; None: it still runs after `timeout_s`.

        Errors: SandboxLost and its kin, as every call.
        """
        check_seconds(timeout_s, "timeout_s")
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s if timeout_s is not None else None
        while True:
            left_s = POLL_S if until_s is None else min(POLL_S, max(0.0, until_s - loop.time()))
            view = await self._view(left_s)
            if view.state != "running":
                return judge_result(view.result or Result(INFRA_FAILED), self._line.service, self._sandbox)
            if until_s is not None and loop.time() >= until_s:
                return None

    async def show(self) -> Running:
        """Return it as it is now, with what it wrote so far."""
        return build_running(await self._view(0.0))

    async def read(self, stream: str = "stdout", offset: int = 0) -> Stretch:
        """Return what it wrote from an offset on, as far as that is still kept."""
        words = urlencode({"stream": stream, "offset": offset})
        reply = await self._ask("GET", f"/output?{words}", "read its output")
        at, after, total = (int(reply.headers.get(name, "0")) for name in ("x-offset", "x-next-offset", "x-total"))
        return Stretch(reply.body, at, after, total, reply.headers.get("x-state", "running") == "running")

    async def write(self, data: bytes | str, close: bool = False) -> None:
        """Give it more to read; it was started with `stdin_open=True`.

        Errors: SandboxUnsure when the connection was lost: it may have been given this.
        """
        raw = data.encode() if isinstance(data, str) else data
        await self._ask("POST", f"/stdin{'?close=1' if close else ''}", "write to it", raw, may_repeat=False)

    async def signal(self, number: int | str = "TERM", to: str = "leader") -> int:
        """Signal it; `to` its `leader`, its process `group`, or its whole `tree`. Returns how many were signalled.

        Errors: SandboxUnsure when the connection was lost: it may have been signalled.
        """
        body = dump({"signal": number, "to": to})
        return (await self._ask("POST", "/signal", "signal it", body, may_repeat=False)).parse(_Signalled).signalled

    async def kill(self) -> int:
        """End its whole tree; returns how many the kernel still holds."""
        return (await self._ask("POST", "/kill", "kill it", b"{}")).parse(_Left).left

    async def forget(self) -> None:
        """End its whole tree, and have the sandbox remember it no more."""
        await self._ask("DELETE", "", "forget it")

    async def _view(self, wait_s: float) -> View:
        return (await self._ask("GET", f"?wait_s={wait_s:.3f}", "ask for it", deadline_s=wait_s + CALL_S)).parse(View)

    async def _ask(
        self, method: str, rest: str, what: str, body: bytes = b"", may_repeat: bool = True, deadline_s: float = CALL_S
    ) -> Reply:
        path = f"/v1/sandboxes/{self._sandbox}/processes/{self.name}{rest}"
        call = Call(
            method,
            path,
            f"{what} (process {self.name} of sandbox {self._sandbox})",
            body,
            deadline_s=deadline_s,
            may_repeat=may_repeat,
            lane=EXEC if deadline_s > CALL_S else SHORT,
            sandbox=self._sandbox,
        )
        return await ask(self._line, call)


class CommandStream:
    """What a command writes, piece by piece; leaving the context ends the command."""

    def __init__(
        self, line: Line, call: Call, timeout_s: float | None, find_wall_s: Callable[[], Awaitable[float]]
    ) -> None:
        self._line, self._call = line, call
        self._timeout_s, self._find_wall_s = timeout_s, find_wall_s
        self._idle_s = 0.0
        """Nothing need come before the end."""
        self._stack = AsyncExitStack()
        self._answer: Answer | None = None
        self.ended: Ended | None = None
        """Set once the last piece was read; without output, which the pieces had."""

    async def __aenter__(self) -> "CommandStream":
        self._idle_s = (self._timeout_s or await self._find_wall_s()) + CALL_S
        async with AsyncExitStack() as stack:
            self._answer = await open_answer(self._line, self._call, stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        """Return the next piece.

        Errors: SandboxUnsure when the stream broke off: the command was ended; SandboxLost when our side failed.
        """
        if self._answer is None:
            raise RuntimeError("a stream is read inside its `async with`")
        if self.ended is not None:
            raise StopAsyncIteration
        try:
            async with asyncio.timeout(self._idle_s):
                line = await self._answer.read_line()
            if line is None:
                raise Broken("the stream ended before the command")
            found = parse_line(line)
        except (Broken, TimeoutError) as error:
            cause = str(error) or f"nothing came for {self._idle_s:g} s"
            raise SandboxUnsure(
                f"cannot {self._call.what}: {cause}", self._line.node, cause, self._line.service, self._call.sandbox
            ) from None
        if isinstance(found, Piece):
            return found
        self.ended = replace(
            judge_result(found, self._line.service, self._call.sandbox), stdout=Output(), stderr=Output()
        )
        raise StopAsyncIteration
