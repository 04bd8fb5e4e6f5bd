"""One call to a sandbox service: made again while that is safe, given up at its deadline, refused in words.

Never makes a call twice that may have been carried out, unless twice is the same as once. What our side's fault is
raises `SandboxLost`; a service that says that it is full is waited for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from retinue.client.answer import Answer, Broken
from retinue.client.asking import Line
from retinue.client.http import Body, Unreached
from retinue.client.patience import Again, Patience, Trouble
from retinue.client.reply import BUSY, LATER, NEVER, parse_retry_after
from retinue.client.sandbox_errors import (
    SandboxGone,
    SandboxKilled,
    SandboxLost,
    SandboxNoFile,
    SandboxRefused,
    SandboxUnsure,
)
from retinue.client.sandbox_lanes import SHORT, Lane
from retinue.terms.record import DecodeError, Record, from_json

T = TypeVar("T")
ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""Two streams of 64 MiB each, as base64."""
CALL_S = 60.0
"""For a call that does not say: what a service does at once, on a loaded node."""
BROKEN_MAX = 10
"""Times in one call that a connection may break: half a minute of waits. What breaks each time is no accident."""
INFRA = "infra_failed"
GONE = ("sandbox_expired", "sandbox_destroyed")


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    method: str
    path: str
    """From `/v1` on."""
    what: str
    """For messages: `run a command`."""
    body: Body = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    deadline_s: float = CALL_S
    """From when it has a connection."""
    may_repeat: bool | Callable[[], bool] = True
    """Made twice it is as if made once; asked each time that it matters."""
    lane: Lane = SHORT
    sandbox: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that was read whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    def parse(self, kind: type[T]) -> T:
        """Turn the body into a record.

        Errors: SandboxLost: what answered is not this service.
        """
        try:
            return from_json(self.body, kind)
        except DecodeError as error:
            raise SandboxLost(f"cannot read what the service answered: {error}", cause="unreadable answer") from None


class _Words(Record, frozen=True):
    type: str = ""
    message: str = ""
    service: str = ""
    node: str = ""
    retryable: bool = False
    cause: str = ""


class _Body(Record, frozen=True):
    error: _Words = _Words()


async def read_whole(answer: Answer) -> Reply:
    """Read an answer whole. Errors: Broken."""
    return Reply(answer.status, answer.headers, await answer.read_whole(ANSWER_BYTES_MAX))


async def ask(line: Line, call: Call) -> Reply:
    """Make a call until it is answered.

    Errors: SandboxLost, SandboxUnsure, SandboxRefused, SandboxGone, SandboxKilled.
    """
    return await ask_reading(line, call, read_whole)


async def ask_reading(line: Line, call: Call, read: Callable[[Answer], Awaitable[T]]) -> T:
    """Make a call until its answer was read; `read` begins anew each time.

    Errors: as `ask`.
    """
    async with call.lane.find_slots(line.pool, line.target):
        turns = Turns(line, call)
        try:
            async with asyncio.timeout(call.deadline_s):
                while True:
                    async with AsyncExitStack() as once:
                        got = await turns.attempt(once)
                        if isinstance(got, Answer):
                            try:
                                return await read(got)
                            except Broken as error:
                                got = turns.take_broken(error)
                    await turns.wait(got)
        except TimeoutError:
            turns.give_up("no answer")


async def open_answer(line: Line, call: Call, stack: AsyncExitStack) -> Answer:
    """Make a call until an answer begins; it is read while the stack is open.

    Errors: as `ask`.
    """
    await stack.enter_async_context(call.lane.find_slots(line.pool, line.target))
    turns = Turns(line, call)
    try:
        async with asyncio.timeout(call.deadline_s):
            while True:
                async with AsyncExitStack() as once:
                    got = await turns.attempt(once)
                    if isinstance(got, Answer):
                        await stack.enter_async_context(once.pop_all())
                        return got
                await turns.wait(got)
    except TimeoutError:
        turns.give_up("no answer")


class Turns:
    """The attempts of one call."""

    def __init__(self, line: Line, call: Call) -> None:
        self._line, self._call = line, call
        self._patience = Patience(line.chance)
        self._loop = asyncio.get_running_loop()
        self._started_s = self._loop.time()
        self._last: Again | None = None
        self._broken_count = 0

    async def attempt(self, stack: AsyncExitStack) -> Answer | Again:
        """Make the request once: an answer that says yes, or why to try again. Errors: as `ask`."""
        line, call = self._line, self._call
        headers = {**line.headers, **call.headers}
        try:
            exchange = line.pool.exchange(line.target, call.method, call.path, headers, call.body, self._may_repeat)
            answer = await stack.enter_async_context(exchange)
            if answer.status < 300:
                return answer
            text = await answer.read_whole()
        except Unreached as error:
            return Again(Trouble.UNREACHED, str(error))
        except Broken as error:
            return self.take_broken(error)
        return self._judge(answer.status, answer.headers, text)

    def take_broken(self, error: Broken) -> Again:
        """Take a broken exchange. Errors: SandboxUnsure when the call may not be made again."""
        if not self._may_repeat():
            self._raise_unsure(str(error))
        self._broken_count += 1
        if self._broken_count > BROKEN_MAX:
            self._last = Again(Trouble.BROKEN, str(error))
            self.give_up("broken too often")
        return Again(Trouble.BROKEN, str(error))

    async def wait(self, again: Again) -> None:
        """Wait before the next attempt. Errors: SandboxLost when there is none."""
        self._last = again
        wait_s = self._patience.decide_wait(again, self._loop.time())
        if wait_s is None:
            self.give_up("given up")
        await asyncio.sleep(wait_s)

    def give_up(self, what: str) -> NoReturn:
        """Raise SandboxLost: nobody answered in time."""
        last = self._last
        waited_s = self._loop.time() - self._started_s
        why = f": {last.reason or last.event}" if last is not None else ""
        cause = f"{what} after {waited_s:.1f} s{why}"
        raise self._build_lost(f"cannot {self._call.what} at {self._line.target.url}: {cause}", "", cause)

    def _judge(self, status: int, headers: Mapping[str, str], text: bytes) -> Again:
        """Judge an answer that says no: a reason to ask again, or an error."""
        words = _read_words(text)
        message = words.message or f"cannot {self._call.what}: {self._line.service} answered {status}"
        after_s = parse_retry_after(headers.get("retry-after", ""))
        match words.type:
            case "infra_failed" if status == 503:
                if not self._may_repeat():
                    self._raise_unsure(message)
                trouble = Trouble.BUSY if words.retryable else Trouble.FAILED
                return Again(trouble, words.cause or INFRA, message, after_s)
            case "infra_failed" | "retinue_unavailable":
                raise self._build_lost(message, words.node, words.cause)
            case "retinue_bad_gateway":
                if not self._may_repeat():
                    self._raise_unsure(message)
                # The way there may be cut for a moment; what is gone for good is told as such.
                return Again(Trouble.UNREACHED, "no answer of its replica", message)
            case "sandbox_killed":
                raise SandboxKilled(message)
            case kind if kind in GONE:
                raise SandboxGone(message)
            case "sandbox_no_file":
                raise SandboxNoFile(message, words.type, status)
        if status == BUSY:
            return Again(Trouble.BUSY, "full", message, after_s)
        if not words.type.startswith("sandbox_") and (status in LATER or (status >= 500 and status not in NEVER)):
            return self.take_broken(Broken(f"status {status}"))
        raise SandboxRefused(message, words.type, status)

    def _may_repeat(self) -> bool:
        may_repeat = self._call.may_repeat
        return may_repeat if isinstance(may_repeat, bool) else may_repeat()

    def _raise_unsure(self, cause: str) -> NoReturn:
        line, call = self._line, self._call
        message = f"cannot tell whether this was done: {call.what}: {cause}"
        raise SandboxUnsure(message, line.node, cause, line.service, call.sandbox)

    def _build_lost(self, message: str, node: str, cause: str) -> SandboxLost:
        line = self._line
        return SandboxLost(message, node or line.node, cause or message, line.service, self._call.sandbox)


def _read_words(text: bytes) -> _Words:
    try:
        return from_json(text, _Body).error
    except DecodeError:
        return _Words()
