"""The fabric: first process of the cluster's pid namespace, and the bridges, munged and all hosts below it.

Run as `python -m bench.fabric NAME BASE` in new namespaces. It serves `control.sock` until it is killed; with it
ends everything in the cluster. Readiness is the file `ready`; a failure before that is the file `failed`.
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from bench.layout import LOGIN, Layout, Refusal, read_layout
from bench.machine import Machine, build_bridges
from bench.procs import build_enter, children_of, wait_until
from bench.server import serve

DAEMON_S = 20.0
REGISTER_S = 60.0


class Fabric:
    """All hosts and daemons of one cluster."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.machines = {host: Machine(layout, host) for host in layout.hosts}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.lock = threading.Lock()
        """Verbs that change the cluster run one at a time."""

    def start_all(self) -> None:
        """Bring everything up, and wait until Slurm calls every node idle."""
        build_bridges()
        self.start_munged()
        for machine in self.machines.values():
            machine.boot()
        self.start_daemon("slurmctld", LOGIN)
        for node in self.layout.nodes:
            self.start_daemon("slurmd", node)
        self.wait_idle()

    def start_munged(self) -> None:
        """One munged for all hosts: its socket is a path that each of them has bound in."""
        place = self.layout.state / "munge"
        files = [f"--key-file={place}/munge.key", f"--socket={place}/munge.socket.2", f"--pid-file={place}/pid"]
        files += [f"--seed-file={place}/seed", f"--log-file={place}/munged.log"]
        with open(self.layout.state / "log" / "munged.log", "ab") as log:
            # --force: it runs as root, and its socket lies below a directory that everybody may write (/tmp).
            argv = ["munged", "--foreground", "--force", *files]
            self.daemons["munged"] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until("munged's socket", (place / "munge.socket.2").exists, DAEMON_S)

    def start_daemon(self, daemon: str, host: str) -> None:
        """Start slurmctld or a host's slurmd in the foreground, as a child of the fabric."""
        key = f"{daemon} {host}"
        running = self.daemons.get(key)
        if running is not None and running.poll() is None:
            return
        if not self.machines[host].is_alive:
            raise Refusal(f"cannot start {daemon}: {host} is dead")
        with open(self.layout.state / "log" / f"out-{daemon}-{host}.log", "ab") as log:
            argv = [*build_enter(self.machines[host].pid), daemon, "-D"]
            self.daemons[key] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop_daemon(self, daemon: str, host: str, number: signal.Signals) -> None:
        """End one daemon and nothing below it: steps live on."""
        running = self.daemons.pop(f"{daemon} {host}", None)
        if running is None or running.poll() is not None:
            return
        for pid in children_of(running.pid):
            os.kill(pid, number)
        try:
            running.wait(DAEMON_S)
        except subprocess.TimeoutExpired:
            self.daemons[f"{daemon} {host}"] = running
            raise Refusal(f"{daemon} on {host} did not end within {DAEMON_S:g} s") from None

    def kill_host(self, host: str) -> None:
        self.machines[host].kill()
        for daemon in ("slurmd", "slurmctld"):
            gone = self.daemons.pop(f"{daemon} {host}", None)
            if gone is not None:
                gone.wait(DAEMON_S)

    def revive(self, host: str) -> None:
        self.machines[host].boot()
        self.start_daemon("slurmctld" if host == LOGIN else "slurmd", host)

    def wait_idle(self) -> None:
        wait_until("Slurm to call every node idle", self.is_idle, REGISTER_S)

    def is_idle(self) -> bool:
        """Errors: Refusal names a daemon that has ended."""
        ended = [key for key, daemon in self.daemons.items() if daemon.poll() is not None]
        if ended:
            raise Refusal(f"{', '.join(ended)} ended; see {self.layout.state}/log")
        return self.node_states() == {"idle"}

    def node_states(self) -> set[str]:
        """Every node's state in Slurm's words, with its flags: `idle`, `down*`, `idle~`."""
        argv = [*build_enter(self.machines[LOGIN].pid), "timeout", "5", "sinfo", "--noheader", "--Node", "-o", "%t"]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        return set(done.stdout.split()) if done.returncode == 0 else set()


def main() -> None:
    layout = read_layout(sys.argv[1], sys.argv[2])
    fabric = Fabric(layout)
    try:
        fabric.start_all()
    except (Refusal, OSError) as error:
        (layout.state / "failed").write_text(f"{error}\n")
        sys.exit(1)
    serve(fabric, lambda: Path(layout.state, "ready").touch())


if __name__ == "__main__":
    main()
