"""`submit`: a run as a batch job, in one line."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from retinue.cli.become import find_cwd
from retinue.cli.options import MANIFEST
from retinue.errors import AllocationError, UsageError
from retinue.slurm.script import render_options
from retinue.slurm.submit import send_script
from retinue.supervise.submission import (
    Submission,
    note_submission,
    prepare_submission,
    take_back_submission,
    write_submission,
)

RUN_DIR = "--run-dir"
DRY_RUN = "--dry-run"


@click.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="",
    short_help="Send a run to Slurm as a batch job.",
)
@click.option(DRY_RUN, is_flag=True, help="Print the script and the command; write and send nothing.")
@click.option(
    RUN_DIR, type=click.Path(file_okay=False, path_type=Path), help="[default: retinue-runs/<name>-<local time>]"
)
@MANIFEST
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[SBATCH OPTIONS] -- TRAINER...")
def submit(manifest: Path, words: tuple[str, ...], run_dir: Path | None, dry_run: bool) -> None:
    """Check MANIFEST, write a batch script that runs it with TRAINER, and send it to Slurm.

    \b
    retinue submit run.yaml --nodes=4 -t 2:00:00 -- python train.py --config x.yaml
    retinue submit run.yaml -p gpu --dry-run -- srun -w {train.nodelist} python train.py

    Any option of sbatch goes between MANIFEST and `--`, as sbatch takes it. What the manifest needs and the options
    leave open is filled in (nodes, GPUs, --no-kill, --requeue, --signal); yours win. The job runs the manifest as it
    is now.
    """
    options, trainer = split_words(words)
    options, run_dir, dry_run = take_own_options(options, run_dir, dry_run)
    cwd = find_cwd()

    def prepare() -> Submission:
        return prepare_submission(manifest, options, trainer, os.environ, cwd, run_dir)

    submission = prepare()
    for note in submission.notes:
        click.echo(f"note: {note}", err=True)
    if dry_run:
        click.echo(submission.script, nl=False)
        click.echo(f"would send: {render_command(submission)}", err=True)
        return
    while not write_submission(submission, is_new=run_dir is None):
        submission = prepare()
    send(submission, cwd)


def send(submission: Submission, cwd: Path) -> None:
    """Send what is written; what Slurm does not take is taken back. Exits with sbatch's own code."""

    def take_job_id(job_id: str) -> None:
        note_submission(submission, job_id, cwd)
        say_sent(submission, job_id)

    click.echo(f"sending: {render_command(submission)}", err=True)
    try:
        sent = send_script(str(submission.script_path), submission.options, submission.env, take_job_id)
    except AllocationError:
        take_back_submission(submission)
        raise
    if not sent.job_id:
        take_back_submission(submission)
        click.echo("nothing was queued", err=True)
    raise click.exceptions.Exit(sent.exit_code)


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split at the first `--`.

    Errors: UsageError without a trainer.
    """
    at = words.index("--") if "--" in words else len(words)
    options, trainer = list(words[:at]), list(words[at + 1 :])
    if not trainer:
        raise UsageError("no trainer: write `retinue submit MANIFEST [SBATCH OPTIONS] -- COMMAND`")
    return options, trainer


def take_own_options(
    options: Sequence[str], run_dir: Path | None, dry_run: bool
) -> tuple[list[str], Path | None, bool]:
    """Take our own two out of sbatch's, which has none of that name: people write them where the others are.

    Errors: UsageError for --run-dir without a directory.
    """
    rest: list[str] = []
    words = iter(options)
    for word in words:
        if word == DRY_RUN:
            dry_run = True
        elif word == RUN_DIR or word.startswith(f"{RUN_DIR}="):
            value = next(words, "") if word == RUN_DIR else word.partition("=")[2]
            if not value:
                raise UsageError(f"cannot submit with {RUN_DIR}: its directory is missing")
            run_dir = Path(value)
        else:
            rest.append(word)
    return rest, run_dir, dry_run


def render_command(submission: Submission) -> str:
    return f"sbatch {render_options((*submission.options, str(submission.script_path)))}"


def say_sent(submission: Submission, job_id: str) -> None:
    click.echo(f"submitted job {job_id}")
    click.echo(f"run directory: {submission.run_dir}")
    click.echo(f"when it has started: retinue status {shlex.quote(str(submission.run_dir))}")


COMMANDS = (submit,)
