"""End what dead runs left on this host: processes by their tag, node directories by their name.

Touches a run only when its stub is not alive any more (pid and start time of
the lock's owner), its lock is stale, and no Slurm job might still want it.
Never by name, never another user's.
"""

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from retinue.channel.join import read_join
from retinue.errors import RetinueError
from retinue.journal.lock import STALE_S, find_owner, is_owner_alive, release_lock
from retinue.node.census import LAUNCH_TAG, RUN_ID, build_census, find_left, kill_left
from retinue.node.scan import kill_pids, list_pids, read_words
from retinue.plan.records import Plan
from retinue.terms import run as files
from retinue.terms.record import DecodeError, Record, from_json
from retinue.terms.run import RunRecord

KILL_LIMIT_S = 10.0
TAGS = (RUN_ID, LAUNCH_TAG)
"""One of them is in the environment of everything a keeper or the stub starts for the run."""
SKEW_S = 240.0
"""A lock of another host is old by two clocks, which may differ by this much."""


class Swept(Record, frozen=True):
    """What was found of one run on this host, and what became of it."""

    run_id: str
    run_dir: str
    is_stuck: bool
    """Something of it would not end."""
    text: str


def sweep_host(env: Mapping[str, str]) -> list[Swept]:
    """Look at every run of this user on this host and end the dead ones."""
    roots = {Path(env.get("SLURM_TMPDIR") or "/tmp"), Path("/tmp")}
    node_dirs = dict(_find_by_directory(roots))
    run_dirs = {run_id: read_run_dir(node_dir) for run_id, node_dir in node_dirs.items()}
    for run_id, run_dir in _find_by_tag():
        run_dirs[run_id] = run_dirs.get(run_id) or run_dir
    return [_sweep_one(run_id, run_dir, node_dirs.get(run_id)) for run_id, run_dir in sorted(run_dirs.items())]


def _find_by_directory(roots: set[Path]) -> Iterator[tuple[str, Path]]:
    prefix = f"retinue-{os.getuid()}-"
    for root in roots:
        for node_dir in root.glob(f"{prefix}*"):
            if node_dir.is_dir() and not node_dir.is_symlink() and node_dir.stat().st_uid == os.getuid():
                yield node_dir.name.removeprefix(prefix), node_dir


def read_run_dir(node_dir: Path) -> str:
    """Where a node's run is: its batch host has the record, the others their join file; empty when neither says."""
    try:
        return from_json((node_dir / "controller" / "run.json").read_bytes(), RunRecord).run_dir
    except (OSError, DecodeError):
        pass
    try:
        return read_join(node_dir / "join.pem").run_dir
    except RetinueError:
        return ""


def _find_by_tag() -> Iterator[tuple[str, str]]:
    """Runs that show in the environment of this user's processes."""
    for pid in list_pids():
        if pid == os.getpid():
            continue
        tags = dict(part.partition(b"=")[::2] for part in read_words(pid, "environ"))
        run_id = tags.get(RUN_ID.encode()) or tags.get(LAUNCH_TAG.encode()) or b""
        if run_id:
            yield run_id.decode(errors="replace"), tags.get(b"RETINUE_RUN_DIR", b"").decode(errors="replace")


def _sweep_one(run_id: str, run_dir: str, node_dir: Path | None) -> Swept:
    why = _find_reason_to_keep(run_id, run_dir, node_dir)
    if why:
        return Swept(run_id, run_dir, False, f"left alone: {why}")
    # A controller carries no tag, and one that lives would start to end things itself.
    controllers = set(_find_roles("controller", run_id))
    kill_pids(controllers)
    censuses = [build_census({tag: run_id}) for tag in TAGS]
    ended = controllers.union(*map(find_left, censuses))
    left = {pid for census in censuses for pid in kill_left(census, lambda: None, KILL_LIMIT_S)}
    if left:
        return Swept(run_id, run_dir, True, f"would not end: pids {', '.join(map(str, sorted(left)))}")
    if node_dir is not None:
        shutil.rmtree(node_dir, ignore_errors=True)
    if run_dir:
        release_lock(Path(run_dir) / files.LOCK, run_id)
    what = f"{len(ended)} processes ended" + (f", {node_dir} removed" if node_dir else "")
    return Swept(run_id, run_dir, False, what)


def _find_reason_to_keep(run_id: str, run_dir: str, node_dir: Path | None) -> str:
    """Say why a run must not be touched; empty when it is dead."""
    if not run_dir:
        is_empty = not any(find_left(build_census({tag: run_id})) for tag in TAGS)
        return "" if is_empty else "its processes do not say where its run directory is"
    lock = Path(run_dir) / files.LOCK
    owner = find_owner(lock)
    if owner is not None and owner.run_id == run_id:
        is_alive = is_owner_alive(owner)
        if is_alive:
            return f"it is running (stub pid {owner.pid} on {owner.host})"
        if is_alive is None and _read_age_s(lock) < STALE_S + SKEW_S:
            return f"its stub is on {owner.host} and showed life lately"
    if any(_find_roles("stub", run_id)):
        return "its stub is alive"
    if any(_find_roles("controller", run_id)) and _read_age_s(lock) < STALE_S:
        return "its stub was killed and its controller is ending it; look again in a minute"
    job_id = _read_job(node_dir)
    if job_id:
        return f"it belongs to Slurm job {job_id}, which may not be over"
    return ""


def _read_age_s(lock: Path) -> float:
    """Seconds since the lock's last sign of life; a missing lock has none."""
    try:
        return time.time() - lock.stat().st_mtime
    except OSError:
        return float("inf")


def _read_job(node_dir: Path | None) -> str | None:
    if node_dir is None:
        return None
    try:
        return from_json((node_dir / "controller" / files.PLAN).read_bytes(), Plan).allocation.job_id
    except (OSError, DecodeError):
        return None


def _find_roles(role: str, run_id: str) -> Iterator[int]:
    """Find a run's stub or controllers: untagged, they are the caller's own, but their argv names the run's record."""
    for pid in list_pids():
        argv = read_words(pid, "cmdline")
        if argv[2:5] != [b"-m", b"retinue", role.encode()] or f"-{run_id}/".encode() not in argv[5]:
            continue
        try:
            is_mine = os.stat(f"/proc/{pid}").st_uid == os.getuid()
        except OSError:
            continue
        if is_mine:
            yield pid


def render_sweep(swept: list[Swept]) -> list[str]:
    """One line per run."""
    if not swept:
        return [f"nothing of retinue's is on this host ({time.strftime('%H:%M:%S')})"]
    return [f"run {item.run_id}: {item.text}" + (f"  ({item.run_dir})" if item.run_dir else "") for item in swept]
