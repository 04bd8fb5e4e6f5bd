"""Facts -> findings: what works, what works in another way, what does not, and who can change it. Pure.

`find_refusals` and `find_fallbacks` are for services: one that needs a part does not start while something is refused
(unless it is told to), and says what is weaker. `choose_layer` and `facts.trials` say which way to go.
"""

from collections.abc import Callable, Iterable, Iterator

from retinue.doctor import judge_counts, judge_files, judge_kernel
from retinue.doctor.judge_clock import judge_clock
from retinue.doctor.records import NEEDS, PARTS, Facts, Finding, NodeAnswer, State

JUDGES: dict[str, Callable[[Facts], Iterator[Finding]]] = {
    "kernel": judge_kernel.judge_kernel,
    "user-namespaces": judge_kernel.judge_user_namespaces,
    "apparmor": judge_kernel.judge_apparmor,
    "proc": judge_kernel.judge_proc,
    "keeper": judge_kernel.judge_keeper,
    "checks": judge_kernel.judge_checks,
    "seccomp": judge_kernel.judge_seccomp,
    "landlock": judge_kernel.judge_landlock,
    "ptrace": judge_kernel.judge_ptrace,
    "overlay": judge_files.judge_overlay,
    "tmpfs-xattr": judge_files.judge_tmpfs_xattr,
    "fuse": judge_files.judge_fuse,
    "squashfuse": judge_files.judge_squashfuse,
    "subuid": judge_files.judge_subuid,
    "runtime": judge_files.judge_runtime,
    "processes": judge_counts.judge_processes,
    "descriptors": judge_counts.judge_descriptors,
    "inotify": judge_counts.judge_inotify,
    "pipes": judge_counts.judge_pipes,
    "keyrings": judge_counts.judge_keyrings,
    "cgroup": judge_counts.judge_cgroup,
    "shm": judge_files.judge_shm,
    "scratch": judge_files.judge_scratch,
    "slurm": judge_counts.judge_slurm,
}
"""Probe -> its judge, in the order in which a person should read them: causes before what follows from them."""
PROBES = (*JUDGES, "clock")
"""`clock` compares nodes, so it has no judge of one node's facts."""


def judge(facts: Facts) -> tuple[Finding, ...]:
    """Say what follows from one node's facts, one or more findings for each probe."""
    return tuple(finding for judge_one in JUDGES.values() for finding in judge_one(facts))


def judge_node(answer: NodeAnswer) -> tuple[Finding, ...]:
    """The same for a node of a run, with its clock."""
    return (*judge(answer.facts), *judge_clock(answer)) if answer.facts is not None else ()


def select_parts(need: str | None) -> tuple[str, ...]:
    """The parts that `run`, `checks` or `sandbox` stands for; None: all."""
    return NEEDS[need] if need else PARTS


def select_findings(findings: Iterable[Finding], parts: Iterable[str]) -> tuple[Finding, ...]:
    """Those about any of these parts."""
    wanted = set(parts)
    return tuple(finding for finding in findings if wanted & set(finding.parts))


def find_refusals(facts: Facts, parts: Iterable[str]) -> tuple[Finding, ...]:
    """What keeps any of these parts from working; empty: they can start."""
    return _select(facts, parts, State.REFUSED)


def find_fallbacks(facts: Facts, parts: Iterable[str]) -> tuple[Finding, ...]:
    """What works for these parts in a weaker or slower way."""
    return _select(facts, parts, State.FALLBACK)


def _select(facts: Facts, parts: Iterable[str], state: State) -> tuple[Finding, ...]:
    return tuple(finding for finding in select_findings(judge(facts), parts) if finding.state is state)
