"""The gateway's process: one per node, on a listening socket that outlives it.

The keeper holds a duplicate of that socket; a gateway that was killed loses the
requests it was serving, and the next one serves the backlog.
"""

import argparse
import asyncio
import importlib
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from retinue.channel.context import build_hop_contexts
from retinue.channel.join import Join, read_join
from retinue.errors import PermanentError
from retinue.gateway.caller import Doorkeeper, read_own_uid
from retinue.gateway.desk import Desk, bind_control
from retinue.gateway.direct import open_way
from retinue.gateway.far import Hop, open_far
from retinue.gateway.far_door import open_far_door
from retinue.gateway.front import Door, Front
from retinue.gateway.hold import HELD_MAX, KEPT_BYTES_MAX, ReplayBudget, WaitingRoom
from retinue.gateway.notes import install_notes, log
from retinue.gateway.proxy import Proxy
from retinue.gateway.pulse import Pulse
from retinue.gateway.routes import RouteTable

BACKLOG = 4096
"""Connections that wait while no gateway runs; the kernel caps it at net.core.somaxconn."""
END_S = 0.5
"""Twice this is how long requests in flight may take to end after SIGTERM; who calls at teardown is gone already."""
BEAT_S = 1.0
"""The keeper kills a gateway whose loop did not run for 5 s."""


def main(argv: list[str]) -> int:
    """Run as the keeper starts it: `gateway --listen-fd N --control-path PATH --join FILE --beat-fd N`."""
    parser = argparse.ArgumentParser(prog="retinue gateway", allow_abbrev=False)
    parser.add_argument("--listen-fd", type=int, required=True)
    parser.add_argument("--control-fd", type=int)
    parser.add_argument("--control-path", required=True)
    parser.add_argument("--beat-fd", type=int, help="a pipe of the keeper; without one nobody notices a hang")
    parser.add_argument("--hop-fd", type=int, help="where other nodes' gateways call; without one there are none")
    parser.add_argument("--join", required=True, help="the node's join file: token and key are in it, never in argv")
    words = parser.parse_args(argv)
    try:
        join = read_join(Path(words.join))
        hop = build_hop(words.hop_fd, join) if words.hop_fd is not None else None
        return run_gateway(words.listen_fd, words.control_fd, words.control_path, join.token, words.beat_fd, hop)
    except (OSError, PermanentError) as error:
        print(f"retinue gateway: cannot start: {error}", file=sys.stderr)
        return PermanentError.exit_code


def build_hop(hop_fd: int, join: Join) -> Hop:
    """Make a gateway's way from and to other nodes out of its node's certificate.

    Errors: PermanentError when the descriptor or the certificate cannot be used.
    """
    try:
        server, client = build_hop_contexts(join.run_id, join.ca_pem, join.cert_pem, join.key_pem)
        return Hop(socket.socket(fileno=hop_fd), join.node, server, client)
    except OSError as error:
        raise PermanentError(f"cannot serve other nodes at descriptor {hop_fd}: {error.strerror or error}") from None


def run_gateway(
    listen_fd: int,
    control_fd: int | None,
    control_path: str,
    token: str,
    beat_fd: int | None = None,
    hop: Hop | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code.

    Shape:  `listen_fd` a bound TCP socket, taken over; `control_fd` a bound unix socket, or None: bind `control_path`;
            `beat_fd` the non-blocking pipe that is written to once a second, or None; `hop` None: a run of one node.
    Errors: PermanentError when a socket cannot be used.
    """
    install_notes()
    _raise_descriptor_limit()
    try:
        listen = socket.socket(fileno=listen_fd)
        control = bind_control(control_path) if control_fd is None else socket.socket(fileno=control_fd)
    except OSError as error:
        raise PermanentError(f"cannot serve descriptor {listen_fd}: {error.strerror or error}") from None
    with asyncio.Runner(loop_factory=_find_loop_factory()) as runner:
        runner.run(_serve_until_told(listen, control, token, beat_fd, hop))
    return 0


@asynccontextmanager
async def open_gateway(
    listen: socket.socket,
    control: socket.socket,
    token: str,
    own_uid: int | None,
    held_max: int = HELD_MAX,
    kept_bytes_max: int = KEPT_BYTES_MAX,
    hop: Hop | None = None,
) -> AsyncIterator[tuple[Proxy, Desk]]:
    """Serve on these sockets while the context lasts.

    Shape:  `own_uid` None: every caller needs the token; `hop` None: all replicas are this node's.
    """
    room = WaitingRoom(held_max)
    table = RouteTable(on_change=room.wake, on_free=room.wake_for_place)
    doorkeeper, pulse = Doorkeeper(token, own_uid), Pulse()
    async with open_way() as direct, open_far(hop, table, pulse) as far:
        proxy = Proxy(table, room, ReplayBudget(kept_bytes_max), direct, far)
        front = Front(doorkeeper, proxy)
        desk = Desk(table, front.read_facts)
        runner = web.ServerRunner(Door(front, doorkeeper), shutdown_timeout=END_S)
        await runner.setup()
        agents = await asyncio.start_unix_server(desk.serve_agent, sock=control)
        telling = asyncio.create_task(desk.tell_facts())
        try:
            await web.SockSite(runner, listen, backlog=BACKLOG).start()
            async with open_far_door(hop, proxy, pulse, END_S):
                yield proxy, desk
        finally:
            telling.cancel()
            agents.close()
            await runner.cleanup()
            doorkeeper.close()


async def _serve_until_told(
    listen: socket.socket, control: socket.socket, token: str, beat_fd: int | None, hop: Hop | None
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_note_exception)
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    async with open_gateway(listen, control, token, read_own_uid(), hop=hop), asyncio.TaskGroup() as group:
        beating = group.create_task(_beat(beat_fd)) if beat_fd is not None else None
        await told.wait()
        if beating is not None:
            beating.cancel()


async def _beat(beat_fd: int) -> None:
    """Show the keeper that this loop runs."""
    while True:
        try:
            os.write(beat_fd, b".")
        except BlockingIOError:
            pass  # The keeper does not run; once it does, it finds more beats than it needs.
        except BrokenPipeError:
            return
        await asyncio.sleep(BEAT_S)


def _note_exception(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    log.error("%s", context.get("message", "unknown trouble in the loop"), exc_info=error)


def _raise_descriptor_limit() -> None:
    """Two descriptors per request in flight: the usual soft limit of 1,024 is 500 callers."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _find_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop where the `speed` extra is installed."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return None
    return uvloop.new_event_loop  # type: ignore[no-any-return]
