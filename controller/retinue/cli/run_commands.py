"""`run`, `up`, `down`, `restart`, `sweep`: what starts, changes and ends a run."""

import os
import time
from pathlib import Path

import click

from retinue.channel.messages import Ask
from retinue.cli.asking import ask_living_run, try_to_stop
from retinue.cli.become import become_stub, find_cwd, print_warnings, taken_back_on_failure
from retinue.cli.detach import start_detached
from retinue.cli.finding import find_run_here
from retinue.cli.inspect_commands import find_unready
from retinue.cli.options import MANIFEST, RUN_ARGUMENT, RUN_OPTION
from retinue.errors import NotReadyError, UsageError
from retinue.journal.finding import find_attempt
from retinue.journal.life import AgeWatch, LifeWatch
from retinue.journal.status import Status, describe_age, read_status
from retinue.journal.verdict import Verdict, read_verdict, render_verdict
from retinue.supervise.preflight import Prepared, prepare_run
from retinue.supervise.sweep import render_sweep, sweep_host
from retinue.terms import run as files

RUN_DIR = click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of this run, on a file system that all nodes share. [default: retinue-runs/<name>-<time or job>]",
)
POLL_S = 0.2


@click.command(context_settings={"allow_interspersed_args": False})
@RUN_DIR
@MANIFEST
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
def run(manifest: Path, trainer: tuple[str, ...], run_dir: Path | None) -> None:
    """Start the services of MANIFEST, run TRAINER when they are ready, leave nothing behind.

    \b
    retinue run run.yaml -- python train.py --config x.yaml
    retinue run run.yaml -- srun -w {train.nodelist} -N {train.count} python train.py

    The trainer finds the services in RETINUE_<SERVICE>_URL, and all of them in the JSON file RETINUE_ENDPOINTS.
    Its exit code is the command's, with 128+n for a signal; 5 says that the services failed it.
    """
    if trainer[:1] == ("--",):
        trainer = trainer[1:]
    elif trainer and trainer[0].startswith("-"):
        raise UsageError(f'cannot take "{trainer[0]}" as the trainer; options of retinue go before the manifest')
    if not trainer:
        raise UsageError(
            "no trainer: write `retinue run MANIFEST -- COMMAND`, or `retinue up MANIFEST` for services alone"
        )
    prepared = prepare_run(manifest, trainer, os.environ, find_cwd(), run_dir)
    with taken_back_on_failure(prepared):
        print_warnings(prepared)
    become_stub(prepared)


@click.command()
@RUN_DIR
@click.option("--foreground", is_flag=True, help="Stay in front; Ctrl-C stops the services.")
@MANIFEST
def up(manifest: Path, run_dir: Path | None, foreground: bool) -> None:
    """Start the services of MANIFEST without a trainer; return when all are ready, or with 5.

    \b
    retinue up run.yaml                  in the background; `retinue down` stops it
    retinue up --foreground run.yaml     until Ctrl-C
    """

    def prepare() -> Prepared:
        return prepare_run(manifest, (), os.environ, find_cwd(), run_dir, is_detached=not foreground)

    if foreground:
        prepared = prepare()
        with taken_back_on_failure(prepared):
            print_warnings(prepared)
        become_stub(prepared)
    stub_pid, found_dir = start_detached(prepare)
    wait_until_ready(stub_pid, found_dir)


def wait_until_ready(stub_pid: int, run_dir: Path) -> None:
    """Follow the status file until every service is ready, saying what is waited for."""
    attempt_dir = find_attempt(run_dir)
    snapshot = AgeWatch(attempt_dir / files.STATUS)
    said = ("", False)
    while not has_ended(stub_pid):
        status = read_status(attempt_dir / files.STATUS)
        if status is not None and status.phase == "running":
            click.echo(f"ready: {', '.join(service.name for service in status.services)}")
            click.echo(f"endpoints: {attempt_dir / files.ENDPOINTS}")
            click.echo(f"stop with: retinue down {run_dir}")
            return
        waits = describe_waits(status)
        age = describe_age(snapshot.measure_s()) if status is not None else ""
        if (waits, bool(age)) != said:
            click.echo(f"waiting for {waits}" + (f" ({age})" if age else ""), err=True)
            said = (waits, bool(age))
        time.sleep(POLL_S)
    verdict = read_verdict(attempt_dir / files.VERDICT)
    cause = f"{verdict.ended_by}: {verdict.cause}" if verdict else describe_stub_log(run_dir / "stub.log")
    raise NotReadyError(f"the services were not made ready ({cause}); `retinue why {run_dir}` says more")


def describe_stub_log(path: Path) -> str:
    """Say where the stub's last words are; they are lost where nothing can be written."""
    has_words = path.is_file() and path.stat().st_size > 0
    return f"see {path}" if has_words else f"nothing could be written in {path.parent}: is its file system full?"


def has_ended(pid: int) -> bool:
    """Whether this child of ours has ended."""
    return os.waitpid(pid, os.WNOHANG)[0] == pid


def describe_waits(status: Status | None) -> str:
    if status is None or status.phase == "joining":
        return "the node"
    return find_unready(status, ())


@click.command()
@RUN_ARGUMENT
@click.option(
    "--timeout", type=click.FloatRange(0), default=600.0, show_default=True, help="Seconds to wait for the verdict."
)
def down(run_name: str | None, timeout: float) -> None:
    """Stop a run in order; return when its verdict is written. 5 when something was left or nobody answers.

    \b
    retinue down                 the latest run here
    retinue down runs/mine       a run by its directory, name or job id
    """
    run_dir = find_run_here(run_name)
    path = find_attempt(run_dir) / files.VERDICT
    verdict = read_verdict(path)
    if verdict is None:
        verdict = stop_and_wait(run_dir, path, timeout)
    click.echo(render_verdict(verdict))
    if verdict.clean != "true":
        raise NotReadyError(f"the run ended, but clean is {verdict.clean}; `retinue sweep` ends what a dead run left")


def stop_and_wait(run_dir: Path, verdict_path: Path, timeout_s: float) -> Verdict:
    """Ask until somebody takes it, then wait for the verdict.

    A run in its first second has no controller yet, and one that is ending has none any more: both are worth waiting.
    """
    until_s = time.monotonic() + timeout_s
    life = LifeWatch(run_dir)
    is_asked = False
    trouble = ""
    while time.monotonic() < until_s:
        death = life.find_death()
        verdict = read_verdict(verdict_path)
        if verdict is not None:
            return verdict
        if not is_asked:
            trouble = try_to_stop(run_dir)
            is_asked = not trouble
        if death:
            raise NotReadyError(f"{trouble or 'it was asked to stop'}; {death}")
        time.sleep(POLL_S)
    trouble = trouble or "it was asked to stop"
    raise NotReadyError(f"cannot see a verdict after {timeout_s:g} s ({trouble}); look with `retinue status {run_dir}`")


@click.command()
@click.argument("target", metavar="SERVICE[/K]")
@RUN_OPTION
def restart(target: str, run_name: str | None) -> None:
    """Give a service, or one replica, a new incarnation; its past failures are forgiven.

    \b
    retinue restart judge        every replica of it
    retinue restart judge/3      one
    """
    answer = ask_living_run(find_run_here(run_name), Ask("restart", target))
    if not answer.is_done:
        raise UsageError(answer.text)
    click.echo(answer.text)


@click.command()
def sweep() -> None:
    """End what dead runs of yours left on this host. Running ones, and those of Slurm jobs, are left alone.

    \b
    retinue sweep        after a machine or a login session took a run down hard; harmless at any other time
    """
    swept = sweep_host(os.environ)
    for line in render_sweep(swept):
        click.echo(line)
    if any(item.is_stuck for item in swept):
        raise NotReadyError("something would not end")


COMMANDS = (run, up, down, restart, sweep)
