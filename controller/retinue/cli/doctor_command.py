"""`doctor`: what this machine, or every node of a run, can do; what is used instead; who can change it."""

import os
import sys

import click
from rich.console import Console

from retinue.cli.become import find_cwd, flush_output
from retinue.cli.doctor_nodes import ask_nodes_of_job, ask_nodes_of_run
from retinue.cli.doctor_table import build_differences, build_silent, build_summary, build_table
from retinue.doctor.compare import build_rows, find_differences
from retinue.doctor.gather import end_cleanly, gather_facts
from retinue.doctor.judgement import judge_node, select_findings, select_parts
from retinue.doctor.records import NEEDS, Finding, NodeAnswer, State
from retinue.errors import NotReadyError, UsageError
from retinue.journal.finding import find_run
from retinue.terms.record import to_pretty_json

PIPE_COLUMNS = 140
"""Width of the table where nobody says how wide the terminal is."""


@click.command()
@click.option("--for", "need", type=click.Choice(sorted(NEEDS)), help="Only what this needs. [default: everything]")
@click.option("--nodes", "run_name", is_flag=False, flag_value="", metavar="[RUN]", help="Ask every node of a run.")
@click.option("--json", "as_json", is_flag=True, help="Facts and findings as JSON.")
def doctor(need: str | None, run_name: str | None, as_json: bool) -> None:
    """Try what this machine can do; say what works, what works in another way, what is refused, and the remedy.

    Needs no root, changes nothing, leaves nothing. Exit code 0: nothing is refused; 1: something is, or a node
    did not answer; 5: the run is over.

    \b
    retinue doctor                   this machine
    retinue doctor --for sandbox     what sandboxes need, and nothing else
    retinue doctor --nodes           every node of the latest run here; without a run, of the Slurm job we are in
    """
    end_cleanly()
    if run_name is None:
        answers: tuple[NodeAnswer, ...] = (build_own_answer(),)
    else:
        answers = ask_nodes(run_name)
    parts = select_parts(need)
    by_node = {answer.node: select_findings(judge_node(answer), parts) for answer in answers if answer.facts}
    if as_json:
        print_json(answers, by_node)
    else:
        print_tables(answers, by_node)
    flush_output()
    is_refused = any(finding.state is State.REFUSED for found in by_node.values() for finding in found)
    if is_refused or len(by_node) < len(answers):
        raise click.exceptions.Exit(1)


def build_own_answer() -> NodeAnswer:
    """This machine, as a node of its own."""
    facts = gather_facts(os.environ)
    return NodeAnswer(facts.node, facts)


def ask_nodes(run_name: str) -> tuple[NodeAnswer, ...]:
    """Ask those of the named or latest run; without a living one, and none named, those of the Slurm job."""
    try:
        return ask_nodes_of_run(find_run(run_name or None, find_cwd()))
    except (UsageError, NotReadyError):
        if run_name or "SLURM_JOB_ID" not in os.environ:
            raise
    return ask_nodes_of_job(os.environ)


def print_tables(answers: tuple[NodeAnswer, ...], by_node: dict[str, tuple[Finding, ...]]) -> None:
    """The findings, then what differs between nodes, then who did not answer."""
    console = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, highlight=False)
    rows = build_rows(by_node)
    console.print(build_table(rows, len(by_node)))
    differences = find_differences({answer.node: answer.facts for answer in answers if answer.facts is not None})
    if differences:
        console.print("")
        console.print(build_differences(differences, len(by_node)))
    silent = [answer for answer in answers if answer.facts is None]
    if silent:
        console.print("")
        console.print(build_silent(silent))
    console.print("")
    console.print(build_summary(rows))


def print_json(answers: tuple[NodeAnswer, ...], by_node: dict[str, tuple[Finding, ...]]) -> None:
    """Everything that was found, for programs."""
    nodes = [
        {"node": answer.node, "error": answer.error, "findings": by_node.get(answer.node, ()), "facts": answer.facts}
        for answer in answers
    ]
    differences = find_differences({answer.node: answer.facts for answer in answers if answer.facts is not None})
    click.echo(to_pretty_json({"nodes": nodes, "differences": differences}), nl=False)


COMMANDS = (doctor,)
