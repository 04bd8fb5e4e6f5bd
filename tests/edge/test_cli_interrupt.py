"""Ctrl-C before there is anything to stop: no traceback, exit 130, nothing left."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from support.command import MANIFEST, RETINUE
from support.real_run import PATIENCE_S, wait_for

SLOW_CLICK = """
import os, time
open(os.environ["REACHED"], "w").close()
time.sleep(600)
"""


def start_slowly(directory: Path, wrap: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Give the command where importing `click` takes for ever; returns once it has come so far."""
    (directory / "click").mkdir()
    (directory / "click" / "__init__.py").write_text(SLOW_CLICK)
    (directory / "run.yaml").write_text(MANIFEST)
    reached = directory / "reached"
    before = os.environ.get("PYTHONPATH", "")
    env = {**os.environ, "PYTHONPATH": f"{directory}:{before}", "REACHED": str(reached)}
    argv = [*wrap, *RETINUE, "run", "run.yaml", "--", "true"]
    pipe = subprocess.PIPE
    command = subprocess.Popen(argv, cwd=directory, env=env, stdout=pipe, stderr=pipe, text=True)
    wait_for("the import", reached.exists)
    return command


def test_an_interrupt_while_importing_ends_with_130_and_no_word(tmp_path: Path) -> None:
    command = start_slowly(tmp_path)
    command.send_signal(signal.SIGINT)
    assert command.communicate(timeout=PATIENCE_S) == ("", "")
    assert command.returncode == 130
    assert not (tmp_path / "retinue-runs").exists()


def test_a_command_that_was_told_to_ignore_interrupts_ignores_them_while_importing_too(tmp_path: Path) -> None:
    command = start_slowly(tmp_path, ("sh", "-c", 'trap "" INT; exec "$@"', "sh"))
    command.send_signal(signal.SIGINT)
    command.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        command.wait(0.2)
    command.terminate()
    assert command.wait(PATIENCE_S) == -signal.SIGTERM
    command.communicate()
