"""`status`, `why`, `logs`, `events`, `gate`: what looks at a run and changes nothing.

They read the run directory alone, so they work from a login node and after the
run has died; none of them asks Slurm or the controller.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import click

from retinue.cli.become import find_cwd, flush_output
from retinue.cli.follow import Follower
from retinue.cli.options import RUN_ARGUMENT, RUN_OPTION
from retinue.errors import NotReadyError, UsageError
from retinue.journal.events import read_events, render_event
from retinue.journal.rundir import find_attempt, find_run, is_dead
from retinue.journal.status import Status, describe_age, read_status, render_status
from retinue.journal.verdict import explain_verdict, read_verdict, render_verdict
from retinue.terms import run as files
from retinue.terms.record import to_json, to_pretty_json

POLL_S = 0.3
DEAD = "the run is dead: its stub is gone and left no verdict; `retinue sweep` ends what it left on its host"


def find_attempt_dir(run_name: str | None) -> Path:
    return find_attempt(find_run(run_name, find_cwd()))


def require_status(attempt_dir: Path) -> Status:
    status = read_status(attempt_dir / files.STATUS)
    if status is None:
        raise UsageError(f"cannot read {attempt_dir / files.STATUS}: the run has not written a status yet")
    return status


@click.command()
@RUN_ARGUMENT
@click.option("--json", "as_json", is_flag=True, help="The snapshot as JSON.")
def status(run_name: str | None, as_json: bool) -> None:
    """Show services, nodes and the trainer of a run, from its last snapshot.

    \b
    retinue status               the latest run here
    retinue status --json | jq .services
    """
    attempt_dir = find_attempt_dir(run_name)
    found = require_status(attempt_dir)
    if as_json:
        age = describe_age(time.time() - found.updated_utc)
        if age and found.phase != "over":
            click.echo(f"warning: {age}", err=True)
        click.echo(to_pretty_json(found), nl=False)
        return
    click.echo(render_status(found, time.time()))
    verdict = read_verdict(attempt_dir / files.VERDICT)
    if verdict is not None:
        click.echo("\n" + render_verdict(verdict))
    elif is_dead(attempt_dir.parent):
        click.echo("\n" + DEAD)


@click.command()
@RUN_ARGUMENT
def why(run_name: str | None) -> None:
    """Say why a run ended, first cause first; for a running one, what is wrong with it now.

    \b
    retinue why                  the latest run here
    retinue why 4711             the run of Slurm job 4711
    """
    attempt_dir = find_attempt_dir(run_name)
    verdict = read_verdict(attempt_dir / files.VERDICT)
    events = read_events(attempt_dir / files.EVENTS)
    if verdict is not None:
        for text in explain_verdict(verdict, events):
            click.echo(text)
        click.echo("\n" + render_verdict(verdict))
        return
    found = require_status(attempt_dir)
    unready = [replica for replica in found.replicas if replica.phase not in ("ready", "stopped")]
    state = DEAD if is_dead(attempt_dir.parent) else f"it is {found.phase}"
    click.echo(f"run {found.name} has no verdict: {state}")
    age = describe_age(time.time() - found.updated_utc)
    if age:
        click.echo(f"  {age}")
    for replica in unready:
        click.echo(f"  {replica.id} {'was' if age else 'is'} {replica.phase}: {replica.reason}")
    if not unready:
        click.echo("  every replica was ready then" if age else "  every replica is ready")
    for line in events[-5:]:
        click.echo(render_event(line))


@click.command()
@click.argument("service", metavar="SERVICE[/K]")
@RUN_OPTION
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines, across restarts, until the run is over.")
@click.option("-n", "--lines", type=click.IntRange(0), default=50, show_default=True, help="Lines from before.")
def logs(service: str, run_name: str | None, follow: bool, lines: int) -> None:
    """Print the log of a service's newest launch; with several replicas each line says whose it is.

    \b
    retinue logs judge           the last lines of every replica
    retinue logs judge/0 -f      one replica, and what it writes from now on
    """
    attempt_dir = find_attempt_dir(run_name)
    sources = {name: Follower(directory, find_newest) for name, directory in find_log_dirs(attempt_dir, service)}
    shows_name = len(sources) > 1
    for name, source in sources.items():
        for line in source.read_tail(lines):
            print_line(name, line, shows_name)
    if follow:
        follow_all(sources, attempt_dir, shows_name)


def find_log_dirs(attempt_dir: Path, service: str) -> list[tuple[str, Path]]:
    """Find the log directories of `SERVICE` or `SERVICE/K`."""
    name, _, index = service.partition("/")
    pattern = f"{name}.{index}" if index else f"{name}.*"
    found = sorted((attempt_dir / files.LOGS).glob(pattern), key=lambda path: int(path.suffix[1:] or 0))
    if not found:
        known = sorted({path.stem for path in (attempt_dir / files.LOGS).iterdir()})
        raise UsageError(f'no logs of "{service}"; there are logs of {", ".join(known) or "no service yet"}')
    return [(f"{path.stem}/{path.suffix[1:]}", path) for path in found]


def find_newest(directory: Path) -> Path | None:
    """The log of the highest launch number; of a launch that flooded its log, the part that is written now."""
    parts = [(number, path) for path in directory.glob("launch-*.log") if (number := parse_launch(path)) >= 0]
    newest = max((number for number, _ in parts), default=-1)
    return max((path for number, path in parts if number == newest), key=get_written_ns, default=None)


def parse_launch(path: Path) -> int:
    """`launch-3.log`, `launch-3.tail.0.log` -> 3; -1 for anything else."""
    number = path.name.removeprefix("launch-").partition(".")[0]
    return int(number) if number.isdigit() else -1


def get_written_ns(path: Path) -> tuple[int, bool]:
    """When it was written last; of two at once the tail follows the head."""
    return path.stat().st_mtime_ns, ".tail." in path.name


def print_line(name: str, line: str, shows_name: bool) -> None:
    click.echo(f"{name} | {line}" if shows_name else line)


def follow_all(sources: dict[str, Follower], attempt_dir: Path, shows_name: bool) -> None:
    """Poll every log until the verdict is there."""
    while True:
        is_over = (attempt_dir / files.VERDICT).exists()
        for name, source in sources.items():
            for line in source.read_new():
                print_line(name, line, shows_name)
        flush_output()
        if is_over:
            return
        time.sleep(POLL_S)


@click.command()
@RUN_ARGUMENT
@click.option("-f", "--follow", is_flag=True, help="Go on with new events until the run is over.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.option("-n", "--lines", type=click.IntRange(0), default=200, show_default=True, help="Events from before.")
def events(run_name: str | None, follow: bool, as_json: bool, lines: int) -> None:
    """Print what happened to a run and why, oldest first.

    \b
    retinue events -n 20         the last 20 of the latest run here
    retinue events -f            and whatever happens from now on
    """
    attempt_dir = find_attempt_dir(run_name)
    path = attempt_dir / files.EVENTS
    before = read_events(path)
    found = before[-lines:] if lines else []
    seq = max((line.seq for line in before), default=-1)
    while True:
        is_over = (attempt_dir / files.VERDICT).exists()
        for line in found:
            seq = max(seq, line.seq)
            click.echo(to_json(line).decode() if as_json else render_event(line))
        flush_output()
        if not follow or (is_over and not found):
            return
        time.sleep(POLL_S)
        found = read_events(path, seq)


@click.command()
@click.argument("services", nargs=-1)
@RUN_OPTION
@click.option("--timeout", type=click.FloatRange(0), default=600.0, show_default=True, help="Seconds to wait.")
def gate(services: tuple[str, ...], run_name: str | None, timeout: float) -> None:
    """Wait until SERVICES (all when none is named) are ready: 0 when they are, 5 when not in time.

    \b
    retinue gate && python evaluate.py      before a step that must not start during an outage
    retinue gate judge --timeout 60         one service, a minute at most
    """
    run_name = run_name or os.environ.get("RETINUE_RUN_DIR")
    attempt_dir = find_attempt_dir(run_name)
    until = time.monotonic() + timeout
    snapshot = Snapshot()
    said = ("", False)
    while True:
        found = require_status(attempt_dir)
        age = describe_age(snapshot.measure_age_s(found.updated_utc))
        waits = find_unready(found, services) or ("a newer snapshot" if age else "")
        if (attempt_dir / files.VERDICT).exists():
            raise NotReadyError("the run is over")
        if is_dead(attempt_dir.parent):
            raise NotReadyError(DEAD)
        if not waits:
            return
        told = waits + (f" ({age})" if age else "")
        if time.monotonic() >= until:
            raise NotReadyError(f"not ready after {timeout:g} s: {told}")
        if (waits, bool(age)) != said:
            click.echo(f"waiting for {told}", err=True)
            said = (waits, bool(age))
        time.sleep(POLL_S)


class Snapshot:
    """How old a status file is: an old one says nothing about now.

    By the clock at first; once it has changed under our eyes by our own watching: a clock that differs between hosts
    makes a snapshot look old for ever.
    """

    def __init__(self) -> None:
        self._updated_utc: float | None = None
        self._changed_s: float | None = None

    def measure_age_s(self, updated_utc: float) -> float:
        if self._updated_utc not in (None, updated_utc):
            self._changed_s = time.monotonic()
        self._updated_utc = updated_utc
        return time.time() - updated_utc if self._changed_s is None else time.monotonic() - self._changed_s


def find_unready(found: Status, services: Sequence[str]) -> str:
    """Name the services that are not ready, `judge 1/2`; empty when all are."""
    known = {service.name: service for service in found.services}
    unknown = [name for name in services if name not in known]
    if unknown:
        raise UsageError(f'no service is called "{unknown[0]}"; there are {", ".join(known)}')
    asked = [known[name] for name in services or known]
    return ", ".join(
        f"{service.name} {service.ready}/{service.min_ready}" for service in asked if service.ready < service.min_ready
    )


COMMANDS = (status, why, logs, events, gate)
