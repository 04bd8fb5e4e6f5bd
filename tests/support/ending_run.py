"""A run on four nodes whose trainer and services write down when they start, what they are told and when they end.

The trainer runs as one srun step on two nodes; `pool` calls `web`, so it is to stop before it.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.cluster import Cluster, wait_for
from support.cluster_clean import assert_nothing_left
from support.slurm_run import SlurmRun

NOTE = """
import os, signal, sys, time
def note(what):
    line = f"{time.time():.3f} {os.uname().nodename} {WHO} {what}\\n".encode()
    fd = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line)
    os.close(fd)
"""
SERVICE = """
LOG, WHO, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
import http.server
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *words):
        pass
def end(number, frame):
    note(f"told {signal.Signals(number).name}")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
signal.signal(signal.SIGTERM, end)
note("start")
http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""
TRAINER = """
LOG, WHO, save_s, code = sys.argv[1], "trainer", float(sys.argv[2]), int(sys.argv[3])
told = []
def take(number, frame):
    note(f"told {signal.Signals(number).name}")
    told.append(number)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
    signal.signal(number, take)
signal.signal(signal.SIGUSR1, lambda number, frame: note("warned"))
note("start")
while not told and not os.path.exists(LOG + ".go"):
    time.sleep(0.02)
time.sleep(save_s)
note("saved")
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@dataclass(frozen=True)
class Line:
    """One line that a trainer or a service wrote."""

    at: float
    node: str
    who: str
    what: str


class EndingRun:
    """One such run, from its submission to what it leaves."""

    def __init__(self, cluster: Cluster, name: str = "run", save_s: float = 0.5, code: int = 0, **changes: Any) -> None:
        self.cluster = cluster
        fields = {"run": {"name": name, **changes.get("run", {})}}
        fields["nodes"] = {"train": {"count": 2}, "env": {"count": "rest"}}
        fields["trainer"] = {"on": "train", "stop": {"grace": "20s"}, **changes.get("trainer", {})}
        self.slurm = SlurmRun(cluster, name, **fields)
        self.log = self.slurm.place / "log"
        programs = {"service": SERVICE, "trainer": TRAINER}
        for kind, text in programs.items():
            (self.slurm.place / f"{kind}.py").write_text(NOTE + text)
        manifest = json.loads(json.dumps(fields)) | {
            "retinue": 1,
            "services": self._build_services(changes.get("on_exhausted", "fail_run")),
        }
        self.slurm.manifest.write_text(json.dumps(manifest))
        step = f"{sys.executable} -S -E {self.slurm.place}/trainer.py {self.log} {save_s} {code}"
        self.slurm.trainer = changes.get("command", "srun -w {train.nodelist} -N2 -n2 STEP").replace("STEP", step)

    def _build_services(self, on_exhausted: str) -> dict[str, Any]:
        command = [sys.executable, "-S", "-E", f"{self.slurm.place}/service.py", str(self.log), "{replica}", "{port}"]
        probes = {"readiness": {"http": "/", "period": "200ms"}}
        restart = {"backoff": "0s", "limit": 0, "on_exhausted": on_exhausted}
        web = {"command": command, "probes": probes, "restart": restart}
        return {
            "web": web | {"per_node": "all"},
            "pool": web | {"replicas": 2, "place": {"on": "env"}, "depends_on": {"web": "ready"}},
        }

    def begin(self, *options: str, trainers: int = 2) -> "EndingRun":
        """Submit it, and wait until all of it runs."""
        self.slurm.submit("-N4", *options)
        self.slurm.wait(
            "the trainer to start",
            lambda: len(self.lines("trainer", "start")) == trainers and self.slurm.status().get("phase") == "running",
        )
        return self

    def scancel(self, *words: str, step: str = "") -> None:
        self.cluster.call("scancel", *words, self.slurm.job + step)

    def finish(self, patience_s: float = 60.0) -> dict[str, Any]:
        """Wait for the end of the job; whatever ended it, nothing is left and every node has proved it."""
        verdict = self.slurm.wait_over(patience_s)
        assert verdict, f"there is no verdict: {self.slurm.output()}"
        assert_nothing_left(self.cluster, self.slurm.run_dir)
        proofs = {name: node["clean"] for name, node in verdict["nodes"].items()}
        assert proofs == dict.fromkeys(self.cluster.nodes, "true"), verdict["nodes"]
        assert verdict["clean"] == "true", verdict
        assert not (self.slurm.run_dir / "lock").exists()
        return verdict

    def lines(self, who: str = "", what: str = "") -> list[Line]:
        """What was written so far, by time."""
        text = self.log.read_text() if self.log.exists() else ""
        rows = (line.split(" ", 3) for line in text.splitlines())
        lines = [Line(float(at), node, name, words) for at, node, name, words in rows]
        return sorted(
            (line for line in lines if line.who.startswith(who) and line.what.startswith(what)),
            key=lambda line: line.at,
        )

    def let_trainer_end(self) -> None:
        Path(f"{self.log}.go").touch()

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.slurm.events() if line["event"] == name]

    # --- what must hold ---------------------------------------------------------------

    def assert_stopped_in_order(self) -> None:
        """The trainer has ended on both nodes before any service is told, and callers before what they call."""
        saved, pool, web = (
            self.lines(who, what) for who, what in (("trainer", "saved"), ("pool", "told"), ("web", "told"))
        )
        assert len(saved) == 2, self.lines()
        assert len(pool) == 2, self.lines()
        assert len(web) == 4, self.lines()
        assert saved[-1].at < pool[0].at, self.lines()
        assert pool[-1].at < web[0].at, self.lines()

    def assert_told_once(self, signal: str) -> None:
        """Each task had the signal once, and nothing else."""
        told = self.lines("trainer", "told")
        assert sorted(line.what for line in told) == [f"told {signal}"] * 2, self.lines()
        assert len({line.node for line in told}) == 2

    def assert_nothing_restarted(self, verdict: dict[str, Any]) -> None:
        assert {name: service["restarts"] for name, service in verdict["services"].items()} == {"web": 0, "pool": 0}
        assert {name: service["failed"] for name, service in verdict["services"].items()} == {"web": [], "pool": []}
        assert len(self.lines("", "start")) == 8, self.lines()


def wait_until(what: str, condition: Any, patience_s: float = 60.0) -> Any:
    return wait_for(what, condition, patience_s)
