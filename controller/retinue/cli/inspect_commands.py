"""`status`, `why`, `logs`, `events`, `gate`: what looks at a run and changes nothing.

They read the run directory alone, so they work from a login node and after the
run has died; none of them asks Slurm or the controller.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import click

from retinue.cli.become import flush_output
from retinue.cli.finding import find_run_here
from retinue.cli.follow import OVER, EndWatch, Follower, find_log_dirs
from retinue.cli.options import RUN_ARGUMENT, RUN_OPTION
from retinue.errors import NotReadyError, UsageError
from retinue.journal.events import EventTail, read_events, render_event
from retinue.journal.finding import find_attempt
from retinue.journal.life import AgeWatch, find_death, measure_age_s
from retinue.journal.status import Status, describe_age, read_status, render_status
from retinue.journal.verdict import explain_verdict, read_verdict, render_verdict
from retinue.terms import run as files
from retinue.terms.record import to_json, to_pretty_json

POLL_S = 0.3


def find_attempt_dir(run_name: str | None) -> Path:
    return find_attempt(find_run_here(run_name))


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
    age_s = measure_age_s(attempt_dir / files.STATUS)
    if as_json:
        age = describe_age(age_s)
        if age and found.phase != "over":
            click.echo(f"warning: {age}", err=True)
        click.echo(to_pretty_json(found), nl=False)
        return
    # Before the verdict is looked for: a run that ends in between is over, not dead.
    death = find_death(attempt_dir.parent)
    verdict = read_verdict(attempt_dir / files.VERDICT)
    ended_utc = verdict.ended_utc if verdict is not None else found.updated_utc if death else None
    # Its own clock, moved on by the snapshot's age: this host's may be another.
    click.echo(render_status(found, found.updated_utc + age_s, ended_utc))
    if verdict is not None:
        click.echo("\n" + render_verdict(verdict))
    elif death:
        click.echo("\n" + death)


@click.command()
@RUN_ARGUMENT
def why(run_name: str | None) -> None:
    """Say why a run ended, first cause first; for a running one, what is wrong with it now.

    \b
    retinue why                  the latest run here
    retinue why 4711             the run of Slurm job 4711
    """
    attempt_dir = find_attempt_dir(run_name)
    death = find_death(attempt_dir.parent)
    verdict = read_verdict(attempt_dir / files.VERDICT)
    events = read_events(attempt_dir / files.EVENTS)
    if verdict is not None:
        for text in explain_verdict(verdict, events):
            click.echo(text)
        click.echo("\n" + render_verdict(verdict))
        return
    found = require_status(attempt_dir)
    unready = [replica for replica in found.replicas if replica.phase not in ("ready", "stopped")]
    click.echo(f"run {found.name} has no verdict: {death or f'it is {found.phase}'}")
    age = describe_age(measure_age_s(attempt_dir / files.STATUS))
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
    sources = {name: Follower(directory) for name, directory in find_log_dirs(attempt_dir, service)}
    shows_name = len(sources) > 1
    for name, source in sources.items():
        for line in source.read_tail(lines):
            print_line(name, line, shows_name)
    if follow:
        follow_all(sources, attempt_dir, shows_name)


def print_line(name: str, line: str, shows_name: bool) -> None:
    click.echo(f"{name} | {line}" if shows_name else line)


def follow_all(sources: dict[str, Follower], attempt_dir: Path, shows_name: bool) -> None:
    """Poll every log until nothing more will come."""
    watch = EndWatch(attempt_dir)
    while True:
        end = watch.find_end()
        for name, source in sources.items():
            for line in source.read_new():
                print_line(name, line, shows_name)
        flush_output()
        if end:
            print_end(end)
            return
        time.sleep(POLL_S)


def print_end(end: str) -> None:
    """Say why nothing more will come, unless the run is over as it should be."""
    if end not in ("", OVER):
        click.echo(f"retinue: {end}", err=True)


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
    journal, watch = EventTail(attempt_dir / files.EVENTS), EndWatch(attempt_dir)
    before = journal.read_new()
    found = before[-lines:] if lines else []
    while True:
        end = watch.find_end() if follow else ""
        for line in found:
            click.echo(to_json(line).decode() if as_json else render_event(line))
        flush_output()
        if not follow or (end and not found):
            print_end(end)
            return
        time.sleep(POLL_S)
        found = journal.read_new()


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
    snapshot, watch = AgeWatch(attempt_dir / files.STATUS), EndWatch(attempt_dir)
    said = ("", False)
    while True:
        found = require_status(attempt_dir)
        age = describe_age(snapshot.measure_s())
        waits = find_unready(found, services) or ("a newer snapshot" if age else "")
        end = watch.find_end()
        if end:
            raise NotReadyError(end)
        if not waits:
            return
        told = waits + (f" ({age})" if age else "")
        if time.monotonic() >= until:
            raise NotReadyError(f"not ready after {timeout:g} s: {told}")
        if (waits, bool(age)) != said:
            click.echo(f"waiting for {told}", err=True)
            said = (waits, bool(age))
        time.sleep(POLL_S)


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
