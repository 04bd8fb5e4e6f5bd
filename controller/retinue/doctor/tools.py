"""The programs that sandboxes use: which are there, which version, and whether they do their work here."""

import base64
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from retinue.doctor import calls
from retinue.doctor.bounded import Attempt, Trials
from retinue.doctor.inside import enter, take_step
from retinue.doctor.records import Trial
from retinue.node import kernel

PROGRAMS = {
    "squashfuse_ll": ("--help",),
    "fuse-overlayfs": ("--version",),
    "newuidmap": (),
    "newgidmap": (),
    "mksquashfs": ("-version",),
    "fusermount3": (),
    "srun": ("--version",),
    "scontrol": (),
    "squeue": (),
    "cc": ("--version",),
}
"""Looked for in PATH, and how each is asked for its version; () where there is no safe way to ask."""
COMPILERS = ("cc", "gcc", "clang", "musl-gcc")

STAGE = "/sys"
"""As in `trials`."""
INSIDE = "probe"
CONTENT = "retinue\n"
ZSTD_IMAGE = base64.b64decode(
    "aHNxcwIAAAAAAAAAAAACAAEAAAAGABEAwAIBAAQAAAAgAAAAAAAAAPUAAAAAAAAA7QAAAAAAAAD//////////2gAAAAAAAAAmAAAAAAAAADF"
    "AAAAAAAAAN8AAAAAAAAAcmV0aW51ZQouACi1L/0gQC0BAMgCAKQBAAEACAAAAAEA7QEAAhwAAAADAAAABACvESA7QGIXaAEZgAAAAAAAAAAA"
    "AQAAAAAAAAACAAQAcHJvYmUQgGAAAAAAAAAACAAAAQAAAACzAAAAAAAAABCAAAAAAAAAAAAgAAAAAAAAAM0AAAAAAAAABIAAAAAA5wAAAAAA"
    "AAA="
)
"""A squashfs with the one file `probe`: mksquashfs -comp zstd -no-xattrs -all-root -nopad -all-time 0."""
GZIP_IMAGE = base64.b64decode(
    "aHNxcwIAAAAAAAAAAAACAAEAAAABABEAwAIBAAQAAAAgAAAAAAAAAOIAAAAAAAAA2gAAAAAAAAD//////////2gAAAAAAAAAiQAAAAAAAAC0"
    "AAAAAAAAAMwAAAAAAAAAcmV0aW51ZQofAHjaY2JYwsgABXAGFHCAxd7ChZmQaBkgZgZiAEc4AcMXAHjaY2CAAEYozcTAwlBQlJ+UCgAGxgIg"
    "EIBgAAAAAAAAAAgAAAEAAAAAogAAAAAAAAAOAHjaY2CAAAUoDQABEAAhvAAAAAAAAAAEgAAAAADUAAAAAAAAAA=="
)
"""The same with gzip, which every squashfuse can read."""


def find_programs(env: Mapping[str, str]) -> dict[str, str]:
    """Look for all programs in PATH; sbin too, where some sites keep them."""
    path = os.pathsep.join([env.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    found = {name: shutil.which(name, path=path) for name in PROGRAMS}
    found["cc"] = next((place for name in COMPILERS if (place := shutil.which(name, path=path))), None)
    return {name: place for name, place in found.items() if place}


def read_versions(programs: Mapping[str, str], trials: Trials) -> dict[str, str]:
    """Ask the programs for their versions, one line each; one that says nothing is left out."""
    found = {}
    for name, place in programs.items():
        options = PROGRAMS[name]
        trial = trials.run(_build_asking([place, *options])) if options else None
        if trial is not None and trial.is_ok and trial.text:
            found[name] = trial.text
    return found


def try_tools(
    programs: Mapping[str, str], subuid_ranges: tuple[tuple[int, int], ...], trials: Trials
) -> dict[str, Trial]:
    """Try the programs that are there.

    Shape:  by name: squashfuse, squashfuse-gzip, fuse-overlayfs, subuid; a program that is not there has no trial.
    """
    found = {}
    if "squashfuse_ll" in programs:
        found["squashfuse"] = trials.run(_build_squashfuse_try(programs["squashfuse_ll"], ZSTD_IMAGE))
        if not found["squashfuse"].is_ok:
            found["squashfuse-gzip"] = trials.run(_build_squashfuse_try(programs["squashfuse_ll"], GZIP_IMAGE))
    if "fuse-overlayfs" in programs:
        found["fuse-overlayfs"] = trials.run(_build_fuse_overlayfs_try(programs["fuse-overlayfs"]))
    if "newuidmap" in programs and subuid_ranges:
        found["subuid"] = trials.run(_build_subuid_try(programs["newuidmap"], subuid_ranges[0]))
    return found


def _build_asking(argv: list[str]) -> Attempt:
    def attempt() -> str:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
        lines = (done.stdout + done.stderr).splitlines()
        return next((line.strip()[:120] for line in lines if re.search(r"\d+\.\d+", line)), "")

    return attempt


def _build_squashfuse_try(program: str, image: bytes) -> Attempt:
    """Mount an image in a user namespace, without fusermount, and read the file in it."""

    def attempt() -> str:
        enter(("mount", "pid"))
        take_step("tmpfs", lambda: kernel.mount("tmpfs", STAGE, kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m"))
        file, root = Path(STAGE, "image"), Path(STAGE, "root")
        file.write_bytes(image)
        root.mkdir()
        return _use_daemon([program, "-f", str(file), str(root)], root / INSIDE)

    return attempt


def _build_fuse_overlayfs_try(program: str) -> Attempt:
    """Mount an overlay by FUSE, and read a file of its lower directory through it."""

    def attempt() -> str:
        enter(("mount", "pid"))
        take_step("tmpfs", lambda: kernel.mount("tmpfs", STAGE, kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m"))
        for name in ("lower", "upper", "work", "root"):
            Path(STAGE, name).mkdir()
        Path(STAGE, "lower", INSIDE).write_text(CONTENT)
        options = f"lowerdir={STAGE}/lower,upperdir={STAGE}/upper,workdir={STAGE}/work"
        return _use_daemon([program, "-f", "-o", options, f"{STAGE}/root"], Path(STAGE, "root", INSIDE))

    return attempt


def _use_daemon(argv: list[str], file: Path) -> str:
    """Start a FUSE daemon in the foreground and wait for a file of its mount; as pid 1, whose end ends the daemon."""
    with open(f"{STAGE}/words", "w+") as words:
        daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=words, stderr=words)
        while not file.exists():
            try:
                daemon.wait(0.01)
            except subprocess.TimeoutExpired:
                continue
            words.seek(0)
            said = words.read().strip().splitlines()
            raise OSError(0, f"{argv[0]} ended with {daemon.returncode}: {said[-1] if said else 'no word'}")
        if file.read_text() != CONTENT:
            raise OSError(0, f"{argv[0]} shows another content than the image has")
    return ""


def _build_subuid_try(program: str, ids: tuple[int, int]) -> Attempt:
    """Have newuidmap map this user's range for a user namespace."""

    def attempt() -> str:
        pid, is_there = _fork_into_user_namespace()
        if not is_there:
            raise OSError(0, "no user namespace")
        first, count = ids
        argv = [program, str(pid), "0", str(os.getuid()), "1", "1", str(first), str(count)]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if done.returncode:
            raise OSError(0, (done.stderr.strip() or f"{program} ended with {done.returncode}")[:200])
        return ""

    return attempt


def _fork_into_user_namespace() -> tuple[int, bool]:
    """Start a child that waits in a user namespace whose ids nobody has mapped; says whether it got there."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        kernel.set_death_signal(signal.SIGKILL)
        try:
            calls.unshare(calls.NEW_USER)
            os.write(write_fd, b"r")
        finally:
            os.close(write_fd)
            signal.pause()
    os.close(write_fd)
    return pid, bool(os.read(read_fd, 1))
