"""Facts about the kernel and what it lets us do -> findings. Pure."""

import re
from collections.abc import Iterator

from retinue.doctor import remedies
from retinue.doctor.records import PARTS, Facts, Finding, State, Trial
from retinue.doctor.remedies import ADMIN

KERNEL_MIN, KERNEL_COUNTS_APART = (5, 11), (5, 14)
RESTRICTED = "kernel.apparmor_restrict_unprivileged_userns"
KINDS = {"mount": "mnt", "net": "net", "ipc": "ipc", "uts": "uts", "pid": "pid"}
"""Namespace -> its name in user.max_*_namespaces."""
MANY = 8192
"""Namespaces of a kind: fewer limit how many sandboxes a node can have."""
FOLLOWS = "cannot be had without user namespaces"


def parse_release(text: str) -> tuple[int, int]:
    """Turn `5.14.0-362.el9` into (5, 14); (0, 0) for what is no release."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def has_namespaces(facts: Facts) -> bool:
    """All that a sandbox needs, but perhaps not the network namespace."""
    return all(facts.find_trial(name).is_ok for name in ("user", "mount", "ipc", "uts", "pid"))


def judge_kernel(facts: Facts) -> Iterator[Finding]:
    saw, release = f"Linux {facts.kernel} ({facts.system or 'unknown system'})", parse_release(facts.kernel)
    if release < KERNEL_MIN:
        why = "retinue needs Linux 5.11: `run` exits 3"
        yield Finding("kernel", PARTS, State.REFUSED, saw, why, ADMIN, remedies.KERNEL)
    elif release < KERNEL_COUNTS_APART:
        yield Finding("kernel", ("keeper", "gateway"), State.OK, saw)
        why = (
            "processes are not counted apart before 5.14: sandboxes are counted by their pid 1, checks start no process"
        )
        yield Finding("kernel", ("checks", "sandbox"), State.FALLBACK, saw, why, ADMIN, remedies.KERNEL)
    else:
        yield Finding("kernel", PARTS, State.OK, saw)


def judge_user_namespaces(facts: Facts) -> Iterator[Finding]:
    probe = "user-namespaces"
    failed = {name: trial for name in ("user", *KINDS) if not (trial := facts.find_trial(name)).is_ok}
    if not failed:
        failed = {} if facts.find_trial("together").is_ok else {"all together": facts.find_trial("together")}
    if not failed:
        yield from _judge_how_many(facts)
        return
    saw = "; ".join(f"{name}: {trial.text}" for name, trial in failed.items())
    who, remedy = find_namespace_remedy(facts, failed)
    if set(failed) == {"net"}:
        means = (
            "sandboxes without a network namespace: socket() is refused inside, servers on localhost do not work there"
        )
        yield Finding(probe, ("sandbox",), State.FALLBACK, saw, means, who, remedy)
        yield Finding(probe, ("keeper",), State.OK, saw)
        return
    yield Finding(probe, ("sandbox",), State.REFUSED, saw, "a sandbox is made of namespaces", who, remedy)


def _judge_how_many(facts: Facts) -> Iterator[Finding]:
    probe, saw = "user-namespaces", "user, pid, mount, net, ipc and uts were made"
    kinds = ("user", *KINDS.values())
    limits = {kind: count for kind in kinds if (count := facts.find_number(f"user.max_{kind}_namespaces")) is not None}
    scarce = {kind: count for kind, count in limits.items() if count < MANY}
    if not scarce:
        at_most = f"; at most {min(limits.values())} of a kind" if limits and not facts.is_in_namespace else ""
        yield Finding(probe, ("keeper", "checks", "sandbox"), State.OK, saw + at_most)
        return
    yield Finding(probe, ("keeper",), State.OK, saw)
    kind = min(scarce, key=lambda name: scarce[name])
    means = f"at most {scarce[kind]} checks and sandboxes together at one time"
    remedy = remedies.OTHER_NAMESPACES.format(kind=kind)
    saw = f"user.max_{kind}_namespaces = {scarce[kind]}"
    yield Finding(probe, ("checks", "sandbox"), State.FALLBACK, saw, means, ADMIN, remedy)


def find_namespace_remedy(facts: Facts, failed: dict[str, Trial]) -> tuple[str, str]:
    """Who must change what, for the namespaces that were refused; the likeliest cause by what the host says."""
    for kind, setting in (("user", "user"), *KINDS.items()):
        if facts.find_number(f"user.max_{setting}_namespaces") == 0 and (kind in failed or kind == "user"):
            return ADMIN, remedies.OTHER_NAMESPACES.format(kind=setting)
    if facts.find_number("kernel.unprivileged_userns_clone") == 0:
        return ADMIN, remedies.DEBIAN_USER_NAMESPACES
    if facts.find_number(RESTRICTED) == 1:
        return ADMIN, remedies.APPARMOR.format(python=facts.python)
    if facts.is_in_container or facts.has_seccomp_filter:
        return ADMIN, remedies.CONTAINER.format()
    return ADMIN, remedies.KERNEL_NAMESPACES


def judge_apparmor(facts: Facts) -> Iterator[Finding]:
    probe, parts = "apparmor", ("keeper", "checks", "sandbox")
    switch = facts.find_number(RESTRICTED)
    if switch != 1:
        said = "no restriction of user namespaces" if switch is None else f"{RESTRICTED} = {switch}"
        yield Finding(probe, parts, State.OK, said)
        return
    saw = f"{RESTRICTED} = 1"
    if has_namespaces(facts):
        yield Finding(probe, parts, State.OK, saw + ", and a profile that allows them")
        return
    why = "a program without a profile gets a user namespace in which it may do nothing"
    remedy = remedies.APPARMOR.format(python=facts.python)
    yield Finding(probe, ("sandbox",), State.REFUSED, saw, why, ADMIN, remedy)
    yield Finding(probe, ("keeper", "checks"), State.FALLBACK, saw, why, ADMIN, remedy)


def judge_keeper(facts: Facts) -> Iterator[Finding]:
    trial = facts.find_trial("keeper")
    if trial.is_ok:
        yield Finding("keeper", ("keeper",), State.OK, "pid 1 of its own user, pid, mount and ipc namespace")
        return
    means = "processes are held by descent and environment: one that hides from both can outlive the run"
    is_proc = has_namespaces(facts) and not facts.find_trial("proc").is_ok
    who, remedy = find_proc_remedy(facts) if is_proc else find_namespace_remedy(facts, {"user": trial})
    yield Finding("keeper", ("keeper",), State.FALLBACK, trial.text, means, who, remedy)


def judge_checks(facts: Facts) -> Iterator[Finding]:
    trial = facts.find_trial("checks")
    if not trial.is_ok:
        why = "a check has nothing to be locked into"
        who, remedy = find_namespace_remedy(facts, {"user": trial})
        yield Finding("checks", ("checks",), State.REFUSED, trial.text, why, who, remedy)
        return
    rung, _, weaker = trial.text.partition("; ")
    if rung == "namespaces":
        state = State.FALLBACK if weaker else State.OK
        yield Finding("checks", ("checks",), state, "every check in its own namespaces", weaker)
        return
    who, remedy = find_namespace_remedy(facts, {"user": trial})
    yield Finding("checks", ("checks",), State.FALLBACK, rung, weaker, who, remedy)


def find_proc_remedy(facts: Facts) -> tuple[str, str]:
    """Who must do what about a /proc that is masked."""
    if facts.is_in_container or not facts.proc_masks:
        return ADMIN, remedies.CONTAINER.format()
    return ADMIN, remedies.UNMASK.format(masks=", ".join(facts.proc_masks))


def judge_proc(facts: Facts) -> Iterator[Finding]:
    trial = facts.find_trial("proc")
    if trial.is_ok:
        yield Finding("proc", ("keeper", "sandbox"), State.OK, "a fresh /proc can be mounted in a pid namespace")
    elif not has_namespaces(facts):
        yield Finding("proc", ("sandbox",), State.REFUSED, trial.text, FOLLOWS)
    else:
        masks = f"; masked: {', '.join(facts.proc_masks[:4])}" if facts.proc_masks else ""
        why = (
            "the kernel mounts no fresh /proc where the present one is masked, and a bind of the host's is no isolation"
        )
        yield Finding("proc", ("sandbox",), State.REFUSED, trial.text + masks, why, *find_proc_remedy(facts))


def judge_seccomp(facts: Facts) -> Iterator[Finding]:
    trial = facts.find_trial("seccomp")
    if trial.is_ok:
        saw = "filters can be set" + ("; this process already has one" if facts.has_seccomp_filter else "")
        yield Finding("seccomp", ("checks", "sandbox"), State.OK, saw)
        return
    why = "new mount calls, keyrings and foreign sockets could not be refused inside"
    yield Finding("seccomp", ("checks", "sandbox"), State.REFUSED, trial.text, why, ADMIN, remedies.SECCOMP)


def judge_landlock(facts: Facts) -> Iterator[Finding]:
    if facts.landlock_abi:
        yield Finding("landlock", ("checks",), State.OK, f"ABI {facts.landlock_abi}")
    elif has_namespaces(facts):
        yield Finding("landlock", ("checks",), State.OK, "none, and not needed: namespaces hide files")
    else:
        saw, means = facts.find_trial("landlock").text, "without namespaces and Landlock a check can read your files"
        remedy = remedies.LANDLOCK.format(lsm=facts.lsm or "yama,apparmor")
        yield Finding("landlock", ("checks",), State.FALLBACK, saw, means, ADMIN, remedy)


def judge_ptrace(facts: Facts) -> Iterator[Finding]:
    scope = facts.find_number("kernel.yama.ptrace_scope")
    saw = "no Yama" if scope is None else f"kernel.yama.ptrace_scope = {scope}"
    is_held = facts.find_trial("keeper").is_ok
    if scope is None or scope <= (2 if is_held else 0):
        yield Finding("ptrace", ("keeper",), State.OK, saw)
        return
    means = "the egress guard is off: it reads the addresses that services connect to"
    if scope <= 2:
        yield Finding("ptrace", ("keeper",), State.FALLBACK, saw, f"{means}, which needs the keeper's namespace")
        return
    yield Finding("ptrace", ("keeper",), State.FALLBACK, saw, means, ADMIN, remedies.PTRACE)
