"""A service with secrets: it has them, and nothing else shows them, whatever it does with them."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from service_scenes import build_program, build_server, end_cleanly, find_events, running, wait_event

from support.real_run import RealRun

FROM_ENVIRONMENT = "s3cr3t-of-the-environment"
FROM_FILE = "s3cr3t of the file, with spaces"
TELLS = """
import hashlib, os, pathlib, sys, time
for name in ("KEY", "TOKEN"):
    value = os.environ[name]
    print(name, "is", value, flush=True)
    half = len(value) // 2
    for part in (f"in two parts {value[:half]}", value[half:] + "\\n"):
        os.write(1, part.encode())
        time.sleep(0.1)
    print(name, "digest", hashlib.sha256(value.encode()).hexdigest(), flush=True)
print("dying with", os.environ["KEY"], os.environ["TOKEN"], file=sys.stderr, flush=True)
sys.exit(4)
"""
PROBE_TELLS = "import os, sys; print('bad key', os.environ['KEY'], os.environ['TOKEN']); sys.exit(1)"


def read_command_lines() -> Iterator[bytes]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                yield Path(f"/proc/{entry.name}/cmdline").read_bytes()
            except OSError:
                continue


def find_shown(run: RealRun, secrets: list[bytes]) -> list[str]:
    """Find where a secret can be read: command lines, the run directory, the node directory, what was printed."""
    shown = [repr(line) for line in read_command_lines() if any(secret in line for secret in secrets)]
    roots = [run.run_dir, *run.node_dirs()]
    files = [path for root in roots for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert {"status.json", "plan.json", "events.jsonl", "manifest.yaml", "run.json", "launch-1.log"} <= {
        path.name for path in files
    }
    for path in [*files, run.output, run.manifest]:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue  # replaced just now
        shown += [str(path) for secret in secrets if secret in content]
    return shown


def test_secrets_reach_the_service_and_no_file_no_event_and_no_command_line(tmp_path: Path) -> None:
    secret_file = tmp_path / "token"
    secret_file.write_text(FROM_FILE)
    env = {"KEY": "env:TEAM_KEY", "TOKEN": f"file:{secret_file}"}
    probe = {"exec": [*build_program(tmp_path, "probe", PROBE_TELLS)["command"]], "period": "150ms", "timeout": "5s"}
    startup = {"startup": probe | {"budget": "3s"}, "liveness": probe | {"failures": 1}}
    services = {
        "teller": build_program(tmp_path, "teller", TELLS, env=env, restart={"limit": 0}),
        "probed": build_server(tmp_path, "probed", env=env, min_ready=0, probes={"liveness": startup["liveness"]}),
    }
    secrets = [FROM_ENVIRONMENT.encode(), FROM_FILE.encode()]
    with running(tmp_path, services, {"TEAM_KEY": FROM_ENVIRONMENT}) as run:
        died = wait_event(run, "teller/0", "Exited")
        lost = wait_event(run, "probed/0", "LivenessLost")
        wait_event(run, "probed/0", "Exited")
        assert find_shown(run, secrets) == []
        log = (run.attempt_dir / "logs" / "teller.0" / "launch-1.log").read_text()
        end_cleanly(run)
        assert find_shown_after(run, secrets) == []
    for name, value in (("KEY", FROM_ENVIRONMENT), ("TOKEN", FROM_FILE)):
        assert f"{name} is [redacted]\n" in log
        assert "in two parts [redacted]\n" in log
        assert f"{name} digest {hashlib.sha256(value.encode()).hexdigest()}" in log
    assert died["detail"].endswith("dying with [redacted] [redacted]")
    assert "bad key [redacted] [redacted]" in lost["reason"]
    assert find_events(run, "probed/0", "LivenessLost")[0] == lost


def find_shown_after(run: RealRun, secrets: list[bytes]) -> list[str]:
    """The same once the node directory is gone and the verdict is there."""
    files = [path for path in run.run_dir.rglob("*") if path.is_file() and not path.is_symlink()]
    assert "verdict.json" in {path.name for path in files}
    return [str(path) for path in files for secret in secrets if secret in path.read_bytes()]
