"""`top`: look at a run while it goes on, from any host that sees its directory."""

import shutil
import sys
import threading
import time
from collections import deque
from pathlib import Path

import click

from retinue.channel.messages import Ask
from retinue.cli.asking import ask_living_run
from retinue.cli.become import find_cwd
from retinue.cli.finding import say_newer
from retinue.cli.options import RUN_ARGUMENT
from retinue.cli.top_keys import QUIT, RESTART, Shown, press
from retinue.cli.top_reader import LIMIT_S, PERIOD_S, Reader, read_within
from retinue.cli.top_rows import Row, get_key, list_rows, wants_all
from retinue.cli.top_screen import GONE, Screen, can_draw
from retinue.cli.top_sight import Choice
from retinue.cli.top_view import Scene, compose, compose_plain
from retinue.errors import RetinueError
from retinue.journal.finding import find_run
from retinue.journal.status import Status
from retinue.journal.submitted import describe_newer
from retinue.terms.record import replace

PLAIN_COLUMNS = 100
"""Where nobody says how wide the output is."""


@click.command()
@RUN_ARGUMENT
@click.option("--once", is_flag=True, help="Print one plain snapshot and end, as without a terminal.")
def top(run_name: str | None, once: bool) -> None:
    """Watch services, nodes, trainer and events of a run; q quits, ? shows the keys.

    \b
    retinue top                  the latest run here
    retinue top 4711             the run of Slurm job 4711
    retinue top --once | less    everything, as text

    It reads the run directory alone: no Slurm, and no controller except for a restart.
    """
    cwd = find_cwd()
    run_dir = read_within(LIMIT_S, lambda: find_run(run_name, cwd))
    newer = read_within(LIMIT_S, lambda: describe_newer(cwd)) if run_name is None else ""
    if once or not can_draw():
        say_newer(newer, run_dir)
        print_once(run_dir)
        return
    watch(run_dir, newer)


def print_once(run_dir: Path) -> None:
    """Print what there is to see now."""
    sight = read_within(LIMIT_S, Reader(run_dir, lambda: None).read_once)
    width = shutil.get_terminal_size((PLAIN_COLUMNS, 0)).columns
    scene = Scene(sight, Choice(), list_rows(sight.status, Choice()), sight.read_s)
    for line in compose_plain(scene, width):
        click.echo(line)


def watch(run_dir: Path, newer: str) -> None:
    """Show the run until `q`, or until the terminal goes away; `newer` is what else there is, for the bottom line."""
    # A name that this terminal cannot write must not end the screen.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    with Screen() as screen:
        Show(run_dir, screen, newer).go()


class Show:
    """The loop: draw, wait for a key or a second, and so on."""

    def __init__(self, run_dir: Path, screen: Screen, newer: str = "") -> None:
        self._run_dir = run_dir
        self._screen = screen
        self._reader = Reader(run_dir, screen.wake)
        self._choice = Choice(said=newer)
        self._answers: deque[str] = deque()
        """Of the controller, from the threads that asked."""
        self._rows: list[Row] = []
        self._keys: list[str] = []
        self._rows_of: tuple[Status | None, str, bool | None] | None = None

    def go(self) -> None:
        self._reader.start()
        while True:
            while self._answers:
                self._choice = replace(self._choice, said=self._answers.popleft())
            self._draw()
            for key in self._screen.wait(PERIOD_S):
                if key == GONE or not self._take(key):
                    return
            self._reader.focus(self._choice.focus)

    def _draw(self) -> None:
        sight = self._reader.sight
        self._order_rows()
        scene = Scene(sight, self._choice, self._rows, time.monotonic(), self._reader.stalled_s)
        width, height = self._screen.size
        self._screen.draw(compose(scene, width, height))

    def _order_rows(self) -> None:
        """Order the rows again when there is something new, or another order."""
        status, choice = self._reader.sight.status, self._choice
        of = self._rows_of
        if of is None or of[0] is not status or of[1:] != (choice.sort, choice.shows_all):
            self._rows, self._rows_of = list_rows(status, choice), (status, choice.sort, choice.shows_all)
            self._keys = [get_key(row) for row in self._rows]

    def _take(self, key: str) -> bool:
        """Take one key; False when it ends the show."""
        status = self._reader.sight.status
        shown = Shown(
            services=self._keys,
            nodes=[node.name for node in status.nodes] if status else [],
            page=max(1, self._screen.size[1] // 3),
            is_all=status is None or wants_all(status, self._choice),
        )
        self._choice, order = press(self._choice, key, shown)
        if order.startswith(RESTART):
            target = order.removeprefix(RESTART)
            self._answers.append(f"asking for a restart of {target}")
            threading.Thread(target=self._restart, args=(target,), daemon=True).start()
        # Keys that came together find each other's rows.
        self._order_rows()
        return order != QUIT

    def _restart(self, target: str) -> None:
        """In a thread: the controller may be slow, or not there."""
        try:
            said = ask_living_run(self._run_dir, Ask("restart", target)).text
        except (OSError, RetinueError) as error:
            said = f"cannot restart {target}: {error}"
        self._answers.append(said)
        self._screen.wake()


COMMANDS = (top,)
