"""The root directory of warm parent and children, built from copies of what is mounted.

A small read-only file system of its own with read-only copies of what is not hidden, and nothing else in
the mount table: every child copies that table. The caller is alone in a private mount namespace.
Source: open_tree(2), move_mount(2), mount_setattr(2), pivot_root(2) "pivot_root(".", ".")".
"""

import errno
import os
import stat

from retinue.checks.jail import syscalls
from retinue.checks.jail.view import TMP, View

DEVICES = ("null", "zero", "full", "random", "urandom")
_SEALED = syscalls.MS_NOSUID | syscalls.MS_NODEV
_COVER_OPTIONS = "size=1m,nr_inodes=4k,mode=0755"
_FLAGS = {
    "ro": syscalls.MS_RDONLY,
    "nosuid": syscalls.MS_NOSUID,
    "nodev": syscalls.MS_NODEV,
    "noexec": syscalls.MS_NOEXEC,
}
"""Flags of a mount that a user namespace may not take away: a remount repeats them (atime is kept unasked)."""


def enter_root(view: View) -> None:
    """Build the view's root directory and make it the caller's; the current directory is "/" then.

    Errors: OSError; the caller's mounts are then half changed and it must end.
    """
    make_read_only()
    top = _copy_top(view)
    trees = {path: syscalls.copy_tree(path) for path in view.find_bound_back()}
    devices = {name: syscalls.copy_tree(f"/dev/{name}") for name in DEVICES if os.path.exists(f"/dev/{name}")}
    links = {name: os.readlink(f"/{name}") for name in os.listdir("/") if os.path.islink(f"/{name}")}
    syscalls.mount("retinue-checks", TMP, "tmpfs", _SEALED, _COVER_OPTIONS)
    os.chdir(TMP)
    for name, tree in top.items():
        os.mkdir(name)
        if tree is not None:
            _attach(tree, name)
    for name, target in links.items():
        os.symlink(target, name)
    for name, tree in devices.items():
        _touch(f"dev/{name}")
        _attach(tree, f"dev/{name}")
    change_root()
    # Only from here do links lead where a check will see them lead.
    covers = _apply(view, trees)
    for path in (*covers, "/"):
        syscalls.mount(None, path, None, syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | _SEALED)


def change_root() -> None:
    """Make the current directory, a mount, the root; nothing else stays mounted."""
    try:
        syscalls.pivot_root()
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # A diskless node that runs from its initramfs: its root cannot be pivoted, only buried.
        syscalls.mount(".", "/", None, syscalls.MS_MOVE)
        os.chroot(".")
    os.chdir("/")


def restore(trees: dict[str, int]) -> None:
    """Attach copies of what was below a directory that has just been covered."""
    for path, tree in trees.items():
        _make_place(tree, path)
        _attach(tree, path)


def make_read_only() -> None:
    """Make all mounts read-only and deaf to set-user-id bits."""
    try:
        syscalls.make_tree_read_only("/")
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        remount_read_only()


def remount_read_only() -> None:
    """Make all mounts read-only one by one, where mount_setattr(2) is unknown (Linux 5.11) or filtered."""
    for path, options in _read_mounts():
        flags = sum(flag for word, flag in _FLAGS.items() if word in options)
        try:
            syscalls.mount(
                None,
                path,
                None,
                flags | syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | syscalls.MS_NOSUID,
            )
        except OSError as error:
            # Covered by another mount, or below a directory that is not for us: out of reach for a check too.
            if error.errno not in (errno.ENOENT, errno.EACCES, errno.EINVAL):
                raise


def _read_mounts() -> list[tuple[str, list[str]]]:
    """Every mount as (path, options). Source: proc_pid_mountinfo(5); blanks in paths are octal there."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        rows = [line.split(" ") for line in lines]
    return [(_unescape(row[4]), row[5].split(",")) for row in rows]


def _unescape(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def _copy_top(view: View) -> dict[str, int | None]:
    """Copy each directory of "/" that is not hidden; None where an empty one takes its place."""
    names = [name for name in os.listdir("/") if stat.S_ISDIR(os.lstat(f"/{name}").st_mode)]
    return {name: None if f"/{name}" in view.hidden else syscalls.copy_tree(f"/{name}") for name in names}


def _apply(view: View, trees: dict[str, int]) -> list[str]:
    """Cover and bind back in the new root, the shorter path first; returns the covers, still writable."""
    steps = [(path, None) for path in view.hidden if path.count("/") > 1] + list(trees.items())
    covers = []
    for path, tree in sorted(steps, key=lambda step: step[0].count("/")):
        if tree is not None:
            _show(path, tree)
        elif os.path.isdir(path):
            syscalls.mount("hidden", path, "tmpfs", _SEALED, _COVER_OPTIONS)
            covers.append(path)
        elif os.path.exists(path):
            _attach(syscalls.copy_tree("/dev/null"), path)
    return covers


def _show(path: str, tree: int) -> None:
    """Attach a tree where it was, unless it is still seen there (through another path)."""
    if os.path.exists(path) and os.path.samestat(os.stat(path), os.fstat(tree)):
        os.close(tree)
        return
    _make_place(tree, path)
    _attach(tree, path)


def _make_place(tree: int, path: str) -> None:
    if stat.S_ISDIR(os.fstat(tree).st_mode):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _touch(path)


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _attach(tree: int, path: str) -> None:
    syscalls.attach_tree(tree, path)
    os.close(tree)
