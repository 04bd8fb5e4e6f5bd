"""`python -m retinue.rehearsal`: a parent that serves, an engine below it, a worker that left the group.

SIGTERM ends all of it and exits 0, unless it is to ignore that. Without --port it serves nothing and waits.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from retinue.rehearsal.engine import Engine
from retinue.rehearsal.faults import WORDS, Faults, parse_faults
from retinue.rehearsal.script import Line, Script, parse_script
from retinue.rehearsal.server import Desk

END_S = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Rehearse until told to stop, or until the plan says so; returns the exit code."""
    words = build_parser().parse_args(argv)
    try:
        faults = parse_faults(words.fault, int(os.environ.get("RETINUE_INCARNATION", "1")))
        lines = parse_script(Path(words.script).read_text(encoding="utf-8")) if words.script else []
        if words.speed <= 0:
            raise ValueError(f"--speed is {words.speed:g}; it is above 0")
    except (ValueError, OSError) as error:
        print(f"retinue rehearsal: cannot start: {error}", file=sys.stderr)
        return 2
    return asyncio.run(rehearse(words, faults, lines))


def build_parser() -> argparse.ArgumentParser:
    """Build the command line; everything in it is a parameter of templates/rehearsal.yaml too."""
    parser = argparse.ArgumentParser(prog="python -m retinue.rehearsal", allow_abbrev=False, description=__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, help="port to listen on; left out: nothing is served")
    add("--model", default="rehearsal", help="name in /v1/models")
    add("--speed", type=float, default=50.0, help="tokens a second, of each request")
    add("--script", nargs="?", metavar="FILE", help="JSON lines of what it says")
    add("--fault", action="extend", nargs="*", default=[], metavar="WORD", help=f"{WORDS}; N: before it: in launch N")
    add("--exit-after-load", action="store_true", help="exit 0 once it has loaded: a service that completes")
    return parser


async def rehearse(words: argparse.Namespace, faults: Faults, lines: list[Line]) -> int:
    """Serve and go wrong by plan."""
    loop = asyncio.get_running_loop()
    engine = Engine(faults, words.speed)
    desk = Desk(engine, Script(lines), faults.error, words.model)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _take_signal, desk, faults.ignore_term and number == signal.SIGTERM)
    runner = web.ServerRunner(desk.build_server(), shutdown_timeout=END_S)
    await runner.setup()
    follow = [asyncio.create_task(engine.run()), asyncio.create_task(_follow_plan(desk, faults, words.exit_after_load))]
    try:
        if words.port is not None:
            await web.TCPSite(runner, words.host, words.port).start()
        return await desk.exit_code
    finally:
        follow[1].cancel()
        await engine.end()
        await asyncio.gather(*follow, return_exceptions=True)
        await runner.cleanup()


async def _follow_plan(desk: Desk, faults: Faults, exits_after_load: bool) -> None:
    # An engine that died while it loaded is waited for, for ever: that is the fault.
    await desk.engine.ready
    print("retinue rehearsal: ready", file=sys.stderr, flush=True)
    if exits_after_load:
        _end(desk, 0)
    if faults.die >= 0:
        await asyncio.sleep(faults.die)
        _end(desk, faults.die_code)


def _take_signal(desk: Desk, is_ignored: bool) -> None:
    if is_ignored:
        print("retinue rehearsal: TERM is ignored", file=sys.stderr, flush=True)
        return
    _end(desk, 0)


def _end(desk: Desk, code: int) -> None:
    if not desk.exit_code.done():
        desk.exit_code.set_result(code)
