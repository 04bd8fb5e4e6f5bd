"""Descriptors the stub opens, finds, or makes sure of. Standard library only."""

import os
import socket

BACKLOG = 1024


def listen(host: str) -> socket.socket:
    """Bind the controller's address, for as long as the run lasts.

    Errors: OSError when the address is not one of this host's.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if host == "::":
            # IPv4 too, whatever net.ipv6.bindv6only says.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, 0))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def open_log(path: str) -> int:
    """Open what the controller prints into; a full or vanished directory does not keep it from starting."""
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def find_inherited_fds() -> tuple[int, ...]:
    """List what the caller handed down beside the terminal (a shell's `<(...)`): meant for the trainer."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            if fd > 2 and os.get_inheritable(fd):
                found.append(fd)
        except OSError:
            continue  # The listing's own descriptor, closed by now.
    return tuple(sorted(found))


def open_standard_fds() -> None:
    """Make sure that 0, 1 and 2 exist: a pipe of ours in their place would be read and written by strangers."""
    fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    while fd <= 2:
        os.set_inheritable(fd, True)
        fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.close(fd)
