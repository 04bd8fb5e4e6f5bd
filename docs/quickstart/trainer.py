"""A trainer of the quickstart: asks all services without a pause, while it kills parts of the run.

It knows nothing but RETINUE_<SERVICE>_URL. A trainer's nightmares are played on purpose: two
replicas, the node's agent and the controller itself get SIGKILL, and every request must still be answered.
Standard library only.
"""

import http.client
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SECONDS = float(os.environ.get("QUICKSTART_SECONDS", "25"))
WORKERS_PER_SERVICE = 2
SLOW_S = 0.25
"""A request slower than this was held while something was down."""


class Tally:
    """What the workers count together."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.answered = self.slow = self.lost = 0
        self.worst_s = 0.0
        self.causes: list[str] = []

    def add(self, took_s: float, cause: str | None) -> None:
        with self.lock:
            self.answered += cause is None
            self.slow += cause is None and took_s > SLOW_S
            self.lost += cause is not None
            self.worst_s = max(self.worst_s, took_s)
            if cause is not None:
                self.causes.append(cause)


def ask(url: str, text: str) -> str | None:
    """Send one request on a connection of its own; the cause when it was not answered."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        connection.request("POST", f"{parts.path}/v1/score", text.encode())
        answer = connection.getresponse()
        body = answer.read()
        return None if answer.status == 200 else f"{answer.status} {body[:200]!r}"
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    except http.client.HTTPException as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()


def work(url: str, tally: Tally, until: float) -> None:
    while time.monotonic() < until:
        began = time.monotonic()
        cause = ask(url, "how many words are in this answer")
        tally.add(time.monotonic() - began, cause)


def read_status() -> dict[str, Any]:
    path = Path(os.environ["RETINUE_ENDPOINTS"]).with_name("status.json")
    status: dict[str, Any] = json.loads(path.read_text())
    return status


def kill(what: str, pid: int) -> None:
    print(f"  SIGKILL to {what} (pid {pid})", flush=True)
    os.kill(pid, signal.SIGKILL)


def play_nightmares() -> None:
    """Kill one part after the other, with time to recover in between."""
    pause_s = SECONDS / 6
    for what in ("scorer/1", "agent", "controller", "customer/0"):
        time.sleep(pause_s)
        status = read_status()
        if what == "controller":
            kill(what, status["controller_pid"])
        elif what == "agent":
            node = status["nodes"][0]
            kill(f"the agent of {node['name']}", node["agent_host_pid"])
        else:
            replica = next(item for item in status["replicas"] if item["id"] == what)
            kill(what, replica["host_pid"])


def main() -> int:
    urls = {name: os.environ[f"RETINUE_{name.upper()}_URL"] for name in ("scorer", "corpus", "customer")}
    print(f"trainer: {SECONDS:g} s of requests to {', '.join(urls)}; four kills on the way", flush=True)
    tally, until = Tally(), time.monotonic() + SECONDS
    threads = [
        threading.Thread(target=work, args=(url, tally, until), daemon=True)
        for url in urls.values()
        for _ in range(WORKERS_PER_SERVICE)
    ]
    threads.append(threading.Thread(target=play_nightmares, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(
        f"trainer: {tally.answered} answered, {tally.slow} of them held for more than {SLOW_S:g} s "
        f"(longest {tally.worst_s:.2f} s), {tally.lost} lost",
        flush=True,
    )
    for cause in tally.causes[:5]:
        print(f"  lost: {cause}", file=sys.stderr)
    return 1 if tally.lost else 0


if __name__ == "__main__":
    sys.exit(main())
