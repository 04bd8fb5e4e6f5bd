"""What follows from the facts of the systems that clusters run, recorded or taken from their documentation."""

from dataclasses import dataclass
from typing import Any

import pytest

from retinue.doctor import remedies
from retinue.doctor.judge_files import Layer, choose_layer
from retinue.doctor.judgement import (
    JUDGES,
    find_fallbacks,
    find_refusals,
    judge,
    select_findings,
    select_parts,
)
from retinue.doctor.records import PARTS, Cgroup, Facts, Finding, State, Storage, Trial
from retinue.terms.record import replace

OK, GIB = Trial(True), 1 << 30
EPERM = "Operation not permitted"
TRIALS = {
    **dict.fromkeys(
        ("user", "mount", "net", "ipc", "uts", "pid", "together", "proc", "keeper", "tmpfs-xattr", "overlay-tmpfs"), OK
    ),
    **dict.fromkeys(("overlay-disk", "fuse", "seccomp", "squashfuse", "fuse-overlayfs", "subuid"), OK),
    "checks": Trial(True, "namespaces"),
    "landlock": Trial(True, "6"),
}
GOOD = Facts(
    node="n1",
    kernel="6.12.30-amd64",
    system="Debian GNU/Linux 13 (trixie)",
    python="/usr/bin/python3.13",
    settings={
        "kernel.pid_max": "4194304",
        "kernel.threads-max": "1030000",
        "kernel.yama.ptrace_scope": "1",
        "kernel.keys.maxkeys": "200",
        "fs.inotify.max_user_instances": "65536",
        "fs.pipe-user-pages-soft": "0",
        **{f"user.max_{kind}_namespaces": "515000" for kind in ("user", "mnt", "net", "ipc", "uts", "pid")},
    },
    limits={"nproc": (-1, -1), "nofile": (1024, 1048576)},
    trials=TRIALS,
    programs={"squashfuse_ll": "/usr/bin/squashfuse_ll", "cc": "/usr/bin/cc", "srun": "/usr/bin/srun"},
    landlock_abi=6,
    cgroup=Cgroup("v2", "/job", is_delegated=True),
    shm=Storage("/dev/shm", "tmpfs", 100 * GIB, 100 * GIB),
    scratch=Storage("/tmp", "xfs", 500 * GIB, 900 * GIB, 10**7),
    runtime="/x/retinue-sandbox",
)


def change(facts: Facts = GOOD, settings: dict[str, str] | None = None, **fields: Any) -> Facts:
    trials = {key.removeprefix("t_").replace("_", "-"): fields.pop(key) for key in list(fields) if key.startswith("t_")}
    return replace(facts, settings=facts.settings | (settings or {}), trials=facts.trials | trials, **fields)


def refuse_namespaces(facts: Facts, how: str, first: str = "mount") -> Facts:
    """As the trials answer where a user namespace can be made and `first` in it cannot."""
    names = ("mount", "net", "ipc", "uts", "pid", "together", "proc", "tmpfs-xattr", "overlay-tmpfs", "overlay-disk")
    refused = {name: Trial(False, f"{first} namespace: {how}") for name in (*names, "squashfuse", "fuse-overlayfs")}
    refused["keeper"] = Trial(False, f"no private mount table: {how}")
    refused["checks"] = Trial(True, f"no namespaces ({how}); system call filter; no /tmp; checks start no process")
    if first == "user":
        refused["user"] = Trial(False, f"user namespace: {how}")
    return replace(facts, trials=facts.trials | refused)


RHEL8 = change(
    kernel="4.18.0-553.el8_10.x86_64",
    t_tmpfs_xattr=Trial(False, "user attribute on tmpfs: Operation not supported"),
    t_keeper=Trial(False, "no user namespace (user.max_user_namespaces, a container's seccomp filter)"),
    landlock_abi=0,
)
RHEL9 = change(
    kernel="5.14.0-503.el9.x86_64",
    t_tmpfs_xattr=Trial(False, "user attribute on tmpfs: Operation not supported"),
    t_overlay_tmpfs=Trial(False, "remove a directory of the image: Input/output error"),
    landlock_abi=1,
)
UBUNTU_2204 = change(
    kernel="5.15.0-130-generic",
    t_tmpfs_xattr=Trial(False, "user attribute on tmpfs: Operation not supported"),
    t_overlay_tmpfs=Trial(False, "remove a directory of the image: Input/output error"),
)
UBUNTU_2404 = change(
    refuse_namespaces(GOOD, EPERM),
    {"kernel.apparmor_restrict_unprivileged_userns": "1"},
    kernel="6.8.0-60-generic",
    lsm="lockdown,capability,landlock,yama,apparmor",
)
DEBIAN_12 = change(
    kernel="6.1.0-32-amd64", t_tmpfs_xattr=Trial(False, "user attribute on tmpfs: Operation not supported")
)
POD = change(
    t_proc=Trial(False, f"fresh /proc: {EPERM}"),
    t_keeper=Trial(False, f"no fresh /proc: {EPERM}"),
    is_in_container=True,
    has_seccomp_filter=True,
    proc_masks=("/proc/acpi", "/proc/kcore", "/proc/sys"),
    shm=Storage("/dev/shm", "tmpfs", 64 << 20, 64 << 20),
)


@dataclass(frozen=True)
class Case:
    """One system: what is refused or weaker about it, and what sandboxes write to."""

    facts: Facts
    refused: set[str]
    weaker: set[str]
    layer: Layer | None


SYSTEMS = {
    "Debian 13": Case(GOOD, set(), set(), Layer.TMPFS),
    "RHEL 8": Case(RHEL8, {"kernel"}, {"keeper", "ptrace", "tmpfs-xattr"}, Layer.DISK),
    "RHEL 9": Case(RHEL9, set(), {"tmpfs-xattr"}, Layer.DISK),
    "Ubuntu 22.04": Case(UBUNTU_2204, set(), {"tmpfs-xattr"}, Layer.DISK),
    "Ubuntu 24.04": Case(
        UBUNTU_2404,
        {"user-namespaces", "apparmor", "proc", "overlay", "tmpfs-xattr", "squashfuse"},
        {"apparmor", "keeper", "checks", "ptrace"},
        None,
    ),
    "Debian 12": Case(DEBIAN_12, set(), {"tmpfs-xattr"}, Layer.DISK),
    "pod with a masked /proc": Case(POD, {"proc"}, {"keeper", "ptrace", "shm"}, Layer.TMPFS),
}
every_system = pytest.mark.parametrize("case", SYSTEMS.values(), ids=SYSTEMS.keys())


def find_probes(facts: Facts, state: State) -> set[str]:
    return {finding.probe for finding in judge(facts) if finding.state is state}


def find_one(facts: Facts, probe: str, state: State) -> Finding:
    [finding] = [found for found in judge(facts) if found.probe == probe and found.state is state]
    return finding


@every_system
def test_each_system_is_refused_what_it_cannot_do_and_nothing_else(case: Case) -> None:
    assert find_probes(case.facts, State.REFUSED) == case.refused
    assert find_probes(case.facts, State.FALLBACK) == case.weaker
    assert choose_layer(case.facts) == case.layer


@every_system
def test_every_probe_says_something_and_no_part_hears_two_things_of_one_probe(case: Case) -> None:
    findings = judge(case.facts)
    assert list(dict.fromkeys(finding.probe for finding in findings)) == list(JUDGES)
    for finding in findings:
        assert set(finding.parts) <= set(PARTS)
        assert finding.parts
    told = [(finding.probe, part) for finding in findings for part in finding.parts]
    assert len(told) == len(set(told))


@every_system
def test_what_is_not_ok_says_why_and_a_remedy_says_whose_it_is(case: Case) -> None:
    for finding in judge(case.facts):
        assert finding.state is State.OK or finding.means, finding
        assert bool(finding.who) == bool(finding.remedy), finding
        assert "{" not in finding.remedy.replace("{ userns, }", "").replace("{type: Unconfined}", "").replace(
            "{medium: Memory}", ""
        ).replace("{namespace: off}", ""), finding


@pytest.mark.parametrize(
    ("facts", "probe", "state", "remedy"),
    [
        (UBUNTU_2404, "user-namespaces", State.REFUSED, "profile retinue /usr/bin/python3.13 flags=(unconfined)"),
        (POD, "proc", State.REFUSED, "procMount: Unmasked"),
        (replace(POD, is_in_container=False), "proc", State.REFUSED, "/proc/kcore, /proc/sys"),
        (
            change(refuse_namespaces(GOOD, "No space left on device", "user"), {"user.max_user_namespaces": "0"}),
            "user-namespaces",
            State.REFUSED,
            remedies.USER_NAMESPACES,
        ),
        (
            change(refuse_namespaces(GOOD, EPERM, "user"), {"kernel.unprivileged_userns_clone": "0"}),
            "user-namespaces",
            State.REFUSED,
            remedies.DEBIAN_USER_NAMESPACES,
        ),
        (
            change(refuse_namespaces(GOOD, EPERM, "user"), has_seccomp_filter=True),
            "user-namespaces",
            State.REFUSED,
            "seccomp=unconfined",
        ),
        (refuse_namespaces(GOOD, "Invalid argument", "user"), "user-namespaces", State.REFUSED, "CONFIG_USER_NS"),
        (change(t_fuse=Trial(False, "/dev/fuse: No such file or directory")), "fuse", State.REFUSED, "modprobe fuse"),
        (change(t_fuse=Trial(False, "/dev/fuse: Permission denied")), "fuse", State.REFUSED, "chmod 0666 /dev/fuse"),
        (change(programs={}), "squashfuse", State.REFUSED, remedies.SQUASHFUSE),
        (change(settings={"kernel.pid_max": "32768"}), "processes", State.FALLBACK, remedies.PID_MAX),
        (change(limits={"nproc": (4096, -1)}), "processes", State.FALLBACK, "--propagate=NONE"),
        (change(limits={"nproc": (4096, 4096)}), "processes", State.FALLBACK, "limits.conf"),
        (change(cgroup=Cgroup("v2", "/", True, pids_max=100)), "processes", State.REFUSED, "TasksMax=infinity"),
        (change(limits={"nofile": (1024, 4096)}), "descriptors", State.FALLBACK, "LimitNOFILE"),
        (change(settings={"fs.inotify.max_user_instances": "128"}), "inotify", State.FALLBACK, remedies.INOTIFY),
        (change(settings={"fs.pipe-user-pages-soft": "16384"}), "pipes", State.FALLBACK, remedies.PIPES),
        (change(scratch=Storage("/fs", "lustre", 10**15, 10**16, 10**9)), "scratch", State.FALLBACK, "SLURM_TMPDIR"),
        (change(scratch=Storage("/tmp", "ext4", 1 << 20, 10**9, 10**6)), "scratch", State.REFUSED, "free space"),
        (change(scratch=Storage("/gone", reason="No such file")), "scratch", State.REFUSED, "SLURM_TMPDIR"),
        (change(settings={"kernel.yama.ptrace_scope": "3"}), "ptrace", State.FALLBACK, remedies.PTRACE),
        (change(runtime="", programs={"squashfuse_ll": "/x"}), "runtime", State.REFUSED, "install a C compiler"),
        (change(job_id="7", programs={"squashfuse_ll": "/x", "cc": "/x"}), "slurm", State.REFUSED, remedies.SLURM),
        (change(settings={"user.max_net_namespaces": "50"}), "user-namespaces", State.FALLBACK, "max_net_namespaces"),
    ],
)  # fmt: skip
def test_a_trouble_names_its_own_change(facts: Facts, probe: str, state: State, remedy: str) -> None:
    found = [item for item in judge(facts) if item.probe == probe and item.state is state]
    assert any(remedy in item.remedy for item in found), found


def test_without_a_net_namespace_alone_sandboxes_lose_their_sockets_and_nothing_else() -> None:
    refused = Trial(False, "net namespace: No space left on device")
    facts = change(settings={"user.max_net_namespaces": "0"}, t_net=refused, t_together=refused)
    assert "user-namespaces" not in find_probes(facts, State.REFUSED)
    assert "socket()" in find_one(facts, "user-namespaces", State.FALLBACK).means


def test_a_profile_makes_the_apparmor_switch_harmless() -> None:
    facts = change(settings={"kernel.apparmor_restrict_unprivileged_userns": "1"})
    assert find_one(facts, "apparmor", State.OK).saw.endswith("a profile that allows them")


def test_the_chain_of_writable_layers_ends_with_a_refusal() -> None:
    facts = change(t_tmpfs_xattr=Trial(False, "no"), t_overlay_disk=Trial(False, EPERM))
    assert choose_layer(facts) is Layer.FUSE_OVERLAYFS
    assert "overlay" in find_probes(facts, State.FALLBACK)
    facts = change(facts, t_fuse_overlayfs=Trial(False, "no"))
    assert choose_layer(facts) is None
    assert {"overlay", "tmpfs-xattr"} <= find_probes(facts, State.REFUSED)


def test_a_writable_layer_is_never_put_on_a_shared_file_system() -> None:
    facts = change(t_tmpfs_xattr=Trial(False, "no"), scratch=Storage("/nfs", "nfs4", 10**13, 10**13, 10**9))
    assert choose_layer(facts) is Layer.FUSE_OVERLAYFS


def test_an_old_squashfuse_leaves_gzip() -> None:
    facts = change(t_squashfuse=Trial(False, "zstd"), **{"t_squashfuse-gzip": OK})
    assert "gzip" in find_one(facts, "squashfuse", State.FALLBACK).means
    facts = change(facts, **{"t_squashfuse-gzip": Trial(False, "broken")})
    assert find_one(facts, "squashfuse", State.REFUSED).remedy == remedies.SQUASHFUSE


def test_pid_max_inside_a_namespace_is_not_taken_for_the_hosts() -> None:
    facts = change(settings={"kernel.pid_max": "300"}, is_in_namespace=True)
    assert "processes" not in find_probes(facts, State.FALLBACK) | find_probes(facts, State.REFUSED)
    assert "does not show" in find_one(facts, "processes", State.OK).saw


def test_a_service_is_refused_only_by_what_its_own_parts_need() -> None:
    facts = change(programs={}, limits={"nofile": (64, 64)})
    assert {finding.probe for finding in find_refusals(facts, select_parts("sandbox"))} == {"squashfuse", "descriptors"}
    assert {finding.probe for finding in find_refusals(facts, select_parts("run"))} == {"descriptors"}
    assert find_refusals(GOOD, PARTS) == ()
    assert {finding.probe for finding in find_fallbacks(RHEL9, select_parts("sandbox"))} == {"tmpfs-xattr"}
    assert find_fallbacks(RHEL9, select_parts("checks")) == ()
    assert select_findings(judge(GOOD), ("checks",)) != judge(GOOD)


def test_trials_that_were_never_made_are_no_success() -> None:
    assert {"user-namespaces", "proc", "overlay", "fuse", "squashfuse", "seccomp"} <= find_probes(
        replace(GOOD, trials={}, programs={}), State.REFUSED
    )
