"""The engine's own process: loads, holds memory, makes tokens, hangs, dies. Standard library only.

Reads one JSON line per request from standard input and answers one per token on standard output; ends with its
parent, as engines do when nothing goes wrong. The process it starts to hold memory leaves the group
and outlives it, as engines' workers do when something does; alone for a while, it ends by itself.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_NAME = 15
STEP_S = 0.02
LOAD_STEP_BYTES = 2 << 20
ALONE_S = 60.0
"""A worker whose engine is gone: a run sweeps it long before; started by hand, it must not stay for ever."""


def main() -> None:
    """`engine_process.py JSON`: the faults and the speed."""
    plan = json.loads(sys.argv[1])
    if plan.get("worker"):
        _be_worker(int(plan["memory"]))
    _name("VLLM::Rehearsal")
    if plan["ignore_term"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    argv = [sys.executable, "-S", __file__, json.dumps({"worker": True, "memory": plan["memory"]})]
    subprocess.Popen(argv, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _load(plan)
    _say({"ready": True})
    _serve(plan)


def _be_worker(memory: int) -> None:
    _name("VLLM::Worker")
    held = bytearray(memory)
    for at in range(0, memory, 4096):
        held[at] = 1
    parent, alone_s = os.getppid(), 0.0
    while alone_s < ALONE_S:
        time.sleep(1.0)
        alone_s = alone_s + 1.0 if os.getppid() != parent else 0.0
    os._exit(0)


def _load(plan: dict[str, float]) -> None:
    began_s = time.monotonic()
    held: list[bytes] = []
    while (late_s := time.monotonic() - began_s) < plan["load"] or _is_doomed(plan, late_s):
        if 0 <= plan["loader_dies"] <= late_s:
            os._exit(1)
        if not 0 <= plan["stall_load"] <= late_s:
            held.append(b"\1" * LOAD_STEP_BYTES if len(held) < 32 else b"")
            print(f"rehearsal: loaded for {late_s:.1f} s", file=sys.stderr, flush=True)
        _wait_or_end(0.5)


def _is_doomed(plan: dict[str, float], late_s: float) -> bool:
    return 0 <= plan["stall_load"] <= late_s or plan["loader_dies"] >= 0


def _wait_or_end(seconds: float) -> None:
    """Wait; end when the parent has gone."""
    if select.select([0], [], [], seconds)[0]:
        os._exit(0)


def _serve(plan: dict[str, float]) -> None:
    """Give every request one token a step."""
    ready_s, owed, is_hung, unread = time.monotonic(), dict[int, int](), False, b""
    while True:
        is_hung = is_hung or 0 <= plan["hang"] <= time.monotonic() - ready_s
        step_s = 1.0 if is_hung or not owed else max(STEP_S, 1.0 / plan["speed"])
        until_s = time.monotonic() + step_s
        while (left_s := until_s - time.monotonic()) > 0 and select.select([0], [], [], left_s)[0]:
            data = os.read(0, 1 << 16)
            if not data:
                os._exit(0)
            *lines, unread = (unread + data).split(b"\n")
            for line in map(json.loads, lines):
                is_hung = line.get("hang", is_hung)
                if "id" in line:
                    owed[line["id"]] = line["tokens"]
        if is_hung:
            continue
        for number in list(owed):
            owed[number] -= 1
            _say({"id": number, "left": owed[number]})
            if owed[number] <= 0:
                del owed[number]


def _say(value: dict[str, object]) -> None:
    os.write(1, json.dumps(value).encode() + b"\n")


def _name(name: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


if __name__ == "__main__":
    main()
