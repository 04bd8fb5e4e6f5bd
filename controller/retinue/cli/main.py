"""The command line. Parses, calls one room, prints, and turns errors into exit codes.

Never decides anything about a run itself: commands that change a running one
ask its controller; commands that look read the run directory.
"""

import errno

import click

from retinue import __version__
from retinue.cli.doctor_command import COMMANDS as DOCTOR_COMMANDS
from retinue.cli.index_commands import COMMANDS as INDEX_COMMANDS
from retinue.cli.inspect_commands import COMMANDS as INSPECT_COMMANDS
from retinue.cli.manifest_commands import COMMANDS as MANIFEST_COMMANDS
from retinue.cli.models_command import COMMANDS as MODELS_COMMANDS
from retinue.cli.rehearse_command import COMMANDS as REHEARSE_COMMANDS
from retinue.cli.run_commands import COMMANDS as RUN_COMMANDS
from retinue.cli.submit_commands import COMMANDS as SUBMIT_COMMANDS
from retinue.cli.top import COMMANDS as TOP_COMMANDS
from retinue.errors import RetinueError
from retinue.supervise.stub_fds import open_standard_fds

EPILOG = """\b
Exit codes of `run`: once the trainer was started, its own (128+n by signal), except 5 when the run failed under it.
Before: 2 manifest or usage, 3 no usable allocation, 4 plan does not fit, 5 services not made ready,
126/127 trainer cannot be run / found, 70 internal error. verdict.json says what ended the run.
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}, epilog=EPILOG)
@click.version_option(__version__, prog_name="retinue")
def cli() -> None:
    """Services for a reinforcement-learning run, inside the run's own allocation.

    \b
    First steps:
      retinue check run.yaml                       what is wrong with the manifest, all at once
      retinue plan run.yaml                        who would run where, and why
      retinue run run.yaml -- python train.py      start the services, then the trainer, then clean up
      retinue top | status | why | logs SERVICE -f look at it, from another terminal or a login node
    """


COMMANDS = (
    *RUN_COMMANDS,
    *SUBMIT_COMMANDS,
    *MANIFEST_COMMANDS,
    *INSPECT_COMMANDS,
    *INDEX_COMMANDS,
    *TOP_COMMANDS,
    *DOCTOR_COMMANDS,
    *MODELS_COMMANDS,
    *REHEARSE_COMMANDS,
)
for command in COMMANDS:
    cli.add_command(command)


def main() -> int:
    """Run one command; every error of ours becomes one message and its exit code."""
    # A descriptor that the caller has closed would be given to the next file or pipe of ours.
    open_standard_fds()
    try:
        return cli.main(prog_name="retinue", standalone_mode=False) or 0
    except RetinueError as error:
        click.echo(f"retinue: {error}", err=True)
        return error.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        return 130
    except click.ClickException as error:
        error.show()
        return 2
    except OSError as error:
        # Somebody else's file, a stale handle: the file system's word, not a mistake of ours.
        where = f" {error.filename!r}" if error.filename else ""
        hint = "; raise `ulimit -n`" if error.errno == errno.EMFILE else ""
        click.echo(f"retinue: cannot use{where}: {error.strerror or error}{hint}", err=True)
        return 70
    except Exception as error:  # noqa: BLE001  the one boundary that must not print a traceback at people
        click.echo(f"retinue: internal error: {type(error).__name__}: {error}", err=True)
        return 70
