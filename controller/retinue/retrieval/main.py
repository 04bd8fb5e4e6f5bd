"""`python -m retinue.retrieval`: the retrieval service, as a process.

Serves on loopback and on a unix socket that only its user can use. Ready when the index is open and one query ran.
SIGTERM: takes no more, gives what runs two seconds, and exits 0. An index that cannot be used: exit 3.
"""

import argparse
import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retinue.checks.settings import TARGET, count_cpus, parse_size
from retinue.errors import PermanentError, RetinueError
from retinue.retrieval.host import Host, open_host
from retinue.retrieval.records import Method
from retinue.retrieval.server import Desk
from retinue.retrieval.settings import TOP_K_MAX, Settings
from retinue.serving.command_line import raise_descriptor_limit, typed
from retinue.serving.doors import Doors
from retinue.serving.listening import catch_stop, listen
from retinue.serving.loops import find_loop_factory

BROKEN_EXIT = 3
"""Trying again will not help: `restart.no_restart` has it in the template."""
DRAIN_S = 2.0
END_S = 0.5
"""How long answers may take to be written once every query has its passages."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the service until it is told to stop; returns the exit code."""
    words = build_parser().parse_args(argv)
    try:
        settings = build_settings(words, os.environ)
        doors = Doors(words.host, words.port, words.unix)
    except (ValueError, OSError) as error:
        print(f"retinue retrieval: cannot start: {error}", file=sys.stderr)
        return PermanentError.exit_code if isinstance(error, OSError) else 2
    sys.path[:0] = words.plugin_path
    raise_descriptor_limit()
    with (
        tempfile.TemporaryDirectory(prefix="retinue-retrieval-", dir=os.environ.get("RETINUE_NODE_DIR")) as view,
        asyncio.Runner(loop_factory=find_loop_factory()) as runner,
    ):
        return runner.run(serve(settings, doors, Path(view)))


def build_parser() -> argparse.ArgumentParser:
    """Build the command line; everything in it is a parameter of templates/retrieval.yaml too.

    Shape:  an option that a template's absent parameter leaves without a value has its default.
    """
    parser = argparse.ArgumentParser(prog="python -m retinue.retrieval", allow_abbrev=False, description=__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, help="port to listen on; 0: any, written to $RETINUE_PORT_FILE")
    add("--unix", metavar="PATH", help="unix socket to listen on, 0600")
    add("--index", required=True, metavar="DIR", help="what `retinue index build` made")
    add("--method", nargs="?", choices=[one.value for one in Method], help="of requests that do not say")
    add("--top-k", type=int, default=3, help="passages per query of requests that do not say")
    add("--workers", type=int, nargs="?", help="queries searched at once; default: the CPUs it may use")
    add("--queue", type=int, default=20_000, help="queries that wait at most; then 429")
    add("--queue-memory", type=typed(parse_size), default=256 * 2**20, help="what they may weigh, like 256MiB")
    add("--embedder", nargs="?", metavar="MODEL", help="instead of the place the index was built with: the same model")
    add("--reranker", nargs="?", metavar="MODULE:FUNCTION", help="orders what was found again")
    add("--plugin-path", action="extend", nargs="*", default=[], metavar="DIR", help="where to import functions from")
    return parser


def build_settings(words: argparse.Namespace, env: Mapping[str, str]) -> Settings:
    """Put together what the command line and the run's environment say.

    Errors: ValueError says which word has no meaning.
    """
    if words.port is None and words.unix is None:
        raise ValueError("nowhere to listen; give --port, --unix or both")
    workers = count_cpus() if words.workers is None else words.workers
    for name, value in (("--workers", workers), ("--queue", words.queue), ("--top-k", words.top_k)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it is at least 1")
    if words.top_k > TOP_K_MAX:
        raise ValueError(f"--top-k is {words.top_k}; it is at most {TOP_K_MAX}")
    if words.reranker and not TARGET.fullmatch(words.reranker):
        raise ValueError(f"--reranker {words.reranker!r} is not MODULE:FUNCTION")
    missing = [directory for directory in words.plugin_path if not Path(directory).is_dir()]
    if missing:
        raise ValueError(f"--plugin-path {missing[0]!r} is not a directory")
    replica = env.get("RETINUE_REPLICA", "")
    return Settings(
        index=str(Path(words.index).absolute()),
        method=None if words.method is None else Method(words.method),
        top_k=words.top_k,
        workers=workers,
        queue=words.queue,
        queue_bytes=words.queue_memory,
        embedder=words.embedder or "",
        reranker=words.reranker or "",
        service=replica.partition("/")[0] or "retrieval",
        node=env.get("RETINUE_NODE", "") or socket.gethostname(),
        incarnation=f"{replica}#{env.get('RETINUE_INCARNATION', '')}" if replica else "",
    )


async def serve(settings: Settings, doors: Doors, view: Path) -> int:
    """Serve at these doors until SIGTERM or SIGINT, or until the index is no good; returns the exit code."""
    told = catch_stop()
    async with (
        open_host(settings, view) as host,
        listen(Desk(host).build_server(), doors, END_S, "retinue retrieval: ") as close,
    ):
        reasons: list[asyncio.Future[Any]] = [told, host.broken, host.failed]
        await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        await close()
        await host.drain(DRAIN_S)
    return _choose_exit(told, host)


def _choose_exit(told: "asyncio.Future[str]", host: Host) -> int:
    if told.done():
        return 0
    cause = host.broken.result() if host.broken.done() else host.failed.result()
    print(f"retinue retrieval: {cause}", file=sys.stderr, flush=True)
    return BROKEN_EXIT if host.broken.done() else RetinueError.exit_code
