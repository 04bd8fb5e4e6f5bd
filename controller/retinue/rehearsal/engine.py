"""The parent's end of the engine: starts its process, hands it requests, counts what it makes."""

import asyncio
import json
import sys
from pathlib import Path

from retinue.rehearsal.faults import Faults
from retinue.terms.record import to_plain

PROCESS = Path(__file__).with_name("engine_process.py")
END_S = 2.0


class EngineGone(Exception):
    """The engine's process died."""


class Engine:
    """One engine, on the running loop."""

    def __init__(self, faults: Faults, speed: float) -> None:
        self._plan = {**to_plain(faults), "speed": speed}
        self._process: asyncio.subprocess.Process | None = None
        self._owed: dict[int, asyncio.Queue[int]] = {}
        self._count = 0
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self.prompt_tokens = 0
        self.made_tokens = 0

    @property
    def running(self) -> int:
        """Requests that it owes tokens."""
        return len(self._owed)

    async def run(self) -> None:
        """Start it and follow it to its end."""
        argv = (sys.executable, "-S", str(PROCESS), json.dumps(self._plan))
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._take(json.loads(line))
        self.gone.set()
        for queue in self._owed.values():
            queue.put_nowait(-1)

    async def make(self, prompt_tokens: int, tokens: int) -> None:
        """Have it make tokens; returns when they are made.

        Errors: EngineGone.
        """
        self._count += 1
        number, queue = self._count, asyncio.Queue[int]()
        self._owed[number] = queue
        self.prompt_tokens += prompt_tokens
        try:
            self.tell({"id": number, "tokens": max(1, tokens)})
            while True:
                left = await queue.get()
                if left < 0:
                    raise EngineGone
                if left == 0:
                    return
        finally:
            del self._owed[number]

    def tell(self, order: dict[str, object]) -> None:
        """Hand something to its process. Errors: EngineGone."""
        if self._process is None or self._process.stdin is None or self.gone.is_set():
            raise EngineGone
        self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def end(self) -> None:
        """Close its input, which ends it; a process that does not end by that is killed."""
        process = self._process
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    def _take(self, said: dict[str, int]) -> None:
        if "ready" in said and not self.ready.done():
            self.ready.set_result(None)
        if "id" in said:
            self.made_tokens += 1
            if said["id"] in self._owed:
                self._owed[said["id"]].put_nowait(said["left"])
