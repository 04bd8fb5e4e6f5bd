"""Everything of ours killed at once: `down` and `why` say that the run is dead, `sweep` ends what it left, no more.

`sweep` looks at every run of its user on this host. These give it a host of its own: a pid namespace, another uid.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support.command import RETINUE
from support.real_run import PATIENCE_S, RealRun, server_service, wait_for

HOST = "echo up && exec sleep 3600"
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
open(f"trainer-{os.getpid()}", "w").close()
time.sleep(3600)
"""


class Host:
    """Namespaces that look like a machine of their own; everything in them ends with them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runs: list[RealRun] = []
        self.init = subprocess.Popen(
            ["unshare", "-Urmpf", "--mount-proc", "--kill-child", "sh", "-c", HOST], stdout=subprocess.PIPE, text=True
        )
        assert self.init.stdout is not None
        assert self.init.stdout.readline() == "up\n"
        children = Path(f"/proc/{self.init.pid}/task/{self.init.pid}/children").read_text().split()
        self.enter = ["nsenter", "-t", children[0], "-U", "-m", "-p", "--preserve-credentials"]

    def build(self, words: Sequence[str]) -> list[str]:
        return [*self.enter, "env", "-C", str(self.directory), *RETINUE, *words]

    def retinue(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.build(words), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S
        )

    def start(self, name: str, *trainer: str, **top: object) -> RealRun:
        directory = self.directory / name
        directory.mkdir()
        run = RealRun(directory, {"server": server_service()}, list(trainer), **top)
        self.runs.append(run)
        words = ["run", "--run-dir", str(run.run_dir), str(run.manifest), "--", *trainer]
        with open(run.output, "w") as output:
            run.stub = subprocess.Popen(
                self.build(words), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, text=True
            )
        run.wait_phase("running")
        run.wait("the trainer", lambda: run.status()["trainer"]["pid"])
        return run

    def close(self) -> None:
        self.init.kill()
        self.init.communicate()
        for run in self.runs:
            for node_dir in run.node_dirs():
                shutil.rmtree(node_dir, ignore_errors=True)


def continue_and_poll(run: RealRun) -> int | None:
    assert run.stub is not None
    run.stub.send_signal(signal.SIGCONT)
    return run.stub.poll()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.close()


def find_all(run: RealRun) -> dict[str, int]:
    """Host pids of the run's own processes, as this side of the namespace sees them."""
    found = {"stub": 0, "controller": 0, "node": 0, "keeper": 0}
    mark = run.run_id.encode()
    for entry in os.scandir("/proc"):
        try:
            argv = Path(entry.path, "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            text = b" ".join(argv) + Path(entry.path, "environ").read_bytes() if argv else b""
        except OSError:
            continue
        role = argv[4].decode() if argv[2:4] == [b"-m", b"retinue"] else ""
        if role in found and mark in text:
            found[role] = int(entry.name)
    assert all(found.values()), found
    return found


def test_after_everything_was_killed_at_once_sweep_ends_what_is_left_and_only_that(host: Host) -> None:
    (host.directory / "stubborn.py").write_text(STUBBORN)
    alive = host.start("alive", "sleep", "3600")
    dead = host.start("dead", sys.executable, str(host.directory / "stubborn.py"), node={"namespace": "off"})
    wait_for("the trainer's two processes", lambda: len(list(host.directory.glob("trainer-*"))) == 2)
    pids = find_all(dead)
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    wait_for("nsenter, which stopped with its child, to see its end", lambda: continue_and_poll(dead) is not None)
    assert dead.tagged_pids(), "the trainer ignores SIGTERM: something is left to sweep"
    assert "is dead" in host.retinue("why", "dead/run").stdout
    down = host.retinue("down", "dead/run")
    assert (down.returncode, "retinue sweep" in down.stderr) == (5, True), down
    assert host.retinue("gate", "--run", "dead/run").returncode == 5
    swept = host.retinue("sweep")
    assert swept.returncode == 0, swept
    lines = {line.split()[1].rstrip(":"): line for line in swept.stdout.splitlines()}
    # Runs of other tests share the scratch directory, not this pid namespace: they cannot be judged from here.
    assert {dead.run_id, alive.run_id} <= set(lines)
    assert all("left alone" in line for run_id, line in lines.items() if run_id != dead.run_id), swept
    assert "processes ended" in lines[dead.run_id]
    assert "left alone: it is running" in lines[alive.run_id]
    assert dead.tagged_pids() == []
    assert dead.node_dirs() == []
    assert dead.run_id not in host.retinue("sweep").stdout
    done = host.retinue("down", "alive/run")
    assert (done.returncode, json.loads((alive.attempt_dir / "verdict.json").read_text())["clean"]) == (0, "true"), done
    assert alive.wait_end() == 143


def test_sweep_leaves_a_run_alone_whose_controller_is_just_ending_it(host: Host) -> None:
    run = host.start("run", "sleep", "3600")
    pids = find_all(run)
    os.kill(pids["controller"], signal.SIGSTOP)
    os.kill(pids["stub"], signal.SIGKILL)
    run.wait_end()
    assert "its controller is ending it" in host.retinue("sweep").stdout
    os.kill(pids["controller"], signal.SIGCONT)
    wait_for("the controller's verdict", (run.attempt_dir / "verdict.json").exists)
    assert run.verdict()["ended_by"] == "stub_lost"
    wait_for("no process of the run", lambda: not run.tagged_pids(), 15)
    assert run.run_id not in host.retinue("sweep").stdout
