"""From a manifest and sbatch options to a queued job: checks, the script, the run directory.

Everything that can be known to be wrong is said before the job waits for hours. The
job runs the manifest as it is now, whatever is edited meanwhile.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from retinue.allocation.described import parse_description
from retinue.errors import EdgeError, PlanError, UsageError
from retinue.journal.files import replace_file
from retinue.journal.rundir import RUNS, build_edge_error, check_usable, replace_text
from retinue.journal.submitted import SentJob, note_sent
from retinue.manifest.files import read_manifest
from retinue.manifest.resolve import dump_manifest
from retinue.manifest.schema import Manifest
from retinue.plan.build import build_plan, check_fixed_ports
from retinue.plan.records import Plan
from retinue.plan.trainer_words import check_trainer_words
from retinue.slurm.hygiene import scrub_for_submit
from retinue.slurm.options import GPU_OPTIONS, NODE_OPTIONS, Asked, read_sbatch_options
from retinue.slurm.script import Default, Script, build_options, render_script
from retinue.supervise.preflight import find_missing_secrets
from retinue.supervise.time_left import check_time_limit
from retinue.terms import run as files
from retinue.terms.record import Record

MANY_CPUS = 1 << 20
"""CPUs of a described node: sbatch's options do not say what nodes have, so they are not what a plan fails at."""
GPUS_MAX = 16
"""More whole devices than a node has."""
LONG_WARNING_S = 65535
"""The longest that --signal takes."""


class Submission(Record, frozen=True):
    """A job that could be sent, and what there is to say of it."""

    manifest_text: str
    """As resolved; the job runs this."""
    run_dir: Path
    script: str
    options: tuple[str, ...]
    """For sbatch: defaults that cannot stand in the script, then the user's."""
    env: dict[str, str]
    notes: tuple[str, ...]
    """What is not wrong, but worth knowing."""

    output: str
    """Where Slurm will write what the job prints; with `%j` and the like, which it fills in."""

    @property
    def script_path(self) -> Path:
        return self.run_dir / files.SCRIPT


def prepare_submission(
    manifest_path: Path,
    options: Sequence[str],
    trainer_argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    run_dir: Path | None = None,
) -> Submission:
    """Check everything that can be checked here; make nothing.

    Errors: ManifestError, UsageError (2), PlanError (4) where the options say enough to see that it cannot fit.
    """
    manifest = read_manifest(manifest_path)
    worth_knowing = check_trainer_words(trainer_argv, manifest.nodes)
    job_env, dropped = scrub_for_submit(env)
    asked = read_sbatch_options(options, job_env)
    defaults, plan, unplanned = _choose_defaults(manifest, asked, trainer_argv, cwd)
    place = name_run_dir(manifest.run.name, cwd) if run_dir is None else Path(os.path.abspath(cwd / run_dir))
    output = Default(f"--output={place}/slurm-%j.out", "what the run and the trainer print")
    defaults = [default for default in (*defaults, output) if not asked.has(_name(default))]
    script = Script(
        name=manifest.run.name,
        written=time.strftime("%Y-%m-%d %H:%M:%S"),
        manifest=str(cwd / manifest_path),
        defaults=tuple(defaults),
        options=tuple(options),
        path=str(place / files.SCRIPT),
        pythonpath=env.get("PYTHONPATH", ""),
        argv=(sys.executable, "-P", "-m", "retinue", "run", "--run-dir", str(place), str(place / files.MANIFEST)),
        trainer=tuple(trainer_argv),
    )
    notes = [f"not checked against an allocation: {unplanned}"] if unplanned else []
    notes += plan.warnings if plan is not None else worth_knowing
    notes += check_fixed_ports(manifest)
    notes += check_time_limit(asked.time_limit_s, manifest.run.drain_s)
    notes += _describe_secrets(plan, env)
    if dropped:
        notes.append(f"left out of the job's environment, because it would change the job: {' '.join(dropped)}")
    return Submission(
        manifest_text=dump_manifest(manifest),
        run_dir=place,
        script=render_script(script),
        options=(*build_options(defaults), *options),
        env=job_env,
        notes=tuple(dict.fromkeys(notes)),
        output=os.path.join(cwd, asked.last("chdir") or "", asked.last("output") or f"{place}/slurm-%j.out"),
    )


def write_submission(submission: Submission, is_new: bool) -> bool:
    """Make the run directory with the script and the manifest. False: somebody was quicker with the name of a new one.

    Errors: UsageError; nothing is left of what was made.
    """
    run_dir = submission.run_dir
    is_made = is_whole = False
    try:
        run_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_made = _make_dir(run_dir)
        if is_new and not is_made:
            return False
        check_usable(run_dir)
        # Arguments may hold bytes that are no text.
        replace_file(str(submission.script_path), os.fsencode(submission.script), 0o600)
        replace_text(run_dir / files.MANIFEST, submission.manifest_text)
        is_whole = True
    except OSError as error:
        raise UsageError(str(build_edge_error(f"make the run directory {str(run_dir)!r}", error))) from None
    except EdgeError as error:
        raise UsageError(str(error)) from None
    finally:
        if is_made and not is_whole:
            take_back_submission(submission)
    return True


def note_submission(submission: Submission, job_id: str, cwd: Path) -> None:
    """Leave word of a job that Slurm has taken, for commands that come before its first attempt."""
    output = submission.output.replace("%j", job_id).replace("%A", job_id)
    note_sent(submission.run_dir, cwd, SentJob(job_id, time.time(), "" if "%" in output else output))


def _make_dir(run_dir: Path) -> bool:
    """Make the directory; mkdir(2) alone decides whose it is. Says whether it was made here."""
    try:
        run_dir.mkdir(mode=0o700)
    except FileExistsError:
        if not run_dir.is_dir():
            raise
        return False
    return True


def take_back_submission(submission: Submission) -> None:
    """Remove what was written for a job that was not taken; a directory that holds anything else stays as it is."""
    names = {files.SCRIPT, files.MANIFEST}
    if not names.issuperset(os.listdir(submission.run_dir)):
        return
    for name in names:
        (submission.run_dir / name).unlink(missing_ok=True)
    for directory in (submission.run_dir, submission.run_dir.parent):
        try:
            directory.rmdir()
        except OSError:
            return


def name_run_dir(name: str, cwd: Path) -> Path:
    """`retinue-runs/<name>-<local time>`: a job has no number before it is sent."""
    first = path = cwd / RUNS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while path.exists():
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


# --- what the manifest asks of sbatch ------------------------------------------------


def _choose_defaults(
    manifest: Manifest, asked: Asked, trainer_argv: Sequence[str], cwd: Path
) -> tuple[list[Default], Plan | None, str]:
    """Fill in what the manifest needs and the options leave open; also the plan, or why there is none.

    Errors: PlanError.
    """
    defaults = [Default(f"--job-name={manifest.run.name}", "run.name")]
    node_count = asked.node_count
    counted = _count_nodes(manifest)
    if counted is not None and _leaves_nodes_open(asked, counted):
        node_count = counted
        defaults.append(Default(f"--nodes={counted}", f"the groups {', '.join(manifest.nodes)}"))
    plan, gpus, unplanned = None, None, "nothing says how many nodes it will be; give --nodes"
    if node_count is not None:
        plan, gpus, unplanned = _plan_described(manifest, asked, node_count, trainer_argv, cwd)
    if gpus and not asked.has(*GPU_OPTIONS, "exclusive"):
        why = "the fewest with which the services fit; give --gpus-per-node when the trainer needs more"
        defaults.append(Default(f"--gpus-per-node={gpus}", why))
    if plan is not None and plan.survives_node_loss:
        defaults.append(Default("--no-kill", "a node that the trainer does not run on may be lost"))
    defaults += _ask_for_time(manifest, asked)
    return defaults, plan, unplanned


def _leaves_nodes_open(asked: Asked, counted: int) -> bool:
    """Whether so many nodes may be asked for: of a list of hosts Slurm takes all, and others where more are needed."""
    names = [name for name in NODE_OPTIONS if name != "nodelist"]
    return not asked.has(*names) and (not asked.has("nodelist") or 0 < asked.listed_count < counted)


def _ask_for_time(manifest: Manifest, asked: Asked) -> list[Default]:
    """Warning before the end, and being queued again."""
    defaults = []
    drain_s = min(int(manifest.run.drain_s), LONG_WARNING_S)
    if drain_s > 0:
        defaults.append(
            Default(f"--signal=B:USR2@{drain_s}", "run.drain: the run stops in order before the time limit")
        )
    if manifest.run.requeue is not None:
        if not asked.has("no-requeue"):
            defaults.append(Default("--requeue", "run.requeue: Slurm may queue this job again"))
        defaults.append(
            Default("--open-mode=append", "run.requeue: an attempt does not overwrite the output before it")
        )
    return defaults


def _count_nodes(manifest: Manifest) -> int | None:
    """The nodes of all groups; None where one takes the rest, or there are none."""
    counts = [group.count for group in manifest.nodes.values()]
    whole = [count for count in counts if isinstance(count, int)]
    return sum(whole) if counts and len(whole) == len(counts) else None


def _plan_described(
    manifest: Manifest, asked: Asked, node_count: int, trainer_argv: Sequence[str], cwd: Path
) -> tuple[Plan | None, int | None, str]:
    """Plan for the nodes that will be, with the GPUs that were asked for, else with the fewest that do.

    Errors: PlanError of the largest allocation that was tried.
    """
    wants_gpus = any(service.place.gpus for service in manifest.services.values())
    gpus = asked.gpus_per_node
    if not wants_gpus:
        tries: Sequence[int] = (gpus or 0,)
    elif gpus is None:
        return None, None, "the options do not say how many GPUs each node will have"
    elif asked.has(*GPU_OPTIONS):
        tries = (gpus,)
    else:
        # The most first: what does not fit there fits nowhere, and is said with the numbers of that.
        tries = (GPUS_MAX, *range(1, GPUS_MAX))
    best: tuple[Plan, int] | None = None
    for count in tries:
        try:
            best = (_build_described(manifest, node_count, count, trainer_argv, cwd), count)
        except PlanError as error:
            if best is None:
                given = f"{node_count} node{'' if node_count == 1 else 's'}"
                given += f" with {count} GPUs each" if wants_gpus else ""
                raise PlanError([f"cannot fit {manifest.run.name} into {given}:", *error.problems]) from None
            continue
        if count < GPUS_MAX:
            break
    return (*best, "") if best is not None else (None, None, "")


def _build_described(manifest: Manifest, node_count: int, gpus: int, trainer_argv: Sequence[str], cwd: Path) -> Plan:
    nodes = f"node[1-{node_count}]" if node_count > 1 else "node1"
    allocation = parse_description(nodes, gpus, MANY_CPUS)
    run_dir = str(cwd / RUNS / manifest.run.name)
    return build_plan(manifest, allocation, tuple(trainer_argv), str(cwd), run_dir, f"{run_dir}/attempt-0")


def _name(default: Default) -> str:
    return default.option.removeprefix("--").partition("=")[0]


def _describe_secrets(plan: Plan | None, env: Mapping[str, str]) -> list[str]:
    """Secrets come from the job's environment, which is this one's unless --export says otherwise."""
    missing = find_missing_secrets(plan, env) if plan is not None else []
    return [f"{path}: the environment here has no {source}; the job's must have it" for path, source in missing]
