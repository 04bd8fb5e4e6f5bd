"""Which run a command is about, and a word where it is not the one that was submitted last."""

from pathlib import Path

import click

from retinue.cli.become import find_cwd
from retinue.journal.finding import find_run
from retinue.journal.submitted import describe_newer


def find_run_here(run_name: str | None) -> Path:
    """Find a run by what the person said; without a word the latest, and on stderr that a newer job has no run yet."""
    cwd = find_cwd()
    run_dir = find_run(run_name, cwd)
    if run_name is None:
        say_newer(describe_newer(cwd), run_dir)
    return run_dir


def say_newer(newer: str, run_dir: Path) -> None:
    """Print it before anything about the older run; empty: nothing to say."""
    if newer:
        click.echo(f"note: {newer}\nnote: what follows is about an older run, {run_dir}", err=True)
