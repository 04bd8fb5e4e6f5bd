"""`retinue doctor --nodes`: one question to the agents of all nodes, one answer when the last of them has spoken.

A node that is lost, is not connected, or does not answer in time has that as its answer: nobody waits for ever.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retinue.channel.messages import Answer, AskFacts, NodeFacts
from retinue.doctor.judge_clock import measure_offset
from retinue.supervise.happenings import RunTimer
from retinue.terms.record import to_json

if TYPE_CHECKING:
    from retinue.supervise.run import Run

TIMER = "facts"
LIMIT_S = 60.0
"""Longer than an agent lets its probes run."""
COMMAND = "doctor"


@dataclass(slots=True)
class _Question:
    """One that is under way."""

    reply: Callable[[Answer], None]
    asked_utc: float
    waiting: dict[str, None]
    """Nodes that have not answered, in their order."""
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Node -> `doctor.records.NodeAnswer`, as plain values."""


class Inquiries:
    """All questions of operators that nodes have not answered yet."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._questions: dict[int, _Question] = {}
        self._last = 0

    def ask(self, reply: Callable[[Answer], None]) -> None:
        """Ask every node of the run; `reply` is called once, by `advance`."""
        run = self._run
        self._last += 1
        question = _Question(reply, run.edges.clock.now_utc(), dict.fromkeys(run.nodes.views))
        self._questions[self._last] = question
        for view in run.nodes.joined():
            run.edges.agents.send(view.name, AskFacts(self._last))
        run.edges.timers.set(
            f"{TIMER}:{self._last}", run.edges.clock.now_s() + LIMIT_S, RunTimer(f"{TIMER}:{self._last}")
        )

    def take(self, node: str, said: NodeFacts) -> None:
        """Take one node's answer; one to a question that is over is dropped."""
        question = self._questions.get(said.question)
        if question is None or node not in question.waiting:
            return
        now_utc = self._run.edges.clock.now_utc()
        offset_s, error_s = measure_offset((question.asked_utc, said.came_utc), (now_utc, said.gave_utc))
        answer: dict[str, Any] = {"node": node, "facts": said.facts or None, "error": said.error}
        question.answers[node] = answer | {"clock_offset_s": offset_s, "clock_error_s": error_s}
        del question.waiting[node]

    def take_timer(self, number: str) -> None:
        """The time for a question is over: whoever has not answered does not."""
        question = self._questions.get(int(number))
        if question is not None:
            self._give_up(question, list(question.waiting), f"no answer within {LIMIT_S:g} s")

    def advance(self) -> None:
        """Give up on nodes that cannot answer any more, and answer what is complete."""
        for number, question in list(self._questions.items()):
            views = self._run.nodes.views
            gone = [node for node in question.waiting if not views[node].is_joined]
            for node in gone:
                view = views[node]
                self._give_up(question, [node], f"lost: {view.lost_cause}" if view.is_lost else "it has not joined")
            if not question.waiting:
                del self._questions[number]
                self._run.edges.timers.cancel(f"{TIMER}:{number}")
                in_order = [question.answers[node] for node in views]
                question.reply(Answer(True, to_json(in_order).decode()))

    def _give_up(self, question: _Question, nodes: list[str], why: str) -> None:
        for node in nodes:
            question.answers[node] = {"node": node, "error": why}
            del question.waiting[node]
