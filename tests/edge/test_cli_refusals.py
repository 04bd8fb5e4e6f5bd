"""Bad input ends with a clear word and its exit code; nothing is half started: no file, process or node directory."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.command import MANIFEST, RETINUE, private_scratch, retinue
from support.real_run import read_environs, wait_for


@pytest.fixture
def scratch() -> Iterator[Path]:
    with private_scratch() as scratch:
        yield scratch


class Place:
    """Where a command is given, and what must not be there afterwards."""

    def __init__(self, cwd: Path, scratch: Path) -> None:
        self.cwd, self.scratch = cwd, scratch
        self.env = {"SLURM_TMPDIR": str(scratch)}
        self.write("run.yaml", MANIFEST)

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.cwd / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def look(self) -> list[str]:
        return sorted(str(path.relative_to(self.cwd)) for path in self.cwd.rglob("*"))

    def refuse(self, *words: str, exit_code: int, says: tuple[str, ...], **env: str) -> None:
        """Give the command; it must refuse with these words and leave everything as it was."""
        before = self.look()
        done = retinue(*words, cwd=self.cwd, env={**self.env, **env})
        assert done.returncode == exit_code, done
        for word in says:
            assert word in done.stderr, done.stderr
        assert self.look() == before
        self.assert_nothing_started()

    def assert_nothing_started(self) -> None:
        assert os.listdir(self.scratch) == []
        mark = str(self.scratch).encode()
        assert [pid for pid, environ in read_environs() if mark in environ] == []


@pytest.fixture
def place(tmp_path: Path, scratch: Path) -> Place:
    return Place(tmp_path, scratch)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", ("run.yaml", "empty")),
        (b"\0\xff\xfe\x01", ("run.yaml", "binary")),
        (b"retinue: 1\nrun: {name: \xe9}\n", ("run.yaml:2:", "UTF-8")),
        (b"retinue: 1\nservices: {a: [}\n", ("run.yaml:2:16", "YAML")),
        (b"retinue: 1\nrun: {name: x}\nservices: {a: {template: nosuch}}\n", ("run.yaml:3:", "nosuch", "command")),
        (
            b"retinue: 1\nrun: {name: x}\nservices: {a: {comand: [x], replicas: no}}\n",
            ("command", "services.a.replicas"),
        ),
    ],
)
def test_a_manifest_that_cannot_be_used_is_refused_by_line(place: Place, content: bytes, says: tuple[str, ...]) -> None:
    place.write("run.yaml", content)
    place.refuse("run", "run.yaml", "--", "true", exit_code=2, says=says)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything: cannot here")
def test_a_manifest_that_may_not_be_read_is_refused(place: Place) -> None:
    (place.cwd / "run.yaml").chmod(0)
    place.refuse("up", "run.yaml", exit_code=2, says=("run.yaml", "permission denied"))


@pytest.mark.parametrize(
    "words", [("run", "nosuch.yaml", "--", "true"), ("up", "nosuch.yaml"), ("check", "nosuch.yaml")]
)
def test_a_missing_manifest_is_named(place: Place, words: tuple[str, ...]) -> None:
    place.refuse(*words, exit_code=2, says=("nosuch.yaml", "no such file"))


def test_every_missing_secret_is_named(place: Place) -> None:
    services = 'services: {a: {command: [x], env: {K: "env:NOT_SET_1", L: "env:NOT_SET_2"}}}\n'
    place.write("run.yaml", "retinue: 1\nrun: {name: x}\n" + services)
    says = ("services.a.env.K", "NOT_SET_1", "services.a.env.L", "`export NOT_SET_1=... NOT_SET_2=...`", "file:/PATH")
    place.refuse("run", "run.yaml", "--", "true", exit_code=2, says=says)


@pytest.mark.parametrize(
    ("trainer", "exit_code", "says"),
    [
        ((), 2, ("no trainer", "retinue up")),
        (("--", "no-such-trainer"), 127, ("no-such-trainer", "PATH")),
        (("--", "./nosuch"), 127, ("./nosuch",)),
        (("--", "./run.yaml"), 126, ("./run.yaml", "not an executable")),
        (("--", "/"), 126, ("not an executable",)),
        (("--bogus", "--", "true"), 2, ("--bogus", "before the manifest")),
    ],
)
def test_a_trainer_that_cannot_run_is_refused_before_any_service_starts(
    place: Place, trainer: tuple[str, ...], exit_code: int, says: tuple[str, ...]
) -> None:
    place.refuse("run", "run.yaml", *trainer, exit_code=exit_code, says=says)


@pytest.mark.parametrize("words", [("run", "--bogus", "run.yaml", "--", "true"), ("status", "--bogus"), ("nosuch",)])
def test_an_unknown_option_or_command_is_a_usage_error(place: Place, words: tuple[str, ...]) -> None:
    place.refuse(*words, exit_code=2, says=(next(word for word in words if word in ("--bogus", "nosuch")), "retinue"))


@pytest.mark.parametrize("command", ["gate", "down"])
def test_a_time_to_wait_below_zero_is_refused(place: Place, command: str) -> None:
    place.refuse(command, "--timeout", "-1", exit_code=2, says=("--timeout",))


@pytest.mark.parametrize("words", [("status",), ("down",), ("restart", "a")])
def test_where_no_run_was_started_the_command_says_so(place: Place, words: tuple[str, ...]) -> None:
    place.refuse(*words, exit_code=2, says=(f"{place.cwd}/retinue-runs/latest", "no run was started in this directory"))


def test_what_does_not_fit_says_what_was_free(place: Place) -> None:
    place.write("run.yaml", MANIFEST.replace('"600"]', '"600"], place: {gpus: 99}'))
    place.refuse("run", "run.yaml", "--", "true", exit_code=4, says=("server/0", "99 GPUs", "free"))


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"SLURM_JOB_ID": "7"}, ("SLURM_JOB_NODELIST", "batch script")),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2", "SLURM_JOB_CPUS_PER_NODE": "2"}, ("n[1-2",)),
        (
            {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "2(x2)"},
            ("not a node of job 7", "retinue submit"),
        ),
    ],
)
def test_a_grant_that_cannot_be_used_is_refused(place: Place, env: dict[str, str], says: tuple[str, ...]) -> None:
    place.refuse("run", "run.yaml", "--", "true", exit_code=3, says=says, **env)


def test_a_node_without_scratch_is_refused_and_the_run_directory_with_it(place: Place) -> None:
    place.refuse("run", "run.yaml", "--", "true", exit_code=3, says=("SLURM_TMPDIR",), SLURM_TMPDIR="/nosuch/place")


@pytest.mark.parametrize("run_dir", ["run.yaml/below", "/proc/nosuch", "/", "n" * 300])
def test_a_place_where_no_run_directory_can_be_is_refused(place: Place, run_dir: str) -> None:
    place.refuse("run", "--run-dir", run_dir, "run.yaml", "--", "true", exit_code=2, says=("cannot", run_dir))


def test_a_file_as_run_directory_is_refused(place: Place) -> None:
    place.refuse("run", "--run-dir", "run.yaml", "run.yaml", "--", "true", exit_code=2, says=("run.yaml", "is a file"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere: cannot here")
def test_a_closed_place_is_refused(place: Place) -> None:
    (place.cwd / "closed").mkdir(mode=0o500)
    place.refuse("up", "--run-dir", "closed/x", "run.yaml", exit_code=2, says=("closed/x", "--run-dir"))


MOUNTED = 'mount -t tmpfs -o "$1" tiny "$0" && shift && exec "$@"'


@pytest.mark.parametrize(
    ("options", "says"), [("ro", "Read-only"), ("size=4k", "No space"), ("nr_inodes=4", "No space")]
)
def test_a_full_or_read_only_file_system_is_refused(place: Place, options: str, says: str) -> None:
    (place.cwd / "disk").mkdir()
    before = place.look()
    words = [*RETINUE, "run", "--run-dir", "disk/x", "run.yaml", "--", "true"]
    scene = ["unshare", "-Urm", "sh", "-c", MOUNTED + ' && ls -A "$0"', str(place.cwd / "disk"), options]
    done = subprocess.run(
        scene + words, cwd=place.cwd, env={**os.environ, **place.env}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done
    assert says in done.stderr
    assert "--run-dir" in done.stderr
    assert place.look() == before
    place.assert_nothing_started()


def is_importing(pid: int) -> bool:
    return b"pydantic_core" in Path(f"/proc/{pid}/maps").read_bytes()


MOMENTS: dict[str, Callable[[int, Path], object]] = {
    "it has begun": lambda pid, scratch: b"retinue" in Path(f"/proc/{pid}/cmdline").read_bytes(),
    "it imports": lambda pid, scratch: is_importing(pid),
    "it makes directories": lambda pid, scratch: os.listdir(scratch),
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_in_the_pre_flight_leaves_nothing(place: Place, moment: str, number: signal.Signals) -> None:
    command = subprocess.Popen(
        [*RETINUE, "run", "--run-dir", "x", "run.yaml", "--", sys.executable, "-c", "input()"],
        cwd=place.cwd,
        env={**os.environ, **place.env},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(moment, lambda: MOMENTS[moment](command.pid, place.scratch))
        command.send_signal(number)
        code = command.wait(60)
    finally:
        command.kill()
        command.communicate()
    wait_for("an empty scratch", lambda: not os.listdir(place.scratch), 15)
    place.assert_nothing_started()
    # An interpreter that is interrupted while it starts says 1; from the first directory on it is the run's own code.
    assert code == 128 + number if moment == "it makes directories" else code != 0
    if moment != "it makes directories":
        assert place.look() == ["run.yaml"]
