"""Nodes that gave no report at the end: a second step asks them, for a bounded time. Standard library only.

The step ends what is left of the run there and prints the same line as an outer process. A node that cannot be
asked stays unknown. How to ask is the controller's to say, in its order of the launch; without that nobody is asked.
"""

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from retinue.node import spawn
from retinue.supervise.stub_children import Child
from retinue.supervise.stub_run import write_stderr

LIMIT_S = 12.0
"""For one round: a node takes up to 8 s, and Slurm's own daemon may be away."""
SINGLES_MAX = 16
"""Nodes asked one by one when there was no step for all of them."""
ANSWER_BYTES = 1 << 16

Look = Callable[[Callable[[], bool], float], bool]
"""(condition, limit_s) -> whether it came true; reaps children meanwhile, and calls the condition often."""


class Asked:
    """One step under way."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self.said = b""
        self._fd, far = os.pipe()
        os.set_blocking(self._fd, False)
        self.child = Child(spawn.Command(argv=argv, env=env, stdout=far, stderr=far))
        os.close(far)

    def is_over(self) -> bool:
        """Read what there is; say whether the step has ended."""
        self.child.settle_exec()
        is_alive = self.child.is_alive
        try:
            while piece := os.read(self._fd, ANSWER_BYTES):
                self.said += piece
        except BlockingIOError:
            pass
        return not is_alive

    def close(self, noise: tuple[bytes, ...]) -> list[dict[str, Any]]:
        """Give the reports that came; what else was said, but for noise, is for people."""
        os.close(self._fd)
        reports = []
        for line in self.said.splitlines():
            try:
                report = json.loads(line)
            except ValueError:
                report = None
            if isinstance(report, dict) and isinstance(report.get("retinue_node"), str):
                reports.append(report)
            elif not line.startswith(noise):
                write_stderr(line + b"\n")
        return reports


class Proof:
    """How to ask, and who is being asked."""

    def __init__(self) -> None:
        self._argv: list[str] = []
        self._env: dict[str, str] = {}
        self._noise: tuple[bytes, ...] = ()
        self._asked: list[Asked] = []

    def take_order(self, order: dict[str, Any]) -> None:
        """Keep what the order of the launch says about it."""
        self._argv = [str(word) for word in order.get("proof_argv") or ()]
        self._noise = read_noise(order)
        self._env = {str(name): str(value) for name, value in (order.get("env") or os.environ).items()}

    def take_exit(self, pid: int, status: int) -> None:
        """Note the end of a step, if it is one of these."""
        for asked in self._asked:
            if asked.child.pid == pid:
                asked.child.note_status(status)

    def ask(self, nodes: Sequence[str], look: Look, kill: Callable[[Child], None]) -> dict[str, dict[str, Any]]:
        """Ask these nodes all at once, or one by one when none of them answers; return the reports by node."""
        if not self._argv or not nodes:
            return {}
        found, has_ended = self._ask_round([nodes], look, kill)
        if not found and has_ended and len(nodes) > 1:
            # One that Slurm does not have any more keeps it from starting the step on any; silence is Slurm's own.
            found, _ = self._ask_round([[node] for node in nodes[:SINGLES_MAX]], look, kill)
        return found

    def _ask_round(
        self, groups: Sequence[Sequence[str]], look: Look, kill: Callable[[Child], None]
    ) -> tuple[dict[str, dict[str, Any]], bool]:
        """Start one step for each group; return the reports, and whether all steps ended by themselves in time."""
        self._asked = [Asked(self._build_argv(nodes), self._env) for nodes in groups]
        # All are read in every look: a full pipe would hold up its step.
        has_ended = look(lambda: sum(not asked.is_over() for asked in self._asked) == 0, LIMIT_S)
        found = {}
        for asked in self._asked:
            kill(asked.child)
            asked.is_over()
            found.update({report["retinue_node"]: report for report in asked.close(self._noise)})
        return found, has_ended

    def _build_argv(self, nodes: Sequence[str]) -> list[str]:
        words = {"{count}": str(len(nodes)), "{nodes}": ",".join(nodes)}
        return [_fill(word, words) for word in self._argv]


def read_noise(order: dict[str, Any]) -> tuple[bytes, ...]:
    """Read how lines begin that nobody is to see."""
    return tuple(str(words).encode() for words in order.get("noise") or ())


def _fill(word: str, words: dict[str, str]) -> str:
    for name, value in words.items():
        word = word.replace(name, value)
    return word
