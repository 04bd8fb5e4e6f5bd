"""What people use instead, each as a program: `python checks_peers.py NAME WORKERS`.

Reads one JSON request a line, answers one JSON line each, in any order; `took_s` is measured in here, so that the
pipe to the bench is not counted. `bare` is in `checks_bare`.
"""

import json
import logging
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from checks_math import GOLD, TRIVIAL, check_library, check_ours, load

READY_S = 120.0
_SAY_LOCK = threading.Lock()

Request = dict[str, Any]


def say(answer: Request) -> None:
    """Write one answer line."""
    with _SAY_LOCK:
        os.write(1, json.dumps(answer).encode() + b"\n")


def read_requests() -> Any:
    say({"ready": True})
    for line in sys.stdin:
        yield json.loads(line)


def answer(request: Request, began_s: float, score: float | None) -> None:
    """Answer; `score` None: the limit ended it."""
    outcome = "timed_out" if score is None else "scored"
    say({"id": request["id"], "outcome": outcome, "score": score or 0.0, "took_s": time.perf_counter() - began_s})


# --- in process ---------------------------------------------------------------------------


def run_alarm(_workers: int) -> None:
    """In the caller's own process, one after the other; the library's alarm ends what hangs."""
    logging.disable()  # The library writes every timeout to stderr.
    check_library(TRIVIAL, GOLD, 1.0)
    for request in read_requests():
        began_s = time.perf_counter()
        answer(request, began_s, check_library(request["response"], request["gold"], request["limit_s"]))


def run_inside(_workers: int) -> None:
    """In process without any limit: what the verifier itself costs."""
    load()
    for request in read_requests():
        began_s = time.perf_counter()
        answer(request, began_s, check_ours(request["response"], request["gold"]))


# --- a process a check ----------------------------------------------------------------------


def run_fresh(_workers: int) -> None:
    """A new interpreter for every check."""
    code = "import sys, checks_math; print(checks_math.check_ours(*sys.argv[1:]))"
    for request in read_requests():
        began_s = time.perf_counter()
        argv = [sys.executable, "-c", code, request["response"], request["gold"]]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=READY_S, cwd=Path(__file__).parent)
            answer(request, began_s, float(done.stdout))
        except subprocess.TimeoutExpired:
            answer(request, began_s, None)


def _send_score(pipe: Connection, response: str, gold: str) -> None:
    pipe.send(check_ours(response, gold))


def run_forkserver(_workers: int) -> None:
    """multiprocessing's forkserver: it imports what a check needs ahead, and forks for every check."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["checks_math", "retinue.checks.verifiers.math"])
    for request in read_requests():
        began_s = time.perf_counter()
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_send_score, args=(theirs, request["response"], request["gold"]))
        process.start()
        theirs.close()
        score = ours.recv() if ours.poll(max(request["limit_s"], 10.0)) else None
        answer(request, began_s, score)
        process.kill()
        process.join()
        ours.close()


# --- long-lived workers -----------------------------------------------------------------------


def run_pool(workers: int) -> None:
    """ProcessPoolExecutor and result(timeout): the caller stops waiting, the worker does not stop working."""
    load()
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork"))
    for future in [pool.submit(check_ours, TRIVIAL, GOLD) for _ in range(workers)]:
        future.result(READY_S)

    def ask(request: Request) -> None:
        began_s = time.perf_counter()
        try:
            score = pool.submit(check_ours, request["response"], request["gold"]).result(request["limit_s"])
        except FutureTimeout:
            score = None
        answer(request, began_s, score)

    for request in read_requests():
        threading.Thread(target=ask, args=(request,), daemon=True).start()
    for process in (pool._processes or {}).values():
        process.kill()
    pool.shutdown(wait=True, cancel_futures=True)


def _serve_pipe(pipe: Connection) -> None:
    load()
    pipe.send(None)
    while True:
        pipe.send(check_ours(*pipe.recv()))


def _start_worker() -> tuple[Any, Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_pipe, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    ours.recv()
    return process, ours


def run_persistent(workers: int) -> None:
    """Workers on a pipe, used again and again; one that hangs is killed and a new one imports everything anew."""
    waiting: queue.SimpleQueue[tuple[Request, float]] = queue.SimpleQueue()
    ready = threading.Barrier(workers + 1)

    def keep() -> None:
        process, pipe = _start_worker()
        ready.wait()
        while True:
            request, began_s = waiting.get()
            pipe.send((request["response"], request["gold"]))
            if pipe.poll(request["limit_s"]):
                answer(request, began_s, pipe.recv())
                continue
            process.kill()
            answer(request, began_s, None)
            process, pipe = _start_worker()

    for _ in range(workers):
        threading.Thread(target=keep, daemon=True).start()
    ready.wait()
    for request in read_requests():
        waiting.put((request, time.perf_counter()))


PEERS = {
    "inside": run_inside,
    "alarm": run_alarm,
    "fresh": run_fresh,
    "forkserver": run_forkserver,
    "pool": run_pool,
    "persistent": run_persistent,
}

if __name__ == "__main__":
    PEERS[sys.argv[1]](int(sys.argv[2]))
