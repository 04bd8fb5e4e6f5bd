"""`index build`, `index check`: what the retrieval service searches."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from retinue.cli.become import find_cwd
from retinue.errors import UsageError
from retinue.retrieval.build import Order, build_index
from retinue.retrieval.facts import check_files, read_facts
from retinue.retrieval.records import Analyzer, IndexFacts
from retinue.retrieval.records import Progress as Told


@click.group()
def index() -> None:
    """Build what the retrieval service searches.

    \b
    retinue index build corpus.jsonl --out /scratch/team/wiki18
    retinue index check /scratch/team/wiki18
    """


@index.command()
@click.argument("corpus", type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Directory of the index, on shared scratch."
)
@click.option(
    "--dense",
    "embedder",
    default="",
    metavar="MODEL",
    help="Vectors too: a model's name or directory, or MODULE:FUNCTION.",
)
@click.option(
    "--analyzer",
    type=click.Choice([one.value for one in Analyzer]),
    default="english",
    show_default=True,
    help="How text becomes words.",
)
@click.option(
    "--exact/--approximate",
    "is_exact",
    default=None,
    help="Compare every vector, or the nearest lists. [default: by size]",
)
@click.option("--replace", "replaces", is_flag=True, help="Throw away what is there from another corpus.")
def build(corpus: Path, out: Path, embedder: str, analyzer: str, is_exact: bool | None, replaces: bool) -> None:
    """Build the index of CORPUS, JSON lines of {"id", "contents"}; .gz as it is.

    Whole or not at all. Who asks for the same at the same time, on any node, waits and gets the same index. Started
    again after an end, it goes on where it was.

    \b
    retinue index build corpus.jsonl --out /scratch/team/wiki18
    retinue index build corpus.jsonl --out /scratch/team/wiki18 --dense minilm
    """
    find_cwd()
    workers = len(os.sched_getaffinity(0))
    order = Order(corpus, out.absolute(), Analyzer(analyzer), embedder, is_exact, replaces, workers)
    with show_progress() as told:
        built = build_index(order, told)
    click.echo(f"{out}: {'was there' if built.was_there else 'built'}, {describe(built.facts)}")


@index.command()
@click.argument("directory", type=click.Path(path_type=Path))
def check(directory: Path) -> None:
    """Read every file of an index to its end and say whether it is what was written."""
    try:
        facts = read_facts(directory)
    except FileNotFoundError:
        raise UsageError(f"cannot check {directory}: there is no index") from None
    with show_progress() as told:
        check_files(directory, facts, told)
    click.echo(f"{directory}: ok, {describe(facts)}")


def describe(facts: IndexFacts) -> str:
    """Say in one line what an index is."""
    count = f"{facts.passages} passage{'' if facts.passages == 1 else 's'} of {facts.corpus}"
    if facts.dense is None:
        return f"{count}, BM25"
    kind = "exact" if facts.dense.is_exact else "approximate"
    return f"{count}, BM25 and {kind} vectors ({facts.dense.embedder}, {facts.dense.dimension} numbers)"


@contextmanager
def show_progress() -> Iterator[Told]:
    """A bar on a terminal; elsewhere one line when something else begins."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _tell_beginnings(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def told(what: str, done: int, total: int) -> None:
            if bar.tasks[0].description != what:
                bar.reset(task, description=what, total=total or None)
            bar.update(task, completed=done, total=total or None)

        yield told


def _tell_beginnings(console: Console) -> Told:
    last = ""

    def told(what: str, _done: int, _total: int) -> None:
        nonlocal last
        if what != last:
            console.print(what, markup=False, soft_wrap=True)
        last = what

    return told


COMMANDS = (index,)
