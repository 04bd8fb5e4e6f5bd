"""`python -m retinue.simulator`: the user simulator, as a process.

Serves on loopback and on a unix socket that only its user can use. Ready when every persona was read and checked.
SIGTERM: takes no more and exits 0. Personas that cannot be used: exit 2, every line named.
"""

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from retinue.checks.settings import parse_duration, parse_size
from retinue.client.http import parse_target
from retinue.client.site import Site, find_url, read_site
from retinue.errors import PermanentError, RetinueError, TransientError, UsageError
from retinue.serving.command_line import raise_descriptor_limit, typed
from retinue.serving.doors import Doors
from retinue.serving.listening import catch_stop, listen
from retinue.serving.loops import find_loop_factory
from retinue.simulator.model import Model
from retinue.simulator.personas import Persona, parse_personas
from retinue.simulator.server import Desk
from retinue.simulator.settings import Settings
from retinue.terms.record import replace

END_S = 2.0
"""For requests under way at the end."""
COUNTS = ("turns", "max_tokens", "attempts", "workers", "queue", "message_chars", "history_chars")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the service until it is told to stop; returns the exit code."""
    words = build_parser().parse_args(argv)
    try:
        settings = build_settings(words, os.environ)
        personas = read_personas(Path(words.personas))
        site, service = find_model(words, os.environ, settings.node)
        doors = Doors(words.host, words.port, words.unix)
    except (ValueError, OSError, RetinueError) as error:
        print(f"retinue simulator: cannot start: {error}", file=sys.stderr)
        return PermanentError.exit_code if isinstance(error, OSError) else 2
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=find_loop_factory()) as runner:
        return runner.run(serve(settings, personas, Model(settings, site, service), doors))


def build_parser() -> argparse.ArgumentParser:
    """Build the command line; everything in it is a parameter of templates/user-simulator.yaml too.

    Shape:  an option that a template's absent parameter leaves without a value has its default.
    """
    plain = Settings()
    parser = argparse.ArgumentParser(prog="python -m retinue.simulator", allow_abbrev=False, description=__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, help="port to listen on; 0: any, written to $RETINUE_PORT_FILE")
    add("--unix", metavar="PATH", help="unix socket to listen on, 0600")
    add("--personas", required=True, metavar="FILE", help="JSON lines: id, persona, goal ...")
    add("--model-service", nargs="?", metavar="NAME", help="service of this run whose model plays")
    add("--model-url", nargs="?", metavar="URL", help="instead: where that is, without /v1")
    add("--model", nargs="?", help="name of the model there; default: the first it names")
    add("--turns", type=int, default=plain.turns, help="messages of a user at most")
    add("--max-tokens", type=int, default=plain.max_tokens, help="of one message of a user")
    add("--temperature", type=float, default=plain.temperature, help="of requests that do not say")
    add("--attempts", type=int, default=plain.attempts, help="messages the model may try before it has failed")
    add("--message-chars", type=int, default=plain.message_chars, help="read of one message of the policy")
    add("--history-chars", type=int, default=plain.history_chars, help="read of the whole conversation")
    add("--timeout", type=typed(parse_duration), default=plain.answer_s, help="for one message, like 120s")
    add("--workers", type=int, default=plain.workers, help="messages under way at once")
    add("--queue", type=int, default=plain.queue, help="requests that wait at most; then 429")
    add("--queue-memory", type=typed(parse_size), default=plain.queue_bytes, help="what they may weigh, like 256MiB")
    return parser


def build_settings(words: argparse.Namespace, env: Mapping[str, str]) -> Settings:
    """Put together what the command line and the run's environment say.

    Errors: ValueError says which word has no meaning.
    """
    if words.port is None and words.unix is None:
        raise ValueError("nowhere to listen; give --port, --unix or both")
    numbers = {name: getattr(words, name) for name in COUNTS}
    for name, value in numbers.items():
        if value < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; it is at least 1")
    if not 0 <= words.temperature <= 2:
        raise ValueError(f"--temperature is {words.temperature:g}; it is 0 to 2")
    settings = Settings(
        model=words.model or "",
        temperature=words.temperature,
        answer_s=words.timeout,
        queue_bytes=words.queue_memory,
        service=env.get("RETINUE_REPLICA", "").partition("/")[0] or "simulator",
        node=env.get("RETINUE_NODE", "") or socket.gethostname(),
    )
    return replace(settings, **numbers)


def read_personas(path: Path) -> dict[str, Persona]:
    """Read who is played. Errors: UsageError with every line that cannot be used."""
    try:
        return parse_personas(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read the personas {str(path)!r}: {(error.strerror or 'error').lower()}") from None
    except ValueError as error:
        raise UsageError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from None


def find_model(words: argparse.Namespace, env: Mapping[str, str], node: str) -> tuple[Site, str]:
    """Find the way to the model: (site, service's name).

    Errors: UsageError when nobody says where it is, or this run has no such service.
    """
    if (words.model_url is None) == (words.model_service is None):
        raise UsageError("nobody to play; give --model-service or --model-url, and not both")
    if words.model_url is not None:
        parse_target(words.model_url)
        return Site(urls={"model": words.model_url}, node=node, hold_s=0), "model"
    site = read_site(env, node)
    try:
        find_url(site, words.model_service)
    except TransientError as error:
        print(f"retinue simulator: {error}; asked again by the first request", file=sys.stderr, flush=True)
    return site, words.model_service


async def serve(settings: Settings, personas: Mapping[str, Persona], model: Model, doors: Doors) -> int:
    """Serve at these doors until SIGTERM or SIGINT; returns the exit code."""
    told = catch_stop()
    try:
        title = f"retinue simulator: {len(personas)} personas, "
        async with listen(Desk(settings, personas, model).build_server(), doors, END_S, title):
            await told
    finally:
        await model.close()
    return 0
