"""The terminal of `top`: full screen, keys one by one, and as it was before whatever happens but SIGKILL.

Owns the signals while it is entered. Handlers only note; what a signal means is done where keys are waited for.
"""

import errno
import os
import select
import signal
import sys
import termios
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from rich.console import Console, ConsoleDimensions, Group
from rich.text import Text

from retinue.cli.top_keys import parse_keys
from retinue.cli.top_view import Line

STYLES = {
    "title": "bold",
    "head": "bold underline",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
    "dim": "dim",
    "selected": "reverse",
}
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
NOTED = (*ENDS, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
ESC_S = 0.05
"""How long the rest of an escape sequence may be on its way."""
GONE = "gone"
"""The key that a terminal presses when it goes away."""


def can_draw() -> bool:
    """Whether input and output are a terminal that knows more than lines."""
    is_terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    return is_terminal and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


class Screen:
    """A context: full screen inside, the terminal as it was outside."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno()
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._before: list[Any] = []
        self._handlers: dict[int, Any] = {}
        self._near, self._far = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._noted: list[int] = []
        self._rest = ""

    def __enter__(self) -> "Screen":
        self._before = termios.tcgetattr(self._fd)
        for number in NOTED:
            self._handlers[number] = signal.signal(number, self._note)
        signal.set_wakeup_fd(self._far, warn_on_full_buffer=False)
        is_entered = False
        try:
            self._enter()
            is_entered = True
        finally:
            if not is_entered:
                self.__exit__()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        size = os.get_terminal_size(sys.stdout.fileno())
        # A terminal that was never told its size says 0.
        return (size.columns or 80, size.lines or 24)

    def draw(self, lines: Sequence[Line]) -> None:
        """Draw a whole screen in place of the last one.

        Errors: SystemExit as for SIGHUP when the terminal is gone.
        """
        texts = [Text(line.text, STYLES.get(line.style, ""), no_wrap=True, overflow="crop") for line in lines]
        try:
            self._console.size = ConsoleDimensions(*self.size)
            self._console.update_screen(Group(*texts))
        except OSError:
            raise SystemExit(128 + signal.SIGHUP) from None

    def wake(self) -> None:
        """Make `wait` return; from any thread."""
        with suppress(BlockingIOError):
            os.write(self._far, b"\0")

    def wait(self, timeout_s: float) -> list[str]:
        """Wait for keys, a signal or `wake`; returns the keys.

        Errors: SystemExit with 128+n on a signal that ends us.
        """
        ready = self._select(timeout_s)
        if self._near in ready:
            os.read(self._near, 4096)
        self._act_on_signals()
        if self._fd not in ready:
            return []
        text = self._read()
        if text is None:
            return [GONE]
        keys, self._rest = parse_keys(self._rest + text)
        if self._rest and not self._select(ESC_S):
            more, self._rest = parse_keys(self._rest, is_all=True)
            keys += more
        return keys

    def _select(self, timeout_s: float) -> list[int]:
        return select.select([self._fd, self._near], [], [], timeout_s)[0]

    def _read(self) -> str | None:
        """Read what was typed; None when the terminal is gone."""
        try:
            data = os.read(self._fd, 1024)
        except OSError:
            return None
        return data.decode(errors="replace") if data else None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted.append(number)

    def _act_on_signals(self) -> None:
        noted, self._noted = self._noted, []
        for number in noted:
            if number in ENDS:
                raise SystemExit(128 + number)
        if signal.SIGTSTP in noted:
            self._suspend()
        elif signal.SIGCONT in noted:
            # Stopped by SIGSTOP, which nobody can notice: the shell has used the terminal since.
            self._leave()
            self._enter()

    def _suspend(self) -> None:
        """Ctrl-Z: give the terminal back, stand still, take it again."""
        self._leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        # To this thread: the process stands still before the call returns.
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._note)
        self._enter()

    def _enter(self) -> None:
        now = termios.tcgetattr(self._fd)
        # Ctrl-C and Ctrl-Z go on to be signals. Ctrl-S must not stop the output: it would look like a stalled run.
        now[0] &= ~termios.IXON
        now[3] &= ~(termios.ICANON | termios.ECHO)
        now[6][termios.VMIN], now[6][termios.VTIME] = 1, 0
        _set_terminal(self._fd, now)
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)

    def _leave(self) -> None:
        """Each on its own: a terminal that has gone away refuses all of it."""
        undo: tuple[Callable[[], object], ...] = (
            lambda: self._console.show_cursor(True),
            lambda: self._console.set_alt_screen(False),
            lambda: _set_terminal(self._fd, self._before),
        )
        for act in undo:
            with suppress(OSError, termios.error):
                act()


def _set_terminal(fd: int, attributes: list[Any]) -> None:
    """Set a terminal's attributes; in the background this stands still until the foreground is ours again."""
    while True:
        try:
            termios.tcsetattr(fd, termios.TCSANOW, attributes)
        except termios.error as error:
            if error.args[0] != errno.EINTR:
                raise
        else:
            return
