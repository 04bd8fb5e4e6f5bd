"""Gather the facts of this node: try, look, read. Needs no root, changes nothing, leaves nothing, never hangs.

Forks, so it is for a process with one thread: a service runs `python -m retinue facts` and reads its line.
"""

import importlib.util
import os
import platform
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType

from retinue.doctor import reading
from retinue.doctor.bounded import Trials
from retinue.doctor.records import Facts, Storage
from retinue.doctor.stage import open_directory
from retinue.doctor.tools import find_programs, read_versions, try_tools
from retinue.doctor.trials import build_statvfs_try, try_kernel
from retinue.node.host_settings import SETTINGS, read_settings

RUNTIME = "retinue-sandbox"


def gather_facts(env: Mapping[str, str], work_dir: str = "") -> Facts:
    """Look at this node as a program with this environment sees it.

    Shape:  `work_dir` is where the one directory of the trials is made; empty: in the scratch directory.
    """
    begun_utc, trials = time.time(), Trials()
    mounts = reading.parse_mounts(reading.read_text("/proc/self/mountinfo"))
    programs, ranges = find_programs(env), reading.read_subuid_ranges()
    place = find_scratch(env)
    scratch = _read_storage(place, mounts, trials)
    with open_directory("" if scratch.reason else work_dir or scratch.path) as directory:
        tried = try_kernel(trials, directory)
    tried |= try_tools(programs, ranges, trials)
    landlock = tried["landlock"]
    return Facts(
        node=env.get("SLURMD_NODENAME") or socket.gethostname(),
        begun_utc=begun_utc,
        kernel=platform.release(),
        architecture=platform.machine(),
        system=reading.read_system(),
        python=os.path.realpath(sys.executable),
        user=reading.read_user(),
        is_in_namespace=reading.is_in_user_namespace(),
        is_in_container=reading.is_in_container(),
        settings=read_settings(SETTINGS),
        limits=reading.read_limits(),
        trials=tried,
        programs=programs,
        versions=read_versions(programs, trials),
        subuid_ranges=ranges,
        proc_masks=reading.find_proc_masks(mounts),
        lsm=reading.read_text("/sys/kernel/security/lsm"),
        has_seccomp_filter=reading.has_seccomp_filter(),
        landlock_abi=int(landlock.text) if landlock.is_ok else 0,
        cgroup=reading.read_cgroup(),
        shm=_read_storage("/dev/shm", mounts, trials),
        scratch=scratch,
        runtime=find_runtime(),
        job_id=env.get("SLURM_JOB_ID", ""),
        ended_utc=time.time(),
    )


def find_scratch(env: Mapping[str, str]) -> str:
    """Where node directories are made: $SLURM_TMPDIR, else /tmp."""
    return env.get("SLURM_TMPDIR") or "/tmp"


def find_runtime() -> str:
    """Find the sandbox program in the package that it is built into; empty when it is not built."""
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("retinue.sandbox")
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            if os.access(Path(place, RUNTIME), os.X_OK):
                return str(Path(place, RUNTIME))
    return ""


def _read_storage(path: str, mounts: list[tuple[str, str]], trials: Trials) -> Storage:
    return reading.build_storage(path, reading.find_kind(path, mounts), trials.run(build_statvfs_try(path)))


def end_cleanly() -> None:
    """Let SIGTERM unwind this process: a trial's directory must not stay behind."""
    signal.signal(signal.SIGTERM, _unwind)


def _unwind(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
