"""Where a command is given: in a directory that is gone, with closed streams, beside a twin, on a failing terminal."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from retinue.cli.run_commands import describe_stub_log
from retinue.supervise import preflight
from retinue.supervise.preflight import prepare_run, take_back
from support.command import MANIFEST, RETINUE, private_scratch
from support.real_run import PATIENCE_S, is_running, read_environs

WARNED = """\
retinue: 1
run: {name: test}
services:
  server: {command: [sleep, "600"], probes: {readiness: {tcp: 65000}}}
"""


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A place for node directories; a pre-flight in this process blocks its stop signals."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with private_scratch() as scratch:
        yield scratch
        end_all(scratch)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def end_all(scratch: Path) -> None:
    """End what a command that should have failed has started, again until nothing names the scratch directory."""
    mark = str(scratch).encode()
    while pids := [pid for pid, environ in read_environs() if mark in environ and is_running(pid)]:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def run_shell(line: str, cwd: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
    """Give a line to the shell in which `"$@"` is the command `retinue`."""
    return subprocess.run(
        ["sh", "-c", line, "sh", *RETINUE],
        cwd=cwd,
        env={**os.environ, "SLURM_TMPDIR": str(scratch)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize(
    "words", ["check run.yaml", "plan run.yaml", "run run.yaml -- true", "up run.yaml", "status", "down", "gate"]
)
def test_a_working_directory_that_was_removed_is_named(tmp_path: Path, scratch: Path, words: str) -> None:
    (tmp_path / "gone").mkdir()
    done = run_shell(f'cd gone && rmdir ../gone && "$@" {words}', tmp_path, scratch)
    assert done.returncode == 2, done
    assert f"{tmp_path / 'gone'}'" in done.stderr
    assert "cd to" in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_run_with_closed_streams_runs_its_trainer(tmp_path: Path, scratch: Path, closed: str) -> None:
    (tmp_path / "run.yaml").write_text(MANIFEST)
    done = run_shell(f'"$@" run --run-dir run run.yaml -- touch ran {closed}', tmp_path, scratch)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done
    assert (tmp_path / "ran").exists()
    assert os.listdir(scratch) == []


def test_up_with_a_closed_output_comes_up_and_goes_down(tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "run.yaml").write_text(MANIFEST)
    done = run_shell('"$@" up run.yaml >&- && "$@" status && "$@" down >&-', tmp_path, scratch)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done
    assert "1/1" in done.stdout
    assert os.listdir(scratch) == []


@pytest.mark.parametrize("words", ["run run.yaml -- touch ran", "up run.yaml", "up --foreground run.yaml"])
def test_what_fails_after_the_directories_were_made_takes_them_back(tmp_path: Path, scratch: Path, words: str) -> None:
    (tmp_path / "run.yaml").write_text(WARNED)
    done = run_shell(f'"$@" {words} 2>/dev/full', tmp_path, scratch)
    assert done.returncode != 0
    assert sorted(os.listdir(tmp_path)) == ["run.yaml"]
    assert os.listdir(scratch) == []


def test_where_the_stubs_words_were_lost_up_says_why(tmp_path: Path) -> None:
    log = tmp_path / "stub.log"
    assert "full" in describe_stub_log(log)
    log.touch()
    assert "full" in describe_stub_log(log)
    log.write_text("retinue: a word\n")
    assert describe_stub_log(log) == f"see {log}"


def test_a_default_name_that_a_twin_takes_at_the_last_moment_gets_the_next_number(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.yaml").write_text(MANIFEST)
    build, twins = preflight.look_before, []

    def be_late(place: Path, cwd: Path) -> preflight.Before:
        before = build(place, cwd)
        if len(twins) < 2:
            place.mkdir(parents=True)
            twins.append(place)
        return before

    monkeypatch.setattr(preflight, "look_before", be_late)
    monkeypatch.setattr(preflight.time, "strftime", lambda form: "20300101-000000")
    env = {**os.environ, "SLURM_TMPDIR": str(scratch)}
    env.pop("SLURM_JOB_ID", None)
    prepared = prepare_run(tmp_path / "run.yaml", (), env, tmp_path)
    names = [path.name for path in (*twins, prepared.run_dir)]
    assert names == [f"test-20300101-000000{tail}" for tail in ("", "-2", "-3")]
    assert prepared.plan.replicas[0].launch.log_path.startswith(str(prepared.run_dir))
    assert len(os.listdir(scratch)) == 1
    take_back(prepared)
    assert os.listdir(scratch) == []
    assert [os.listdir(twin) for twin in twins] == [[], []]
    assert not prepared.run_dir.exists()
