"""The throwaway Slurm as tests see it: submit and follow jobs from `login`, hurt hosts, look at them without Slurm.

Tests run on `login` as the ordinary user; what needs root is asked of the cluster's control socket, a fixed list of
verbs (tests/cluster/bench/server.py).
"""

import json
import re
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0
FINAL = {
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "BOOT_FAIL",
    "DEADLINE",
    "OUT_OF_MEMORY",
}


class GaveUp(AssertionError):
    """A condition did not come true in time; says what was waited for and what was seen last."""


class Refused(Exception):
    """The cluster would not do it; says why."""


@dataclass(frozen=True)
class Ran:
    """What a command on a host did; `code` 124 means that it was ended at its time limit."""

    code: int
    out: str
    err: str


def wait_for(what: str, condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """Wait until the condition is true and return its value."""
    until = time.monotonic() + patience_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise GaveUp(f"waited {patience_s:g} s for {what}")
        time.sleep(0.1)


class Cluster:
    """One standing cluster, used by one test at a time."""

    def __init__(self, state: Path, scratch: Path) -> None:
        asked = json.loads((state / "cluster.json").read_text())
        self.state = state
        self.scratch = scratch
        """This test's own directory, seen by all hosts."""
        self.user: str = asked["user"]
        self.other_user = "retinue-other"
        self.proctrack: str = asked["proctrack"]
        """`linuxproc`: what calls setsid outlives its job; `cgroup`: nothing does."""
        self.nodes = [f"node{number}" for number in range(1, asked["node_count"] + 1)]

    def ask(self, verb: str, *words: str, **more: Any) -> dict[str, Any]:
        """One request to the control socket. Errors: Refused in the cluster's words."""
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self.state / "control.sock"))
            line.sendall(json.dumps({"verb": verb, "words": words, **more}).encode() + b"\n")
            with line.makefile() as answers:
                text = answers.readline()
        answer: dict[str, Any] = json.loads(text or '{"ok": false, "error": "no answer"}')
        if not answer.pop("ok"):
            raise Refused(answer["error"])
        return answer

    def cut(self, host: str) -> None:
        """Unplug both cables; the host lives on."""
        self.ask("cut", host)

    def blackhole(self, host: str) -> None:
        """Network 0 of the host swallows packets without a word; network 1, Slurm's, works."""
        self.ask("blackhole", host)

    def loopback_name(self, host: str) -> None:
        """On this host its own name means 127.0.1.1."""
        self.ask("loopback-name", host)

    def heal(self, host: str) -> None:
        """Undo `cut`, `blackhole` and `loopback_name`."""
        self.ask("heal", host)

    def kill_node(self, host: str) -> None:
        """Power off: everything on it is gone at once, and nobody is told."""
        self.ask("kill-node", host)

    def revive(self, host: str) -> None:
        """Boot a killed host, its /tmp empty, and start its daemon."""
        self.ask("revive", host)

    def slurmctld(self, what: str) -> None:
        """`stop` (it saves its state), `kill` or `start`."""
        self.ask("slurmctld", what)

    def slurmd(self, what: str, node: str) -> None:
        """`stop`, `kill` or `start`; steps live on without it."""
        self.ask("slurmd", what, node)

    def kill_stepd(self, step: str, host: str) -> None:
        """SIGKILL Slurm's own process of a step (`7.0`) on one host: nobody may do that but root."""
        self.ask("kill-stepd", step, host)

    def shadow(self, source: Path, target: Path, host: str) -> None:
        """Have one host see another file or directory at a path; undone after the test."""
        self.ask("shadow", str(source), str(target), host)

    def restore(self) -> None:
        """Undo every fault, end every job and process of the test users, and wait until all nodes are idle."""
        self.ask("restore")

    def run_on(
        self,
        host: str,
        argv: list[str],
        user: str | None = None,
        env: dict[str, str] | None = None,
        patience_s: float = 30,
    ) -> Ran:
        """Run a command on a host without Slurm, as the user or the other user, in the user's home."""
        return Ran(**self.ask("run", host=host, argv=argv, user=user, env=env, patience_s=patience_s))

    def processes(self, host: str, user: str | None = None) -> dict[int, str]:
        """What a user runs on a host, as {pid: command line}; the pids are the host's own."""
        owner = user or self.user
        listed = self.run_on(host, ["ps", "-U", owner, "-o", "pid=,ppid=,args="], user).out
        rows = [line.split(None, 2) for line in listed.splitlines()]
        # Commands that are run here come from outside the host, so their parent is 0, and `ps` is a child of `timeout`.
        visitors = {row[0] for row in rows if row[1] == "0"}
        return {int(pid): args for pid, parent, args in rows if pid not in visitors and parent not in visitors}

    def sbatch(self, *options: str, script: str, env: dict[str, str] | None = None) -> str:
        """Submit a batch script from `login`; its output goes to `<scratch>/<job id>.out`."""
        path = self.scratch / f"job-{time.monotonic_ns()}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        argv = ["sbatch", "--parsable", f"--output={self.scratch}/%j.out", *options, str(path)]
        return self.call(*argv, env=env).strip().partition(";")[0]

    def output(self, job: str) -> str:
        return (self.scratch / f"{job}.out").read_text()

    def call(self, *argv: str, env: dict[str, str] | None = None) -> str:
        """Run a command on `login` as this user and return its output. Errors: AssertionError with what it said."""
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=env, cwd=self.scratch
        )
        assert done.returncode == 0, f"{argv}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def job(self, job: str) -> dict[str, str]:
        """The fields of `scontrol show job`, such as JobState, NodeList, ExitCode, Restarts."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.call("scontrol", "show", "job", "--oneliner", job)))

    def wait_state(self, job: str, *states: str, patience_s: float = PATIENCE_S) -> dict[str, str]:
        """Wait until the job is in one of the states; a different final state is an error at once."""

        def arrived() -> dict[str, str] | None:
            fields = self.job(job)
            state = fields["JobState"]
            if state not in states and state in FINAL and fields["Requeue"] == "0":
                raise GaveUp(f"job {job} is {state}, not {' or '.join(states)}: {self.output(job)}")
            return fields if state in states else None

        found: dict[str, str] = wait_for(f"job {job} to be {' or '.join(states)}", arrived, patience_s)
        return found

    def wait_job(self, job: str, *states: str, patience_s: float = PATIENCE_S) -> dict[str, str]:
        """Wait for the end of a job in one of the states (any end when none is named), with its epilogue over."""
        fields = self.wait_state(job, *(states or FINAL), patience_s=patience_s)
        wait_for(f"the nodes of job {job} to be free", lambda: not self.call("squeue", "-h", "-j", job), patience_s)
        return fields
