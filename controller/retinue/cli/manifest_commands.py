"""`check`, `plan`, `schema`, `template`: what can be said before anything runs."""

import json
import os
from pathlib import Path

import click

from retinue.allocation.described import parse_description
from retinue.cli.become import find_cwd
from retinue.cli.guard_here import find_guard_obstacle
from retinue.cli.options import MANIFEST
from retinue.errors import PlanError, UsageError
from retinue.manifest.files import read_manifest
from retinue.manifest.jsonschema import build_json_schema
from retinue.manifest.scalars import parse_size
from retinue.plan.build import build_plan, check_fixed_ports
from retinue.plan.explain import render_plan
from retinue.supervise.preflight import find_allocation
from retinue.terms.record import to_pretty_json


@click.command()
@MANIFEST
def check(manifest: Path) -> None:
    """Check MANIFEST alone: every finding of the file in one report, one line each. Exit 2 when there is one.

    \b
    retinue check run.yaml
    """
    if not manifest.is_absolute():
        find_cwd()
    checked = read_manifest(manifest)
    for warning in check_fixed_ports(checked):
        click.echo(f"warning: {warning}", err=True)
    count = len(checked.services)
    click.echo(f"{manifest}: ok, {count} service{'' if count == 1 else 's'}")


@click.command()
@MANIFEST
@click.option("--nodes", help="Plan for these nodes instead of the present allocation: 'n[01-04]'.")
@click.option("--gpus", type=click.IntRange(0), default=0, show_default=True, help="GPUs per described node.")
@click.option("--cpus", type=click.IntRange(1), default=1, show_default=True, help="CPUs per described node.")
@click.option("--memory", default="0MiB", show_default=True, help="Memory per described node; 0MiB: not counted.")
@click.option("--json", "as_json", is_flag=True, help="The whole plan as JSON.")
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
def plan(
    manifest: Path, nodes: str | None, gpus: int, cpus: int, memory: str, as_json: bool, trainer: tuple[str, ...]
) -> None:
    """Say who would run where, and why; start nothing. Exit 4 when it does not fit.

    \b
    retinue plan run.yaml                                             this machine, or this Slurm job
    retinue plan run.yaml --nodes 'n[01-04]' --gpus 8 --cpus 64       a described allocation
    """
    cwd = find_cwd()
    checked = read_manifest(manifest)
    if nodes is None:
        allocation = find_allocation(os.environ)
    else:
        allocation = parse_description(nodes, gpus, cpus, _parse_memory_mib(memory))
    run_dir = cwd / "retinue-runs" / f"{checked.run.name}-plan"
    try:
        planned = build_plan(checked, allocation, trainer, str(cwd), str(run_dir), str(run_dir / "attempt-0"))
    except PlanError as error:
        raise PlanError([f"{manifest}: does not fit", *error.problems]) from None
    if as_json:
        click.echo(to_pretty_json(planned))
        return
    for line in render_plan(planned):
        click.echo(line)
    obstacle = find_guard_obstacle(planned) if nodes is None else ""
    if obstacle:
        click.echo(f"warning: the egress guard does not work on this host: {obstacle}")


def _parse_memory_mib(text: str) -> int:
    try:
        return parse_size(text) // (1024 * 1024)
    except ValueError as error:
        raise UsageError(f"--memory: {error}") from None


@click.command()
def schema() -> None:
    """Print the manifest's JSON Schema for editors.

    \b
    retinue schema > retinue.schema.json
    Then put `# yaml-language-server: $schema=retinue.schema.json` on the first line of a manifest.
    """
    click.echo(json.dumps(build_json_schema(), indent=2))


COMMANDS = (check, plan, schema)
