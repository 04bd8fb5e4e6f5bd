"""One question asked until it is answered: waits in between, an end at the deadline, no exception for an outage."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from retinue.client.patience import Again, Patience

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GivenUp:
    """No answer."""

    last: Again | None
    """Why the last attempt gave none; None: the first was still under way."""
    what: str
    """`given up`, or `no outcome` at the deadline."""
    waited_s: float


async def persevere(
    ask_once: Callable[[], Awaitable[T | Again]], deadline_s: float, chance: Callable[[], float]
) -> T | GivenUp:
    """Ask until there is an answer, there will be none, or time is up.

    Units:  deadline_s seconds from now, waits for a connection and all attempts included.
    """
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    patience = Patience(chance)
    last: Again | None = None
    what = "given up"
    try:
        async with asyncio.timeout_at(started_s + deadline_s):
            while True:
                reply = await ask_once()
                if not isinstance(reply, Again):
                    return reply
                last = reply
                wait_s = patience.decide_wait(last, loop.time())
                if wait_s is None:
                    break
                await asyncio.sleep(wait_s)
    except TimeoutError:
        what = "no outcome"
    return GivenUp(last, what, loop.time() - started_s)
