"""The commands of one sandbox, as callers ask for them: waited for, streamed, in the background, asked for twice."""

import asyncio
import signal
from collections import OrderedDict

from retinue.sandbox.exec_records import ENV_MAX_COUNT, OUTPUT_MAX_BYTES, ExecRequest, ExecResult, KeptBytes
from retinue.sandbox.execs import Command, find_kept
from retinue.sandbox.requests import Fault, check_env, parse_number, refuse
from retinue.sandbox.shard_box import LiveBox
from retinue.sandbox.shard_files import remove_script, write_script
from retinue.sandbox.shard_link import Exchange
from retinue.sandbox.shard_stream import stream_command
from retinue.sandbox.shard_wire import Answer, Ask, Body
from retinue.sandbox.wire import Target
from retinue.terms.record import DecodeError, Record, from_json, to_json

COMMANDS_MAX = 256
"""At once in one sandbox: each holds three descriptors of ours."""
ENDED_KEPT = 64
"""Background commands that are remembered after their end; the oldest goes first."""
KEYED_KEPT = 4
WAIT_MAX_S = 600.0
STDIN_WAITING_MAX = 16 * 2**20
WORD_MAX_BYTES = 128 * 1024 - 1
"""Of one argv word; MAX_ARG_STRLEN of the kernel."""


class SignalRequest(Record, frozen=True):
    """Body of `POST .../signal`."""

    signal: int | str = 15
    to: str = "leader"


class Execs:
    """What runs and ran in one sandbox."""

    def __init__(self, live: LiveBox, node: str) -> None:
        self._live = live
        self._node = node
        self._next = 0
        self._background: dict[str, Command] = {}
        self._keyed: OrderedDict[str, asyncio.Task[ExecResult]] = OrderedDict()
        self._tasks: set[asyncio.Task[ExecResult]] = set()

    async def execute(self, exchange: Exchange, body: bytes) -> Answer | None:
        """Run a command; None: the answer has been streamed. Errors: Fault."""
        request = parse_exec(body)
        if request.key is not None and (known := self._keyed.get(request.key)) is not None:
            return _answer(await asyncio.shield(known))
        if self._live.running_count >= COMMANDS_MAX:
            raise Fault(429, "sandbox_full", f"cannot run more than {COMMANDS_MAX} commands at once", retry_after_s=1)
        kept = KeptBytes() if request.stream else find_kept(request, self._live.limits.output, OUTPUT_MAX_BYTES)
        command = await self._prepare(request, kept)
        if request.stream:
            await stream_command(exchange, command)
            return None
        if request.background:
            return self._start_background(command)
        if request.key is not None:
            return _answer(await asyncio.shield(self._start_keyed(request.key, command)))
        return _answer(await command.run())

    def list(self) -> list[object]:
        """All that is remembered of background commands, without their output."""
        return [command.view(name, False) for name, command in self._background.items()]

    async def show(self, ask: Ask) -> Answer:
        """Show one, after it ended or after `wait_s`."""
        command = self._find(ask)
        wait_s = parse_number(ask.words, "wait_s", 0.0, WAIT_MAX_S)
        task = next((task for task in self._tasks if task.get_name() == ask.words["process"]), None)
        if wait_s and task is not None and command.result is None:
            await asyncio.wait([task], timeout=wait_s)
        return _answer(command.view(ask.words["process"], True))

    def read_output(self, ask: Ask) -> Answer:
        """Give the bytes of a stream from an offset on that are still kept."""
        command = self._find(ask)
        stream = ask.words.get("stream", "stdout")
        if stream not in ("stdout", "stderr"):
            raise refuse(f"cannot read stream {stream[:40]!r}: there are stdout, stderr")
        kept = command.stdout if stream == "stdout" else command.stderr
        at, data = kept.read_from(int(parse_number(ask.words, "offset", 0, 2**62)))
        headers = {
            "X-Offset": str(at),
            "X-Next-Offset": str(at + len(data)),
            "X-Total": str(kept.total_bytes),
            "X-State": "running" if command.result is None else "ended",
        }
        return Answer(200, data, Body.OCTETS, headers)

    async def signal(self, ask: Ask, body: bytes) -> Answer:
        """Signal one."""
        command = self._find(ask)
        try:
            request = from_json(body or b"{}", SignalRequest)
            target = Target[request.to.upper()]
            number = parse_signal(request.signal)
        except (DecodeError, KeyError, ValueError) as error:
            raise refuse(f"cannot signal: {error}") from None
        count = await command.running.signal(number, target) if command.running is not None else 0
        return _answer({"signalled": count})

    async def kill(self, ask: Ask) -> Answer:
        """End one with its whole tree."""
        return _answer({"left": await self._find(ask).kill()})

    async def forget(self, ask: Ask) -> Answer:
        """End one and remember it no more."""
        left = await self._find(ask).kill()
        self._background.pop(ask.words["process"], None)
        return _answer({"left": left})

    def write_stdin(self, ask: Ask, body: bytes) -> Answer:
        """Give a background command more to read."""
        stdin = self._find(ask).stdin
        if stdin is None or not stdin.is_open:
            raise Fault(409, "sandbox_stdin_closed", "cannot write: its stdin is closed, or was not left open")
        if stdin.left_bytes + len(body) > STDIN_WAITING_MAX:
            raise Fault(429, "sandbox_full", "cannot write: it has not read what it was given", retry_after_s=1)
        stdin.add(body, ask.words.get("close", "") in ("1", "true"))
        return _answer({"written": len(body)})

    # --- ways of running ------------------------------------------------------------------

    async def _prepare(self, request: ExecRequest, kept: KeptBytes) -> Command:
        argv, path = build_argv(request), ""
        if argv is None and request.script is not None:
            path = await write_script(self._live, request.script)
            argv = [request.shell, path]
        command = Command(self._live, request, argv or [], kept, self._node)
        if path:
            command.after = lambda: remove_script(self._live, path)
        return command

    def _start_background(self, command: Command) -> Answer:
        self._next += 1
        name = f"p{self._next}"
        self._background[name] = command
        self._keep_running(command, name)
        ended = [name for name, known in self._background.items() if known.result is not None]
        for old in ended[: max(0, len(ended) - ENDED_KEPT)]:
            del self._background[old]
        return Answer(202, to_json({"process": name}))

    def _start_keyed(self, key: str, command: Command) -> asyncio.Task[ExecResult]:
        task = self._keyed[key] = self._keep_running(command, "")
        while len(self._keyed) > KEYED_KEPT:
            done = next((old for old, kept in self._keyed.items() if kept.done()), None)
            if done is None:
                break
            del self._keyed[done]
        return task

    def _keep_running(self, command: Command, name: str) -> asyncio.Task[ExecResult]:
        task = asyncio.get_running_loop().create_task(command.run(), name=name or None)
        self._tasks.add(task)
        task.add_done_callback(self._end_task)
        return task

    def _end_task(self, task: asyncio.Task[ExecResult]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # A Fault: the sandbox was taken away, which every later request is told.

    def _find(self, ask: Ask) -> Command:
        name = ask.words.get("process", "")
        command = self._background.get(name)
        if command is None:
            raise Fault(404, "sandbox_no_process", f"cannot find process {name[:40]!r} of sandbox {self._live.name}")
        return command


def parse_exec(body: bytes) -> ExecRequest:
    """Read and check the body of an exec. Errors: Fault 400 names the field."""
    try:
        request = from_json(body, ExecRequest)
    except DecodeError as error:
        raise refuse(f"cannot read the body: {error}") from None
    if bool(request.argv) == (request.script is not None):
        raise refuse("cannot run a command: give argv or script")
    if request.stdin is not None and request.stdin_base64 is not None:
        raise refuse("cannot run a command: give stdin or stdin_base64")
    if request.timeout_s is not None and not request.timeout_s > 0:
        raise refuse(f"cannot use timeout_s of {request.timeout_s:g}: it is a number of seconds above 0")
    if request.cpu_s is not None and not request.cpu_s >= 1:
        raise refuse(f"cannot use cpu_s of {request.cpu_s:g}: it is a number of seconds from 1 on")
    if sum((request.background, request.stream, request.key is not None)) > 1:
        raise refuse("cannot run a command: of background, stream and key one is possible")
    if request.stdin_open and not request.background:
        raise refuse("cannot leave stdin open: only a background command can be given more")
    if len(request.env) > ENV_MAX_COUNT:
        raise refuse(f"cannot use env: it has more than {ENV_MAX_COUNT} names")
    check_env(request.env)
    words = [*request.argv, request.script or "", request.cwd or "", request.shell]
    if any("\0" in word for word in words):
        raise refuse("cannot run a command: a word has a NUL character")
    return request


def build_argv(request: ExecRequest) -> list[str] | None:
    """Build what is run; None: the script is longer than a word may be."""
    if request.script is None:
        return request.argv
    if len(request.script.encode("utf-8", "replace")) > WORD_MAX_BYTES:
        return None
    return [request.shell, "-c", request.script]


def parse_signal(value: int | str) -> int:
    """Turn `TERM`, `SIGTERM` or 15 into a number. Errors: ValueError."""
    if isinstance(value, int):
        return int(signal.Signals(value))
    try:
        return int(signal.Signals["SIG" + value.upper().removeprefix("SIG")])
    except KeyError:
        raise ValueError(f"{value[:40]!r} is no signal") from None


def _answer(value: object, status: int = 200) -> Answer:
    return Answer(status, to_json(value) + b"\n")
