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

from retinue.journal.lock import find_owner, is_owner_alive, release_lock
from retinue.journal.verdict import read_verdict
from retinue.node.census import build_census, find_left, kill_left
from retinue.plan.records import Plan
from retinue.terms import run as files
from retinue.terms.record import DecodeError, Record, from_json
from retinue.terms.run import RunRecord

KILL_LIMIT_S = 10.0


class Swept(Record, frozen=True):
    """What was found of one run on this host, and what became of it."""

    run_id: str
    run_dir: str
    is_ended: bool
    """False: it was left alone, or something would not end."""
    text: str


def sweep_host(env: Mapping[str, str]) -> list[Swept]:
    """Look at every run of this user on this host and end the dead ones."""
    roots = {Path(env.get("SLURM_TMPDIR") or "/tmp"), Path("/tmp")}
    found = dict(_find_by_directory(roots))
    for run_id, run_dir in _find_by_tag():
        found.setdefault(run_id, (run_dir, None))
    return [_sweep_one(run_id, run_dir, node_dir) for run_id, (run_dir, node_dir) in sorted(found.items())]


def _find_by_directory(roots: set[Path]) -> Iterator[tuple[str, tuple[str, Path | None]]]:
    prefix = f"retinue-{os.getuid()}-"
    for root in roots:
        for node_dir in root.glob(f"{prefix}*"):
            if node_dir.is_dir() and not node_dir.is_symlink() and node_dir.stat().st_uid == os.getuid():
                record = _read_record(node_dir)
                yield node_dir.name.removeprefix(prefix), (record.run_dir if record else "", node_dir)


def _read_record(node_dir: Path) -> RunRecord | None:
    try:
        return from_json((node_dir / "controller" / "run.json").read_bytes(), RunRecord)
    except (OSError, DecodeError):
        return None


def _find_by_tag() -> Iterator[tuple[str, str]]:
    """Runs that show in the environment of this user's processes."""
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environ = Path(entry.path, "environ").read_bytes()
        except OSError:
            continue
        tags = dict(part.partition(b"=")[::2] for part in environ.split(b"\0"))
        run_id = tags.get(b"RETINUE_RUN_ID", b"").decode(errors="replace")
        if run_id:
            yield run_id, tags.get(b"RETINUE_RUN_DIR", b"").decode(errors="replace")


def _sweep_one(run_id: str, run_dir: str, node_dir: Path | None) -> Swept:
    why = _find_reason_to_keep(run_id, run_dir, node_dir)
    if why:
        return Swept(run_id, run_dir, False, f"left alone: {why}")
    census = build_census({"RETINUE_RUN_ID": run_id})
    count = len(find_left(census))
    left = kill_left(census, lambda: None, KILL_LIMIT_S)
    if left:
        return Swept(run_id, run_dir, False, f"would not end: pids {', '.join(map(str, left))}")
    if node_dir is not None:
        shutil.rmtree(node_dir, ignore_errors=True)
    if run_dir:
        release_lock(Path(run_dir) / files.LOCK, run_id)
    what = f"{count} processes ended" + (f", {node_dir} removed" if node_dir else "")
    return Swept(run_id, run_dir, True, what)


def _find_reason_to_keep(run_id: str, run_dir: str, node_dir: Path | None) -> str:
    """Say why a run must not be touched; empty only when its death is proved.

    Proof is the lock's owner, seen dead from this very pid namespace, or a verdict: the stub writes it last.
    """
    job_id = _read_job(node_dir)
    if job_id:
        return f"it belongs to Slurm job {job_id}, which may not be over"
    owner = find_owner(Path(run_dir) / files.LOCK) if run_dir else None
    if owner is not None and owner.run_id == run_id:
        is_alive = is_owner_alive(owner)
        if is_alive is None:
            return f"its stub (pid {owner.pid} on {owner.host}) cannot be seen from here"
        return f"it is running (stub pid {owner.pid})" if is_alive else ""
    if _has_live_stub(run_id):
        return "its stub is alive"
    if run_dir and _has_verdict(Path(run_dir), run_id):
        return ""
    return "nothing proves that it is dead: no lock and no verdict of it can be read"


def _has_verdict(run_dir: Path, run_id: str) -> bool:
    verdicts = (read_verdict(path) for path in run_dir.glob(f"attempt-*/{files.VERDICT}"))
    return any(verdict is not None and verdict.run_id == run_id for verdict in verdicts)


def _read_job(node_dir: Path | None) -> str | None:
    if node_dir is None:
        return None
    try:
        return from_json((node_dir / "controller" / files.PLAN).read_bytes(), Plan).allocation.job_id
    except (OSError, DecodeError):
        return None


def _has_live_stub(run_id: str) -> bool:
    """A stub carries no tag: it is the caller's own process. Its argv names the run's directory."""
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            argv = Path(entry.path, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if argv[2:5] == [b"-m", b"retinue", b"stub"] and run_id.encode() in argv[5]:
            return True
    return False


def render_sweep(swept: list[Swept]) -> list[str]:
    """One line per run."""
    if not swept:
        return [f"nothing of retinue's is on this host ({time.strftime('%H:%M:%S')})"]
    return [f"run {item.run_id}: {item.text}" + (f"  ({item.run_dir})" if item.run_dir else "") for item in swept]
