"""Plant known bugs one by one and show that the suite catches each: `make plant`.

    python tests/plants/plant.py [PATCH-NAME...]

Each patch of this directory is applied to a copy of the tree, and only the tests that it names
are run there. A bug is caught when one of their assertions fails: an import error, a crash of
the suite or a hang is no catch. Exit code 1 when a bug survives or a patch does not apply.
Never writes into the tree, and ends what a planted bug leaves running.

No patch may widen what is signalled or removed (tags, pids to spare, paths): its tests run on a
real machine, and the bug would hit whatever else runs there.
"""

import ctypes
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
AT_ONCE = 2
TESTS_TIMEOUT_S = 150.0
REPORT = "PLANT_REPORT"
NOT_COPIED = {"__pycache__", "retinue-runs"}
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_PR_SET_CHILD_SUBREAPER = 36


class PlantError(Exception):
    """A patch that cannot be read or does not apply, or tests that prove nothing; names the patch."""


@dataclass(frozen=True)
class Edit:
    """One hunk: these whole lines of the file become those."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Plant:
    """One patch file."""

    name: str
    bug: str
    """What is wrong once it is applied, in one sentence."""
    tests: tuple[str, ...]
    """What must catch it: paths below the tree, `::test_name` allowed."""
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Outcome:
    """What a run of tests said."""

    problem: str
    """Why this is no catch (for a patch), or why the tests prove nothing (without one); empty: as it should be."""
    test: str = ""
    """The test whose assertion failed."""
    seconds: float = 0.0


# --- patches ----------------------------------------------------------------------


def read_plants(directory: Path = HERE) -> list[Plant]:
    """Read every patch, by name."""
    return [parse_plant(path.stem, path.read_text()) for path in sorted(directory.glob("*.patch"))]


def parse_plant(name: str, text: str) -> Plant:
    """Turn a patch file into its two sentences and its hunks.

    Errors: PlantError when it is no unified diff, or lacks `# bug:` or `# caught by:`.
    """
    rows = iter(text.splitlines(keepends=True))
    words: dict[str, str] = {}
    edits: list[Edit] = []
    path = ""
    for row in rows:
        if row.startswith("# "):
            key, _, value = row[2:].partition(":")
            words[key] = value.strip()
        elif row.startswith("+++ b/"):
            path = row[6:].strip()
        elif match := _HUNK.match(row):
            edits.append(_read_hunk(name, path, rows, int(match[1] or 1), int(match[2] or 1)))
    if not edits or not words.get("bug") or not words.get("caught by"):
        raise PlantError(f"cannot read {name}: it needs '# bug:', '# caught by:' and a unified diff")
    return Plant(name, words["bug"], tuple(words["caught by"].split()), tuple(edits))


def _read_hunk(name: str, path: str, rows: Iterator[str], old_count: int, new_count: int) -> Edit:
    old = new = ""
    while old_count > 0 or new_count > 0:
        row = next(rows, "")
        mark, line = (" ", row) if row == "\n" else (row[:1], row[1:])
        if mark not in (" ", "-", "+") or not mark:
            raise PlantError(f"cannot read {name}: the hunk of {path} is shorter than it says")
        if mark != "+":
            old, old_count = old + line, old_count - 1
        if mark != "-":
            new, new_count = new + line, new_count - 1
    return Edit(path, old, new)


def apply_plant(plant: Plant, root: Path) -> dict[str, str]:
    """Build the changed files, path -> text; writes nothing. Line numbers do not matter, the lines do.

    Errors: PlantError when a file is gone, or a hunk's lines are there not once but never or twice.
    """
    texts: dict[str, str] = {}
    for edit in plant.edits:
        if edit.path not in texts:
            if not (root / edit.path).is_file():
                raise PlantError(f"cannot apply {plant.name}: there is no {edit.path}")
            texts[edit.path] = (root / edit.path).read_text()
        lines = re.compile(f"^{re.escape(edit.old)}", re.MULTILINE)
        texts[edit.path], count = lines.subn(edit.new.replace("\\", r"\\"), texts[edit.path])
        if count != 1:
            found = "are not there" if count == 0 else f"are there {count} times"
            raise PlantError(f"cannot apply {plant.name}: its lines {found} in {edit.path}; write the patch anew")
    return texts


# --- copies of the tree -----------------------------------------------------------


def copy_tree(root: Path, target: Path) -> None:
    """Copy what git knows or would add; without git everything that is not hidden."""
    for name in _list_files(root):
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


def _list_files(root: Path) -> list[str]:
    # A checkout that belongs to another user is read all the same.
    argv = ["git", "-c", f"safe.directory={root}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(argv, cwd=root, capture_output=True, check=True, text=True)
        return [name for name in done.stdout.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        paths = (path.relative_to(root) for path in root.rglob("*"))
        return [
            str(path) for path in paths if not any(part in NOT_COPIED or part.startswith(".") for part in path.parts)
        ]


def link_tree(base: Path, target: Path) -> None:
    """Make a second copy out of hard links: our own first copy is linked, never the tree."""
    shutil.copytree(base, target, copy_function=os.link)


# --- one run of tests -------------------------------------------------------------


def run_tests(copy: Path, tests: Sequence[str]) -> tuple[dict[str, Any] | None, str]:
    """Run tests of a copy against that copy.

    Shape: what the witness reported (None: it never got that far), and the last lines that pytest printed.
    """
    # Beside the copy, and one per worker: the first copy is used by all of them at once.
    report = copy.with_name(f"{copy.name}.{os.getpid()}.json")
    path = f"{copy / 'controller'}{os.pathsep}{copy / 'tests'}"
    env = {**os.environ, "PYTHONPATH": path, REPORT: str(report)}
    # `-n 3` there would have several witnesses write one report.
    env.pop("PYTEST_ADDOPTS", None)
    argv = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "plants.witness", *tests]
    try:
        done = subprocess.run(
            argv, cwd=copy, env=env, timeout=TESTS_TIMEOUT_S, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        words = done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired:
        words = f"not over after {TESTS_TIMEOUT_S:g} s"
    finally:
        _end_descendants()
    said = json.loads(report.read_text()) if report.exists() else None
    report.unlink(missing_ok=True)
    if said is not None and not Path(said["package"]).is_relative_to(copy):
        raise PlantError(f"cannot run the tests of {copy}: {said['package']} was imported instead of its retinue")
    return said, "\n".join(words.splitlines()[-15:])


def _become_subreaper() -> None:
    """Let orphans of the tests land on this process, so that they are known to be theirs."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_descendants() -> None:
    """Kill by pid what the tests left; the children of the killed land here in turn."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while pids := [int(word) for word in children.read_text().split()]:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def prove_tests(copy: Path, tests: Sequence[str]) -> Outcome:
    """Run the named tests without any bug: all must pass, or a failure means nothing later."""
    began_s = time.monotonic()
    said, words = run_tests(copy, tests)
    problem = ""
    if said is None or said["failure"] is not None or not said["passed"]:
        problem = f"the tests fail without any bug:\n{words}"
    elif said["skipped"]:
        problem = f"tests that are skipped here catch nothing:\n{words}"
    return Outcome(problem, seconds=time.monotonic() - began_s)


def try_plant(plant: Plant, base: Path, copy: Path) -> Outcome:
    """Plant one bug into a copy and let its tests judge."""
    began_s = time.monotonic()
    texts = apply_plant(plant, base)
    link_tree(base, copy)
    for path, text in texts.items():
        (copy / path).unlink()
        (copy / path).write_text(text)
    said, words = run_tests(copy, plant.tests)
    shutil.rmtree(copy)
    failure = said["failure"] if said is not None else None
    test, problem = "", ""
    if said is None:
        problem = f"the tests did not get to judge:\n{words}"
    elif failure is None:
        problem = "SURVIVED: all of its tests pass"
    elif not failure["is_assertion"]:
        problem = f"no assertion failed, {failure['test']} broke: {failure['error']}"
    else:
        test = failure["test"]
    return Outcome(problem, test, time.monotonic() - began_s)


# --- all of them ------------------------------------------------------------------


def main(names: Sequence[str]) -> int:
    """Plant the named bugs (none: all) and print the table."""
    began_s = time.monotonic()
    try:
        known = read_plants()
        if unknown := set(names) - {plant.name for plant in known}:
            raise PlantError(f"cannot plant {', '.join(sorted(unknown))}: there is no such patch in {HERE}")
        plants = [plant for plant in known if not names or plant.name in names]
        with tempfile.TemporaryDirectory(prefix="retinue-plant-") as place:
            caught = _plant_all(plants, Path(place))
    except PlantError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(plants)} bugs planted, {caught} caught, {time.monotonic() - began_s:.0f} s")
    return 0 if plants and caught == len(plants) else 1


def _plant_all(plants: Sequence[Plant], place: Path) -> int:
    base = place / "base"
    copy_tree(ROOT, base)
    for plant in plants:
        apply_plant(plant, base)
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(AT_ONCE, context, initializer=_become_subreaper) as pool:
        # Also leaves the compiled files that the copies share.
        tests = sorted({test for plant in plants for test in plant.tests})
        proofs = _submit_all(pool, prove_tests, [(base, tests[at::AT_ONCE]) for at in range(AT_ONCE) if tests[at:]])
        for proof in proofs:
            if problem := proof.result().problem:
                raise PlantError(problem)
        trials = _submit_all(pool, try_plant, [(plant, base, place / plant.name) for plant in plants])
        print(f"{'patch':40} | {'bug':90} | caught by | seconds")
        for plant, trial in zip(plants, trials, strict=True):
            outcome = trial.result()
            verdict = outcome.test or outcome.problem
            print(f"{plant.name:40} | {plant.bug:90} | {verdict} | {outcome.seconds:.1f}", flush=True)
        return sum(not trial.result().problem for trial in trials)


def _submit_all(
    pool: ProcessPoolExecutor, work: Callable[..., Outcome], calls: list[tuple[Any, ...]]
) -> list[Future[Outcome]]:
    return [pool.submit(work, *call) for call in calls]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
