"""`rehearse`: a manifest tried with scripted services, before anything costs GPUs."""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from retinue.cli.become import become_stub, find_cwd, print_warnings, taken_back_on_failure
from retinue.cli.options import MANIFEST
from retinue.cli.run_commands import RUN_DIR
from retinue.errors import UsageError
from retinue.manifest.files import read_manifest
from retinue.manifest.rehearse import rehearse_manifest
from retinue.manifest.resolve import dump_manifest
from retinue.rehearsal.faults import WORDS, parse_faults
from retinue.supervise.preflight import Prepared, prepare_run

VISITOR = (sys.executable, "-P", "-m", "retinue.rehearsal.visit")


@click.command(context_settings={"allow_interspersed_args": False})
@RUN_DIR
@click.option("--fault", "faults", multiple=True, metavar="SERVICE:WORD", help=f"What goes wrong: {WORDS}.")
@click.option("--keep", "kept", multiple=True, metavar="SERVICE", help="Run this one for real.")
@MANIFEST
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
def rehearse(
    manifest: Path, trainer: tuple[str, ...], run_dir: Path | None, faults: tuple[str, ...], kept: tuple[str, ...]
) -> None:
    """Run MANIFEST with every service replaced by a scripted engine: no GPUs, no weights, no secrets.

    \b
    retinue rehearse run.yaml                                           start all, ask each once, stop all
    retinue rehearse run.yaml -- python train.py                        with your trainer
    retinue rehearse --fault judge:1:hang=10s --keep checks run.yaml    with a fault; checks are real

    Outside a Slurm job all groups of nodes are this machine. What the services answer is made up.
    """
    trainer = trainer[1:] if trainer[:1] == ("--",) else trainer
    is_flat = "SLURM_JOB_ID" not in os.environ
    cwd = find_cwd()
    rehearsed = rehearse_manifest(read_manifest(manifest), split_faults(faults), kept, is_flat=is_flat)
    prepared = prepare_text(dump_manifest(rehearsed), trainer or VISITOR, cwd, run_dir)
    with taken_back_on_failure(prepared):
        print_warnings(prepared)
        click.echo("rehearsal: what the services answer is made up", err=True)
    become_stub(prepared)


def prepare_text(text: str, trainer: Sequence[str], cwd: Path, run_dir: Path | None) -> Prepared:
    """Prepare a run of a manifest that is in no file of the user's."""
    with tempfile.TemporaryDirectory(prefix="retinue-rehearsal-") as directory:
        path = Path(directory, "rehearsal.yaml")
        path.write_text(text, encoding="utf-8")
        return prepare_run(path, trainer, os.environ, cwd, run_dir)


def split_faults(words: Sequence[str]) -> dict[str, list[str]]:
    """Split `judge:1:hang=10s` into the service and the engine's words.

    Errors: UsageError names the word that has no meaning.
    """
    found: dict[str, list[str]] = {}
    for word in words:
        service, colon, fault = word.partition(":")
        try:
            parse_faults([fault], 1)
        except ValueError as error:
            hint = "" if colon else "; write SERVICE:WORD"
            raise UsageError(f"--fault {word}: {error}{hint}") from None
        found.setdefault(service, []).append(fault)
    return found


COMMANDS = (rehearse,)
