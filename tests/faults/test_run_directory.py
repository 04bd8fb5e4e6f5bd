"""The run directory under a run: owned by another run, full, with an awkward name."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from support.command import ask, private_scratch, retinue, start_in_scene
from support.real_run import RealRun, real_run, server_service, wait_for

TINY = 'mount -t tmpfs -o size=1m,nr_inodes=2k tiny "$0" && exec "$@"'


def test_a_second_run_on_the_directory_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    awkward = tmp_path / 'it\'s a "run" of 100 % $HOME'
    awkward.mkdir()
    with real_run(awkward, {"server": server_service()}) as run:
        run.wait_phase("running")
        before, pid = sorted(os.listdir(run.run_dir)), run.replica("server/0")["host_pid"]
        second = retinue("run", "--run-dir", run.run_dir, run.manifest, "--", "true", cwd=awkward)
        assert second.returncode == 2
        assert run.run_id in second.stderr
        assert f"pid {run.stub_pid()}" in second.stderr
        assert sorted(os.listdir(run.run_dir)) == before
        assert ask(run.url("server"))["words"] == 2
        assert run.replica("server/0")["host_pid"] == pid
        run.signal(signal.SIGTERM)
        assert run.wait_end() == 143
        assert run.verdict()["clean"] == "true"
        run.assert_nothing_left()


def test_the_directory_of_a_run_that_died_is_taken_over_and_its_records_are_kept(tmp_path: Path) -> None:
    with real_run(tmp_path, {"server": server_service()}) as dead:
        dead.wait_phase("running")
        dead_id = dead.run_id
        for pid in (dead.stub_pid(), dead.status()["controller_pid"], dead.node()["outer_pid"]):
            os.kill(pid, signal.SIGKILL)
        dead.wait_end()
        dead.end_hard()
        for node_dir in dead.node_dirs():
            # What `retinue sweep` would remove; the janitor may be at it.
            shutil.rmtree(node_dir, ignore_errors=True)
        with real_run(tmp_path, {"server": server_service()}) as run:
            run.wait("another run's status", lambda: run.status().get("run_id") not in (None, dead_id))
            run.wait_phase("running")
            assert f'"{dead_id}"' in (run.run_dir / "attempt-0.old-1" / "status.json").read_text()
            assert (tmp_path / "run" / "current").resolve() == run.attempt_dir
            run.signal(signal.SIGTERM)
            assert run.wait_end() == 143
            run.assert_nothing_left()


class Disk:
    """A tiny file system of the run's own mount namespace, seen from outside through a descriptor."""

    def __init__(self, pid: int, path: Path) -> None:
        self.fd = os.open(f"/proc/{pid}/root{path}", os.O_RDONLY | os.O_DIRECTORY)
        self.path = Path(f"/proc/self/fd/{self.fd}")

    def fill(self) -> None:
        """Leave no byte free."""
        with open(self.path / "fill", "ab", buffering=0) as file:
            for size in (65536, 4096, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue

    def close(self) -> None:
        os.close(self.fd)


@pytest.mark.parametrize("is_freed", [True, False])
def test_a_disk_that_fills_up_costs_records_and_nothing_else(tmp_path: Path, is_freed: bool) -> None:
    disk_path = tmp_path / "disk"
    disk_path.mkdir()
    run = RealRun(tmp_path, {"server": server_service()})
    run.run_dir = disk_path / "run"
    disk = None
    try:
        start_in_scene(run, prefix=("unshare", "-Urm", "sh", "-c", TINY, str(disk_path)))
        run.run_dir = Path(f"/proc/{run.stub_pid()}/root{disk_path}/run")
        run.wait_phase("running")
        disk = Disk(run.stub_pid(), disk_path)
        run.run_dir = disk.path / "run"
        url, first = run.url("server"), run.replica("server/0")
        disk.fill()
        pid = ask(url)["pid"]
        os.kill(first["host_pid"], signal.SIGKILL)
        wait_for("an answer of its successor", lambda: ask(url)["pid"] != pid)
        if is_freed:
            (disk.path / "fill").unlink()
            run.wait("the decision to be written late", lambda: any(e["event"] == "Exited" for e in run.events()))
            run.wait_replica("server/0", "ready", incarnation=2)
        run.signal(signal.SIGTERM)
        assert run.wait_end() == 143
        if is_freed:
            assert run.verdict()["clean"] == "true"
        else:
            said = run.output.read_text()
            assert "cannot write the verdict" in said
            assert '"clean": "true"' in said
        run.assert_nothing_left()
    finally:
        run.end_hard()
        if disk is not None:
            disk.close()


FEW = 'mount -t tmpfs -o nr_inodes=$1 tiny "$0" && shift && exec "$@"'


@pytest.mark.parametrize("files", [9, 10, 11])
def test_a_disk_that_is_full_when_the_controller_starts_ends_the_start_with_one_word(
    tmp_path: Path, files: int
) -> None:
    disk_path = tmp_path / "disk"
    disk_path.mkdir()
    run = RealRun(tmp_path, {"server": server_service()}, ["touch", str(tmp_path / "ran")])
    run.run_dir = disk_path / "run"
    try:
        with private_scratch() as scratch:
            prefix = ("unshare", "-Urm", "sh", "-c", FEW, str(disk_path), str(files))
            start_in_scene(run, prefix=prefix, SLURM_TMPDIR=str(scratch))
            assert run.wait_end() == 5
            assert os.listdir(scratch) == []
        said = run.output.read_text()
        assert "Traceback" not in said
        assert "started again" not in said
        first = said.splitlines()[0]
        assert first.startswith(f"retinue: cannot write the run's keys in '{run.run_dir}': ")
        assert "No space left on device" in first
        assert "--run-dir" in first
        assert "not_ready" in said
        assert not (tmp_path / "ran").exists()
    finally:
        run.end_hard()
