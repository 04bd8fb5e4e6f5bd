"""The warm parent's memory in huge pages: a fork copies one entry where it copied 512, for every child.

A quarter of a check's CPU time was copying page tables. What a child writes to is split and copied
by the small page as before. Only ever faster or not: a kernel without it is left as it is.
"""

import os
from collections.abc import Iterator

from retinue.checks.jail import syscalls

_HUGE_BYTES = 2 * 2**20
_READ_BYTES = 1 << 16


def collapse_heap(proc_fd: int) -> None:
    """Put all of the caller's private memory that is large enough into huge pages, as far as the kernel allows."""
    for start in _list_huge(_read_maps(proc_fd)):
        try:
            syscalls.collapse_pages(start, _HUGE_BYTES)
        except OSError:  # Before Linux 6.1; or no such page is free, or nothing is in this one.
            continue


def _list_huge(maps: str) -> Iterator[int]:
    """List the aligned huge pages that lie within writable private memory of no file. Source: proc_pid_maps(5)."""
    for line in maps.splitlines():
        span, rights, _offset, _device, inode, *name = line.split(maxsplit=5)
        if rights == "rw-p" and inode == "0" and (not name or name[0] == "[heap]"):
            start, end = (int(word, 16) for word in span.split("-"))
            yield from range(-(-start // _HUGE_BYTES) * _HUGE_BYTES, end - _HUGE_BYTES + 1, _HUGE_BYTES)


def _read_maps(proc_fd: int) -> str:
    fd = os.open("self/maps", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd)
    try:
        return b"".join(iter(lambda: os.read(fd, _READ_BYTES), b"")).decode("utf-8", "replace")
    finally:
        os.close(fd)
