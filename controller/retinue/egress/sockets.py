"""Calls on a socket's bare descriptor, with bare addresses as the caller gave them; an errno is an answer."""

import ctypes
import os
import socket
from typing import NamedTuple

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.connect.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
_LIBC.sendto.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
_LIBC.sendto.restype = ctypes.c_ssize_t
_LIBC.getsockopt.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_LIBC.setsockopt.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint)


class _Timeval(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("microseconds", ctypes.c_long))


_SHORTEST = (0, 1)
_INT = ctypes.sizeof(ctypes.c_int)


class Kind(NamedTuple):
    """What a socket is."""

    domain: int
    type: int


def find_kind(fd: int) -> Kind:
    """Ask what a descriptor is.

    Errors: OSError ENOTSOCK.
    """
    return Kind(_get_int(fd, socket.SO_DOMAIN), _get_int(fd, socket.SO_TYPE))


def is_blocking(fd: int) -> bool:
    return os.get_blocking(fd)


def connect(fd: int, address: bytes) -> int:
    """Connect; 0 or the errno."""
    return 0 if _LIBC.connect(fd, address, len(address)) == 0 else ctypes.get_errno()


def send(fd: int, payload: bytes, flags: int, address: bytes) -> tuple[int, int]:
    """Send a datagram: (bytes that went, errno)."""
    count = int(_LIBC.sendto(fd, payload, len(payload), flags, address, len(address)))
    return (count, 0) if count >= 0 else (-1, ctypes.get_errno())


def read_send_timeout(fd: int) -> tuple[int, int]:
    """Read SO_SNDTIMEO: (seconds, microseconds); zeros: none."""
    value = _Timeval()
    size = ctypes.c_uint(ctypes.sizeof(value))
    if _LIBC.getsockopt(fd, socket.SOL_SOCKET, socket.SO_SNDTIMEO, ctypes.byref(value), ctypes.byref(size)) < 0:
        return 0, 0
    return value.seconds, value.microseconds


def write_send_timeout(fd: int, timeout: tuple[int, int] = _SHORTEST) -> None:
    """Set SO_SNDTIMEO; without a value the shortest there is, so that a connect begins and does not wait."""
    value = _Timeval(*timeout)
    _LIBC.setsockopt(fd, socket.SOL_SOCKET, socket.SO_SNDTIMEO, ctypes.byref(value), ctypes.sizeof(value))


def build_loopback_datagram(domain: int, kind: int, protocol: int) -> socket.socket:
    """Make a UDP socket that is bound to the loopback device; undoing that needs CAP_NET_RAW.

    Errors: OSError.
    """
    made = socket.socket(domain, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
    except OSError:
        made.close()
        raise
    return made


def _get_int(fd: int, option: int) -> int:
    value, size = ctypes.c_int(), ctypes.c_uint(_INT)
    if _LIBC.getsockopt(fd, socket.SOL_SOCKET, option, ctypes.byref(value), ctypes.byref(size)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return value.value
