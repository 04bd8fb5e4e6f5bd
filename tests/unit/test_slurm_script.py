"""The batch script: one golden text, and quoting that no argument gets out of."""

import subprocess
from pathlib import Path

import pytest

from retinue.manifest.files import find_shipped
from retinue.slurm.script import Default, Script, build_options, hide_values, quote_word, render_options, render_script

GOLDEN = Path(__file__).parents[1] / "golden" / "submit.sbatch"
AWKWARD = (
    "",
    " ",
    "two words",
    "it's",
    '"double"',
    "$HOME",
    "`id`",
    "$(id)",
    "back\\slash",
    "end\\",
    "a\nb",
    "\n#SBATCH --nodes=99\n",
    "dos\r\n",
    "tab\there",
    "\x01\x1b[31m\x7f",
    "\n0",
    "\x01f",
    "!history",
    "~",
    "*?[x]",
    "{train.nodelist}",
    "#comment",
    "-x",
    "naïve ünïcode 日本",
    "a;b|c&d>e<f",
    "\n'\\'\n",
)
SCRIPT = Script(
    name="kolibri-rl",
    written="2026-11-30 20:01:00",
    manifest="/scratch/team/run.yaml",
    defaults=(
        Default("--job-name=kolibri-rl", "run.name"),
        Default("--nodes=4", "the groups train, env"),
        Default("--no-kill", "a node that the trainer does not run on may be lost"),
        Default("--output=/scratch/my team/runs/x/slurm-%j.out", "what the run and the trainer print"),
    ),
    options=("-t", "2:00:00", "--export=ALL,TOKEN=secret", "--comment=two\nlines"),
    path="/scratch/my team/runs/x/submit.sbatch",
    pythonpath="/opt/our modules",
    argv=("/opt/python", "-P", "-m", "retinue", "run", "--run-dir", "/scratch/my team/runs/x", "/m.yaml"),
    trainer=("srun", "-w", "{train.nodelist}", "python", "train.py", "--prompt", "it's\n$5"),
)


def test_the_whole_script_is_as_it_was_agreed() -> None:
    assert render_script(SCRIPT) == GOLDEN.read_text()


def test_nothing_that_sbatch_would_take_for_an_option_comes_from_an_argument() -> None:
    lines = render_script(SCRIPT).splitlines()
    assert [line for line in lines if line.startswith("#SBATCH")] == [
        "#SBATCH --job-name=kolibri-rl",
        "#SBATCH --nodes=4",
        "#SBATCH --no-kill",
    ]
    assert build_options(SCRIPT.defaults) == ("--output=/scratch/my team/runs/x/slurm-%j.out",)


def test_the_script_that_people_copy_is_bash_and_ends_in_exec() -> None:
    path = find_shipped("sbatch") / "retinue.sbatch"
    subprocess.run(["bash", "-n", str(path)], check=True)
    commands = [line for line in path.read_text().splitlines() if line and not line.startswith(("#", " "))]
    assert [line.split()[0] for line in commands] == ["unset", "exec"]


@pytest.mark.parametrize("word", AWKWARD, ids=repr)
def test_an_argument_comes_through_bash_as_it_was_on_a_line_without_a_carriage_return(word: str) -> None:
    quoted = quote_word(word)
    assert "\n" not in quoted
    assert "\r" not in quoted
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {quoted}"], capture_output=True, check=True)
    assert done.stdout == word.encode() + b"\0"


def test_bytes_that_are_no_text_survive_too() -> None:
    word = b"caf\xe9\n".decode(errors="surrogateescape")
    line = f"printf '%s' {quote_word(word)}".encode(errors="surrogateescape")
    assert subprocess.run(["bash", "-c", line], capture_output=True, check=True).stdout == b"caf\xe9\n"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (("--export=ALL",), "--export=ALL"),
        (("--export=ALL,TOKEN=abc,X='1,2'",), "--export=ALL,TOKEN=..."),
        (("--export", "TOKEN=abc\nmore", "-N2"), "--export TOKEN=... -N2"),
        (("--expor=TOKEN=abc",), "--export=TOKEN=..."),
        (("--export-file=/secret/env",), "--export-file=/secret/env"),
        (("--exclusive=user",), "--exclusive=user"),
    ],
)
def test_values_that_are_exported_are_never_shown(options: tuple[str, ...], shown: str) -> None:
    assert render_options(options) == shown


def test_what_follows_the_first_value_is_hidden_because_it_may_belong_to_it() -> None:
    assert hide_values("A=x,y,B,C=z") == "A=..."
