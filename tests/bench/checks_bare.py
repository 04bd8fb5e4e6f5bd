"""The bare fork-ahead loop, the base of the ratios: `python checks_bare.py bare SPARES`.

A warmed, frozen parent that keeps single-use children ahead of need and nothing else: no namespaces, no limits on
memory, no server, no protocol. Speaks as `checks_peers` does.
"""

import gc
import json
import os
import select
import signal
import sys
import time
from collections import deque
from typing import Any

from checks_math import load

from retinue.node import kernel

READ_BYTES = 1 << 16


class Loop:
    """One poll(2) over requests, children's answers and children's pidfds."""

    def __init__(self, spares: int) -> None:
        self._verifier = load()
        gc.collect()
        gc.freeze()
        self._wanted = spares
        self._spares: deque[tuple[int, int, int, int]] = deque()
        """(pid, pidfd, where its question goes, where its answer comes from)."""
        self._running: dict[int, tuple[dict[str, Any], float, tuple[int, int, int, int]]] = {}
        """Answer's descriptor -> request, when it came, child."""
        self._ending: dict[int, int] = {}
        """Pidfd -> pid."""
        self._unread = b""
        self._poller = select.poll()

    def run(self) -> None:
        """Serve until the requests end."""
        self._poller.register(0, select.POLLIN)
        for _ in range(self._wanted):
            self._fork()
        os.write(1, b'{"ready": true}\n')
        while True:
            for fd, _ in self._poller.poll():
                if fd in self._running:
                    self._answer(fd)
                elif fd in self._ending:
                    self._reap(fd)
                elif not self._read():
                    return

    def _read(self) -> bool:
        part = os.read(0, READ_BYTES)
        *lines, self._unread = (self._unread + part).split(b"\n")
        for line in lines:
            began_s = time.perf_counter()
            child = self._spares.popleft()
            request = json.loads(line)
            os.write(child[2], line)
            self._running[child[3]] = (request, began_s, child)
            self._poller.register(child[3], select.POLLIN)
            self._fork()
        return bool(part)

    def _answer(self, fd: int) -> None:
        request, began_s, (pid, pidfd, ask_fd, _) = self._running.pop(fd)
        score = float(os.read(fd, READ_BYTES))
        took_s = time.perf_counter() - began_s
        self._poller.unregister(fd)
        os.close(ask_fd)
        os.close(fd)
        self._ending[pidfd] = pid
        self._poller.register(pidfd, select.POLLIN)
        answer = {"id": request["id"], "outcome": "scored", "score": score, "took_s": took_s}
        os.write(1, json.dumps(answer).encode() + b"\n")

    def _reap(self, pidfd: int) -> None:
        self._poller.unregister(pidfd)
        os.close(pidfd)
        os.waitpid(self._ending.pop(pidfd), 0)

    def _fork(self) -> None:
        ask_read, ask_write = os.pipe()
        tell_read, tell_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                # Siblings hold each other's pipes: end of file alone would not end them.
                kernel.set_death_signal(signal.SIGKILL)
                os.close(ask_write)
                if line := os.read(ask_read, READ_BYTES):
                    request = json.loads(line)
                    os.write(tell_write, str(self._verifier(request["response"], request["gold"], {})[0]).encode())
            finally:
                os._exit(0)
        os.close(ask_read)
        os.close(tell_write)
        self._spares.append((pid, os.pidfd_open(pid), ask_write, tell_read))

    def close(self) -> None:
        """End every child."""
        for pid, *_ in [*self._spares, *(child for _, _, child in self._running.values())]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    loop = Loop(int(sys.argv[2]))
    try:
        loop.run()
    finally:
        loop.close()
