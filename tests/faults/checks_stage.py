"""A run with a checks service whose plugin runs what the policy wrote, and eyes on everything that must not change.

The plugin `evil` is the strongest attacker there is: its response is Python that runs inside the check.
"""

import inspect
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import checks_tools

from retinue.client import Check, Outcome, OutcomeKind, Retinue
from support.command import start_in_scene
from support.real_run import RealRun, is_running, server_service

SECRET = "hunter2-of-the-run"
HONEST_S = 2.0
"""An honest check that follows an attack has its score by then."""
PLUGIN = '''
"""Plugins of the attack tests: one runs the policy's text, one is an honest neighbour that takes a moment."""
import time

def check(response, gold, args):
    scope = {"gold": gold, "__name__": "policy"}
    exec(response, scope)
    return scope.get("answer", 0.0)

def neighbour(response, gold, args):
    kept = [response] * 1000
    time.sleep(args.get("sleep_s", 0.1))
    return float(all(one == gold for one in kept)), "neighbour"
'''
TRAINER = """
import json, os, sys, time
with open(sys.argv[1] + ".part", "w") as file:
    json.dump(dict(os.environ), file)
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""
HONEST = Check("exact", "The Tide.", "the tide.")
LIE = Check("exact", "A wave.", "the tide.")
NEIGHBOUR = Check("neighbour", "neighbour-4f1c9e", "neighbour-4f1c9e", {"sleep_s": 0.05})


@dataclass(frozen=True, slots=True)
class Attack:
    """What the policy writes, and how it must end."""

    function: Callable[..., Any]
    """Its source is the response; what it returns is what it got hold of."""
    ends: tuple[OutcomeKind, ...] = (OutcomeKind.SCORED,)
    timeout_s: float | None = None
    says: str = ""
    """A pattern of the reason: that it ended by what it did, and not by a mistake of the attack."""

    @property
    def name(self) -> str:
        return self.function.__name__


def build_response(function: Callable[..., Any]) -> str:
    """Write the attack as text; what it returns is its reason, its score is 0."""
    imports = "import ctypes, errno, fcntl, json, os, resource, signal, socket, struct, sys, time"
    call = f"answer = (0.0, json.dumps({function.__name__}(gold)))\n"
    return f"{imports}\n{inspect.getsource(checks_tools)}\n{inspect.getsource(function)}\n{call}"


def list_attacks(module: ModuleType) -> list[Attack]:
    return [value for value in vars(module)["ATTACKS"] if isinstance(value, Attack)]


class Stage:
    """The run, and what an attacker would like to know of it."""

    def __init__(self, run: RealRun, env: dict[str, str], home: Path) -> None:
        self.run, self.env, self.home = run, env, home
        self.pids = self.read_pids()
        self.before = {role: identify(pid) for role, pid in self.pids.items()}
        assert all(self.before.values()), self.before

    def read_pids(self) -> dict[str, int]:
        """Host pids of all that must live on."""
        status, node = self.run.status(), self.run.node()
        checks = self.run.replica("checks/0")["host_pid"]
        return {
            "stub": self.run.stub_pid(),
            "controller": status["controller_pid"],
            "agent": node["agent_host_pid"],
            "keeper": node["keeper_host_pid"],
            "gateway": self.run.role_pid("gateway"),
            "trainer": status["trainer"]["pid"],
            "server": self.run.replica("server/0")["host_pid"],
            "checks": checks,
            "warm": list_children(checks)[0],
        }

    def targets(self) -> dict[str, Any]:
        """All that an attacker might know: handed over as the gold of the attack."""
        node_dir = Path(self.env["RETINUE_NODE_DIR"])
        return {
            "pids": self.pids,
            "ports": [int(self.env["RETINUE_CHECKS_URL"].split("/")[2].rpartition(":")[2])],
            "sockets": sorted(str(path) for path in node_dir.rglob("*") if path.is_socket()),
            "secrets": [
                self.env["RETINUE_TOKEN_FILE"],
                self.env["RETINUE_RUN_DIR"],
                str(self.run.manifest),
                str(node_dir),
                str(self.home / "id_rsa"),
                os.path.expanduser("~"),
                *("/dev/shm", "/var/tmp", "/run", "/home", "/root", "/proc", "/sys"),
            ],
            "places": [str(self.run.directory), str(node_dir), str(self.home), str(self.run.directory / "plugins")],
            "tmp": "/tmp",
            "exits": True,
            "system": ["/", "/etc", "/usr", "/var/tmp", "/dev/shm", "/dev", "/home", "/proc", "/run", sys.prefix],
            "words": [SECRET, NEIGHBOUR.response, Path(self.env["RETINUE_TOKEN_FILE"]).read_text().strip()],
        }

    def metrics(self) -> dict[str, float]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.env["RETINUE_CHECKS_URL"] + "/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        pairs = [line.removeprefix("retinue_checks_").rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return {name: float(value) for name, value in pairs}

    def metric(self, name: str) -> float:
        return self.metrics()[name]

    async def attack(self, attack: Attack, **more: Any) -> Outcome:
        """Run the attack between honest neighbours; returns its outcome, after looking at all that must be the same."""
        response = build_response(attack.function)
        evil = Check("evil", response, self.targets() | more, timeout_s=attack.timeout_s, rollout_id=attack.name)
        rows = [NEIGHBOUR, evil, NEIGHBOUR, HONEST, LIE]
        outcomes: dict[int, Outcome] = {}
        async with Retinue.from_env(self.env) as client:
            async for index, outcome in client.check_many(rows, deadline_s=60):
                outcomes[index] = outcome
            await self.assert_unharmed(client)
        said = {index: outcomes[index].score for index in (0, 2, 3, 4)}
        assert said == {0: 1.0, 2: 1.0, 3: 1.0, 4: 0.0}, outcomes
        assert outcomes[1].outcome is not OutcomeKind.INFRA_FAILED, outcomes[1]
        return outcomes[1]

    async def assert_unharmed(self, client: Retinue) -> None:
        """The same processes, and the next check is right and soon."""
        next_one = await client.check("exact", response="The Tide.", gold="the tide.", deadline_s=HONEST_S)
        assert next_one.score == 1.0, next_one
        wrong = await client.check("exact", response="A wave.", gold="the tide.", deadline_s=HONEST_S)
        assert wrong.score == 0.0, wrong
        after = {role: identify(pid) for role, pid in self.pids.items()}
        assert after == self.before


def identify(pid: int) -> tuple[int, str, str] | None:
    """Pid, start time and priority: the same process as before, and none of its affairs were meddled with."""
    if not is_running(pid):
        return None
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    state = "stopped" if fields[0] in "Tt" else "runs"
    return pid, f"{fields[19]} nice {fields[16]} policy {fields[38]}", state


def list_children(pid: int) -> list[int]:
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    return [int(word) for task in tasks for word in (task / "children").read_text().split()]


def list_tree(pid: int) -> set[int]:
    """All descendants of a process."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        try:
            children = list_children(waiting.pop())
        except OSError:
            continue
        found.update(children)
        waiting += children
    return found


@contextmanager
def open_stage(directory: Path, prefix: tuple[str, ...] = (), **checks: Any) -> Iterator[Stage]:
    """Start the run, wait until it scores, and end it."""
    (directory / "plugins").mkdir()
    (directory / "home").mkdir()
    (directory / "home/id_rsa").write_text(SECRET)
    (directory / "plugins/evil.py").write_text(PLUGIN)
    settings: Mapping[str, Any] = {
        "workers": 2,
        "memory": "512MiB",
        "timeout": "3s",
        "python": sys.executable,
        "verifiers": ["evil=evil:check", "neighbour=evil:neighbour"],
        "plugin_path": [str(directory / "plugins")],
    }
    services = {"checks": {"template": "checks", "with": dict(settings) | checks}, "server": server_service()}
    env_file = directory / "env.json"
    run = RealRun(directory, services, [sys.executable, "-c", TRAINER, str(env_file)])
    try:
        start_in_scene(run, prefix=prefix, HOME=str(directory / "home"))
        run.wait_phase("running")
        run.wait("the trainer's environment", env_file.exists)
        run.wait("the trainer's pid", lambda: run.status()["trainer"]["pid"])
        run.wait_replica("checks/0", "ready")
        run.wait_replica("server/0", "ready")
        yield Stage(run, json.loads(env_file.read_text()), directory / "home")
    finally:
        run.end_hard()


def wait_until(what: str, condition: Callable[[], Any], patience_s: float = 10.0) -> float:
    """Wait for a condition; returns how long that took."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < patience_s, f"waited {patience_s:g} s for {what}"
        time.sleep(0.005)
    return time.monotonic() - began_s
