"""`python -m bench COMMAND [OPTIONS] [-- WORDS]`, as root: up, down, shell, run, do, test.

The Makefile's cluster targets call it through .ci/cluster.
"""

import argparse
import getpass
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from bench.layout import LOGIN, Layout, Refusal, build_layout, read_layout
from bench.procs import build_become, build_enter, children_of
from bench.standing import bring_up, forget_failure, read_outer, take_down

ROOT = Path(__file__).resolve().parents[3]
USAGE = """\
cluster {name!r}: {count} nodes (node1 ...) and `login`, user {user}, state in {state}
  shell on login      make cluster-shell NAME={name}        then: srun -N{count} hostname
  a fault             make cluster-do NAME={name} DO='cut node2'     (heal, kill-node, revive, slurmctld stop ...)
  away with it        make cluster-down NAME={name}
seen on all hosts: {shared}{shares}, and this machine outside /tmp; partitions: batch (default), low, low-cancel, high
"""


def say_usage(layout: Layout) -> None:
    shares = "".join(f", {share}" for share in layout.shares)
    words = {"name": layout.name, "count": layout.node_count, "user": layout.user, "state": layout.state}
    print(USAGE.format(**words, shared=layout.shared, shares=shares), end="")


def build_entry(layout: Layout, host: str, directory: str, extra: dict[str, str]) -> list[str]:
    """The argv prefix from this machine to the user on a host: first into the fabric, whose pids name the hosts."""
    outer = read_outer(layout.state)
    try:
        pid = int(layout.pid_file(host).read_text())
    except OSError:
        raise Refusal(f"{host} is not alive in cluster {layout.name!r}") from None
    first = children_of(outer) if outer else []
    if not first:
        raise Refusal(f"cluster {layout.name!r} is not running: make cluster NAME={layout.name}")
    fabric = ["nsenter", f"--target={first[0]}", "--mount", "--pid", "--"]
    user = {"RETINUE_CLUSTER": str(layout.state), "PYTEST_DEBUG_TEMPROOT": str(layout.shared / "scratch")}
    kept = {name: os.environ[name] for name in ("TERM", "LANG", "CI") if name in os.environ}
    become = build_become((layout.uid, layout.gid), directory, kept | user | extra)
    return [*fabric, *build_enter(pid), *become]


def ask(layout: Layout, verb: str, words: list[str]) -> str:
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(str(layout.control))
        except OSError as error:
            raise Refusal(
                f"cluster {layout.name!r} does not answer: {error}; make cluster NAME={layout.name}"
            ) from None
        line.sendall(json.dumps({"verb": verb, "words": words}).encode() + b"\n")
        answer = json.loads(line.makefile().readline() or '{"ok": false, "error": "no answer"}')
    if not answer.pop("ok"):
        raise Refusal(answer["error"])
    return json.dumps(answer, indent=1) if answer else "done"


def run_tests(options: argparse.Namespace) -> int:
    """Up, the tests on `login` as the user, down whatever happened. The tree must be readable for the user."""
    tree = Path(options.tree).resolve()
    python = options.python or str(tree / ".venv" / "bin" / "python")
    shares = [*options.share, str(tree)]
    layout = build_layout(options.name, options.nodes, options.user, shares, options.proctrack)
    if not Path(python).exists():
        raise Refusal(f"cannot run tests: no Python at {python}; give --python or a --tree with a .venv")
    if read_outer(layout.state):
        raise Refusal(f"a cluster {layout.name!r} stands already: make cluster-down NAME={layout.name}")
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        bring_up(layout)
        up_s = time.monotonic() - began
        extra = {"PYTHONPATH": str(tree / "controller"), "PYTHONDONTWRITEBYTECODE": "1"}
        extra["PATH"] = f"{Path(python).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        tests = options.rest or ["tests/cluster"]
        argv = [python, "-m", "pytest", *tests]
        code = subprocess.run([*build_entry(layout, LOGIN, str(tree), extra), *argv], check=False).returncode
    finally:
        take_down(layout.state)
    print(f"cluster tests: {time.monotonic() - began:.0f} s, of which {up_s:.0f} s to bring {options.nodes} nodes up")
    return code


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("command", choices=["up", "down", "shell", "run", "do", "test"])
    parser.add_argument("--name", default="main")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--user", default=os.environ.get("SUDO_USER") or getpass.getuser())
    parser.add_argument("--share", action="append", default=[], help="a directory in /tmp that all hosts see")
    parser.add_argument("--proctrack", default="linuxproc")
    parser.add_argument("--host", default=LOGIN, help="where `shell` and `run` go")
    parser.add_argument("--tree", default=str(ROOT), help="the tree whose tests run")
    parser.add_argument("--python", default="", help="the Python that has pytest; else .venv of the tree")
    before, after = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    options = parser.parse_args(before)
    options.rest = after
    return options


def command(options: argparse.Namespace) -> int:
    if options.command == "test":
        return run_tests(options)
    if options.command == "up":
        layout = build_layout(options.name, options.nodes, options.user, options.share, options.proctrack)
        if not bring_up(layout):
            print("it stands already:")
            layout = read_layout(options.name)
        say_usage(layout)
        return 0
    if options.command == "down":
        place = os.environ.get("RETINUE_CLUSTER_DIR") or "/tmp"
        state = Path(place).resolve() / f"retinue-cluster-{options.name}"
        was_there = take_down(state)
        forget_failure(state)
        print(f"cluster {options.name!r}: " + ("gone" if was_there else "there was none"))
        return 0
    layout = read_layout(options.name)
    if options.command == "do":
        if not options.rest:
            raise Refusal("do what? e.g. -- cut node2")
        print(ask(layout, options.rest[0], options.rest[1:]))
        return 0
    argv = options.rest or ["bash", "-i"]
    directory = os.getcwd() if options.command == "run" else str(layout.home(layout.user))
    extra = {"PATH": os.environ["PATH"]} if options.command == "run" else {}
    return subprocess.run([*build_entry(layout, options.host, directory, extra), *argv], check=False).returncode


def main() -> int:
    try:
        return command(parse_arguments(sys.argv[1:]))
    except Refusal as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
