"""How a service stands at its doors: from the first request to the last."""

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from retinue.serving.command_line import tell_stop
from retinue.serving.doors import BACKLOG, Doors, name_socket


def catch_stop() -> "asyncio.Future[str]":
    """Have SIGTERM and SIGINT set a future instead of ending the process."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[str] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, tell_stop, told)
    return told


@asynccontextmanager
async def listen(
    server: web.Server, doors: Doors, end_s: float, title: str
) -> AsyncGenerator[Callable[[], Awaitable[None]], None]:
    """Serve at these doors, and say so on stderr; gives what stops taking new connections.

    Units: end_s is how long answers that are under way may take at the end.
    """
    runner = web.ServerRunner(server, shutdown_timeout=end_s)
    await runner.setup()
    sites = [web.SockSite(runner, sock, backlog=BACKLOG) for sock in doors.sockets]

    async def close() -> None:
        for site in sites:
            await site.stop()

    try:
        for site in sites:
            await site.start()
        names = ", ".join(name_socket(sock) for sock in doors.sockets)
        print(f"{title}listening on {names}", file=sys.stderr, flush=True)
        yield close
    finally:
        await runner.cleanup()
        doors.close()
