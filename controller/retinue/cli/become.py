"""From a command that has prepared a run to the stub: same pid, terminal and process group.

Until the stub has taken over, whatever fails takes the run's directories back.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from retinue.errors import UsageError
from retinue.supervise.preflight import Prepared, take_back
from retinue.supervise.stub import exec_stub


def find_cwd() -> Path:
    """Find where the command was given.

    Errors: UsageError names a directory that has been removed under the shell.
    """
    try:
        return Path.cwd()
    except FileNotFoundError:
        name = os.readlink("/proc/self/cwd").removesuffix(" (deleted)")
        raise UsageError(f"cannot work in {name!r}: this directory has been removed; cd to one that is there") from None


def flush_output() -> None:
    """Write out what was printed; a stream the caller has closed (`>&-`) is None in Python."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


@contextmanager
def taken_back_on_failure(prepared: Prepared) -> Iterator[None]:
    """Leave nothing of a run that does not get as far as its stub."""
    is_done = False
    try:
        yield
        is_done = True
    finally:
        if not is_done:
            take_back(prepared)


def print_warnings(prepared: Prepared) -> None:
    for warning in prepared.plan.warnings:
        click.echo(f"warning: {warning}", err=True)


def become_stub(prepared: Prepared) -> None:
    """Replace this process by the stub. Never returns."""
    with taken_back_on_failure(prepared):
        flush_output()
        exec_stub(sys.executable, str(prepared.run_json))
