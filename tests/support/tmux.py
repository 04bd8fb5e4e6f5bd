"""A real terminal: one shell in a tmux of its own, driven by keys and read as a person sees it."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from support.command import private_scratch
from support.real_run import wait_for

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed: .ci/prepare installs it")
PROMPT = "ready$ "


class Terminal:
    """The shell's pane."""

    def __init__(self, socket: Path, size: tuple[int, int], env: Mapping[str, str]) -> None:
        self._tmux = ("tmux", "-S", str(socket), "-f", os.devnull)
        shell = ("bash", "--norc", "--noprofile")
        scene = ("-x", str(size[0]), "-y", str(size[1]))
        # -u: tmux takes UTF-8 for granted; the shell's own locale is C.UTF-8.
        full = {**os.environ, "PS1": PROMPT, "LC_ALL": "C.UTF-8", "HISTFILE": "", **env}
        subprocess.run([*self._tmux, "-u", "new-session", "-d", *scene, *shell], env=full, check=True)
        self.server_pid = int(self._ask("#{pid}"))
        wait_for("the shell's prompt", lambda: PROMPT.strip() in self.text())

    def _run(self, *words: str) -> str:
        return subprocess.run([*self._tmux, *words], capture_output=True, text=True, check=True, timeout=30).stdout

    def _ask(self, question: str) -> str:
        return self._run("display-message", "-p", question).strip()

    def type(self, line: str) -> None:
        """Type a line into the shell."""
        self._run("send-keys", "-l", line)
        self._run("send-keys", "Enter")

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names: `j`, `Down`, `Enter`, `C-c`, `Escape`."""
        self._run("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._run("resize-window", "-x", str(width), "-y", str(height))

    def text(self, *, has_styles: bool = False) -> str:
        return self._run("capture-pane", "-p", *(["-e"] if has_styles else []))

    def see(self, *words: str) -> str:
        """Wait until all words are on the screen; returns the screen."""

        def look() -> str:
            text = self.text()
            return text if all(word in text for word in words) else ""

        try:
            return str(wait_for(f"{words} on the screen", look, 30.0))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()}") from None

    def run(self, line: str) -> str:
        """Run a command in the shell; returns what it printed. The shell must have the terminal."""
        self.press("C-l")
        self.type(f"{line}; echo done-$?")
        before, done, after = self.see("\ndone-").partition("\n")[2].partition("\ndone-")
        return before + done + after.partition("\n")[0]

    @property
    def is_full_screen(self) -> bool:
        return self._ask("#{alternate_on}") == "1"

    @property
    def is_cursor_visible(self) -> bool:
        return self._ask("#{cursor_flag}") == "1"

    @property
    def child_pid(self) -> int:
        """What the shell runs now; 0 for nothing."""
        shell = self._ask("#{pane_pid}")
        pids = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        return int(pids[-1]) if pids else 0

    @property
    def title(self) -> str:
        return self._ask("#{pane_title}")

    def end(self) -> None:
        """End the server, and with it whatever runs in the pane: it is hung up on."""
        with suppress(subprocess.SubprocessError):
            self._run("kill-server")


@contextmanager
def terminal(size: tuple[int, int] = (80, 24), **env: str) -> Iterator[Terminal]:
    """A terminal of that size; env: what its shell finds."""
    with private_scratch() as scratch:
        opened = Terminal(scratch / "tmux", size, env)
        try:
            yield opened
        finally:
            opened.end()
