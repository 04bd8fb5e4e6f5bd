"""`python -m retinue.sandbox`: the sandbox service of one node, as a process.

Serves on loopback and on a unix socket that only its user can use. SIGTERM: takes no more and ends; every sandbox ends
with it, however it ends.
"""

import argparse
import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from retinue.checks.ledger_file import find_ledger_path, find_sign_path
from retinue.checks.settings import parse_duration, parse_size
from retinue.errors import PermanentError, RetinueError
from retinue.sandbox.build import PROGRAM
from retinue.sandbox.host import open_host
from retinue.sandbox.host_probe import probe_node
from retinue.sandbox.host_settings import HostSettings, build_budget, count_cpus, count_shards
from retinue.sandbox.images import ImageSettings, check_node
from retinue.sandbox.requests import BOUNDS, Fault, Limits, parse_limits
from retinue.sandbox.server import Desk
from retinue.serving.command_line import raise_descriptor_limit, typed
from retinue.serving.doors import Doors
from retinue.serving.listening import catch_stop, listen
from retinue.serving.loops import find_loop_factory

REFUSED_EXIT = 3
"""This node cannot do it: trying again will not help."""
END_S = 1.0
"""How long answers that are under way may take."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the service until it is told to stop; returns the exit code."""
    words = build_parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="retinue-sandbox-", dir=os.environ.get("RETINUE_NODE_DIR")) as place:
        try:
            settings = build_settings(words, os.environ, Path(place))
            doors = Doors(words.host, words.port, words.unix)
        except (ValueError, Fault, OSError) as error:
            print(f"retinue sandbox: cannot start: {error}", file=sys.stderr)
            return PermanentError.exit_code if isinstance(error, OSError) else 2
        raise_descriptor_limit()
        with asyncio.Runner(loop_factory=find_loop_factory()) as runner:
            return runner.run(serve(settings, doors))


def build_parser() -> argparse.ArgumentParser:
    """Build the command line; everything in it is a parameter of templates/sandbox.yaml too.

    Shape:  an option that a template's absent parameter leaves without a value has its default.
    """
    parser = argparse.ArgumentParser(prog="python -m retinue.sandbox", allow_abbrev=False, description=__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, help="port to listen on; 0: any, written to $RETINUE_PORT_FILE")
    add("--unix", metavar="PATH", help="unix socket to listen on, 0600")
    add("--store", required=True, metavar="DIR", help="where images are; shared by all nodes")
    add("--shards", type=int, nargs="?", help="shard processes; default: by CPUs and budget")
    add("--budget-count", type=int, nargs="?", help="sandboxes at once")
    add("--budget-memory", type=typed(parse_size), nargs="?", help="of their memory and disk limits together")
    add("--budget-processes", type=int, nargs="?", help="of their process limits together")
    add("--queue", type=int, default=30_000, help="creates that wait at most; then 429")
    add("--queue-limit", type=typed(parse_duration), default=600.0, help="how long one waits; then 429")
    add("--lease", type=typed(parse_duration), default=3600.0, help="how long a sandbox lives that nobody uses")
    add("--image-idle", type=typed(parse_duration), default=600.0, help="how long an unused image stays mounted")
    add("--memory-min", type=typed(parse_size), nargs="?", help="of the node's memory that must stay available")
    add("--program", nargs="?", metavar="PATH", help="the sandbox program; default: the package's own")
    add("--unpack-to", nargs="?", metavar="DIR", help="unpack images there instead of mounting them")
    add("--allow-degraded", nargs="?", const="true", default="false", help="start though this node lacks something")
    for name in BOUNDS:
        add(f"--limit-{name}", nargs="?", metavar="N", help=f"default of limits.{name}")
    return parser


def build_settings(words: argparse.Namespace, env: Mapping[str, str], place: Path) -> HostSettings:
    """Put together what the command line and the run's environment say.

    Errors: ValueError or Fault says which word has no meaning.
    """
    if words.port is None and words.unix is None:
        raise ValueError("nowhere to listen; give --port, --unix or both")
    given = {name: getattr(words, f"limit_{name}") for name in BOUNDS}
    limits = parse_limits({name: _read_number(text) for name, text in given.items() if text is not None}, Limits())
    budget = build_budget(words.budget_count, words.budget_memory, words.budget_processes)
    shards = words.shards or count_shards(budget.count, count_cpus())
    for name, value in (("--shards", shards), ("--queue", words.queue), ("--budget-count", budget.count)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it is at least 1")
    replica = env.get("RETINUE_REPLICA", "")
    service, _, index = replica.partition("/")
    base, logs = place / "space", place / "logs"
    base.mkdir(mode=0o700)
    logs.mkdir(mode=0o700)
    return HostSettings(
        store=str(Path(words.store).absolute()),
        base=str(base),
        logs=str(logs),
        limits=limits,
        budget=budget,
        shards=shards,
        queue=words.queue,
        queue_s=words.queue_limit,
        lease_s=words.lease,
        image_idle_s=words.image_idle,
        service=service or "sandbox",
        index=int(index) if index.isdigit() else 0,
        node=env.get("RETINUE_NODE", "") or socket.gethostname(),
        incarnation=f"{replica}#{env.get('RETINUE_INCARNATION', '')}" if replica else "",
        node_dir=env.get("RETINUE_NODE_DIR", ""),
        ledger_path=str(find_ledger_path(env) or ""),
        sign_path=str(find_sign_path(env) or ""),
        allow_degraded=words.allow_degraded == "true",
        program=words.program or str(PROGRAM),
        memory_min_bytes=words.memory_min or 0,
        unpack_to=words.unpack_to or "",
    )


async def serve(settings: HostSettings, doors: Doors) -> int:
    """Serve at these doors until SIGTERM or SIGINT, or until it broke; returns the exit code."""
    told = catch_stop()
    try:
        await check_start(settings)
    except PermanentError as error:
        print(f"retinue sandbox: cannot start: {error}", file=sys.stderr, flush=True)
        doors.close()
        return REFUSED_EXIT
    async with (
        open_host(settings) as host,
        listen(Desk(host).build_server(), doors, END_S, "retinue sandbox: ") as close,
    ):
        await asyncio.wait([told, host.standing.failed], return_when=asyncio.FIRST_COMPLETED)
        host.stop()
        await close()
    return 0 if told.done() else RetinueError.exit_code


async def check_start(settings: HostSettings) -> None:
    """Refuse a node that cannot do it, or only in a weaker way unless that was allowed. Errors: PermanentError."""
    images = ImageSettings(
        Path(settings.base), Path(settings.store), Path(settings.logs),
        unpack_to=Path(settings.unpack_to) if settings.unpack_to else None,
    )  # fmt: skip
    check_node(images)
    problems = await probe_node()
    for problem in problems:
        print(f"retinue sandbox: {problem}", file=sys.stderr, flush=True)
    if problems and not settings.allow_degraded:
        raise PermanentError(f"{problems[0]}; see retinue doctor --for sandbox, or give --allow-degraded")


def _read_number(text: str) -> int | float | str:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text
