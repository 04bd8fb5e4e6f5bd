"""Everything that can be known to be wrong before anything is started.

Runs in the command's own process, which then becomes the stub. Until
`prepare_run` has returned nothing exists that would need to be ended: an error,
and a signal at any moment, leaves no file, no process and no port.
"""

import os
import resource
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from retinue import __version__
from retinue.allocation.machine import read_local_allocation
from retinue.allocation.records import Allocation
from retinue.allocation.slurm_env import parse_slurm_environment
from retinue.errors import AllocationError, EdgeError, TrainerError, UsageError
from retinue.journal.rundir import Before, TakenNameError, create_run_dir, look_before, take_back_run_dir
from retinue.manifest.files import read_manifest
from retinue.manifest.resolve import dump_manifest
from retinue.manifest.schema import Manifest
from retinue.node.nodedir import find_node_dir, keep_owner_access
from retinue.plan.build import build_plan
from retinue.plan.records import Plan
from retinue.slurm.version import read_slurm_version
from retinue.supervise.job_facts import read_job_facts
from retinue.supervise.stub_signals import STOPS, block_signals
from retinue.terms import run as files
from retinue.terms.record import Record, replace, to_pretty_json
from retinue.terms.run import RunRecord

LOOPBACK = "127.0.0.1"
FILES_COUNT = 64
"""With fewer descriptors some process of a run cannot start, and some cannot even say so."""


def find_allocation(env: Mapping[str, str]) -> Allocation:
    """Say what this process may use: the Slurm job it is in, else this machine.

    Errors: AllocationError where the platform or the grant is not usable yet.
    """
    check_platform()
    if "SLURM_JOB_ID" not in env:
        return read_local_allocation()
    allocation = parse_slurm_environment(env)
    check_place(allocation, env)
    return allocation


def check_place(allocation: Allocation, env: Mapping[str, str]) -> None:
    """Refuse a shell that has the job's variables but is not on one of its nodes: salloc's, on the login node."""
    names = {node.name for node in allocation.nodes}
    here = socket.gethostname()
    if env.get("SLURMD_NODENAME") or not names.isdisjoint({here, here.split(".")[0]}):
        return
    raise AllocationError(
        f"this shell is on {here!r}, which is not a node of job {allocation.job_id}; services run on the job's own "
        "nodes: use `retinue submit`, a batch script, or `srun --pty --overlap -N1 -n1 bash` and give the command there"
    )


def check_platform() -> None:
    """Refuse what cannot work, by name: Linux >= 5.11 is needed (pidfds, close_range, user namespaces that mount)."""
    release = os.uname().release
    numbers = tuple(int(part) for part in release.replace("-", ".").split(".")[:2] if part.isdigit())
    if sys.platform != "linux" or numbers < (5, 11):
        raise AllocationError(f"cannot run on {sys.platform} {release}: Linux 5.11 or newer is needed")
    files_count, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_count < FILES_COUNT:
        raise AllocationError(f"cannot run with {files_count} open files a process; raise `ulimit -n` to {FILES_COUNT}")


def find_trainer(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
    """Check that the trainer's command exists and may be executed.

    Errors: TrainerError with 127 (not found) or 126 (found, not executable).
    """
    name = argv[0]
    found = shutil.which(name, path=env.get("PATH")) if "/" not in name else shutil.which(str(cwd / name))
    if found is not None:
        return
    if "/" in name and (cwd / name).exists():
        raise TrainerError(f'cannot run the trainer "{name}": not an executable file', 126)
    raise TrainerError(f'cannot find the trainer "{name}"; looked in {"PATH" if "/" not in name else cwd}', 127)


def find_any_host() -> str:
    """The address that stands for all of this host's: IPv6 and IPv4, else IPv4 alone."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind(("::", 0))
    except OSError:
        return "0.0.0.0"
    return "::"


def find_missing_secrets(plan: Plan, env: Mapping[str, str]) -> list[tuple[str, str]]:
    """List (path in the manifest, variable) of every `env:NAME` reference that this environment does not hold."""
    return [
        (f"services.{service.name}.env.{name}", source)
        for service in plan.services
        for name, source in service.env_secrets
        if source not in env
    ]


def check_secrets(plan: Plan, env: Mapping[str, str]) -> None:
    """Name every `env:NAME` reference that the caller's environment does not hold."""
    missing = find_missing_secrets(plan, env)
    if missing:
        sources = " ".join(dict.fromkeys(f"{source}=..." for _, source in missing))
        lines = [f"  {path}: the environment has no {source}" for path, source in missing]
        hint = f"`export {sources}` before the command, or write file:/PATH in the manifest"
        raise UsageError("\n".join(["cannot resolve secrets of the manifest:", *lines, f"  {hint}"]))


class Prepared(Record, frozen=True):
    """A run that has all its directories and nothing else."""

    run_json: Path
    """The record, for the stub."""
    record: RunRecord
    plan: Plan
    before: Before
    """What was there before, for `take_back`."""

    @property
    def run_dir(self) -> Path:
        return Path(self.record.run_dir)


def prepare_run(
    manifest_path: Path,
    trainer_argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    run_dir: Path | None = None,
    is_detached: bool = False,
) -> Prepared:
    """Check everything, then make the run's directories.

    Shape:  stop signals are blocked from then on: they wait for the stub, which this process becomes next. A caller
            that fails before calls `take_back`.
    Errors: every RetinueError of the exit codes 2, 3, 4, 126, 127; nothing is left of what was made.
    """
    manifest = read_manifest(manifest_path)
    facts = read_job_facts(find_allocation(env), env)
    allocation = facts.allocation
    is_new = run_dir is None and allocation.job_id is None
    while True:
        place = Path(os.path.abspath(cwd / (run_dir or default_run_dir(manifest, allocation, cwd))))
        record, plan = build_run(manifest, allocation, trainer_argv, env, cwd, place)
        plan = facts.add_to(plan, time.time())
        record = replace(record, is_detached=is_detached)
        before = look_before(place, cwd)
        try:
            run_json = make_directories(record, plan, dump_manifest(manifest), is_new)
        except TakenNameError:
            continue
        return Prepared(run_json, record, plan, before)


def build_run(
    manifest: Manifest,
    allocation: Allocation,
    trainer_argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    run_dir: Path,
) -> tuple[RunRecord, Plan]:
    """Build the plan and the record of a run in this directory, and check what they need; make nothing."""
    run_id = secrets.token_hex(6)
    attempt = allocation.restart_count
    attempt_dir = run_dir / f"attempt-{attempt}"
    plan = build_plan(manifest, allocation, tuple(trainer_argv), str(cwd), str(run_dir), str(attempt_dir))
    if trainer_argv:
        find_trainer(plan.trainer.argv, env, cwd)
    check_secrets(plan, env)
    # One node is a child of this shell; many are started by srun, and dial this host.
    slurm_version = read_slurm_version(env) if len(allocation.nodes) > 1 else ""
    record = RunRecord(
        run_id=run_id,
        name=plan.name,
        attempt=attempt,
        run_dir=str(run_dir),
        attempt_dir=str(attempt_dir),
        node_dir=str(find_node_dir(env, run_id)),
        slurm_version=slurm_version,
        job_id=allocation.job_id or "",
        requeue_on=manifest.run.requeue.on if manifest.run.requeue else (),
        requeue_max=manifest.run.requeue.max if manifest.run.requeue else 0,
        listen_host=find_any_host() if slurm_version else LOOPBACK,
        start_dir=str(cwd),
        trainer_argv=plan.trainer.argv,
        started_utc=time.time(),
        python=manifest.launch.python or sys.executable,
        version=__version__,
    )
    return record, plan


def take_back(prepared: Prepared) -> None:
    """Remove the directories of a run that will not begin: its lock, its node directory, its place as `latest`."""
    record = prepared.record
    shutil.rmtree(record.node_dir, ignore_errors=True)
    take_back_run_dir(prepared.run_dir, record.run_id, record.attempt, prepared.before)


def make_directories(record: RunRecord, plan: Plan, manifest_text: str, is_new: bool) -> Path:
    """Make node directory and run directory, both or none, with stop signals blocked; return run.json's path.

    Errors: AllocationError when this node has no place for its directory; TakenNameError when another run was quicker
            with the name of a new one; UsageError when the run directory cannot be had otherwise; SystemExit with
            128+n by a signal that came while it was waited for.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    node_dir = Path(record.node_dir)
    is_whole = False
    block_signals()
    keep_owner_access()
    try:
        path = write_node_dir(node_dir, record, plan)
        create_run_dir(
            Path(record.run_dir),
            record.run_id,
            record.attempt,
            {files.MANIFEST: manifest_text, f"attempt-{record.attempt}/{files.PLAN}": to_pretty_json(plan).decode()},
            Path(record.start_dir),
            plan.allocation.job_id or "",
            pause_for_signal,
            is_new,
        )
        is_whole = True
    except TakenNameError:
        raise
    except EdgeError as error:
        raise UsageError(str(error)) from None
    finally:
        if not is_whole:
            shutil.rmtree(node_dir, ignore_errors=True)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return path


def pause_for_signal(wait_s: float) -> None:
    """Wait, but not against the user's will: a run directory's dead owner may take a minute to tell from a live one."""
    caught = signal.sigtimedwait(STOPS, wait_s)
    if caught is not None:
        raise SystemExit(128 + caught.si_signo)


def default_run_dir(manifest: Manifest, allocation: Allocation, cwd: Path) -> Path:
    """`retinue-runs/<name>-<job id, or local start time>/` where the command was given."""
    tail = allocation.job_id or time.strftime("%Y%m%d-%H%M%S")
    path = cwd / "retinue-runs" / f"{manifest.run.name}-{tail}"
    number = 1
    while allocation.job_id is None and path.exists():
        number += 1
        path = path.with_name(f"{manifest.run.name}-{tail}-{number}")
    return path


def write_node_dir(node_dir: Path, record: RunRecord, plan: Plan) -> Path:
    """Make `<node dir>/controller/` with the plan and the record; nobody else may read it.

    Errors: AllocationError.
    """
    private = node_dir / "controller"
    path = private / "run.json"
    try:
        node_dir.mkdir(mode=0o700)
        private.mkdir(mode=0o700)
        (private / files.PLAN).write_bytes(to_pretty_json(plan))
        path.touch(mode=0o600)
        path.write_bytes(to_pretty_json(record))
    except OSError as error:
        hint = f"{str(node_dir.parent)!r} (SLURM_TMPDIR, else /tmp) must be a directory that you can write"
        raise AllocationError(f"cannot make node directory {str(node_dir)!r}: {error.strerror}; {hint}") from None
    return path
