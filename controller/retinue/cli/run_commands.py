"""`run`, `up`, `down`, `restart`, `sweep`: what starts, changes and ends a run."""

import os
import subprocess
import sys
import time
from pathlib import Path

import click

from retinue.channel.operator import ask_controller, read_control
from retinue.channel.messages import Ask
from retinue.errors import EdgeError, NotReadyError, UsageError
from retinue.journal.rundir import find_run
from retinue.journal.status import read_status
from retinue.journal.verdict import read_verdict, render_verdict
from retinue.plan.records import Plan
from retinue.supervise.preflight import prepare_run
from retinue.supervise.sweep import render_sweep, sweep_host
from retinue.terms import run as files

RUN_DIR = click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of this run, on a file system that all nodes share. [default: retinue-runs/<name>-<time or job>]",
)
RUN = click.argument("run", required=False)


def become_stub(run_json: Path) -> None:
    """Replace this process by the stub: same pid, terminal and process group."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", "retinue", "stub", str(run_json)])


def print_warnings(plan: Plan) -> None:
    for warning in plan.warnings:
        click.echo(f"warning: {warning}", err=True)


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@RUN_DIR
@click.argument("manifest", type=click.Path(path_type=Path))
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
def run(manifest: Path, trainer: tuple[str, ...], run_dir: Path | None) -> None:
    """Start the services of MANIFEST, run TRAINER when they are ready, leave nothing behind.

    \b
    retinue run run.yaml -- python train.py --config x.yaml
    retinue run run.yaml -- srun -w {train.nodelist} -N {train.count} python train.py

    The trainer finds the services in RETINUE_<SERVICE>_URL and in the JSON file RETINUE_ENDPOINTS.
    """
    trainer = trainer[1:] if trainer[:1] == ("--",) else trainer
    if not trainer:
        raise UsageError(
            "no trainer: write `retinue run MANIFEST -- COMMAND`, or `retinue up MANIFEST` for services alone"
        )
    run_json, plan = prepare_run(manifest, trainer, os.environ, Path.cwd(), run_dir)
    print_warnings(plan)
    become_stub(run_json)


@click.command()
@RUN_DIR
@click.option("--foreground", is_flag=True, help="Stay, and stop the services on Ctrl-C.")
@click.argument("manifest", type=click.Path(path_type=Path))
def up(manifest: Path, run_dir: Path | None, foreground: bool) -> None:
    """Start the services of MANIFEST without a trainer; return when all are ready (or 5)."""
    run_json, plan = prepare_run(manifest, (), os.environ, Path.cwd(), run_dir, is_detached=not foreground)
    print_warnings(plan)
    if foreground:
        become_stub(run_json)
    log_path = run_json.parent / "stub.log"
    with open(log_path, "wb") as log:
        stub = subprocess.Popen(
            [sys.executable, "-P", "-m", "retinue", "stub", str(run_json)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    attempt_dir = Path(plan.replicas[0].launch.log_path).parents[2] if plan.replicas else None
    wait_until_ready(stub, attempt_dir or run_json.parent, log_path)


def wait_until_ready(stub: subprocess.Popen[bytes], attempt_dir: Path, log_path: Path) -> None:
    """Follow the status file until every service is ready, saying what is waited for."""
    said = ""
    while stub.poll() is None:
        status = read_status(attempt_dir / files.STATUS)
        if status is not None and status.phase == "running":
            click.echo(
                f"ready: {', '.join(service.name for service in status.services)}; endpoints in {attempt_dir / files.ENDPOINTS}"
            )
            click.echo("stop with: retinue down")
            return
        waits = (
            ""
            if status is None
            else ", ".join(
                f"{service.name} {service.ready}/{service.wanted}"
                for service in status.services
                if service.ready < service.wanted
            )
        )
        if waits and waits != said:
            click.echo(f"waiting for {waits}", err=True)
            said = waits
        time.sleep(0.2)
    verdict = read_verdict(attempt_dir / files.VERDICT)
    if verdict is not None:
        click.echo(render_verdict(verdict), err=True)
        raise NotReadyError(f"services were not made ready: {verdict.cause}")
    tail = log_path.read_text(errors="replace")[-2000:] if log_path.exists() else ""
    raise NotReadyError(f"the run ended before its services were ready\n{tail}")
