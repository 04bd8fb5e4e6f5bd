"""`python -m retinue.checks`: the checks service of one node, as a process.

Serves on loopback and on a unix socket that only its user can use. SIGTERM: takes no
more, gives what runs two seconds, answers the rest that it stops, and exits 0.
"""

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from retinue.checks.host import open_host
from retinue.checks.ledger_file import find_ledger_path, find_sign_path
from retinue.checks.plugins import BUILTIN
from retinue.checks.records import Limits, WarmConfig
from retinue.checks.server import Desk
from retinue.checks.settings import Settings, count_cpus, parse_duration, parse_size, parse_verifier
from retinue.checks.warm_link import WARM_ARGV
from retinue.errors import PermanentError, RetinueError
from retinue.serving.command_line import raise_descriptor_limit, typed
from retinue.serving.doors import Doors
from retinue.serving.listening import catch_stop, listen
from retinue.serving.loops import find_loop_factory

HIDDEN = ("RETINUE_NODE_DIR", "RETINUE_RUN_DIR", "RETINUE_TOKEN_FILE", "SLURM_TMPDIR", "TMPDIR", "XDG_RUNTIME_DIR")
"""Environment names of what no check may see."""
BROKEN_EXIT = 3
"""Trying again will not help: `restart.no_restart` has it by default."""
DRAIN_S = 2.0
END_S = 0.5
"""How long answers may take to be written once every check has its outcome."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the service until it is told to stop; returns the exit code."""
    words = build_parser().parse_args(argv)
    try:
        settings = build_settings(words, os.environ)
        doors = Doors(words.host, words.port, words.unix)
    except (ValueError, OSError) as error:
        print(f"retinue checks: cannot start: {error}", file=sys.stderr)
        return PermanentError.exit_code if isinstance(error, OSError) else 2
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=find_loop_factory()) as runner:
        return runner.run(serve(settings, doors, words.exit_when_broken))


def build_parser() -> argparse.ArgumentParser:
    """Build the command line; everything in it is a parameter of templates/checks.yaml too.

    Shape:  an option that a template's absent parameter leaves without a value has its default.
    """
    parser = argparse.ArgumentParser(prog="python -m retinue.checks", allow_abbrev=False, description=__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, help="port to listen on; 0: any, written to $RETINUE_PORT_FILE")
    add("--unix", metavar="PATH", help="unix socket to listen on, 0600")
    add("--workers", type=int, nargs="?", help="checks that run at once; default: the CPUs it may use")
    add("--timeout", type=typed(parse_duration), default=10.0, help="wall and CPU limit of one check, like 10s")
    add("--memory", type=typed(parse_size), default=2 * 2**30, help="memory limit of one check, like 2GiB")
    add("--queue", type=int, default=10_000, help="checks that wait at most; then 429")
    add(
        "--verifier", type=typed(parse_verifier), action="extend", nargs="*", default=[],
        metavar="NAME=MODULE:FUNCTION", help="verifiers of your own",
    )  # fmt: skip
    add("--plugin-path", action="extend", nargs="*", default=[], metavar="DIR", help="where to import verifiers from")
    add("--import-limit", type=typed(parse_duration), default=180.0, help="how long one verifier may take to load")
    add("--exit-when-broken", action="store_true", help="exit 3 when a verifier cannot be used at the first start")
    return parser


def build_settings(words: argparse.Namespace, env: Mapping[str, str]) -> Settings:
    """Put together what the command line and the run's environment say.

    Errors: ValueError says which word has no meaning.
    """
    if words.port is None and words.unix is None:
        raise ValueError("nowhere to listen; give --port, --unix or both")
    workers = count_cpus() if words.workers is None else words.workers
    for name, value in (("--workers", workers), ("--queue", words.queue)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it is at least 1")
    given = [name for name, _ in words.verifier]
    clashes = sorted({name for name in given if name in BUILTIN or given.count(name) > 1})
    if clashes:
        raise ValueError(f"--verifier names {', '.join(clashes)} twice, or over one of retinue's own; rename yours")
    missing = [directory for directory in words.plugin_path if not Path(directory).is_dir()]
    if missing:
        raise ValueError(f"--plugin-path {missing[0]!r} is not a directory")
    replica = env.get("RETINUE_REPLICA", "")
    hide = [env[name] for name in HIDDEN if env.get(name)]
    config = WarmConfig(
        verifiers=BUILTIN | dict(words.verifier),
        path=[str(Path(directory).absolute()) for directory in words.plugin_path],
        limits=Limits(wall_s=words.timeout, cpu_s=words.timeout, memory_bytes=words.memory),
        hide=hide,
        import_limit_s=words.import_limit,
    )
    return Settings(
        config=config,
        workers=workers,
        queue=words.queue,
        service=replica.partition("/")[0] or "checks",
        node=env.get("RETINUE_NODE", "") or socket.gethostname(),
        incarnation=f"{replica}#{env.get('RETINUE_INCARNATION', '')}" if replica else "",
        ledger_path=str(find_ledger_path(env) or ""),
        sign_path=str(find_sign_path(env) or ""),
    )


async def serve(
    settings: Settings, doors: Doors, exits_when_broken: bool = False, warm_argv: Sequence[str] = WARM_ARGV
) -> int:
    """Serve at these doors until SIGTERM or SIGINT, or until it broke; returns the exit code."""
    told = catch_stop()
    async with (
        open_host(settings, warm_argv) as host,
        listen(Desk(host).build_server(), doors, END_S, "retinue checks: ") as close,
    ):
        reasons = [told, host.standing.failed, *([host.standing.broken] if exits_when_broken else [])]
        await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        await close()
        await host.drain(DRAIN_S)
    if told.done():
        return 0
    return RetinueError.exit_code if host.standing.failed.done() else BROKEN_EXIT
