"""`top` on a real terminal: drawn again when it changes, and given back as it was whatever ends or stops it."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.terms.record import replace, to_pretty_json
from support.command import RETINUE, retinue
from support.real_run import is_running, wait_for
from support.tmux import Terminal, needs_tmux, terminal
from support.top_scenes import TROUBLED, write_run

pytestmark = needs_tmux
COMMAND = " ".join(RETINUE)
BROKEN = """
import sys
from retinue.cli import main, top
real, frames = top.compose, []
def compose(scene, width, height):
    frames.append(1)
    return real(scene, width, height) if len(frames) < 2 else 1 / 0
top.compose = compose
sys.argv = ["retinue", "top", sys.argv[1]]
sys.exit(main.main())
"""


@pytest.fixture(autouse=True)
def attempt_dir(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", logs={"judge/1": "loading weights\n\x1b]0;owned\x07\x1b[2Jno weights\n"})


@pytest.fixture
def pane(tmp_path: Path) -> Iterator[Terminal]:
    with terminal() as opened:
        opened.run(f"cd {tmp_path}")
        yield opened


def start(pane: Terminal, prefix: str = "") -> int:
    """Start `top` in the shell and see it; returns its pid."""
    pane.press("C-l")
    pane.type(f"{prefix}{COMMAND} top run")
    pane.see("kolibri-rl", "SERVICE", "q quit")
    assert pane.is_full_screen
    assert not pane.is_cursor_visible
    return pane.child_pid


def assert_given_back(pane: Terminal, before: str) -> None:
    """The shell has its terminal as it was."""
    wait_for("the screen to be given back", lambda: not pane.is_full_screen)
    assert pane.is_cursor_visible
    assert pane.run("stty -a") == before


def test_it_is_drawn_again_when_the_terminal_becomes_wide_and_narrow(pane: Terminal) -> None:
    start(pane)
    assert "FOR LAST" not in pane.text()
    pane.resize(160, 50)
    wide = pane.see("FOR LAST", "exited with code 1; again in 20 s")
    assert wide.splitlines()[49].startswith("q quit")
    pane.resize(60, 10)
    pane.see("> corpus", "node001", "LATEST EVENTS")
    wait_for("ten rows", lambda: pane.text().splitlines()[9].startswith("q quit"))


def test_keys_move_sort_tell_and_focus(pane: Terminal) -> None:
    start(pane)
    pane.press("j", "Down")
    pane.see(">   corpus/1")
    pane.press("k", "Up")
    pane.see("> corpus ")
    pane.press("G")
    pane.see("> index")
    pane.press("s")
    pane.see("s sort: phase")
    pane.press("?")
    pane.see("quit; the run goes on")
    pane.press("x", "Tab")
    pane.see("> node001", "tab services")
    pane.press("Tab", "Home", "j", "Enter")
    screen = pane.see("log of judge/1  launch-1.log", "no weights")
    assert "\\x1b]0;owned\\x07\\x1b[2Jno weights" in screen
    assert "owned" not in pane.title
    pane.press("Escape")
    pane.see("LATEST EVENTS")


@pytest.mark.parametrize(
    ("end", "code"),
    [("q", 0), ("C-c", 130), ("C-\\", 131), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)],
)
def test_the_terminal_is_given_back_at_every_end(pane: Terminal, end: str | signal.Signals, code: int) -> None:
    before = pane.run("stty -a")
    pid = start(pane)
    if isinstance(end, signal.Signals):
        os.kill(pid, end)
    else:
        pane.press(end)
    wait_for("the screen to be given back", lambda: not pane.is_full_screen)
    assert f"code {code}\n" in pane.run("echo code $?") + "\n"
    assert_given_back(pane, before)


def test_the_terminal_is_given_back_by_an_error_of_ours(pane: Terminal, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    before = pane.run("stty -a")
    pane.press("C-l")
    pane.type(f"{sys.executable} -P broken.py run")
    pane.see("internal error: ZeroDivisionError")
    assert_given_back(pane, before)


def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(pane: Terminal) -> None:
    before = pane.run("stty -a")
    pid = start(pane)
    for _ in range(2):
        pane.press("C-z")
        pane.see("Stopped")
        assert_given_back(pane, before)
        pane.type("fg")
        pane.see("kolibri-rl", "q quit")
        assert pane.is_full_screen
    pane.press("s")
    pane.see("s sort: phase")
    assert pane.child_pid == pid
    pane.press("q")
    assert_given_back(pane, before)


def test_in_the_background_it_stands_still_and_comes_back_whole(pane: Terminal) -> None:
    before = pane.run("stty -a")
    start(pane)
    pane.press("C-z")
    pane.see("Stopped")
    pane.type("bg")
    wait_for("top to stand still", lambda: "(tty output)" in pane.run("jobs -l"))
    assert_given_back(pane, before)
    pane.type("fg")
    pane.see("kolibri-rl", "q quit")
    pane.press("q")
    assert_given_back(pane, before)


def test_a_stop_that_nobody_can_notice_is_made_up_for(pane: Terminal) -> None:
    pid = start(pane)
    os.kill(pid, signal.SIGSTOP)
    pane.see("Stopped")
    pane.type("fg")
    pane.see("kolibri-rl", "q quit")
    assert pane.is_full_screen
    pane.press("?")
    pane.see("quit; the run goes on")


def test_ctrl_s_stops_nothing(pane: Terminal) -> None:
    start(pane)
    pane.press("C-s", "s")
    pane.see("s sort: phase")


def test_a_half_written_snapshot_keeps_the_last_whole_one_on_the_screen(pane: Terminal, attempt_dir: Path) -> None:
    start(pane)
    (attempt_dir / "status.json").write_text('{"run_id": "0123456789ab", "na')
    (attempt_dir / "events.jsonl").write_text('{"seq": 99999999')
    pane.press("G")
    pane.see("> index")
    renamed = replace(TROUBLED, name="renamed")
    (attempt_dir / "status.json").write_bytes(to_pretty_json(renamed))
    pane.see("renamed", "> index")


def test_a_run_directory_that_stalls_freezes_neither_screen_nor_keys(pane: Terminal, attempt_dir: Path) -> None:
    """Opening a pipe that nobody writes into hangs, as opening a file on a dead server does."""
    start(pane)
    os.mkfifo(attempt_dir / "pipe")
    os.replace(attempt_dir / "pipe", attempt_dir / "status.json")
    pane.see("the run directory has not answered for")
    pane.press("G", "s")
    pane.see("> index", "s sort: phase")
    pane.press("q")
    wait_for("the end", lambda: pane.child_pid == 0)


def test_a_run_directory_that_is_removed_is_said(pane: Terminal, attempt_dir: Path) -> None:
    start(pane)
    attempt_dir.rename(attempt_dir.with_name("elsewhere"))
    pane.see("is gone")


def test_a_requeued_job_is_followed_into_its_next_attempt(pane: Terminal, attempt_dir: Path) -> None:
    start(pane)
    second = attempt_dir.with_name("attempt-1")
    second.mkdir()
    (second / "status.json").write_bytes(to_pretty_json(replace(TROUBLED, attempt=1)))
    (attempt_dir.parent / "current.new").symlink_to("attempt-1")
    os.replace(attempt_dir.parent / "current.new", attempt_dir.parent / "current")
    pane.see("attempt 1")


def test_no_color_is_obeyed_and_the_selected_row_is_seen_all_the_same(pane: Terminal) -> None:
    start(pane)
    assert re.search(r"[\[;]3[0-8][;m]", pane.text(has_styles=True))
    pane.press("q")
    start(pane, prefix="NO_COLOR=1 ")
    said = pane.text(has_styles=True)
    assert not re.search(r"[\[;]3[0-8][;m]", said)
    [row] = [row for row in said.splitlines() if "> corpus" in row]
    assert re.search(r"[\[;]7m", row)


@pytest.mark.parametrize(
    "line", ["{} top run --once", "TERM=dumb {} top run", "{} top run < /dev/null", "{} top run | cat"]
)
def test_without_a_whole_terminal_it_is_one_plain_snapshot(pane: Terminal, line: str) -> None:
    said = pane.run(line.format(COMMAND))
    assert "customer" in said
    assert "LATEST EVENTS" in said
    assert "q quit" not in said
    assert "done-0" in said


def test_a_plain_snapshot_has_no_escapes_and_says_what_top_says(attempt_dir: Path, tmp_path: Path) -> None:
    done = retinue("top", "run", cwd=tmp_path, env={"COLUMNS": "90", "TERM": "xterm-256color"})
    assert done.returncode == 0
    assert all(line.isprintable() and len(line) <= 90 for line in done.stdout.splitlines())
    assert "judge/1" in done.stdout
    unknown = retinue("top", "nosuch", cwd=tmp_path)
    assert (unknown.returncode, "cannot find a run at" in unknown.stderr) == (2, True)


def test_a_terminal_that_goes_away_takes_top_with_it(pane: Terminal) -> None:
    pid = start(pane)
    pane.end()
    wait_for("top to end", lambda: not is_running(pid))
