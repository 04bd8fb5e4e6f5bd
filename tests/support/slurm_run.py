"""One real run inside a job of the throwaway Slurm: submit it, look at it, hurt it on the host where the part is.

What a run says is read from its directory, which all hosts see; pids are those of the host that has them.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from support.cluster import FINAL, Cluster, GaveUp, wait_for

SMALL = ("-c1", "--mem=600")
"""Jobs of this size share nodes."""
SERVER = [sys.executable, "-m", "http.server", "{port}", "--bind", "{host}"]


def server_service(**fields: Any) -> dict[str, Any]:
    """A quick HTTP service for a manifest."""
    entry: dict[str, Any] = {
        "command": SERVER,
        "probes": {"readiness": {"http": "/", "period": "200ms", "failures": 2}},
        "restart": {"backoff": "100ms", "limit": 100},
        "stop": {"grace": "3s"},
    }
    return entry | fields


class SlurmRun:
    """A `retinue run` as the command of a batch job."""

    def __init__(self, cluster: Cluster, name: str = "run", **manifest: Any) -> None:
        self.cluster = cluster
        self.place = cluster.scratch / name
        self.place.mkdir()
        self.run_dir = self.place / "run"
        self.manifest = self.place / "run.yaml"
        self.manifest.write_text(yaml.safe_dump({"retinue": 1, "run": {"name": name}} | manifest, sort_keys=False))
        self.trainer = "sleep 300"
        self.job = ""

    def submit(self, *options: str, env: dict[str, str] | None = None) -> "SlurmRun":
        command = f"{sys.executable} -P -m retinue run --run-dir {self.run_dir} {self.manifest} -- {self.trainer}"
        self.job = self.cluster.sbatch(*options, script=f"cd {self.place}\nexec {command}", env=env)
        return self

    # --- what it says ----------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        return _read_json(self.run_dir / "current" / "status.json")

    def verdict(self) -> dict[str, Any]:
        return _read_json(self.run_dir / "current" / "verdict.json")

    def events(self) -> list[dict[str, Any]]:
        path = self.run_dir / "current" / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def output(self) -> str:
        path = self.cluster.scratch / f"{self.job}.out"
        return path.read_text() if path.exists() else ""

    def node(self, name: str) -> dict[str, Any]:
        return next((node for node in self.status().get("nodes", ()) if node["name"] == name), {})

    def replicas(self, node: str) -> list[dict[str, Any]]:
        return [replica for replica in self.status().get("replicas", ()) if replica["node"] == node]

    def ready(self, service: str) -> int:
        return next((entry["ready"] for entry in self.status().get("services", ()) if entry["name"] == service), 0)

    # --- waiting ---------------------------------------------------------------------

    def wait(self, what: str, condition: Callable[[], Any], patience_s: float = 60.0) -> Any:
        """Wait for something of a run that goes on. Errors: GaveUp with what it printed."""

        def look() -> Any:
            value = condition()
            if not value and self.verdict():
                raise GaveUp(f"the run ended while waiting for {what}")
            return value

        try:
            return wait_for(what, look, patience_s)
        except GaveUp as error:
            raise GaveUp(f"{error}\n{self.output()[-3000:]}\n{json.dumps(self.status())[:3000]}") from None

    def wait_running(self) -> "SlurmRun":
        """Wait until all services are ready and the trainer runs."""

        def is_running() -> bool:
            status = self.status()
            services = status.get("services", ())
            return (
                status.get("phase") == "running"
                and all(service["ready"] == service["wanted"] for service in services)
                and bool(status["trainer"]["pid"])
            )

        self.wait("the run to be complete", is_running)
        return self

    def wait_verdict(self, patience_s: float = 60.0) -> dict[str, Any]:
        verdict: dict[str, Any] = wait_for(f"the verdict of {self.place.name}", self.verdict, patience_s)
        return verdict

    def wait_over(self, patience_s: float = 60.0) -> dict[str, Any]:
        """Wait until Slurm has ended the job too, and return the verdict."""
        self.cluster.wait_job(self.job, *FINAL, patience_s=patience_s)
        return self.verdict()

    # --- hurting ---------------------------------------------------------------------

    def kill(self, host: str, pid: int, signal: str = "KILL") -> None:
        ran = self.cluster.run_on(host, ["kill", f"-{signal}", str(pid)])
        assert ran.code == 0, ran.err

    def find(self, host: str, program: str, *words: str) -> list[int]:
        """Pids of the user's processes on a host whose command line begins with the program and has all these words."""
        processes = self.cluster.processes(host)
        return sorted(
            pid
            for pid, args in processes.items()
            if args.startswith(f"{program} ") and all(word in args for word in words)
        )

    def find_role(self, host: str, role: str) -> list[int]:
        """Pids of our own processes of this role (`agent`, `gateway`, `keeper`, `stub`)."""
        return self.find(host, sys.executable, f" retinue {role} ", f"-{self.status()['run_id']}/")

    def find_outer(self, host: str) -> list[int]:
        """Pids of the outer process and of its janitor, which has the same words."""
        return self.find(host, sys.executable, f" retinue node {self.run_dir}/")

    def find_srun(self) -> list[int]:
        """Pids of the launch's srun on the batch host: the client, and its shepherd."""
        batch_host = self.cluster.job(self.job)["BatchHost"]
        return self.find(batch_host, "srun", f" retinue node {self.run_dir}/")

    def end(self) -> dict[str, Any]:
        """End the trainer's way: by a stop signal to the stub; return the verdict."""
        self.cluster.call("scancel", "--batch", "--signal=TERM", self.job)
        return self.wait_over()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found
