"""One sandbox, from its create to its end.

Made inside `async with` and destroyed on the way out, cancelled or not; its lease is renewed in between, and frees it
when this program is gone. Every command has a key of its own, so that one whose connection broke is found again and
never run twice.
"""

import asyncio
import os
import uuid
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Unpack

from retinue.client.asking import Line
from retinue.client.question import check_seconds
from retinue.client.sandbox_asking import CALL_S, Call, Reply, ask
from retinue.client.sandbox_errors import SandboxKilled, SandboxLost, SandboxRefused
from retinue.client.sandbox_exec import Command, ExecOptions, build_exec, dump, judge_result
from retinue.client.sandbox_files import Files
from retinue.client.sandbox_lanes import CREATE, EXEC
from retinue.client.sandbox_process import CommandStream, Process
from retinue.client.sandbox_records import Ended, EndKind, Made, Result, Running, View, build_running
from retinue.errors import EdgeError, PermanentError, UsageError
from retinue.terms.record import Record

RENEWALS = 3
"""Within one lease."""
QUEUE_S = 600.0
"""How long a create waits for room where the caller does not say: the service's own default."""
DESTROY_S = 20.0
"""How long leaving the context may take; what was not destroyed by then ends with its lease."""
KEYS_KEPT = 4
"""Commands of a sandbox whose ends the service remembers."""


class _Limits(Record, frozen=True):
    wall: float


class _Shown(Record, frozen=True):
    limits: _Limits


class _Started(Record, frozen=True):
    process: str


class _Views(Record, frozen=True):
    processes: tuple[View, ...] = ()


class Sandbox:
    """An isolated machine of a rollout. `async with retinue.sandbox(image) as box`."""

    def __init__(self, open_line: Callable[[], Line], create: dict[str, Any], deadline_s: float | None) -> None:
        self._open_line = open_line
        self._lease_s = float(create["lease_s"])
        self._create = dump(create)
        self._create_s = deadline_s
        self._queue_s = float(create.get("queue_s", QUEUE_S))
        self._made: Made | None = None
        self._pid = os.getpid()
        self._wall_s: float | None = None
        self._keys = _Keys()
        self._used_s = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._renewing: asyncio.Task[None] | None = None

    # --- life ---------------------------------------------------------------------------

    @property
    def made(self) -> Made:
        """Its id, its node, and how long it took.

        Errors: UsageError outside its context, and in a forked child: its connections are the parent's.
        """
        if self._made is None:
            raise UsageError("cannot use a sandbox before its `async with`")
        if os.getpid() != self._pid:
            raise UsageError("cannot use a sandbox of the parent process: make another one in this process")
        return self._made

    @property
    def id(self) -> str:
        """As the service calls it."""
        return self.made.id

    @property
    def node(self) -> str:
        """Where it is."""
        return self.made.node

    async def __aenter__(self) -> "Sandbox":
        """Make it.

        Errors: SandboxLost: there was no room in time, or our side failed; SandboxRefused: no such image, a limit out
                of bounds, a key of another sandbox.
        """
        if self._made is not None:
            raise UsageError("cannot enter a sandbox twice: make another one")
        self._line = self._open_line()
        deadline_s = self._create_s or self._queue_s + CALL_S + self._line.hold_s
        call = Call("POST", "/v1/sandboxes", "make a sandbox", self._create, deadline_s=deadline_s, lane=CREATE)
        try:
            self._made = (await ask(self._line, call)).parse(Made)
        except asyncio.CancelledError:
            # It may have been made all the same: by its key it is found, and destroyed.
            self._keep(self._undo(call))
            raise
        self.files = Files(self._line, self.id)
        self._note_use()
        self._renewing = self._keep(self._renew_until_left())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.destroy()

    async def destroy(self) -> None:
        """End it and everything in it; a second time does nothing.

        Never raises for an outage: then its lease ends it.
        """
        if self._renewing is None or os.getpid() != self._pid:
            return
        self._renewing.cancel()
        self._renewing = None
        ending = self._keep(_without_outage(self._destroy()))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait([ending], timeout=DESTROY_S)
            raise

    async def renew(self, lease_s: float | None = None) -> None:
        """Begin its lease anew. While the context is open that happens by itself."""
        check_seconds(lease_s, "lease_s")
        await self._ask("POST", "/renew", "renew its lease", dump({} if lease_s is None else {"lease_s": lease_s}))

    async def show(self) -> dict[str, Any]:
        """Return all that the service says of it: limits, usage, processes, when its lease ends."""
        return (await self._ask("GET", "", "show it")).parse(dict[str, Any])

    # --- commands -----------------------------------------------------------------------

    async def exec(self, command: Command, *, deadline_s: float | None = None, **options: Unpack[ExecOptions]) -> Ended:
        """Run a command and wait for its end. A list is run as it is, a text is a script for the shell.

        Units:  deadline_s of this call, None: a minute more than the command may take; give `timeout_s` to limit the
                command itself, which a call that is cancelled does not end (the end of the sandbox does).
        Errors: SandboxLost when our side failed: never a score. What the policy's processes do is in what is returned.
        """
        check_seconds(deadline_s, "deadline_s")
        body = build_exec(command, options, key=uuid.uuid4().hex)
        if deadline_s is None:
            deadline_s = (options.get("timeout_s") or await self._find_wall_s()) + CALL_S
        may_repeat = self._keys.begin()
        call = self._build_exec(body, deadline_s, may_repeat)
        try:
            reply = await ask(self._line, call)
        except SandboxKilled as killed:
            return Ended(EndKind.MEMORY_EXCEEDED, cause=str(killed), node=self.node)
        except SandboxRefused:
            self._keys.end()
            raise
        # After any other error, cancellation included, the command may run on: its key stays counted.
        self._keys.end()
        self._note_use()
        return judge_result(reply.parse(Result), self._line.service, self.id)

    def stream(self, command: Command, **options: Unpack[ExecOptions]) -> CommandStream:
        """Run a command and read what it writes as it comes.

        Shape:  `async with box.stream(...) as pieces`, then `async for piece in pieces`.
        Leaving the context ends the command; `pieces.ended` says how it ended by itself.
        """
        body = build_exec(command, options, stream=True)
        return CommandStream(
            self._line, self._build_exec(body, CALL_S, False), options.get("timeout_s"), self._find_wall_s
        )

    async def start(self, command: Command, *, stdin_open: bool = False, **options: Unpack[ExecOptions]) -> Process:
        """Start a command in the background; it runs until it ends, is killed, or the sandbox goes.

        Errors: SandboxUnsure when the connection was lost: it may have been started.
        """
        body = build_exec(command, options, background=True, stdin_open=stdin_open)
        reply = await ask(self._line, self._build_exec(body, CALL_S, False))
        self._note_use()
        return self.process(reply.parse(_Started).process)

    def process(self, name: str) -> Process:
        """Return the handle of a background process by its name."""
        return Process(self._line, self.id, name)

    async def processes(self) -> list[Running]:
        """List the background processes, without their output."""
        views = (await self._ask("GET", "/processes", "list its processes")).parse(_Views).processes
        return [build_running(view) for view in views]

    # --- inside -------------------------------------------------------------------------

    def _build_exec(self, body: bytes, deadline_s: float, may_repeat: bool | Callable[[], bool]) -> Call:
        return Call(
            "POST",
            f"/v1/sandboxes/{self.id}/exec",
            f"run a command in sandbox {self.id}",
            body,
            deadline_s=deadline_s,
            may_repeat=may_repeat,
            lane=EXEC,
            sandbox=self.id,
        )

    async def _ask(self, method: str, rest: str, what: str, body: bytes = b"", deadline_s: float = CALL_S) -> Reply:
        path, what = f"/v1/sandboxes/{self.id}{rest}", f"{what} (sandbox {self.id})"
        reply = await ask(self._line, Call(method, path, what, body, deadline_s=deadline_s, sandbox=self.id))
        self._note_use()
        return reply

    async def _find_wall_s(self) -> float:
        """Find how long a command may run that has no limit of its own; asked once."""
        if self._wall_s is None:
            reply = await self._ask("GET", "", "ask for its limits")
            self._wall_s = reply.parse(_Shown).limits.wall
        return self._wall_s

    def _note_use(self) -> None:
        self._used_s = asyncio.get_running_loop().time()

    async def _renew_until_left(self) -> None:
        """Renew the lease whenever a third of it passed without a call."""
        loop, pause_s = asyncio.get_running_loop(), self._lease_s / RENEWALS
        while True:
            left_s = self._used_s + pause_s * (0.8 + 0.2 * self._line.chance()) - loop.time()
            if left_s > 0:
                await asyncio.sleep(left_s)
                continue
            try:
                await self._ask("POST", "/renew", "renew its lease", b"{}", deadline_s=pause_s)
            except SandboxLost:
                self._note_use()  # Told to whoever uses it; here there may be another try.
            except PermanentError:
                return

    async def _destroy(self) -> None:
        await self._ask("DELETE", "", "destroy it", deadline_s=DESTROY_S)

    async def _undo(self, call: Call) -> None:
        """Destroy what a create that was given up may have made."""

        async def undo() -> None:
            self._made = (await ask(self._line, call)).parse(Made)
            await self._destroy()

        await _without_outage(undo())

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Keys:
    """Which commands the service surely remembers by their keys: it keeps the last few ends."""

    def __init__(self) -> None:
        self._begun = self._running = 0

    def begin(self) -> Callable[[], bool]:
        """Note that a command is sent; returns whether it may be sent again, to be asked when that matters."""
        before = self._running
        self._begun += 1
        self._running += 1
        number = self._begun
        return lambda: before + self._begun - number < KEYS_KEPT

    def end(self) -> None:
        """Note that one ended, and that its caller knows."""
        self._running -= 1


async def _without_outage(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except EdgeError:
        pass  # Gone already, or out of reach: then its lease ends it.
