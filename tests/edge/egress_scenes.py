"""A node in a network of its own, with an outside that would really answer, and guarded services that do as told.

203.0.113.0/24 and 2001:db8:0:7::/64 are delivered to this very host, yet are nobody's address:
whatever reaches them has got out. 10.9.0.1 is the node's own. Nothing leaves the machine.
"""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from keeper_rig import PATIENCE_S, Node, Puppet, wait_for

from retinue.node.descriptors import write_body
from retinue.node.orders import DeniedSeen, Spawn, SpawnBody, Spawned
from retinue.terms.egress import Denied, EgressRule

ACTOR = Path(__file__).with_name("egress_actor.py")
OUTSIDE, OUTSIDE6, NEIGHBOUR, OWN = "203.0.113.7", "2001:db8:0:7::9", "10.9.0.77", "10.9.0.1"
HELLO = "inside out"
_NETWORK = (
    "ip link set lo up && ip link add d0 type veth peer name d1 && ip link set d1 up"
    " && ip addr add 10.9.0.1/24 dev d0 && ip addr add 10.9.0.2/32 dev d0"
    " && ip -6 addr add fd09::1/64 dev d0 nodad && ip link set d0 up"
    # Nobody has this address, and nobody is asked for it: what goes there is lost.
    " && ip neigh add 10.9.0.77 lladdr 02:00:00:00:00:77 dev d0"
    " && ip route add local 203.0.113.0/24 dev lo && ip -6 route add local 2001:db8:0:7::/64 dev lo"
    ' && exec unshare -U --map-user={uid} --map-group={gid} -- "$@"'
)
needs_ip = pytest.mark.skipif(shutil.which("ip") is None, reason="the network of these tests is made by ip (iproute2)")


def build_wrap() -> tuple[str, ...]:
    """Words before a command that give it a network of its own, and the caller's own ids in it."""
    script = _NETWORK.replace("{uid}", str(os.getuid())).replace("{gid}", str(os.getgid()))
    return ("unshare", "-Urn", "sh", "-c", script, "sh")


@cache
def find_network_obstacle() -> str:
    """Say why such a network cannot be made here; empty when it can."""
    made = subprocess.run([*build_wrap(), "true"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return made.stderr.strip() if made.returncode else ""


class Guarded:
    """One guarded service, at the other end of a line."""

    def __init__(self, line: socket.socket, replica: str) -> None:
        self.replica = replica
        self._line = line
        self._words = line.makefile("r")
        line.settimeout(PATIENCE_S)
        self.pid: int = self._read()

    def ask(self, code: str) -> Any:
        """Run this and give its value; an OSError there is its errno's name here."""
        self.begin(code)
        return self._read()

    def begin(self, code: str) -> None:
        """Have this run and do not wait; `finish` gives what `ask` would."""
        self._line.sendall(json.dumps(code).encode() + b"\n")

    def finish(self) -> Any:
        return self._read()

    def close(self) -> None:
        self._words.close()
        self._line.close()

    def _read(self) -> Any:
        said = json.loads(self._words.readline())
        if isinstance(said, list):
            return said[0]
        assert "errno" in said, said
        return errno.errorcode[said["errno"]]


class Stage:
    """One node, its agent on strings, and what stands outside."""

    def __init__(self, **settings: Any) -> None:
        obstacle = find_network_obstacle()
        if obstacle:
            pytest.skip(f"no network of its own for a test: {obstacle}")
        self.node = Node(build_wrap(), True, lambda _: None, **settings)
        try:
            self.agent: Puppet = self.node.first_agent()
        except TimeoutError:
            self.node.close()
            raise
        if self.node.inventory.guard_off:
            self.node.close()
            pytest.skip(f"no guard here: {self.node.inventory.guard_off}")
        self.denied: dict[tuple[str, str, str, int], Denied] = {}
        self._lines = socket.socket(socket.AF_UNIX)
        self._lines.bind(str(self.node.place / "actors"))
        self._lines.listen(8)
        self._lines.settimeout(PATIENCE_S)
        self.guarded: list[Guarded] = []
        self._logs: list[int] = []

    def start(self, replica: str, rule: EgressRule | None, *prefix: str) -> Guarded:
        """Start a service that does as told."""
        argv = (*prefix, sys.executable, "-S", str(ACTOR), str(self.node.place / "actors"))
        self.order(replica, argv, rule)
        self.agent.hear(Spawned, replica)
        line, _ = self._lines.accept()
        self.guarded.append(Guarded(line, replica))
        return self.guarded[-1]

    def order(self, replica: str, argv: tuple[str, ...], rule: EgressRule | None) -> None:
        read_fd, write_fd = os.pipe()
        env = {"PATH": os.environ["PATH"], "HOME": "/"}
        body_fd = write_body(SpawnBody(argv=argv, env=env, cwd=str(self.node.place), egress=rule))
        self.agent.send(Spawn(replica, 1, ("log",)), (body_fd, write_fd, read_fd))
        os.close(body_fd)
        os.close(write_fd)
        self._logs.append(read_fd)

    def find_supervisor(self) -> int:
        """The supervisor's pid on this host; 0: there is none now."""
        keeper = self.node.keeper_pid
        for child in Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split():
            with suppress(OSError):  # One that dies while it is looked at.
                if Path(f"/proc/{child}/comm").read_text().strip() == "retinue-egress":
                    return int(child)
        return 0

    def wait_denied(self, replica: str, what: str, address: str = "", port: int = 0) -> Denied:
        """Wait until the ledger has this line."""

        def find() -> Denied | None:
            self._take_denied()
            return self.denied.get((replica, what, address, port))

        found = wait_for(f"{what} {address}:{port} in the ledger", find)
        assert isinstance(found, Denied)
        return found

    def _take_denied(self) -> None:
        self.agent.end.settimeout(0.05)
        try:
            while True:
                for line in self.agent.hear(DeniedSeen).lines:
                    self.denied[line.key] = line
        except (BlockingIOError, TimeoutError):
            return
        finally:
            self.agent.end.settimeout(PATIENCE_S)

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for guarded in self.guarded:
            guarded.close()
        for fd in self._logs:
            os.close(fd)
        self._lines.close()
        self.node.close()
