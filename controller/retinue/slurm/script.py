"""The batch script of a run: readable, complete, and nothing but a few comments and one exec. Pure.

`exec` leaves no shell between Slurm's signals and the run. Any argument survives the quoting. Values of secrets are
never written: what sbatch was told with --export is shown by name only.
"""

import re
import shlex
from collections.abc import Sequence

from retinue.terms.record import Record

PLAIN_VALUE = re.compile(r"[A-Za-z0-9_./%@+,:=-]+")
"""What an #SBATCH line takes as it is; anything else is given on the command line."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", "'": "\\'"}


class Default(Record, frozen=True):
    """An sbatch option that the manifest asks for."""

    option: str
    """`--nodes=4`."""
    why: str

    @property
    def is_plain(self) -> bool:
        """Whether it can be an #SBATCH line."""
        return PLAIN_VALUE.fullmatch(self.option) is not None


class Script(Record, frozen=True):
    """What a batch script is made of."""

    name: str
    written: str
    """When, for people."""
    manifest: str
    """Where the manifest was."""
    defaults: tuple[Default, ...]
    options: tuple[str, ...]
    """The user's options for sbatch, as given."""
    path: str
    """Where the script will be."""
    pythonpath: str
    """Empty: not set."""
    argv: tuple[str, ...]
    """`python -P -m retinue run --run-dir DIR MANIFEST`, without the trainer."""
    trainer: tuple[str, ...]


def render_script(script: Script) -> str:
    """Write the whole script."""
    lines = [
        "#!/bin/bash",
        f"# Run {_comment(script.name)}: written by `retinue submit` on {script.written} from",
        f"# {_comment(script.manifest)}; to queue it once more, submit that again.",
        f"# Sent with: sbatch {render_options((*build_options(script.defaults), *script.options, script.path))}",
        "# Options on that line win over those below.",
        "",
    ]
    for default in script.defaults:
        if default.is_plain:
            lines += [f"# {default.why}", f"#SBATCH {default.option}"]
    lines.append("")
    if script.pythonpath:
        lines.append(f"export PYTHONPATH={quote_word(script.pythonpath)}")
    lines += ["# exec: Slurm's signals reach the run itself, not a shell in front of it.", "exec \\"]
    lines.append(f"  {' '.join(map(quote_word, script.argv))} \\")
    lines.append(f"  -- {' '.join(map(quote_word, script.trainer))}")
    return "\n".join(lines) + "\n"


def build_options(defaults: Sequence[Default]) -> tuple[str, ...]:
    """The defaults that cannot be #SBATCH lines; they go before the user's own options, which win."""
    return tuple(default.option for default in defaults if not default.is_plain)


def quote_word(word: str) -> str:
    """Quote one argument for bash; on one line, and without a carriage return, which sbatch refuses in a script."""
    if not _CONTROL.search(word):
        return shlex.quote(word)
    return "$'" + "".join(_escape(char) for char in word) + "'"


def _escape(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    return f"\\x{ord(char):02x}" if _CONTROL.match(char) else char


def render_options(options: Sequence[str]) -> str:
    """Show sbatch's options; of --export only what comes before the first value, because values may be secrets."""
    words: list[str] = []
    is_export = False
    for option in options:
        # getopt_long(3) takes any unambiguous beginning of a name.
        name, has_value, _ = option.removeprefix("--").partition("=")
        is_named = option.startswith("--exp") and not name.startswith("export-file")
        words.append(quote_word(hide_values(option) if is_export or (is_named and has_value) else option))
        is_export = is_named and not has_value
    return " ".join(words)


def hide_values(text: str) -> str:
    """`ALL,TOKEN=abc,X=1` -> `ALL,TOKEN=...`, `--export=TOKEN=abc` -> `--export=TOKEN=...`."""
    head = "--export=" if text.startswith("--exp") else ""
    names, has_value, _ = (text.partition("=")[2] if head else text).partition("=")
    return head + names + ("=..." if has_value else "")


def _comment(text: str) -> str:
    """One line of a comment."""
    return _CONTROL.sub("?", text)
