"""Ask the controller of a run, from any host that can read its `control.json` and reach it; say why it cannot be."""

from pathlib import Path

from retinue.channel.messages import Answer, Ask
from retinue.channel.operator import ask_controller, read_control
from retinue.errors import EdgeError, NotReadyError
from retinue.journal.finding import find_attempt
from retinue.journal.life import find_death
from retinue.journal.verdict import read_verdict
from retinue.terms import run as files


def ask_run(run_dir: Path, ask: Ask, timeout_s: float = 10.0) -> Answer:
    """Ask the controller of a run."""
    return ask_controller(read_control(run_dir / files.CONTROL), ask, timeout_s)


def try_to_stop(run_dir: Path) -> str:
    """Ask the controller to stop; says why it cannot be asked, or nothing."""
    try:
        ask_run(run_dir, Ask("down"))
    except EdgeError as error:
        return str(error)
    return ""


def ask_living_run(run_dir: Path, ask: Ask, timeout_s: float = 10.0) -> Answer:
    """Ask the controller of a run that is not over.

    Errors: NotReadyError when nobody answers, with the reason: it ended, it is dead, or its controller is down.
    """
    refuse_ended(run_dir)
    try:
        return ask_run(run_dir, ask, timeout_s)
    except EdgeError as error:
        # It may have ended between the look and the question.
        refuse_ended(run_dir)
        raise NotReadyError(str(error)) from None


def refuse_ended(run_dir: Path) -> None:
    """Errors: NotReadyError when the run is over or dead."""
    death = find_death(run_dir)
    verdict = read_verdict(find_attempt(run_dir) / files.VERDICT)
    if verdict is not None:
        raise NotReadyError(f"the run is over ({verdict.ended_by}: {verdict.cause})")
    if death:
        raise NotReadyError(death)
