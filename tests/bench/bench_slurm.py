"""What a run costs on four real Slurm nodes, beside one `srun` per service doing the same.

Run on `login` of a throwaway cluster (`make cluster-bench`). Both ways start 4 x 10 replicas of the same service in a
job of their own, kill one of them and start it again, and end all; rounds take turns. Not a test: asserts nothing.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROUNDS = int(os.environ.get("RETINUE_BENCH_ROUNDS", "5"))
NODES, PER_NODE = 4, 10
RELAUNCHES = 10

SERVICE = "import os, sys, signal; os.close(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)); signal.pause()"
"""Says that it runs by a file, and waits for its end."""

MANIFEST = """\
retinue: 1
run: {name: bench}
services:
  idle:
    command: [PYTHON, -S, -c, "SERVICE", "{run_dir}/up-{index}-NONCE"]
    replicas: 40
    place: {on: all}
    restart: {backoff: 0s, limit: 1000, stable_for: 1s}
    stop: {signal: TERM, grace: 5s}
"""

PEER = """\
import os, pathlib, signal, subprocess, sys, time
out = pathlib.Path(sys.argv[1]); python, service, nodes = sys.argv[2], sys.argv[3], sys.argv[4].split(",")
note = lambda name: print(name, time.time(), flush=True)
def start(k):
    flags = "--overlap --mem=0 --cpu-bind=none -N1 -n1 --input=none".split()
    where = ["-w", nodes[k % len(nodes)]]
    return subprocess.Popen(["srun", *flags, *where, python, "-S", "-c", service, str(out / f"up-{k}")])
note("begin")
steps = [start(k) for k in range(40)]
while len(list(out.glob("up-*"))) < 40: time.sleep(0.01)
note("up")
for _ in range(int(sys.argv[5])):
    (out / "up-0").unlink()
    note("kill")
    steps[0].send_signal(signal.SIGTERM)
    steps[0].wait()
    steps[0] = start(0)
    while not (out / "up-0").exists(): time.sleep(0.002)
    note("again")
note("stop")
for step in steps: step.send_signal(signal.SIGTERM)
for step in steps: step.wait()
note("over")
"""


def submit(where: Path, script: str) -> None:
    """Run a batch script on all nodes and wait for its end."""
    path = where / "job.sh"
    path.write_text(f"#!/bin/bash\necho script $(date +%s.%N)\n{script}\n")
    flags = [f"-N{NODES}", "--exclusive", "--wait", "-o", str(where / "out.txt")]
    subprocess.run(["sbatch", *flags, str(path)], cwd=where, stdout=subprocess.DEVNULL, check=False)


def read_marks(where: Path) -> list[tuple[str, float]]:
    words = (line.split() for line in (where / "out.txt").read_text().splitlines())
    return [(word[0], float(word[1])) for word in words if len(word) == 2 and word[1].replace(".", "").isdigit()]


def spans(marks: list[tuple[str, float]], first: str, last: str) -> Iterator[float]:
    """Seconds between each `first` and the next `last`."""
    begun: float | None = None
    for name, at in marks:
        if name == first and begun is None:
            begun = at
        elif name == last and begun is not None:
            yield at - begun
            begun = None


def measure_srun_alone(where: Path) -> dict[str, list[float]]:
    """What Slurm itself needs for one task on every node."""
    submit(where, f"echo begin $(date +%s.%N); srun -N{NODES} -n{NODES} true; echo up $(date +%s.%N)")
    return {"joined": list(spans(read_marks(where), "begin", "up"))}


def measure_peer(where: Path) -> dict[str, list[float]]:
    (where / "peer.py").write_text(PEER)
    nodes = "$(scontrol show hostnames | paste -sd,)"
    submit(where, f"exec {sys.executable} peer.py {where} {sys.executable} '{SERVICE}' {nodes} {RELAUNCHES}")
    marks = read_marks(where)
    return {
        "up": list(spans(marks, "begin", "up")),
        "again": list(spans(marks, "kill", "again")),
        "over": list(spans(marks, "stop", "over")),
    }


def measure_ours(where: Path) -> dict[str, list[float]]:
    """The times come from the run's own journal and from the batch script's clock; one machine, one clock."""
    manifest = MANIFEST.replace("PYTHON", sys.executable).replace("SERVICE", SERVICE).replace("-NONCE", "")
    (where / "run.yaml").write_text(manifest)
    (where / "trainer.py").write_text(TRAINER)
    run_dir = where / "run"
    submit(
        where,
        f"{sys.executable} -m retinue run --run-dir {run_dir} run.yaml -- {sys.executable} trainer.py {RELAUNCHES}\n"
        "echo exit $(date +%s.%N)",
    )
    marks = dict(read_marks(where))
    events = [json.loads(line) for line in (run_dir / "current" / "events.jsonl").read_text().splitlines()]
    joined = next(event["t_utc"] for event in events if event["event"] == "NodesJoined")
    ready = next(event["t_utc"] for event in events if event["event"] == "ServicesReady")
    verdict = json.loads((run_dir / "current" / "verdict.json").read_text())
    if verdict["clean"] != "true":
        print(f"not clean: {verdict}")
    return {
        "joined": [joined - marks["script"]],
        "up": [ready - marks["script"]],
        "relaunch": list(find_relaunches(events)),
        "again": list(spans(read_marks(where), "kill", "again")),
        "over": [marks["exit"] - marks["stop"]],
    }


TRAINER = """\
import json, os, pathlib, signal, sys, time
run = pathlib.Path(os.environ["RETINUE_RUN_DIR"])
up = run / "up-0"
note = lambda name: print(name, time.time(), flush=True)
def find():
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if str(up).encode() in (path / "cmdline").read_bytes().split(b"\\0"): return int(path.name)
        except OSError: pass
while not up.exists(): time.sleep(0.01)
for _ in range(int(sys.argv[1])):
    time.sleep(1.2)
    pid = find()
    up.unlink()
    note("kill")
    os.kill(pid, signal.SIGKILL)
    while not up.exists(): time.sleep(0.002)
    note("again")
note("stop")
"""


def find_relaunches(events: list[dict[str, Any]]) -> Iterator[float]:
    """Seconds from each exit of the killed replica to its next start, as journalled."""
    gone: float | None = None
    for event in events:
        if event["subject"] != "idle/0":
            continue
        if event["event"] == "Exited":
            gone = event["t_utc"]
        elif event["event"] == "Started" and gone is not None:
            yield event["t_utc"] - gone
            gone = None


def main() -> None:
    if shutil.which("sbatch") is None or not os.environ.get("RETINUE_CLUSTER"):
        print("not measured here: needs a Slurm of its own, `make cluster-bench`")
        return
    place = Path(os.environ.get("RETINUE_BENCH_DIR", "~/bench-slurm")).expanduser() / str(os.getpid())
    found: dict[str, dict[str, list[float]]] = {"srun": {}, "peer": {}, "ours": {}}
    ways: dict[str, Callable[[Path], dict[str, list[float]]]] = {
        "srun": measure_srun_alone,
        "peer": measure_peer,
        "ours": measure_ours,
    }
    for number in range(ROUNDS):
        for way, measure in ways.items():
            where = place / f"{way}-{number}"
            where.mkdir(parents=True)
            for name, seconds in measure(where).items():
                found[way].setdefault(name, []).extend(seconds)
    report(found)


def report(found: dict[str, dict[str, list[float]]]) -> None:
    rows = [
        ("batch start to all joined (srun alone: one task a node)", "joined", "srun", "aim <= srun + 2,000"),
        ("batch start to 40 services up", "up", "peer", ""),
        ("kill to running again, seen by the service's own file", "again", "peer", ""),
        ("exit to relaunch, by the journal, backoff 0", "relaunch", "", "aim <= 150"),
        ("end of the trainer to exit, 4 nodes x 10 replicas", "over", "peer", "aim <= 3,000"),
    ]
    load = os.getloadavg()[0]
    print(f"medians of {ROUNDS} rounds, ms; peer: one srun per service; load {load:.1f} on {os.cpu_count()} CPUs")
    for title, name, other, aim in rows:
        ours = statistics.median(found["ours"][name]) * 1000
        base = statistics.median(found[other][name]) * 1000 if other else 0.0
        beside = f"{other} {base:9,.0f}   {ours / base:5.2f}x" if base else " " * 22
        print(f"{title:58} ours {ours:9,.0f}   {beside}   {aim}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
