"""An operator asks what the nodes are like, while nodes are silent, lost, or late."""

from typing import Any

from retinue.channel.messages import Answer, Ask, AskFacts, FromController, NodeFacts
from retinue.doctor.records import NodeAnswer
from retinue.supervise.happenings import NodeGone, OperatorAsked
from retinue.supervise.inquiry import LIMIT_S
from retinue.terms.record import from_json
from support.world import ScriptedNode, World, build_test_plan, service


class Doctor:
    """A world of three nodes, and the operator in front of it."""

    def __init__(self) -> None:
        self.world = World(build_test_plan([service("judge", 3)], nodes=("n1", "n2", "n3")), trainer_s=300.0)
        self.asked: dict[str, list[int]] = {}
        self.replies: list[Answer] = []
        for node in self.world.nodes.values():
            self._listen(node)
        self.world.start()
        self.world.run_for(10.0)

    def _listen(self, node: ScriptedNode) -> None:
        take = node.take

        def hear(message: FromController) -> None:
            if isinstance(message, AskFacts):
                self.asked.setdefault(node.name, []).append(message.question)
            take(message)

        node.take = hear  # type: ignore[method-assign]

    def ask(self) -> None:
        self.world.handle(OperatorAsked(Ask("doctor"), self.replies.append))
        self.world.run_for(0.5)

    def answer(self, name: str, question: int | None = None, ahead_s: float = 0.0, **fields: Any) -> None:
        utc = self.world.now_utc() + ahead_s
        number = self.asked[name][-1] if question is None else question
        said = {"facts": {"node": name, "kernel": "6.1"}, "error": ""} | fields
        self.world.nodes[name].say(NodeFacts(number, came_utc=utc, gave_utc=utc, **said))

    def read(self) -> dict[str, NodeAnswer]:
        [reply] = self.replies
        assert reply.is_done
        return {answer.node: answer for answer in from_json(reply.text, tuple[NodeAnswer, ...])}


def test_the_answer_comes_when_the_last_node_has_spoken_and_is_in_their_order() -> None:
    doctor = Doctor()
    doctor.ask()
    for name in ("n3", "n1"):
        doctor.answer(name)
    doctor.world.run_for(5.0)
    assert doctor.replies == []
    doctor.answer("n2", facts={}, error="cannot start: no memory")
    doctor.world.run_for(1.0)
    found = doctor.read()
    assert list(found) == ["n1", "n2", "n3"]
    assert found["n1"].facts is not None
    assert (found["n2"].facts, found["n2"].error) == (None, "cannot start: no memory")


def test_a_node_that_never_answers_costs_the_limit_and_is_named() -> None:
    doctor = Doctor()
    doctor.ask()
    doctor.answer("n1")
    doctor.answer("n2")
    doctor.world.run_for(LIMIT_S - 2.0)
    assert doctor.replies == []
    doctor.world.run_for(5.0)
    assert "no answer within" in doctor.read()["n3"].error
    doctor.answer("n3")
    doctor.world.run_for(1.0)
    assert len(doctor.replies) == 1


def test_a_node_that_is_lost_meanwhile_is_not_waited_for() -> None:
    doctor = Doctor()
    doctor.ask()
    doctor.answer("n1")
    doctor.answer("n2")
    doctor.world.handle(NodeGone("n3", "nothing heard for 10 s"))
    doctor.world.run_for(LIMIT_S / 4)
    assert "nothing heard" in doctor.read()["n3"].error


def test_two_operators_at_once_get_each_their_own_answers() -> None:
    doctor = Doctor()
    doctor.ask()
    doctor.ask()
    first, second = doctor.asked["n1"]
    assert first != second
    for name in ("n1", "n2", "n3"):
        doctor.answer(name, second)
    doctor.world.run_for(1.0)
    assert len(doctor.replies) == 1
    for name in ("n1", "n2", "n3"):
        doctor.answer(name, first)
        doctor.answer(name, first)
    doctor.world.run_for(1.0)
    assert len(doctor.replies) == 2


def test_a_clock_that_is_ahead_shows_and_the_others_do_not() -> None:
    doctor = Doctor()
    doctor.ask()
    for name, ahead_s in (("n1", 0.0), ("n2", 120.0), ("n3", 0.0)):
        doctor.answer(name, ahead_s=ahead_s)
    doctor.world.run_for(1.0)
    found = doctor.read()
    offsets = {name: answer.clock_offset_s or 0.0 for name, answer in found.items()}
    assert offsets["n2"] > 100
    assert abs(offsets["n1"]) <= found["n1"].clock_error_s + 1.0
