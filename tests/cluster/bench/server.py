"""The control socket: one JSON request line, one JSON answer line per connection, from a fixed list of verbs.

Open to root and to the cluster's ordinary user (SO_PEERCRED). A command can be run on a host as one of the two test
users, never as root; what needs root is a verb of its own.
"""

import json
import os
import signal
import socket
import socketserver
import struct
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.deeds import kill_stepd, shadow, unshadow
from bench.files import write_hosts
from bench.layout import LOGIN, Refusal
from bench.procs import build_become, build_enter

if TYPE_CHECKING:
    from bench.fabric import Fabric

Answer = dict[str, Any]


def cut(fabric: "Fabric", host: str) -> Answer:
    fabric.machines[host].cut()
    return {}


def blackhole(fabric: "Fabric", host: str) -> Answer:
    fabric.machines[host].blackhole()
    return {}


def heal(fabric: "Fabric", host: str) -> Answer:
    fabric.machines[host].heal()
    write_hosts(fabric.layout, host)
    return {}


def loopback_name(fabric: "Fabric", host: str) -> Answer:
    write_hosts(fabric.layout, host, is_loopback=True)
    return {}


def kill_node(fabric: "Fabric", host: str) -> Answer:
    fabric.kill_host(host)
    return {}


def revive(fabric: "Fabric", host: str) -> Answer:
    fabric.revive(host)
    return {}


def slurmd(fabric: "Fabric", what: str, host: str) -> Answer:
    return steer(fabric, "slurmd", what, host)


def slurmctld(fabric: "Fabric", what: str) -> Answer:
    return steer(fabric, "slurmctld", what, LOGIN)


def steer(fabric: "Fabric", daemon: str, what: str, host: str) -> Answer:
    """`stop` lets the daemon save its state, `kill` does not."""
    match what:
        case "start":
            fabric.start_daemon(daemon, host)
        case "stop":
            fabric.stop_daemon(daemon, host, signal.SIGTERM)
        case "kill":
            fabric.stop_daemon(daemon, host, signal.SIGKILL)
        case _:
            raise Refusal(f"cannot {what} {daemon}: start, stop or kill")
    return {}


def restore(fabric: "Fabric") -> Answer:
    """Undo every fault, end every job and process of the test users on the nodes, and wait until all nodes are idle."""
    for host, machine in fabric.machines.items():
        if not machine.is_alive:
            fabric.revive(host)
        heal(fabric, host)
        unshadow(fabric, host)
        fabric.start_daemon("slurmctld" if host == LOGIN else "slurmd", host)
    enter = build_enter(fabric.machines[LOGIN].pid)
    for user in fabric.layout.ids:
        subprocess.run([*enter, "timeout", "20", "scancel", "--user", user], check=False)
    fabric.wait_idle()
    for host in fabric.layout.nodes:
        sweep(fabric, host)
    return {}


def sweep(fabric: "Fabric", host: str) -> None:
    """End what the test users left on a node, and remove their files from its own places (never from what is shared).

    The user itself kills: in the host's pid namespace "all that I may signal" is just that. The test that left
    something has had its chance to complain.
    """
    places = "/tmp /var/tmp /dev/shm"
    script = f'kill -KILL -1; find {places} -xdev -mindepth 1 -user "$(id -un)" -delete 2>/dev/null'
    for ids in fabric.layout.ids.values():
        become = build_become(ids, "/", {})
        subprocess.run([*build_enter(fabric.machines[host].pid), *become, "sh", "-c", script], check=False)


def where(fabric: "Fabric") -> Answer:
    """What is alive, for people."""
    alive = {host: machine.is_alive for host, machine in fabric.machines.items()}
    daemons = {key: daemon.poll() is None for key, daemon in fabric.daemons.items()}
    return {"hosts": alive, "daemons": daemons, "nodes": sorted(fabric.node_states())}


VERBS: dict[str, Callable[..., Answer]] = {
    "cut": cut,
    "heal": heal,
    "blackhole": blackhole,
    "loopback-name": loopback_name,
    "kill-node": kill_node,
    "revive": revive,
    "kill-stepd": kill_stepd,
    "shadow": shadow,
    "unshadow": unshadow,
    "slurmd": slurmd,
    "slurmctld": slurmctld,
    "restore": restore,
    "where": where,
}


def run_as(fabric: "Fabric", asked: dict[str, Any]) -> Answer:
    """Run a command on a host as a test user, without Slurm; at most `patience_s`."""
    layout, machine = fabric.layout, fabric.machines[asked["host"]]
    user = asked.get("user") or layout.user
    if user not in layout.ids:
        raise Refusal(f"cannot run as {user!r}: {' or '.join(layout.ids)}")
    if not machine.is_alive:
        raise Refusal(f"cannot run on {machine.host}: it is dead")
    become = build_become(layout.ids[user], str(layout.home(user)), asked.get("env") or {})
    limit = ["timeout", "--kill-after=2", f"{float(asked['patience_s'])}"]
    argv = [*build_enter(machine.pid), *become, *limit, *map(str, asked["argv"])]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    return {"code": done.returncode, "out": out, "err": err}


def answer(fabric: "Fabric", asked: dict[str, Any]) -> Answer:
    verb, words = asked["verb"], asked.get("words") or []
    if verb == "run":
        return run_as(fabric, asked)
    if verb not in VERBS:
        raise Refusal(f"unknown verb {verb!r}: run, {', '.join(VERBS)}")
    if words and verb not in ("slurmctld",) and words[-1] not in fabric.machines:
        raise Refusal(f"unknown host {words[-1]!r}: {', '.join(fabric.machines)}")
    with fabric.lock:
        return VERBS[verb](fabric, *words)


class Handler(socketserver.StreamRequestHandler):
    """One connection, one request."""

    server: "Server"

    def handle(self) -> None:
        fabric = self.server.fabric
        _, uid, _ = struct.unpack("3i", self.request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in (0, fabric.layout.uid):
            return
        try:
            said: Answer = {"ok": True} | answer(fabric, json.loads(self.rfile.readline()))
        except (Refusal, OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError) as error:
            said = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        self.wfile.write(json.dumps(said).encode() + b"\n")


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, fabric: "Fabric") -> None:
        self.fabric = fabric
        super().__init__(str(fabric.layout.control), Handler)


def serve(fabric: "Fabric", is_ready: Callable[[], None]) -> None:
    """Answer requests until killed."""
    with Server(fabric) as server:
        os.chmod(fabric.layout.control, 0o666)
        is_ready()
        server.serve_forever()
