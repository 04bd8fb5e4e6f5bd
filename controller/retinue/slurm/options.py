"""What a person asked sbatch for, as far as it can be known without being sbatch. Pure.

The options themselves go to sbatch as they came. They are read only to check the manifest against them, to know
which defaults to leave out, and to refuse what one run in one script cannot be.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from retinue.allocation.nodelist import parse_nodelist
from retinue.allocation.slurm_env import parse_gpu_count
from retinue.errors import AllocationError, UsageError
from retinue.terms.record import Record

SHORT = {
    "A": "account",
    "B": "extra-node-info",
    "C": "constraint",
    "D": "chdir",
    "F": "nodefile",
    "G": "gpus",
    "J": "job-name",
    "L": "licenses",
    "M": "clusters",
    "N": "nodes",
    "S": "core-spec",
    "a": "array",
    "b": "begin",
    "c": "cpus-per-task",
    "d": "dependency",
    "e": "error",
    "i": "input",
    "m": "distribution",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "t": "time",
    "w": "nodelist",
    "x": "exclude",
}
"""Letters with a value. Source: sbatch(1)."""
SHORT_FLAGS = {
    "H": "hold",
    "O": "overcommit",
    "Q": "quiet",
    "V": "version",
    "W": "wait",
    "h": "help",
    "k": "no-kill",
    "s": "oversubscribe",
    "v": "verbose",
}
LONG_FLAGS = frozenset(
    {
        "contiguous",
        "exclusive",
        "get-user-env",
        "help",
        "hold",
        "ignore-pbs",
        "no-kill",
        "nice",
        "no-requeue",
        "overcommit",
        "oversubscribe",
        "parsable",
        "propagate",
        "quiet",
        "reboot",
        "requeue",
        "spread-job",
        "stepmgr",
        "test-only",
        "usage",
        "use-min-nodes",
        "verbose",
        "version",
        "wait",
    }
)
"""Long options whose value, if they take one at all, must be joined by `=`."""
VARIABLES = {"SBATCH_ARRAY_INX": "array", "SBATCH_TIMELIMIT": "time", "SBATCH_MEM_PER_NODE": "mem"}
"""Variables that are not named after their option. Source: INPUT ENVIRONMENT VARIABLES, sbatch(1)."""
REFUSED = {
    "array": "every task of an array would be a run of its own in one run directory; submit them one by one",
    "wrap": "the command comes after `--`",
}
GPU_OPTIONS = ("gpus-per-node", "gres", "gpus", "gpus-per-task", "gpus-per-socket", "tres-per-node", "tres-per-task")
NODE_OPTIONS = ("nodes", "nodelist", "nodefile", "ntasks")


class Asked(Record, frozen=True):
    """What the options say about the allocation."""

    options: tuple[tuple[str, str], ...]
    """(long name, value) as given; a flag's value is empty."""
    node_count: int | None = None
    """At least so many; None: not said, or not to be known."""
    gpus_per_node: int | None = None
    """None: not said, or a total that is shared out by Slurm."""

    def has(self, *names: str) -> bool:
        return any(name in names for name, _ in self.options)

    def last(self, name: str) -> str | None:
        return next((value for found, value in reversed(self.options) if found == name), None)


def read_sbatch_options(argv: Sequence[str], env: Mapping[str, str]) -> Asked:
    """Read the options that are to be passed to sbatch, and before them those of its own variables (SBATCH_GRES).

    Errors: UsageError for a word that is no option and no option's value, and for what cannot be one run.
    """
    preset = tuple(
        (VARIABLES.get(name, name.removeprefix("SBATCH_").lower().replace("_", "-")), value)
        for name, value in env.items()
        if name.startswith("SBATCH_")
    )
    asked = Asked((*preset, *_split(argv)))
    for name, why in REFUSED.items():
        if asked.has(name):
            raise UsageError(f"cannot submit with --{name}: {why}")
    node_count = _count_nodes(asked)
    return Asked(asked.options, node_count, _count_gpus(asked, node_count))


def _split(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    words = iter(argv)
    for word in words:
        if word == ":":
            raise UsageError("cannot submit a heterogeneous job (`:`); divide its nodes with `nodes:` in the manifest")
        if word.startswith("--"):
            name, has_value, value = word[2:].partition("=")
            is_alone = bool(has_value) or name in LONG_FLAGS
            yield name, value if is_alone else _take_value(words, word)
        elif word.startswith("-") and len(word) > 1:
            yield from _split_short(word, words)
        else:
            raise UsageError(
                f'cannot take "{word}": it is no option of sbatch; the trainer\'s command comes after `--`'
            )


def _split_short(word: str, words: Iterator[str]) -> Iterator[tuple[str, str]]:
    """`-N4`, `-N 4`, and flags together, `-Hv`."""
    for at, letter in enumerate(word[1:], 1):
        if letter in SHORT_FLAGS:
            # -k and -s may be followed by a value in the same word.
            yield SHORT_FLAGS[letter], ""
            if letter in "ks":
                return
            continue
        rest = word[at + 1 :]
        yield SHORT.get(letter, letter), rest or _take_value(words, word)
        return


def _take_value(words: Iterator[str], option: str) -> str:
    value = next(words, None)
    if value is None:
        raise UsageError(f"cannot submit with {option}: its value is missing")
    return value


def _count_nodes(asked: Asked) -> int | None:
    """The smallest number of nodes that the options allow; sbatch's own default is one."""
    text = asked.last("nodes")
    if text is not None:
        match = re.match(r"[0-9]{1,6}(?=$|[-:,])", text)
        return int(match[0]) if match else None
    listed = asked.last("nodelist")
    if listed is not None and "/" not in listed:
        try:
            return len(parse_nodelist(listed))
        except AllocationError:
            return None
    return None if asked.has(*NODE_OPTIONS) else 1


def _count_gpus(asked: Asked, node_count: int | None) -> int | None:
    """Whole devices on every node, where the options say so."""
    text = asked.last("gpus-per-node")
    gres = asked.last("gres")
    total = asked.last("gpus")
    try:
        if text is not None:
            return parse_gpu_count(text)
        if gres is not None:
            return _count_gres(gres)
        if total is not None and node_count:
            count, rest = divmod(parse_gpu_count(total), node_count)
            return None if rest else count
    except ValueError:
        return None
    return None if asked.has(*GPU_OPTIONS, "exclusive") else 0


def _count_gres(text: str) -> int:
    """`gpu:a100:4,nvme:1` -> 4.

    Errors: ValueError when a count is no number.
    """
    counts = []
    for entry in text.split(","):
        words = entry.replace("=", ":").removeprefix("gres:").removeprefix("gres/").split(":")
        if words[0] == "gpu":
            counts.append(int(words[-1]) if len(words) > 1 and words[-1].isdecimal() else 1)
    return sum(counts)
