"""The trials of the kernel: each really does what a keeper, a check or a sandbox will do. They run in children.

Source: the sequence of a sandbox; overlay of the kernel with `userxattr`, whose traps show only when an image's
directory is removed and made again.
"""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from retinue.checks.jail.choice import JailRefused, choose_jail
from retinue.checks.jail.view import build_view
from retinue.checks.records import Limits
from retinue.doctor import calls
from retinue.doctor.bounded import Attempt, Trials
from retinue.doctor.inside import NAMESPACES, enter, take_step
from retinue.doctor.records import Trial
from retinue.node import kernel
from retinue.node.namespace import NamespaceRefused, spawn_in_namespace
from retinue.node.spawn import Command, SpawnError

STAGE = "/sys"
"""Where a trial mounts, in a mount table of its own: there everywhere, and no program that is tried lives below it."""
FUSE = "/dev/fuse"
_TMPFS_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV


def try_user() -> str:
    """A user namespace alone."""
    enter(())
    return ""


def build_one_try(name: str) -> Attempt:
    """A user namespace and one other."""

    def attempt() -> str:
        enter((name,))
        return ""

    return attempt


def try_together() -> str:
    """All six at once, as each sandbox has them."""
    enter(tuple(NAMESPACES))
    take_step("host name", lambda: socket.sethostname("probe"))
    return ""


def try_proc() -> str:
    """A fresh /proc in a pid namespace of one's own."""
    enter(("mount", "pid"))
    take_step("fresh /proc", lambda: kernel.mount("proc", "/proc", kernel.MS_NOSUID | kernel.MS_NODEV))
    return ""


def try_keeper() -> str:
    """The namespace of a node's keeper, made by the keeper's own code."""
    true = shutil.which("true") or "/bin/true"
    try:
        child = spawn_in_namespace(Command([true], dict(os.environ)))
    except (NamespaceRefused, SpawnError) as error:
        raise OSError(0, str(error)) from None
    os.waitpid(child.pid, 0)
    return ""


def try_checks() -> str:
    """The jail of the checks, chosen by the checks' own code."""
    try:
        return choose_jail(Limits(), build_view((), os.environ), wants_namespaces=True).rung
    except JailRefused as error:
        raise OSError(0, str(error)) from None


def try_tmpfs_xattr() -> str:
    """An attribute of a user on a file of a tmpfs."""
    enter(("mount",))
    _mount_stage()
    path = Path(STAGE, "file")
    path.write_text("")
    take_step("user attribute on tmpfs", lambda: os.setxattr(path, "user.retinue", b"1"))
    return ""


def try_overlay_tmpfs() -> str:
    """An overlay whose writable layer is a tmpfs."""
    enter(("mount",))
    _mount_stage()
    return _use_overlay(Path(STAGE))


def build_disk_try(scratch: Path) -> Attempt:
    """An overlay whose writable layer is in this empty directory."""

    def attempt() -> str:
        enter(("mount",))
        return _use_overlay(scratch)

    return attempt


def try_fuse() -> str:
    """/dev/fuse, and a mount of it in a user namespace."""
    take_step(FUSE, _open_fuse)
    enter(("mount",))
    _mount_stage()
    # The kernel wants a device that was opened in the namespace that mounts it.
    options = f"fd={_open_fuse()},rootmode=40000,user_id=0,group_id=0"
    take_step("mount of FUSE", lambda: kernel.mount("fuse", STAGE, _TMPFS_FLAGS, options))
    return ""


def _open_fuse() -> int:
    return os.open(FUSE, os.O_RDWR | os.O_CLOEXEC)


def try_seccomp() -> str:
    """A filter of system calls on oneself."""
    calls.install_open_filter()
    return ""


def try_landlock() -> str:
    """Which Landlock there is."""
    return str(calls.read_landlock_abi())


def build_statvfs_try(path: str) -> Attempt:
    """Free bytes, all bytes and free inodes of a file system; one that hangs hangs in the child."""

    def attempt() -> str:
        found = os.statvfs(path)
        return f"{found.f_bavail * found.f_frsize} {found.f_blocks * found.f_frsize} {found.f_favail}"

    return attempt


def try_kernel(trials: Trials, scratch: Path | None) -> dict[str, Trial]:
    """Try all of it.

    Shape:  by name: user, mount, net, ipc, uts, pid, together, proc, keeper, checks, tmpfs-xattr, overlay-tmpfs,
            overlay-disk (not without a scratch directory), fuse, seccomp, landlock.
    """
    attempts: dict[str, Callable[[], str]] = {
        "user": try_user,
        **{name: build_one_try(name) for name in NAMESPACES},
        "together": try_together,
        "proc": try_proc,
        "keeper": try_keeper,
        "checks": try_checks,
        "tmpfs-xattr": try_tmpfs_xattr,
        "overlay-tmpfs": try_overlay_tmpfs,
        "fuse": try_fuse,
        "seccomp": try_seccomp,
        "landlock": try_landlock,
    }
    if scratch is not None:
        attempts["overlay-disk"] = build_disk_try(scratch)
    return {name: trials.run(attempt) for name, attempt in attempts.items()}


def _mount_stage() -> None:
    take_step("tmpfs", lambda: kernel.mount("tmpfs", STAGE, _TMPFS_FLAGS, "size=1m,nr_inodes=64,mode=0700"))


def _use_overlay(base: Path) -> str:
    """Mount an overlay over a small tree, and do what breaks on one that cannot keep its marks."""
    for name in ("lower", "lower/directory", "upper", "work", "root"):
        (base / name).mkdir()
    (base / "lower/directory/file").write_text("below")
    options = f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work,userxattr"
    root = base / "root"
    take_step("overlay", lambda: kernel.mount("overlay", str(root), _TMPFS_FLAGS, options))
    take_step("remove a directory of the image", lambda: shutil.rmtree(root / "directory"))
    take_step("make it again", (root / "directory").mkdir)
    if os.listdir(root / "directory"):
        raise OSError(0, "a removed directory of the image shows its old files again")
    return ""
