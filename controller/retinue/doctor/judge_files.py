"""Facts about file systems and the programs of sandboxes -> findings. Pure."""

from collections.abc import Iterator
from enum import StrEnum

from retinue.doctor import remedies
from retinue.doctor.judge_kernel import FOLLOWS, has_namespaces
from retinue.doctor.records import Facts, Finding, State
from retinue.doctor.remedies import ADMIN, YOU

SANDBOX = ("sandbox",)
SHARED_KINDS = {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "cifs", "smb3", "9p", "fuse.glusterfs"}
"""File systems of several machines; a parallel one has many more names, none of which is a local disk's."""
GIB = 1 << 30
SHM_MIN_BYTES, SCRATCH_MIN_BYTES, SCRATCH_BYTES, INODES_MIN = GIB, GIB, 10 * GIB, 10_000


class Layer(StrEnum):
    """What a sandbox writes to."""

    TMPFS = "tmpfs"
    """Overlay of the kernel, writable layer on a tmpfs: fast, its size and inodes capped."""
    DISK = "disk"
    """Overlay of the kernel, writable layer on the node's own disk: not capped by the kernel."""
    FUSE_OVERLAYFS = "fuse-overlayfs"
    """A FUSE process for each sandbox."""


def choose_layer(facts: Facts) -> Layer | None:
    """Choose the best writable layer that worked when it was tried; None when none did."""
    if facts.find_trial("overlay-tmpfs").is_ok and facts.find_trial("tmpfs-xattr").is_ok:
        return Layer.TMPFS
    if facts.find_trial("overlay-disk").is_ok and facts.scratch.kind not in SHARED_KINDS:
        return Layer.DISK
    return Layer.FUSE_OVERLAYFS if facts.find_trial("fuse-overlayfs").is_ok else None


def judge_overlay(facts: Facts) -> Iterator[Finding]:
    layer, on_disk = choose_layer(facts), facts.find_trial("overlay-disk")
    saw = facts.find_trial("overlay-tmpfs").text
    if layer in (Layer.TMPFS, Layer.DISK):
        yield Finding("overlay", SANDBOX, State.OK, "mounted, used and unmounted in a user namespace")
    elif layer is Layer.FUSE_OVERLAYFS:
        means = "fuse-overlayfs: a process for each sandbox, 14 MB once used, the first look at an image is slow"
        yield Finding("overlay", SANDBOX, State.FALLBACK, saw, means, ADMIN, remedies.KERNEL)
    elif not has_namespaces(facts):
        yield Finding("overlay", SANDBOX, State.REFUSED, saw, FOLLOWS)
    else:
        why = f"no overlay works: on disk: {on_disk.text}; fuse-overlayfs: {_describe_fuse_overlayfs(facts)}"
        yield Finding("overlay", SANDBOX, State.REFUSED, saw, why, YOU, remedies.FUSE_OVERLAYFS)


def _describe_fuse_overlayfs(facts: Facts) -> str:
    return facts.find_trial("fuse-overlayfs").text if "fuse-overlayfs" in facts.programs else "not in PATH"


def judge_tmpfs_xattr(facts: Facts) -> Iterator[Finding]:
    trial, layer = facts.find_trial("tmpfs-xattr"), choose_layer(facts)
    if trial.is_ok:
        yield Finding("tmpfs-xattr", SANDBOX, State.OK, "files on tmpfs take user attributes")
    elif not has_namespaces(facts):
        yield Finding("tmpfs-xattr", SANDBOX, State.REFUSED, trial.text, FOLLOWS)
    elif layer is Layer.DISK:
        means = f"writable layer on {facts.scratch.path} ({facts.scratch.kind}): slower, and not capped by the kernel"
        yield Finding("tmpfs-xattr", SANDBOX, State.FALLBACK, trial.text, means, ADMIN, remedies.KERNEL_TMPFS)
    elif layer is Layer.FUSE_OVERLAYFS:
        yield Finding("tmpfs-xattr", SANDBOX, State.FALLBACK, trial.text, "fuse-overlayfs does not need them")
    else:
        why = "the kernel's overlay cannot remove a directory of an image without them"
        yield Finding("tmpfs-xattr", SANDBOX, State.REFUSED, trial.text, why, YOU, remedies.SCRATCH_PLACE)


def judge_fuse(facts: Facts) -> Iterator[Finding]:
    trial = facts.find_trial("fuse")
    if trial.is_ok:
        yield Finding("fuse", SANDBOX, State.OK, "/dev/fuse opened and mounted in a user namespace")
    elif trial.text.startswith("/dev/fuse"):
        is_missing = "No such" in trial.text
        remedy = remedies.FUSE_MODULE if is_missing and not facts.is_in_container else remedies.FUSE_MODE
        why = "images cannot be mounted; unpacked to disk only when the service is told to (`degraded`)"
        yield Finding("fuse", SANDBOX, State.REFUSED, trial.text, why, ADMIN, remedy)
    elif has_namespaces(facts):
        why = "images cannot be mounted"
        yield Finding("fuse", SANDBOX, State.REFUSED, trial.text, why, ADMIN, remedies.FUSE_MODULE)
    else:
        yield Finding("fuse", SANDBOX, State.REFUSED, trial.text, FOLLOWS)


def judge_squashfuse(facts: Facts) -> Iterator[Finding]:
    probe, version = "squashfuse", facts.versions.get("squashfuse_ll", "")
    trial = facts.find_trial("squashfuse")
    if "squashfuse_ll" not in facts.programs:
        why = "images cannot be mounted; nothing is unpacked in silence"
        yield Finding(probe, SANDBOX, State.REFUSED, "no squashfuse_ll in PATH", why, YOU, remedies.SQUASHFUSE)
    elif trial.is_ok:
        yield Finding(probe, SANDBOX, State.OK, f"mounted an image ({version or 'version unknown'})")
    elif facts.find_trial("squashfuse-gzip").is_ok:
        means = "images compressed with gzip only: larger, and slower to read"
        yield Finding(probe, SANDBOX, State.FALLBACK, trial.text, means, YOU, remedies.SQUASHFUSE_ZSTD)
    else:
        is_cause = facts.find_trial("fuse").is_ok
        why, who, remedy = ("it does not work here", YOU, remedies.SQUASHFUSE) if is_cause else ("needs FUSE", "", "")
        yield Finding(probe, SANDBOX, State.REFUSED, trial.text, why, who, remedy)


def judge_subuid(facts: Facts) -> Iterator[Finding]:
    trial = facts.find_trial("subuid")
    count = facts.subuid_ranges[0][1] if facts.subuid_ranges else 0
    means = "one user id inside: chown and setuid do as if they worked (`uid ranges` are not to be had)"
    if trial.is_ok:
        yield Finding("subuid", SANDBOX, State.OK, f"newuidmap mapped {count} ids")
    elif facts.is_in_namespace:
        saw = trial.text if "subuid" in facts.trials else "asked from inside a user namespace"
        means = "one user id inside; newuidmap does not work below a keeper"
        yield Finding("subuid", SANDBOX, State.FALLBACK, saw, means, YOU, remedies.SUBUID_NAMESPACE.format())
    else:
        missing = "no newuidmap in PATH" if facts.subuid_ranges else "no range of this user in /etc/subuid"
        saw = trial.text if "subuid" in facts.trials else missing
        yield Finding("subuid", SANDBOX, State.FALLBACK, saw, means, ADMIN, remedies.SUBUID.format(user=facts.user))


def judge_shm(facts: Facts) -> Iterator[Finding]:
    shm, parts = facts.shm, ("keeper",)
    saw = shm.reason or f"{describe_bytes(shm.size_bytes)}, {shm.kind or 'no mount'}"
    if not shm.reason and shm.size_bytes >= SHM_MIN_BYTES:
        yield Finding("shm", parts, State.OK, saw)
        return
    means = "services that share memory (engines on several GPUs, data loaders) may die of SIGBUS"
    yield Finding("shm", parts, State.FALLBACK, saw, means, ADMIN, remedies.SHM.format())


def judge_scratch(facts: Facts) -> Iterator[Finding]:
    scratch, parts = facts.scratch, ("keeper", "gateway", "sandbox")
    saw = f"{scratch.path}: {scratch.kind}, {describe_bytes(scratch.free_bytes)} free"
    if scratch.reason:
        why = "the node directory cannot be made there"
        saw = f"{scratch.path}: {scratch.reason}"
        yield Finding("scratch", parts, State.REFUSED, saw, why, YOU, remedies.SCRATCH_PLACE)
        return
    # File systems without a fixed number of inodes (btrfs) say 0 of 0.
    is_out_of_inodes = 0 < scratch.free_inodes < INODES_MIN
    remedy = remedies.SCRATCH_SPACE.format(path=scratch.path)
    if scratch.kind in SHARED_KINDS:
        means = "on a shared file system: sockets and state live there, a hang of it is a hang of the node"
        yield Finding("scratch", parts, State.FALLBACK, saw, means, YOU, remedies.SCRATCH_PLACE)
    elif scratch.free_bytes < SCRATCH_MIN_BYTES:
        yield Finding("scratch", parts, State.REFUSED, saw, "too little for a run's state", YOU, remedy)
    elif scratch.free_bytes < SCRATCH_BYTES or is_out_of_inodes:
        left = f"; {scratch.free_inodes} inodes" if is_out_of_inodes else ""
        means = "enough for a run's state, not for writable layers or unpacked images"
        yield Finding("scratch", parts, State.FALLBACK, saw + left, means, YOU, remedy)
    else:
        yield Finding("scratch", parts, State.OK, saw)


def judge_runtime(facts: Facts) -> Iterator[Finding]:
    if facts.runtime:
        yield Finding("runtime", SANDBOX, State.OK, facts.runtime)
    elif "cc" in facts.programs:
        saw = f"not built; compiler {facts.versions.get('cc') or facts.programs['cc']}"
        means = "the sandbox program is compiled here first, with `python -m retinue.sandbox.build`"
        yield Finding("runtime", SANDBOX, State.FALLBACK, saw, means)
    else:
        why = "no sandbox program, and no C compiler to make it"
        yield Finding("runtime", SANDBOX, State.REFUSED, "not built; no compiler", why, YOU, remedies.COMPILER)


def describe_bytes(count: int) -> str:
    """`12 GiB`, `64 MiB`; rounded down."""
    return f"{count // GIB} GiB" if count >= GIB else f"{count >> 20} MiB"
