"""Swaps directories and files with links that lead out, for ever; run as a program: WORK LINK-TARGET COUNT-FILE.

As powerful as a process in a sandbox and no more: by descriptors of real directories, so that its own acts stay inside.
"""

import ctypes
import mmap
import os
import sys

EXCHANGE = 2
LIBC = ctypes.CDLL(None, use_errno=True)


def swap(first_fd: int, first: str, second_fd: int, second: str) -> bool:
    """Exchange two names at once: neither is ever missing. Source: renameat2(2)."""
    return LIBC.renameat2(first_fd, first.encode(), second_fd, second.encode(), EXCHANGE) == 0


def open_real(dir_fd: int, *names: str) -> int:
    """Open a directory, made where it is missing; ours to close. Errors: OSError when a link has the name."""
    fd = os.dup(dir_fd)
    for name in names:
        try:
            os.mkdir(name, dir_fd=fd)
        except FileExistsError:
            pass
        try:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def put(dir_fd: int, name: str) -> None:
    """Have a file there that says `inside`, unless something has the name."""
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, dir_fd=dir_fd)
    os.write(fd, b"inside")
    os.close(fd)


def swap_all(work_fd: int) -> int:
    """Swap each pair once; gives how many were."""
    count = swap(work_fd, "d", work_fd, "d-link") + swap(work_fd, "f", work_fd, "f-link")
    try:
        d_fd = open_real(work_fd, "d")
    except OSError:
        return count
    try:
        count += swap(d_fd, "deep", work_fd, "deep-link")
        deep_fd = open_real(d_fd, "deep")
        put(deep_fd, "secret")
        os.close(deep_fd)
    except OSError:
        pass  # A link has the name just now.
    finally:
        os.close(d_fd)
    return count


def main(work: str, target: str, count_file: str) -> None:
    """Plant everything, then swap it until killed."""
    work_fd = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
    os.close(open_real(work_fd, "d", "deep"))
    put(work_fd, "f")
    for name, link in (("d-link", target), ("f-link", f"{target}/secret"), ("deep-link", f"{target}/deep")):
        os.symlink(link, name, dir_fd=work_fd)
    with open(count_file, "r+b") as file:
        counter = mmap.mmap(file.fileno(), 8)
    total = 0
    while True:
        total += swap_all(work_fd)
        counter[:8] = total.to_bytes(8, "little")


if __name__ == "__main__":
    main(*sys.argv[1:4])
