"""The socketpair between the stub and one controller: JSON objects, one a line.

Never blocks: what the controller does not read waits here up to a bound, and a
controller that does not read that much is stuck. Standard library only.

A controller says (any line counts as a beat):
  {"op": "beat"}
  {"op": "launch", "argv", "env", "stop_fd": bool, "has_words": bool, "noise": [texts],
   "nodes": [names]}                                                    once; again: says what is
  {"op": "trainer", "argv", "env", "cwd"}                               once; again: answered with what is
  {"op": "signal_trainer" | "signal_launch", "signal": "TERM", "spares_srun": bool}   not to a trainer with an srun
  {"op": "run_dir", "is_hung": bool}                                    nobody need wait for it at the end
  {"op": "say", "text"}                                                 a line for the terminal, never waited for
  {"op": "verdict", "verdict": {...}}                                   the latest is kept
  {"op": "finish", "exit_code", "verdict", "is_hurried": bool}                            the controller exits after it
and hears
  {"ev": "hello", "starts", "launch", "trainer", "stops", "nodes"}      first, to each controller
  {"ev": "launch_started" | "trainer_started", "pid"}
  {"ev": "launch_refused" | "trainer_refused", "errno", "cause", "exit_code"}
  {"ev": "launch_exited" | "trainer_exited", "code", "signal"}
  {"ev": "launch_said", "line"}                                         of a launch with words
  {"ev": "stop", "signal", "count", "from_terminal"}
  {"ev": "node", "report"}   {"ev": "leftovers", "pids": [{"pid", "cmd"}]}
`launch` and `trainer` in hello are null or {pid, is_running, is_started, code, signal, errno, cause, exit_code};
`exit_code` there is 126 or 127 when it was refused.
"""

import json
import socket
from typing import Any

LINE_BYTES = 8 << 20
"""A longer order (an environment, a verdict) is a bug of ours, not a bigger run."""
PIECES = 256
"""Read in one go; enough for the longest order."""
WAITING_BYTES = 1 << 20
"""What may wait for a controller that does not read."""


class Link:
    """The stub's end; `far` is the controller's, to be closed here once it has been inherited."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.near.setblocking(False)
        self.is_closed = False
        """The controller's end is gone."""
        self.is_stuck = False
        """More waits than a living controller leaves unread."""
        self.problems: list[str] = []
        """Lines that were no order; for the log."""
        self._read = b""
        self._waiting = b""

    @property
    def wants_write(self) -> bool:
        """Something waits for the socket to take more."""
        return bool(self._waiting) and not self.is_closed

    def send(self, event: dict[str, Any]) -> None:
        """Queue one event and write what the socket takes."""
        self._waiting += json.dumps(event).encode() + b"\n"
        self.is_stuck = self.is_stuck or len(self._waiting) > WAITING_BYTES
        self.flush()

    def flush(self) -> None:
        """Write what the socket takes."""
        while self.wants_write:
            try:
                sent = self.near.send(self._waiting)
            except BlockingIOError:
                return
            except OSError:
                # EPIPE: it has just died, and SIGCHLD is on its way.
                self._waiting = b""
                return
            self._waiting = self._waiting[sent:]

    def read(self) -> list[dict[str, Any]]:
        """Read all orders that have arrived; sets `is_closed` at the end of file."""
        orders: list[dict[str, Any]] = []
        for _ in range(PIECES):
            if self.is_closed:
                break
            try:
                data = self.near.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.is_closed = not data
            # Only the new piece can hold a newline: a long line is not searched again and again.
            if b"\n" in data:
                *lines, rest = (self._read + data).split(b"\n")
                orders += filter(None, map(self._parse, lines))
                self._read = rest
            else:
                self._read += data
            if len(self._read) > LINE_BYTES:
                self.problems.append(f"a line longer than {LINE_BYTES} bytes")
                self._read = b""
                self.is_closed = True
        return orders

    def close(self) -> None:
        """Close both ends."""
        self.near.close()
        self.far.close()
        self.is_closed = True

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        try:
            order = json.loads(line)
        except ValueError:
            order = None
        if isinstance(order, dict) and isinstance(order.get("op"), str):
            return order
        self.problems.append(repr(line[:80]))
        return None
