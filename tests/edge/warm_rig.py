"""A host made of blocking calls: starts a real warm parent, takes its children, speaks to them by hand.

Every wait has a deadline; teardown ends the warm parent by pid and says if a child outlived it.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from retinue.checks.records import (
    Broken,
    Ended,
    Judge,
    Judged,
    Limits,
    Loading,
    Prepare,
    Prepared,
    Seal,
    Spare,
    Want,
    WarmConfig,
    Warmed,
)
from retinue.terms.record import from_json, to_json

DEADLINE_S = 30.0
SEAL = "seal-of-the-host"
FromWarmParent = Warmed | Broken | Spare | Ended


class Child:
    """One child, its socket and its pidfd."""

    def __init__(self, number: int, sock: socket.socket, pidfd: int) -> None:
        self.number = number
        self.sock = sock
        self.pidfd = pidfd
        sock.settimeout(DEADLINE_S)

    def send(self, *messages: Prepare | Judge | Seal) -> None:
        bodies = [to_json(message) for message in messages]
        self.sock.sendall(b"".join(len(body).to_bytes(4, "big") + body for body in bodies))

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                part = self.sock.recv(count - len(data))
            except ConnectionResetError:  # It ended with our seal unread.
                part = b""
            if not part:
                raise EOFError(f"{len(data)} of {count} bytes")
            data += part
        return data

    def read_body(self) -> bytes:
        return self.read(int.from_bytes(self.read(4), "big"))

    def prepare(self, verifier: str, gold: Any = None, args: dict[str, Any] | None = None, **limits: Any) -> Prepared:
        self.send(Prepare("first", verifier, gold, args or {}, Limits(**limits)))
        prepared = from_json(self.read_body(), Prepared)
        assert prepared.nonce == "first"
        return prepared

    def judge(self, response: str = "") -> Judged:
        self.send(Judge(response), Seal(SEAL))
        judged = from_json(self.read_body(), Judged)
        assert judged.nonce == SEAL
        return judged

    def ask(self, verifier: str, response: str = "", gold: Any = None, args: dict[str, Any] | None = None) -> Judged:
        assert self.prepare(verifier, gold, args).rejected is None
        return self.judge(response)

    def tell(self, verifier: str, response: str = "") -> str:
        """Ask, and return the reason; an error of the verifier fails the test."""
        judged = self.ask(verifier, response)
        assert judged.error is None, judged.error
        return judged.reason

    def wait_gone(self) -> None:
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        assert poller.poll(DEADLINE_S * 1000), "the child did not end"

    def close(self) -> None:
        self.sock.close()
        os.close(self.pidfd)


class Warm:
    """A warm parent and what it said."""

    def __init__(self, config: WarmConfig, prefix: Sequence[str] = (), env: dict[str, str] | None = None) -> None:
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(DEADLINE_S)
        # A few packets fill it: what the warm parent cannot send yet it must keep.
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        config_fd = os.memfd_create("config")
        os.write(config_fd, to_json(config))
        os.lseek(config_fd, 0, os.SEEK_SET)
        argv = [*prefix, sys.executable, "-P", "-m", "retinue.checks.warm"]
        options = ["--control-fd", str(theirs.fileno()), "--config", str(config_fd)]
        self.process = subprocess.Popen(
            [*argv, *options], pass_fds=(theirs.fileno(), config_fd), env=env, stdin=subprocess.DEVNULL
        )
        theirs.close()
        os.close(config_fd)
        self.children: list[Child] = []
        self.spares: list[Child] = []
        self.ended: dict[int, Ended] = {}
        self.loading: list[Loading] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self.sock.close()
        for child in self.children:
            child.wait_gone()
            child.close()

    def hear(self) -> FromWarmParent:
        """What it says next, other than what it is about to load."""
        while isinstance(message := self.hear_all(), Loading):
            self.loading.append(message)
        return message

    def hear_all(self) -> FromWarmParent | Loading:
        packet, fds, _, _ = socket.recv_fds(self.sock, 1 << 20, 2)
        if not packet:
            raise EOFError("the warm parent hung up")
        message: FromWarmParent | Loading = from_json(packet, FromWarmParent | Loading)  # type: ignore[arg-type]
        if isinstance(message, Spare):
            child = Child(message.child, socket.socket(fileno=fds[0]), fds[1])
            self.children.append(child)
            self.spares.append(child)
        elif isinstance(message, Ended):
            self.ended[message.child] = message
        return message

    def hear_warmed(self) -> Warmed:
        message = self.hear()
        assert isinstance(message, Warmed), message
        return message

    def want(self, spares: int, slow: Sequence[int] = ()) -> None:
        self.sock.send(to_json(Want(spares, list(slow))))

    def take(self) -> Child:
        until_s = time.monotonic() + DEADLINE_S
        while not self.spares:
            assert time.monotonic() < until_s
            self.hear()
        return self.spares.pop(0)

    def wait_ended(self, child: Child) -> Ended:
        until_s = time.monotonic() + DEADLINE_S
        while child.number not in self.ended:
            assert time.monotonic() < until_s
            self.hear()
        return self.ended[child.number]


@contextmanager
def open_warm(
    directory: Path, source: str, names: Sequence[str], prefix: Sequence[str] = (), **config: Any
) -> Iterator[Warm]:
    """Run a warm parent over one plugin file whose functions are the verifiers; one spare is wanted."""
    (directory / "awkward.py").write_text(source)
    settings = {"path": [str(directory)], **config}
    verifiers = {name: f"awkward:{name}" for name in names}
    with Warm(WarmConfig(verifiers=verifiers, **settings), prefix, build_env()) as warm:
        warm.hear_warmed()
        warm.want(1)
        yield warm


def build_env(**more: str) -> dict[str, str]:
    kept = ("PATH", "PYTHONPATH", "HOME", "PYTHONDONTWRITEBYTECODE")
    return {name: os.environ[name] for name in kept if name in os.environ} | more


def parse_report(text: str) -> dict[str, Any]:
    """Read what a plugin put into its reason."""
    report: dict[str, Any] = json.loads(text)
    return report


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
