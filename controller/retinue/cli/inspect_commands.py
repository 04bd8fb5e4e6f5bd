"""`status`, `why`, `logs`, `events`, `gate`: what looks at a run and changes nothing.

They read the run directory alone, so they work from a login node and after the
run has died; none of them asks Slurm or the controller.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from retinue.cli.follow import follow_file, read_tail
from retinue.errors import NotReadyError, UsageError
from retinue.journal.events import read_events, render_event
from retinue.journal.rundir import find_attempt, find_run
from retinue.journal.status import Status, read_status, render_status
from retinue.journal.verdict import explain_verdict, read_verdict, render_verdict
from retinue.terms import run as files
from retinue.terms.record import to_pretty_json

RUN = click.option(
    "--run", "run_name", metavar="RUN", help="Run directory, name or job id. [default: the latest run here]"
)
RUN_ARGUMENT = click.argument("run_name", metavar="[RUN]", required=False)
POLL_S = 0.3


def find_attempt_dir(run_name: str | None) -> Path:
    return find_attempt(find_run(run_name, Path.cwd()))


def require_status(attempt_dir: Path) -> Status:
    status = read_status(attempt_dir / files.STATUS)
    if status is None:
        raise UsageError(f"cannot read {attempt_dir / files.STATUS}: the run has not written a status yet")
    return status


@click.command()
@RUN_ARGUMENT
@click.option("--json", "as_json", is_flag=True, help="The snapshot as JSON.")
def status(run_name: str | None, as_json: bool) -> None:
    """Show services, nodes and the trainer of a run, from its last snapshot."""
    attempt_dir = find_attempt_dir(run_name)
    found = require_status(attempt_dir)
    if as_json:
        click.echo(to_pretty_json(found), nl=False)
        return
    click.echo(render_status(found, time.time()))
    verdict = read_verdict(attempt_dir / files.VERDICT)
    if verdict is not None:
        click.echo("\n" + render_verdict(verdict))


@click.command()
@RUN_ARGUMENT
def why(run_name: str | None) -> None:
    """Say why a run ended, first cause first; for a running one, what is wrong with it now."""
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
    click.echo(f"run {found.name} has no verdict: it is {found.phase}")
    for replica in unready:
        click.echo(f"  {replica.id} is {replica.phase}: {replica.reason}")
    if not unready:
        click.echo("  every replica is ready")
    for line in events[-5:]:
        click.echo(render_event(line))


@click.command()
@click.argument("service", metavar="SERVICE[/K]")
@RUN
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines, across restarts, until the run is over.")
@click.option("-n", "--lines", type=click.IntRange(0), default=50, show_default=True, help="Lines from before.")
def logs(service: str, run_name: str | None, follow: bool, lines: int) -> None:
    """Print the log of a service's newest launch; with several replicas each line says whose it is."""
    attempt_dir = find_attempt_dir(run_name)
    replicas = find_log_dirs(attempt_dir, service)
    shows_name = len(replicas) > 1
    for name, directory in replicas:
        for line in read_tail(find_newest(directory), lines):
            print_line(name, line, shows_name)
    if follow:
        sources = {name: follow_file(directory, find_newest) for name, directory in replicas}
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
    """The log of the highest launch number."""
    launches = [path for path in directory.glob("launch-*.log") if path.stem.removeprefix("launch-").isdigit()]
    return max(launches, key=lambda path: int(path.stem.removeprefix("launch-")), default=None)


def print_line(name: str, line: str, shows_name: bool) -> None:
    click.echo(f"{name} | {line}" if shows_name else line)


def follow_all(sources: dict[str, Iterator[list[str]]], attempt_dir: Path, shows_name: bool) -> None:
    """Poll every log until the verdict is there."""
    while True:
        is_over = (attempt_dir / files.VERDICT).exists()
        for name, source in sources.items():
            for line in next(source):
                print_line(name, line, shows_name)
        sys.stdout.flush()
        if is_over:
            return
        time.sleep(POLL_S)


@click.command()
@RUN_ARGUMENT
@click.option("-f", "--follow", is_flag=True, help="Go on with new events until the run is over.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.option("-n", "--lines", type=click.IntRange(0), default=200, show_default=True, help="Events from before.")
def events(run_name: str | None, follow: bool, as_json: bool, lines: int) -> None:
    """Print what happened to a run and why, oldest first."""
    attempt_dir = find_attempt_dir(run_name)
    path = attempt_dir / files.EVENTS
    found = read_events(path)[-lines:] if lines else []
    seq = -1
    while True:
        is_over = (attempt_dir / files.VERDICT).exists()
        for line in found:
            seq = max(seq, line.seq)
            click.echo(to_line(line) if as_json else render_event(line))
        if not follow or is_over:
            return
        time.sleep(POLL_S)
        found = read_events(path, seq)


def to_line(line: object) -> str:
    return to_pretty_json(line).decode().replace("\n", " ").strip()


@click.command()
@click.argument("services", nargs=-1)
@RUN
@click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds to wait.")
def gate(services: tuple[str, ...], run_name: str | None, timeout: float) -> None:
    """Wait until SERVICES (all when none is named) are ready: 0 when they are, 5 when not in time.

    Put it before a step that must not start during an outage.
    """
    run_name = run_name or os.environ.get("RETINUE_RUN_DIR")
    attempt_dir = find_attempt_dir(run_name)
    until = time.monotonic() + timeout
    said = ""
    while True:
        waits = find_unready(require_status(attempt_dir), services)
        if not waits:
            return
        if (attempt_dir / files.VERDICT).exists():
            raise NotReadyError("the run is over")
        if time.monotonic() >= until:
            raise NotReadyError(f"not ready after {timeout:g} s: {waits}")
        if waits != said:
            click.echo(f"waiting for {waits}", err=True)
            said = waits
        time.sleep(POLL_S)


def find_unready(found: Status, services: tuple[str, ...]) -> str:
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
