"""The probes on this machine, and on one that refuses: what they say, that they end, and that they leave nothing."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from retinue.doctor.bounded import Trials, try_bounded
from retinue.doctor.gather import gather_facts
from retinue.doctor.judge_kernel import parse_release
from retinue.doctor.judgement import find_refusals, judge, select_parts
from retinue.doctor.records import Facts, State, Trial
from retinue.doctor.stage import open_directory, remove_left
from retinue.doctor.tools import try_tools
from retinue.doctor.trials import try_together
from retinue.terms.record import from_json

LIMIT_S = 60.0
INSIDE = """
import ctypes, os, sys
from retinue.doctor.inside import enter
from retinue.doctor.gather import gather_facts
from retinue.node import kernel
from retinue.terms.record import to_json
{prelude}
sys.stdout.buffer.write(to_json(gather_facts(os.environ)))
sys.stdout.flush()
os._exit(0)
"""
NO_NAMESPACES = """
enter(())
open("/proc/sys/user/max_user_namespaces", "w").write("0")
"""
MASKED_PROC = """
enter(("mount", "pid"))
kernel.mount("proc", "/proc", 0)
mount = ctypes.CDLL(None, use_errno=True).mount
assert mount(b"/dev/null", b"/proc/cpuinfo", None, ctypes.c_ulong(4096), None) == 0, ctypes.get_errno()
"""
NO_NET = """
enter(())
open("/proc/sys/user/max_net_namespaces", "w").write("0")
"""
NO_FUSE = """
enter(("mount",))
mount = ctypes.CDLL(None, use_errno=True).mount
assert mount(b"/dev/null", b"/dev/fuse", None, ctypes.c_ulong(4096), None) == 0, ctypes.get_errno()
"""


needs_namespaces = pytest.mark.skipif(
    not try_bounded(try_together).is_ok,
    reason="user namespaces: cannot here",
)


def gather_behind(prelude: str) -> Facts:
    """The facts as a process finds them that went through the prelude first."""
    script = INSIDE.replace("{prelude}", prelude)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=LIMIT_S, check=False)
    assert done.stdout, done.stderr.decode()
    return from_json(done.stdout, Facts)


def find_refused(facts: Facts) -> set[str]:
    return {finding.probe for finding in judge(facts) if finding.state is State.REFUSED}


# --- what they say ---------------------------------------------------------------------------


@needs_namespaces
def test_a_machine_that_lets_us_is_told_so_by_every_trial_of_the_kernel() -> None:
    facts = gather_facts(os.environ)
    names = ("user", "mount", "net", "ipc", "uts", "pid", "together", "proc", "keeper", "checks", "seccomp")
    assert {name: facts.trials[name].text for name in names if not facts.trials[name].is_ok} == {}
    if parse_release(facts.kernel) >= (6, 6):
        # From there on tmpfs takes user attributes, and so the whole of an overlay works on it.
        assert [facts.trials[name] for name in ("tmpfs-xattr", "overlay-tmpfs")] == [Trial(True), Trial(True)]
    assert facts.settings["kernel.pid_max"].isdigit()
    assert facts.scratch.free_bytes > 0
    assert facts.limits["nofile"][1] > 0
    assert facts.begun_utc <= facts.ended_utc


@needs_namespaces
def test_no_user_namespace_left_refuses_sandboxes_and_leaves_runs_and_checks_weaker() -> None:
    facts = gather_behind(NO_NAMESPACES)
    assert "No space left" in facts.trials["user"].text
    assert facts.settings["user.max_user_namespaces"] == "0"
    assert {"user-namespaces", "proc", "overlay"} <= find_refused(facts)
    assert find_refusals(facts, select_parts("run")) == ()
    assert find_refusals(facts, select_parts("checks")) == ()
    weaker = {finding.probe for finding in judge(facts) if finding.state is State.FALLBACK}
    assert {"keeper", "checks"} <= weaker


@needs_namespaces
def test_a_masked_proc_is_found_by_trying_and_named() -> None:
    facts = gather_behind(MASKED_PROC)
    assert facts.trials["user"].is_ok
    assert not facts.trials["proc"].is_ok
    assert not facts.trials["keeper"].is_ok
    assert facts.proc_masks == ("/proc/cpuinfo",)
    [finding] = [item for item in judge(facts) if item.probe == "proc"]
    assert (finding.state, "/proc/cpuinfo" in finding.saw) == (State.REFUSED, True)


@needs_namespaces
def test_without_net_namespaces_alone_the_rest_still_works() -> None:
    facts = gather_behind(NO_NET)
    assert facts.trials["mount"].is_ok
    assert not facts.trials["net"].is_ok
    assert "user-namespaces" not in find_refused(facts)


@needs_namespaces
def test_a_dev_fuse_that_is_no_fuse_is_not_taken_for_one() -> None:
    if not os.path.exists("/dev/fuse"):
        pytest.skip("FUSE: cannot here")
    facts = gather_behind(NO_FUSE)
    assert not facts.trials["fuse"].is_ok
    assert "fuse" in find_refused(facts)


def test_tools_that_are_not_in_path_are_not_tried_and_are_refused() -> None:
    facts = gather_facts({**os.environ, "PATH": "/nonexistent"})
    if "squashfuse_ll" in facts.programs:
        pytest.skip("squashfuse in sbin: cannot here")
    assert "squashfuse" not in facts.trials
    assert "squashfuse" in find_refused(facts)


# --- that they end ------------------------------------------------------------------------------


def wait_for_ever() -> str:
    while True:
        time.sleep(1000)


def test_a_probe_that_hangs_is_ended_and_says_so() -> None:
    assert try_bounded(wait_for_ever, 0.2) == Trial(False, "no answer within 0.2 s")


def test_when_the_time_for_all_is_used_up_the_rest_is_not_tried() -> None:
    trials = Trials(limit_s=0.2, total_s=0.2)
    trials.run(wait_for_ever)
    assert trials.run(lambda: "never").text == "not tried: the probes before it took too long"


def test_a_probe_that_is_killed_or_refused_says_which() -> None:
    assert try_bounded(lambda: os.kill(os.getpid(), 9) or "").text == "the process that tried it was killed"
    assert try_bounded(lambda: str(os.open("/nonexistent", os.O_RDONLY))) == Trial(False, "No such file or directory")
    assert try_bounded(lambda: "word") == Trial(True, "word")


@needs_namespaces
def test_a_squashfuse_that_hangs_is_gone_with_all_it_started(tmp_path: Path) -> None:
    program = tmp_path / "squashfuse_ll"
    program.write_text("#!/bin/sh\nsleep 4321 & sleep 4321\n")
    program.chmod(0o755)
    found = try_tools({"squashfuse_ll": str(program)}, (), Trials(limit_s=0.5))
    assert "no answer" in found["squashfuse"].text
    assert find_commands(str(program)) == []


@needs_namespaces
def test_a_squashfuse_that_cannot_is_quoted(tmp_path: Path) -> None:
    program = tmp_path / "squashfuse_ll"
    program.write_text("#!/bin/sh\necho 'fuse: device not found' >&2; exit 3\n")
    program.chmod(0o755)
    found = try_tools({"squashfuse_ll": str(program)}, (), Trials())
    assert found["squashfuse"].text.endswith("ended with 3: fuse: device not found")


def find_commands(word: str) -> list[str]:
    """Command lines of processes that name this word."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line and entry.name != str(os.getpid()):
            found.append(line)
    return found


# --- that they leave nothing --------------------------------------------------------------------


def look(scratch: Path) -> dict[str, Any]:
    """Everything that a probe could leave: mounts, children, descriptors, files, limits, name, signal mask."""
    return {
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "children": Path(f"/proc/self/task/{os.getpid()}/children").read_text(),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "files": sorted(os.listdir(scratch)),
        "shm": sorted(name for name in os.listdir("/dev/shm") if "retinue" in name),
        "status": [line for line in Path("/proc/self/status").read_text().splitlines() if "NoNewPrivs" in line],
        "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")},
    }


def test_a_look_leaves_no_mount_process_descriptor_or_file() -> None:
    with tempfile.TemporaryDirectory(prefix="rt-doctor-", dir="/tmp") as name:
        env = {**os.environ, "SLURM_TMPDIR": name}
        before = look(Path(name))
        facts = gather_facts(env)
        assert facts.scratch.path == name
        assert "overlay-disk" in facts.trials
        assert look(Path(name)) == before


def test_a_scratch_directory_that_is_not_there_is_a_finding_not_an_error() -> None:
    facts = gather_facts({**os.environ, "SLURM_TMPDIR": "/nonexistent/scratch"})
    assert facts.scratch.reason == "No such file or directory"
    assert "overlay-disk" not in facts.trials
    assert "scratch" in find_refused(facts)


def test_the_role_prints_one_line_of_facts_and_writes_a_file_in_one_step(tmp_path: Path) -> None:
    argv = [sys.executable, "-P", "-m", "retinue", "facts"]
    printed = subprocess.run(argv, capture_output=True, timeout=LIMIT_S, check=True).stdout
    assert printed.count(b"\n") == 1
    assert from_json(printed, Facts).node == json.loads(printed)["node"]
    subprocess.run([*argv, "--to", str(tmp_path / "facts.json")], timeout=LIMIT_S, check=True)
    assert os.listdir(tmp_path) == ["facts.json"]
    assert from_json((tmp_path / "facts.json").read_bytes(), Facts).kernel == os.uname().release
    assert subprocess.run([*argv, "--what"], capture_output=True, timeout=LIMIT_S, check=False).returncode == 2


HOLDER = """
import os, signal, sys, time
from retinue.doctor.bounded import try_bounded
from retinue.doctor.gather import end_cleanly
from retinue.doctor.stage import open_directory

def hang():
    os.write(said, f"{os.getpid()}\\n".encode())
    while True:
        time.sleep(1000)

said = os.dup(1)
end_cleanly()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
with open_directory(sys.argv[1]) as directory:
    os.mkdir(directory / "closed", 0)
    try_bounded(hang, 600.0)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_doctor_that_is_ended_in_the_middle_takes_its_probe_along(tmp_path: Path, number: signal.Signals) -> None:
    argv = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as doctor:
        assert doctor.stdout is not None
        probe = int(doctor.stdout.readline())
        doctor.send_signal(number)
        try:
            assert doctor.wait(LIMIT_S) != 0
        finally:
            doctor.kill()
        deadline_s = time.monotonic() + LIMIT_S
        while is_alive(probe):
            assert time.monotonic() < deadline_s, f"probe {probe} lives on"
    for path in tmp_path.iterdir():
        assert number == signal.SIGKILL
        os.utime(path, (0, 0))
    remove_left(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_the_directory_of_a_doctor_that_lives_is_left_alone_by_the_next(tmp_path: Path) -> None:
    with open_directory(str(tmp_path)) as directory:
        assert directory is not None
        os.utime(directory, (0, 0))
        remove_left(str(tmp_path))
        assert directory.is_dir()
    assert os.listdir(tmp_path) == []


def is_alive(pid: int) -> bool:
    """A zombie is not alive."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rindex(")") + 2] not in "ZX"
