"""What every attack has at hand. Its source goes in front of each attack; nothing of the tests is imported."""

import ctypes
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
SOCKET_FD = 3


def attempt(action: Callable[[], Any]) -> Any:
    """What an action got, in a list; an empty list when it was refused."""
    try:
        return [action()]
    except (OSError, ValueError, OverflowError, AttributeError):
        return []


def call(name: str, *arguments: Any) -> list[str]:
    """A C function's success is loot."""
    result = getattr(LIBC, name)(*arguments)
    return [f"{name} gave {result}"] if result >= 0 else []


def need_walls() -> None:
    """Sweeping attacks fire only where they can meet nobody: as pid 1 of a namespace. Elsewhere they say so."""
    if os.getpid() != 1:
        raise RuntimeError("NOT LOCKED IN: this attack would reach this machine")


def need_limit(kind: int, most: int) -> None:
    """Exhausting attacks fire only where the limit that ends them is in force."""
    import resource

    if not 0 <= resource.getrlimit(kind)[0] <= most:
        raise RuntimeError("NOT LIMITED: this attack would exhaust this machine")


def frame(**fields: Any) -> bytes:
    """A result as the protocol has it."""
    body = json.dumps({"nonce": "", "score": 1.0, "reason": "forged", "error": None} | fields).encode()
    return struct.pack(">I", len(body)) + body


def read_seal() -> str:
    """Steal the true nonce: whoever runs inside the verifier can."""
    size = struct.unpack(">I", os.read(SOCKET_FD, 4))[0]
    return str(json.loads(os.read(SOCKET_FD, size))["nonce"])


def spin() -> None:
    while True:
        pass


def sleep_for_ever() -> None:
    while True:
        time.sleep(60)


def block_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def connect(family: int, address: Any, kind: int = socket.SOCK_STREAM) -> list[str]:
    """Reach somebody, by a new socket or a pair's half that is sent elsewhere."""
    got = []
    for make in (lambda: socket.socket(family, kind), lambda: socket.socketpair(socket.AF_UNIX, kind)[0]):
        for reach in (lambda s: s.connect(address), lambda s: s.sendto(b"x", address)):
            try:
                with make() as half:
                    half.settimeout(1)
                    reach(half)
                    got.append(f"{family} {address}")
            except (OSError, TypeError):
                continue
    return got


def read(path: str) -> list[str]:
    """A file's or directory's content is loot."""
    try:
        if os.path.isdir(path):
            return [f"{path}: {name}" for name in os.listdir(path)]
        with open(path, "rb") as file:
            return [f"{path}: {file.read(200)!r}"]
    except OSError:
        return []
