"""Services for the fault tests: small programs written into the test's directory, and what is asked about a run.

The trainer of these runs only waits; the test itself calls the services through their stable URL.
"""

import contextlib
import fcntl
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.real_run import RealRun

SERVER = """
import fcntl, os, signal, socket, socketserver, subprocess, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

INCARNATION = int(os.environ["RETINUE_INCARNATION"])
REPLICA = os.environ["RETINUE_REPLICA"]

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        status, body = answer(self.path)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

class Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self):  # without the look-up of the host's name
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]

def answer(path):
    return 200, f"{REPLICA} {INCARNATION}".encode()

def serve(port, host="127.0.0.1"):
    Server((host, port), Handler).serve_forever()
"""
"""What most scripts begin with; they define `answer(path)` where they want another one, and end with `serve(port)`."""

QUICK_PROBE = {"http": "/health", "period": "150ms", "failures": 2}


def write_script(directory: Path, name: str, text: str) -> list[str]:
    """Write a program; gives the command that runs it. A file, because `{` means something in a manifest."""
    path = directory / f"{name}.py"
    path.write_text(text)
    return [sys.executable, str(path)]


def build_server(directory: Path, name: str, text: str = "", **fields: Any) -> dict[str, Any]:
    """Build a manifest entry for an HTTP server; the text comes between SERVER and its `serve`."""
    tail = "" if "serve(" in text else "\nserve(int(sys.argv[1]))\n"
    entry: dict[str, Any] = {
        "command": [*write_script(directory, name, SERVER + text + tail), "{port}"],
        "probes": {"readiness": QUICK_PROBE},
        "restart": {"backoff": "100ms", "limit": 3},
        "stop": {"grace": "3s"},
    }
    return entry | fields


def build_program(directory: Path, name: str, text: str, **fields: Any) -> dict[str, Any]:
    """Build a manifest entry for a program without a port; it holds nobody back."""
    entry: dict[str, Any] = {
        "command": write_script(directory, name, text),
        "restart": {"backoff": "100ms", "limit": 3},
        "stop": {"grace": "3s"},
        "min_ready": 0,
    }
    return entry | fields


@contextlib.contextmanager
def running(
    directory: Path, services: dict[str, Any], env: dict[str, str] | None = None, trainer: list[str] | None = None
) -> Iterator[RealRun]:
    """A run whose services are ready; it is over when the test is."""
    run = RealRun(directory, services, trainer)
    try:
        run.start(env)
        run.wait_phase("running")
        yield run
    finally:
        run.end_hard()


def end_cleanly(run: RealRun) -> dict[str, Any]:
    """Stop the run as a job's end would, and prove that nothing of it is left."""
    run.signal(signal.SIGTERM)
    assert run.wait_end() == 143
    verdict = run.verdict()
    assert verdict["clean"] == "true", verdict
    run.assert_nothing_left()
    return verdict


def get(url: str, timeout_s: float = 30.0) -> str:
    """Ask once, past any proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=timeout_s) as answer:
        text: str = answer.read().decode()
        return text


def find_events(run: RealRun, subject: str, event: str) -> list[dict[str, Any]]:
    return [line for line in run.events() if line["subject"] == subject and line["event"] == event]


def wait_event(run: RealRun, subject: str, event: str, count: int = 1) -> dict[str, Any]:
    """Wait for the count-th event of this kind and give it."""

    def look() -> dict[str, Any] | None:
        found = find_events(run, subject, event)
        return found[count - 1] if len(found) >= count else None

    line: dict[str, Any] = run.wait(f"{event} {count} of {subject}", look)
    return line


def is_locked(path: Path) -> bool:
    """Say whether some process holds the flock of this file: a sign of life that needs no pid."""
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
