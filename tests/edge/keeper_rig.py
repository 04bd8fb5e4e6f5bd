"""One real node under test: outer process, keeper and a puppet agent that the test plays itself."""

import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from retinue import __version__
from retinue.channel.join import Join, write_join
from retinue.node.census import build_census, build_tags, find_left
from retinue.node.descriptors import receive_packet, send_packet, write_body
from retinue.node.orders import Handover, Inventory, InventoryDone, Spawn, SpawnBody, Spawned, ToAgent
from retinue.node.scan import list_pids, read_words
from retinue.node.settings import NodeSettings
from retinue.terms.record import to_json

T = TypeVar("T")
HERE = Path(__file__).parent
PATIENCE_S = 30.0
NO_NAMESPACES = ("unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"', "sh")
"""A user namespace in which no further one may be made: what a site looks like that turned them off."""
RUN_OUTER = (
    "import sys; from retinue.node.outer import run_outer; from retinue.node.settings import NodeSettings; "
    "from retinue.terms.record import from_json; "
    "sys.exit(run_outer(sys.argv[1], int(sys.argv[2]), from_json(sys.argv[3], NodeSettings)))"
)
_PEM = "-----BEGIN {0}-----\nAAAA\n-----END {0}-----\n"


def wait_for(what: str, condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """Wait until the condition is true and return its value."""
    until_s = time.monotonic() + patience_s
    while not (value := condition()):
        assert time.monotonic() < until_s, f"waited {patience_s:g} s for {what}"
        time.sleep(0.01)
    return value


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Puppet:
    """One agent: what the keeper says to it, the test hears; what the test says, the keeper obeys."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.pid: int = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        self.heard: list[Any] = []
        self.handed: dict[str, list[int]] = {}
        end.settimeout(PATIENCE_S)

    def send(self, order: Any, fds: tuple[int, ...] = ()) -> None:
        send_packet(self.end, order, fds)

    def hear(self, kind: type[T], replica: str = "") -> T:
        """Wait for the next packet of this kind; what comes before it stays in `heard`."""
        while True:
            for order in self.heard:
                if isinstance(order, kind) and (not replica or order.replica == replica):
                    self.heard.remove(order)
                    return order
            packet = receive_packet(self.end, ToAgent)
            assert packet is not None, f"the agent ended before {kind.__name__}; heard {self.heard}"
            order, fds = packet
            if isinstance(order, Handover):
                self.handed[order.replica] = fds
            self.heard.append(order)

    def take_inventory(self) -> Inventory:
        inventory = self.hear(Inventory)
        self.hear(InventoryDone)
        return inventory

    def order(self, replica: str, argv: list[str], env: dict[str, str] | None = None, incarnation: int = 1) -> int:
        """Order a service whose output is held as `log`; returns the test's own copy of the read end."""
        read_fd, write_fd = os.pipe()
        body = SpawnBody(argv=tuple(argv), env=env or {"PATH": os.environ["PATH"]}, cwd="/", note=f"about {replica}")
        body_fd = write_body(body)
        self.send(Spawn(replica, incarnation, ("log",)), (body_fd, write_fd, read_fd))
        os.close(body_fd)
        os.close(write_fd)
        return read_fd

    def start(self, replica: str, script: str) -> tuple[Spawned, int]:
        """Order a shell script and wait until it runs."""
        log_fd = self.order(replica, ["sh", "-c", script])
        return self.hear(Spawned, replica), log_fd


class Node:
    """One launch of an outer process."""

    def __init__(
        self, wrap: tuple[str, ...], wants_namespace: bool, prepare: Callable[[Path], None], **settings: Any
    ) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="rk-"))
        self.node_dir = self.place / "node"
        prepare(self.node_dir)
        self.run_id = f"{random.getrandbits(48):012x}"
        self.mark = f"1000.{random.randrange(10**9, 10**10)}"
        """Argument of `sleep` that nobody else's process has: finds escapees that dropped their environment."""
        self.tags = build_tags(self.run_id, "n1")
        self.agents = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.agents.bind(str(self.place / "agents"))
        self.agents.listen(8)
        self.agents.settimeout(PATIENCE_S)
        stop_fd, self.stop_fd = os.pipe()
        python = sys.executable
        given = {
            "agent_argv": (python, str(HERE / "keeper_puppet.py"), "{keeper_fd}", str(self.place / "agents")),
            "gateway_argv": (python, str(HERE / "keeper_gateway.py"), "{listen_fd}", "{beat_fd}"),
            **settings,
        }
        join_path = self._write_join(wants_namespace)
        settings_json = to_json(NodeSettings(**given)).decode()
        self.outer = subprocess.Popen(
            [*wrap, python, "-P", "-c", RUN_OUTER, str(join_path), str(stop_fd), settings_json],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(stop_fd,),
            start_new_session=True,
        )
        os.close(stop_fd)
        self.keeper_pid = 0
        self.puppets: list[Puppet] = []

    def _write_join(self, wants_namespace: bool) -> Path:
        path = self.place / "n1.pem"
        join = Join(
            run_id=self.run_id,
            attempt=0,
            node="n1",
            addresses=(("127.0.0.1", 1),),
            run_dir=str(self.place),
            attempt_dir=str(self.place),
            node_dir=str(self.node_dir),
            start_dir="/",
            python=sys.executable,
            version=__version__,
            ca_pem=_PEM.format("CERTIFICATE"),
            cert_pem=_PEM.format("CERTIFICATE"),
            key_pem=_PEM.format("PRIVATE KEY"),
            token="",
            wants_namespace=wants_namespace,
        )
        write_join(path, join)
        return path

    def next_agent(self) -> Puppet:
        puppet = Puppet(self.agents.accept()[0])
        self.puppets.append(puppet)
        return puppet

    def first_agent(self) -> Puppet:
        """The first agent, its inventory read."""
        puppet = self.next_agent()
        self.inventory = puppet.take_inventory()
        self.keeper_pid = self.inventory.keeper_host_pid
        return puppet

    def janitor_pid(self) -> int:
        """The outer process's twin: same words, another process, and no child of it."""
        words = read_words(self.outer.pid, "cmdline")
        others = (pid for pid in list_pids() if pid != self.outer.pid and read_words(pid, "cmdline") == words)
        return next(filter(is_running, others), 0)

    def marked_pids(self) -> list[int]:
        """Everything of this node: by environment, and by the argument that only its sleepers have."""
        return sorted({*find_left(build_census(self.tags)), *self._find_mark()})

    def _find_mark(self) -> Iterator[int]:
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and self.mark.encode() in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                    yield int(name)
            except OSError:
                continue

    def finish(self) -> tuple[int, dict[str, Any]]:
        """Wait for the end; returns the exit code and the one line."""
        output, errors = self.outer.communicate(timeout=PATIENCE_S)
        lines = output.decode().splitlines()
        assert len(lines) == 1, (lines, errors.decode())
        return self.outer.returncode, json.loads(lines[0])

    def stop(self) -> None:
        os.close(self.stop_fd)
        self.stop_fd = -1

    def wait_gone(self) -> None:
        wait_for("all of the node to be gone", lambda: not self.marked_pids(), 15.0)
        wait_for("the node directory to be gone", lambda: not self.node_dir.exists(), 15.0)

    def close(self) -> None:
        """Whatever a failed test left is ended by pid."""
        if self.stop_fd >= 0:
            self.stop()
        try:
            self.outer.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            self.outer.kill()
            self.outer.communicate()
        for pid in self.marked_pids():
            os.kill(pid, signal.SIGKILL)
        for end in (self.agents, *(puppet.end for puppet in self.puppets)):
            end.close()
        shutil.rmtree(self.place)


@contextmanager
def running_node(
    rung: str = "namespace", prepare: Callable[[Path], None] = lambda _: None, **settings: Any
) -> Iterator[Node]:
    """A node that is over when the test is; rung `namespace`, `refused` or `off`.

    `prepare` is called with the node directory's path before anything starts.
    """
    node = Node(NO_NAMESPACES if rung == "refused" else (), rung != "off", prepare, **settings)
    try:
        yield node
    finally:
        node.close()
