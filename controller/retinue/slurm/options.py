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
    listed_count: int = 0
    """Hosts that `--nodelist` names: these, and more where more are asked for."""
    gpus_per_node: int | None = None
    """None: not said, or a total that is shared out by Slurm."""
    time_limit_s: float | None = None
    """The shortest that Slurm may set; None: not said, or none."""

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
    listed_count = _count_listed(asked)
    node_count = _count_nodes(asked, listed_count)
    return Asked(asked.options, node_count, listed_count or 0, _count_gpus(asked, node_count), _find_time_limit(asked))


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


def _count_nodes(asked: Asked, listed_count: int | None) -> int | None:
    """The smallest number of nodes that the options allow; sbatch's own default is one."""
    text = asked.last("nodes")
    if text is not None:
        match = re.match(r"[0-9]{1,6}(?=$|[-:,])", text)
        return max(int(match[0]), listed_count or 0) if match else None
    if listed_count or listed_count is None:
        return listed_count
    return None if asked.has(*NODE_OPTIONS) else 1


def _count_listed(asked: Asked) -> int | None:
    """Hosts of `--nodelist`, each once; 0: not given; None: its names are in a file, or cannot be read.

    Source: sbatch(1): all of them, "and possibly additional hosts as needed"; duplicates are ignored. Without --nodes
            their number is the number of nodes.
    """
    listed = asked.last("nodelist")
    if listed is None:
        return None if asked.has("nodefile") else 0
    if "/" in listed:
        return None
    try:
        return len(set(parse_nodelist(listed)))
    except AllocationError:
        return None


def _find_time_limit(asked: Asked) -> float | None:
    """Of --time, and of --time-min to which Slurm may shorten it."""
    limits = [parse_time_limit_s(asked.last(name) or "") for name in ("time", "time-min")]
    return min((limit_s for limit_s in limits if limit_s), default=None)


def parse_time_limit_s(text: str) -> float | None:
    """Read a time limit: `90`, `2:00:00`, `1-12`; None: no limit, or nothing that Slurm takes.

    Units: seconds; whole minutes, as Slurm rounds up.
    Source: --time in sbatch(1): minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes and
            days-hours:minutes:seconds; 0 is no limit.
    """
    match = re.fullmatch(r"(?:([0-9]{1,6})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?", text.strip())
    if match is None:
        return None
    days, *rest = match.groups()
    numbers = [int(number) for number in rest if number is not None]
    if days is None:
        hours, minutes, seconds = ([0, *numbers, 0] if len(numbers) < 3 else numbers)[:3]
    else:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    total_s = int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
    return float(-(-total_s // 60) * 60) or None


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
