"""One real run of the command, for the fault tests: start it, look at it, hurt it, prove that nothing is left.

Everything is found by what the run itself says (status.json, run id) and ended by pid.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

SERVER = Path(__file__).parents[2] / "docs" / "quickstart" / "service.py"
PATIENCE_S = 60.0
"""Every wait of a test ends by then; these machines are shared and slow at times."""


class GaveUp(AssertionError):
    """A condition did not come true in time; says what was waited for and what was seen last."""


def wait_for(what: str, condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """Wait until the condition is true and return its value."""
    until = time.monotonic() + patience_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise GaveUp(f"waited {patience_s:g} s for {what}")
        time.sleep(0.02)


def server_service(**fields: Any) -> dict[str, Any]:
    """A quick HTTP service for a manifest."""
    entry: dict[str, Any] = {
        "command": [sys.executable, str(SERVER), "--name", "server", "--port", "{port}"],
        "probes": {"readiness": {"http": "/health", "period": "200ms", "failures": 2}},
        "restart": {"backoff": "200ms", "limit": 5},
        "stop": {"grace": "3s"},
    }
    return entry | fields


class RealRun:
    """A `retinue run` child of this test."""

    def __init__(self, directory: Path, services: dict[str, Any], trainer: list[str] | None = None, **top: Any) -> None:
        self.directory = directory
        self.run_dir = directory / "run"
        self.manifest = directory / "run.yaml"
        self.manifest.write_text(yaml.safe_dump({"retinue": 1, "run": {"name": "test"}, "services": services} | top))
        self.trainer = trainer or [sys.executable, "-c", "import time; time.sleep(600)"]
        self.stub: subprocess.Popen[str] | None = None
        self.run_id = ""
        self.output = directory / "output.txt"

    def start(self, env: dict[str, str] | None = None) -> "RealRun":
        argv = [sys.executable, "-P", "-m", "retinue", "run", "--run-dir", str(self.run_dir), str(self.manifest), "--"]
        with open(self.output, "w") as output:
            self.stub = subprocess.Popen(
                argv + self.trainer,
                cwd=self.directory,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        return self

    @property
    def attempt_dir(self) -> Path:
        return self.run_dir / "attempt-0"

    def status(self) -> dict[str, Any]:
        try:
            status: dict[str, Any] = json.loads((self.attempt_dir / "status.json").read_text())
        except (OSError, ValueError):
            return {}
        self.run_id = status.get("run_id", self.run_id)
        return status

    def verdict(self) -> dict[str, Any]:
        verdict: dict[str, Any] = json.loads((self.attempt_dir / "verdict.json").read_text())
        return verdict

    def endpoints(self) -> dict[str, Any]:
        endpoints: dict[str, Any] = json.loads((self.attempt_dir / "endpoints.json").read_text())
        return endpoints

    def url(self, service: str) -> str:
        url: str = self.endpoints()["services"][service]["url"]
        return url

    def events(self) -> list[dict[str, Any]]:
        path = self.attempt_dir / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def replica(self, key: str) -> dict[str, Any]:
        return next((item for item in self.status().get("replicas", []) if item["id"] == key), {})

    def node(self) -> dict[str, Any]:
        nodes = self.status().get("nodes", [])
        return nodes[0] if nodes else {}

    def wait_phase(self, phase: str) -> dict[str, Any]:
        """Wait until the run is in this phase (`starting`, `running`, `ending`)."""
        return self.wait(
            f"the run to be {phase}", lambda: self.status() if self.status().get("phase") == phase else None
        )

    def wait_replica(self, key: str, phase: str, incarnation: int = 1) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            replica = self.replica(key)
            is_there = replica.get("phase") == phase and replica.get("incarnation", 0) >= incarnation
            return replica if is_there else None

        return self.wait(f"{key} to be {phase} as #{incarnation}", look)

    def wait(self, what: str, condition: Callable[[], Any]) -> Any:
        def look() -> Any:
            value = condition()
            if not value and self.stub is not None and self.stub.poll() is not None:
                raise GaveUp(
                    f"the run ended ({self.stub.returncode}) while waiting for {what}\n{self.output.read_text()}"
                )
            return value

        try:
            return wait_for(what, look)
        except GaveUp as error:
            raise GaveUp(f"{error}\nstatus: {self.status()}\noutput: {self.output.read_text()[-3000:]}") from None

    def stub_pid(self) -> int:
        assert self.stub is not None
        return self.stub.pid

    def signal(self, number: int) -> None:
        assert self.stub is not None
        os.kill(self.stub.pid, number)

    def wait_end(self, patience_s: float = PATIENCE_S) -> int:
        assert self.stub is not None
        try:
            return self.stub.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise GaveUp(
                f"the run did not end in {patience_s:g} s\n{self.status()}\n{self.output.read_text()[-3000:]}"
            ) from None

    # --- proof that nothing is left -----------------------------------------------

    def tagged_pids(self) -> list[int]:
        """Processes of this run anywhere on this machine, by the tag in their environment."""
        tag = f"RETINUE_RUN_ID={self.run_id}".encode()
        return [pid for pid, environ in read_environs() if self.run_id and tag in environ.split(b"\0")]

    def node_dirs(self) -> list[Path]:
        return [path for path in Path("/tmp").glob(f"retinue-*-{self.run_id}") if self.run_id]

    def assert_nothing_left(self) -> None:
        """Within a few seconds: no process, no node directory, no listening gateway."""
        assert self.run_id, "the run never said its id"
        wait_for(f"no process of run {self.run_id}; left: {self.describe_left()}", lambda: not self.tagged_pids(), 15.0)
        wait_for(f"no node directory of run {self.run_id}", lambda: not self.node_dirs(), 15.0)

    def role_pid(self, role: str) -> int:
        """Host pid of one of our own processes (`gateway`, `agent`, ...), by its argv; 0 when there is none."""
        for pid in self.tagged_pids():
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if argv[2:5] == [b"-m", b"retinue", role.encode()]:
                return pid
        return 0

    def describe_left(self) -> list[str]:
        lines = []
        for pid in self.tagged_pids():
            try:
                lines.append(f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ')[:120]!r}")
            except OSError:
                continue
        return lines

    def end_hard(self) -> None:
        """Teardown of a test: whatever is left of this run is ended by pid."""
        self.status()
        if self.stub is not None and self.stub.poll() is None:
            self.stub.kill()
            self.stub.wait(10)
        for _ in range(50):
            pids = self.tagged_pids()
            if not pids:
                return
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.1)


def is_running(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def read_environs() -> Iterator[tuple[int, bytes]]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                yield int(entry.name), Path(f"/proc/{entry.name}/environ").read_bytes()
            except OSError:
                continue


@contextmanager
def real_run(
    directory: Path, services: dict[str, Any], trainer: list[str] | None = None, **top: Any
) -> Iterator[RealRun]:
    """Start a run and make sure that it is over when the test is."""
    run = RealRun(directory, services, trainer, **top)
    try:
        yield run.start()
    finally:
        run.end_hard()
