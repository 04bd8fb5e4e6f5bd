"""32 coding rollouts in sandboxes, over an image that is made from what this machine has: a Python and a shell.

A third of them flood, fork, hang, or try to get out. Beside them a neighbour works on in a sandbox of its own, and must
not notice. What must come out is written beside each program (coding_answers.py).
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from coding_answers import Answer, list_answers
from nightmares import read_status

from retinue.client import Ended, Retinue, SandboxLost

LIMITS = {"memory": "96MiB", "disk": "16MiB", "inodes": 1000, "pids": 64, "wall": "30s", "output": "64KiB"}
NOT_NEEDED = shutil.ignore_patterns(
    "test*",
    "idlelib",
    "tkinter",
    "ensurepip",
    "lib2to3",
    "pydoc_data",
    "distutils",
    "__pycache__",
    "*-packages",
    "config-*",
)
READY_S = 30.0
PYTHON = ["python3", "-S", "-E", "-c"]


def find_libraries(program: str) -> list[str]:
    """Find what a program is linked with."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return [word for word in listed.split() if word.startswith("/")]


def make_image(root: Path) -> Path:
    """Make a directory that can be a sandbox's root; the service packs it once."""
    shell, python = os.path.realpath("/bin/sh"), os.path.realpath(sys.executable)
    stdlib = sysconfig.get_path("stdlib")
    shutil.copytree(stdlib, root / stdlib.lstrip("/"), ignore=NOT_NEEDED)
    wanted = {"/bin/sh": shell, "/bin/cat": os.path.realpath(str(shutil.which("cat"))), python: python}
    modules = [str(module) for module in Path(stdlib, "lib-dynload").glob("*.so")]
    wanted |= {path: path for program in [*wanted.values(), *modules] for path in find_libraries(program)}
    for name, path in wanted.items():
        target = root / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    (root / "bin" / "python3").symlink_to(python)
    for name in ("tmp", "proc", "dev", "etc", "root"):
        (root / name).mkdir(exist_ok=True)
    return root


@dataclass
class Neighbour:
    """What the sandbox that minds its own business saw."""

    commands: int = 0
    worst_s: float = 0.0
    troubles: list[str] = field(default_factory=list)


async def work_beside(r: Retinue, image: Path, stop: asyncio.Event) -> Neighbour:
    """Do a little work in a sandbox until told to stop; whatever is not as it must be is a trouble."""
    seen = Neighbour()
    async with r.sandbox(image, limits=LIMITS) as box:
        await box.files.write("/tmp/mine", "untouched")
        clock = await box.start("while :; do echo tick; read -t 1 nothing < /dev/zero; done")
        while not stop.is_set():
            began = time.monotonic()
            ended = await box.exec(["cat", "/tmp/mine"], timeout_s=20)
            seen.commands += 1
            seen.worst_s = max(seen.worst_s, time.monotonic() - began)
            if ended.stdout.text != "untouched":
                seen.troubles.append(f"its file reads {ended.stdout.text!r}: {ended.outcome.value} {ended.cause}")
        if not (await clock.show()).is_running:
            seen.troubles.append("its background process was ended")
    return seen


async def roll_out(r: Retinue, image: Path, answer: Answer) -> Ended | SandboxLost:
    """Run one program in a sandbox of its own."""
    gateway = urlsplit(os.environ["RETINUE_SANDBOX_URL"]).port
    words = [str(gateway), str(os.getpid()), os.environ["RETINUE_RUN_DIR"]]
    try:
        async with r.sandbox(image, limits=LIMITS) as box:
            return await box.exec([*PYTHON, answer.program, *words], stdin=answer.stdin, timeout_s=answer.limit_s)
    except SandboxLost as lost:
        return lost  # Ours, not the policy's: a trainer masks this rollout.


def score(answer: Answer, ended: Ended) -> float:
    return float(ended.is_ok and bool(answer.expected) and ended.stdout.text.strip() == answer.expected)


def find_mistake(answer: Answer, ended: Ended | SandboxLost) -> str:
    """Say what is not as it must be; empty: nothing."""
    if isinstance(ended, SandboxLost):
        return f"{answer.name}: lost: {ended}"
    said = f"{ended.outcome.value}, score {score(answer, ended):g}"
    if said != f"{answer.outcome}, score {answer.score:g}":
        return f"{answer.name}: {said}: {ended.cause} {ended.stdout.text[-300:]} {ended.stderr.text[-300:]}"
    return f"{answer.name}: {ended.left} processes were left" if ended.left else ""


def print_rows(rows: list[tuple[Answer, Ended | SandboxLost]]) -> None:
    """Print those that misbehave, one line each."""
    for answer, ended in rows:
        if isinstance(ended, SandboxLost) or ", right" in answer.name or ", wrong" in answer.name:
            continue
        how = (
            ended.stdout.text.strip()
            if ended.stdout.total_bytes < 80
            else f"{ended.stdout.total_bytes >> 20} MiB written"
        )
        print(f"  {answer.name:<28} {ended.outcome.value:<16} {ended.wall_s:5.2f} s  {how or ended.cause}"[:110])


async def wait_ready(r: Retinue) -> str:
    """Wait until sandboxes can be had; else say why not."""
    until_s = time.monotonic() + READY_S
    while time.monotonic() < until_s:
        if r.endpoints()["sandbox"].ready:
            return ""
        phase, reason = next(
            (one["phase"], one["reason"]) for one in read_status()["replicas"] if one["id"] == "sandbox/0"
        )
        if phase == "failed":
            return f"{read_last_line() or reason}; see `retinue doctor --for sandbox`"
        await asyncio.sleep(0.2)
    return f"not ready after {READY_S:g} s; see `retinue logs sandbox`"


def read_last_line() -> str:
    """Read what the service said last."""
    log = Path(os.environ["RETINUE_ENDPOINTS"]).with_name("logs") / "sandbox.0" / "launch-1.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return lines[-1] if lines else ""


def count_live() -> int:
    """Count the sandboxes that there are, whoever made them."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        os.environ["RETINUE_SANDBOX_URL"] + "/v1/sandboxes", timeout=30
    ) as answer:
        return len(json.load(answer)["sandboxes"])


async def play_coding() -> list[str]:
    """Run all of it and print what became of it; returns the mistakes."""
    async with Retinue.from_env() as r:
        why = await wait_ready(r)
        if why:
            print(f"sandboxes: left out, this machine has none: {why}", flush=True)
            return []
        with tempfile.TemporaryDirectory(dir=os.environ["RETINUE_NODE_DIR"]) as folder:
            return await play(r, await asyncio.to_thread(make_image, Path(folder, "image")))


async def play(r: Retinue, image: Path) -> list[str]:
    began = time.monotonic()
    async with r.sandbox(image, limits=LIMITS):
        print(f"sandboxes: an image of this machine's Python is packed ({time.monotonic() - began:.1f} s)", flush=True)
    answers, stop, began = list_answers(), asyncio.Event(), time.monotonic()
    beside = asyncio.create_task(work_beside(r, image, stop))
    ended = await asyncio.gather(*(roll_out(r, image, answer) for answer in answers))
    took_s = time.monotonic() - began
    stop.set()
    neighbour = await beside
    rows = list(zip(answers, ended, strict=True))
    right = sum(score(answer, one) for answer, one in rows if isinstance(one, Ended) and ", right" in answer.name)
    left = await asyncio.to_thread(count_live)
    print(
        f"sandboxes: {len(rows)} coding rollouts in {took_s:.1f} s, {right:g} of 10 right programs score 1; {left} left"
    )
    print_rows(rows)
    print(
        f"  their neighbour: {neighbour.commands} commands meanwhile (longest {neighbour.worst_s:.2f} s), "
        f"{len(neighbour.troubles)} disturbed",
        flush=True,
    )
    mistakes = [mistake for answer, one in rows if (mistake := find_mistake(answer, one))]
    return mistakes + neighbour.troubles + ([f"{left} sandboxes were left"] if left else [])
