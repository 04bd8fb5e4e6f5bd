"""Arguments and options that several commands share."""

from pathlib import Path

import click

MANIFEST = click.argument("manifest", type=click.Path(readable=False, path_type=Path))
RUN_ARGUMENT = click.argument("run_name", metavar="[RUN]", required=False)
RUN_OPTION = click.option(
    "--run", "run_name", metavar="RUN", help="Run directory, name or job id. [default: the latest run here]"
)
