"""One host of the cluster: boot it, cable it, cut it, kill it. Called by the fabric only, as root, in its namespaces.

A host is one first process with namespaces of its own below the fabric's; when it ends, the kernel ends all in it.
Its cables are two veth pairs, ports of the fabric's bridges: `a-HOST` (network 0) and `b-HOST` (network 1).
"""

import subprocess
import time
from pathlib import Path

from bench.layout import Layout, Refusal
from bench.procs import build_enter, children_of, kill_and_wait, wait_until

BOOT = Path(__file__).with_name("boot.sh")
CGROUPS = Path("/sys/fs/cgroup/freezer")
NETWORKS = ("a", "b")
NAMESPACES = ["--net", "--uts", "--ipc", "--mount", "--pid", "--cgroup", "--mount-proc", "--propagation=private"]
BOOT_S = 20.0


def run(*argv: str) -> None:
    """Run a command of the fabric. Errors: Refusal with what it said."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise Refusal(f"cannot run {' '.join(argv)}: {done.stdout.strip()}")


def build_bridges() -> None:
    run("ip", "link", "set", "lo", "up")
    for network in NETWORKS:
        run("ip", "link", "add", f"br-{network}", "type", "bridge")
        run("ip", "link", "set", f"br-{network}", "up")


class Machine:
    """One host; dead until booted."""

    def __init__(self, layout: Layout, host: str) -> None:
        self.layout = layout
        self.host = host
        self.outer: subprocess.Popen[bytes] | None = None
        self.pid = 0

    @property
    def is_alive(self) -> bool:
        return self.outer is not None and self.outer.poll() is None

    def boot(self) -> None:
        """Start the first process, wait for its mounts, plug in both cables."""
        if self.is_alive:
            raise Refusal(f"{self.host} is alive already")
        # Its clocks since boot begin now: Slurm sees a reboot, and no monotonic time is equal on two hosts.
        clocks = [f"--boottime={-int(time.clock_gettime(time.CLOCK_BOOTTIME))}"]
        clocks += [f"--monotonic={-int(time.clock_gettime(time.CLOCK_MONOTONIC))}"]
        start = ["unshare", *NAMESPACES, "--time", *clocks, "--fork", "--kill-child=KILL", "--"]
        wants_cgroup = self.layout.proctrack == "cgroup"
        boot = ["/bin/sh", str(BOOT), self.host, str(self.layout.state), "yes" if wants_cgroup else "no"]
        argv = [*self.cgroup_entry(), *start, *boot, *self.layout.shares]
        with open(self.layout.state / "log" / f"boot-{self.host}.log", "ab") as log:
            self.outer = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(f"{self.host} to start", self.has_booted, BOOT_S)
        self.plug_in()
        self.layout.pid_file(self.host).write_text(f"{self.pid}\n")

    def cgroup_entry(self) -> list[str]:
        """With proctrack/cgroup a host starts in a subtree of its own, which its cgroup namespace shows as the root."""
        if self.layout.proctrack != "cgroup":
            return []
        own = CGROUPS / self.layout.state.name / self.host
        own.mkdir(parents=True, exist_ok=True)
        return ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(own)]

    def has_booted(self) -> bool:
        if not self.is_alive or self.outer is None:
            log = self.layout.state / "log" / f"boot-{self.host}.log"
            raise Refusal(f"{self.host} did not start: {log.read_text().strip()}")
        self.pid = next(iter(children_of(self.outer.pid)), 0)
        return bool(self.pid) and Path("/proc", str(self.pid), "root", "run", "booted").exists()

    def plug_in(self) -> None:
        for number, network in enumerate(NETWORKS):
            port = f"{network}-{self.host}"
            peer = ["peer", "name", f"eth{number}", "netns", str(self.pid)]
            run("ip", "link", "add", port, "type", "veth", *peer)
            run("ip", "link", "set", port, "master", f"br-{network}", "up")
            address = f"{self.layout.address(self.host, number)}/24"
            run(*build_enter(self.pid), "ip", "address", "add", address, "dev", f"eth{number}")
            run(*build_enter(self.pid), "ip", "link", "set", f"eth{number}", "up")
        run(*build_enter(self.pid), "ip", "link", "set", "lo", "up")

    def cut(self) -> None:
        """Both cables: the host lives on and hears nobody."""
        for network in NETWORKS:
            run("ip", "link", "set", f"{network}-{self.host}", "down")

    def blackhole(self) -> None:
        """Network 0 swallows every packet without a word while the link stays up; Slurm's network 1 works.

        Neighbours are written down, so that a connect times out as behind a firewall and does not fail by ARP.
        """
        run("bridge", "link", "set", "dev", f"a-{self.host}", "state", "disabled")
        for other in self.layout.hosts:
            if other != self.host:
                neighbour = ["neigh", "replace", self.layout.address(other, 0), "lladdr", "02:00:00:00:00:01"]
                run(*build_enter(self.pid), "ip", *neighbour, "dev", "eth0", "nud", "permanent")

    def heal(self) -> None:
        """Undo `cut` and `blackhole`."""
        for network in NETWORKS:
            run("ip", "link", "set", f"{network}-{self.host}", "up")
            run("bridge", "link", "set", "dev", f"{network}-{self.host}", "state", "forwarding")
        run(*build_enter(self.pid), "ip", "neigh", "flush", "dev", "eth0", "nud", "permanent")

    def kill(self) -> None:
        """Power off: first the cables, so that no closing packet leaves it, then everything in it at once."""
        if not self.is_alive or self.outer is None:
            return
        self.cut()
        self.layout.pid_file(self.host).unlink(missing_ok=True)
        if not kill_and_wait(self.pid, BOOT_S):
            raise Refusal(f"{self.host} did not end within {BOOT_S:g} s")
        self.outer.wait()
        # A socket that still waits for an acknowledgement keeps the dead host's network, and with it the cables'
        # names, for up to minutes; a revived host needs them now. Those that have gone already are no failure.
        for network in NETWORKS:
            port = f"{network}-{self.host}"
            subprocess.run(["ip", "link", "delete", port], stderr=subprocess.DEVNULL, check=False)
