"""Constant requests to the demo's plain services, with nothing but the standard library and their stable URLs."""

import http.client
import threading
import time
from urllib.parse import urlsplit

WORKERS_PER_SERVICE = 1
SLOW_S = 0.25
"""A request slower than this waited while something was down."""


def ask(url: str, text: str) -> str | None:
    """Send one request on a connection of its own; the cause when it was not answered."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        connection.request("POST", f"{parts.path}/v1/score", text.encode())
        answer = connection.getresponse()
        body = answer.read()
        return None if answer.status == 200 else f"{answer.status} {body[:200]!r}"
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()


class Callers:
    """Threads that ask without a pause until they are told to stop, and what they count together."""

    def __init__(self, urls: list[str]) -> None:
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.answered = self.slow = 0
        self.worst_s = 0.0
        self.lost: list[str] = []
        self._threads = [
            threading.Thread(target=self._work, args=(url,), daemon=True)
            for url in urls
            for _ in range(WORKERS_PER_SERVICE)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _work(self, url: str) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            cause = ask(url, "how many words are in this answer")
            self._add(time.monotonic() - began, cause)

    def _add(self, took_s: float, cause: str | None) -> None:
        with self._lock:
            self.worst_s = max(self.worst_s, took_s)
            if cause is not None:
                self.lost.append(cause)
                return
            self.answered += 1
            self.slow += took_s > SLOW_S

    def describe(self) -> str:
        return (
            f"{self.answered} answered, {self.slow} of them held for more than {SLOW_S:g} s "
            f"(longest {self.worst_s:.2f} s), {len(self.lost)} lost"
        )
