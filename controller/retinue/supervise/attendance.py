"""The nodes' coming and going: who joins, which port their gateways agree on, what follows when one is lost."""

from collections import deque
from typing import TYPE_CHECKING

from retinue.channel.messages import (
    Beat,
    BindGateway,
    EgressDenied,
    EndNode,
    FromAgent,
    GatewayBound,
    GatewayFacts,
    Hello,
    NodeEnding,
    NodeFacts,
    NodeNote,
    TasksSeen,
)
from retinue.slurm.words import parse_srun_words
from retinue.supervise.ending import Cause
from retinue.supervise.happenings import RunTimer, StubHello
from retinue.supervise.state import RunPhase
from retinue.terms.replica import NodeLost, Phase

if TYPE_CHECKING:
    from retinue.supervise.run import Run


class Attendance:
    """The half of a run that is about its nodes."""

    def __init__(self, run: "Run") -> None:
        self.run = run
        self._words: deque[str] = deque(maxlen=3)
        """The last lines of the launch: they say what srun's word about a node means."""

    def take_hello(self, hello: StubHello) -> None:
        """Order the launch of all nodes, unless an earlier controller has; then expect them back."""
        run = self.run
        if hello.starts > 1:
            for node in run.nodes.live():
                run.edges.agents.expect(node)
        for node, report in hello.nodes.items():
            run.nodes.change(node, report=report)
        if hello.launch is None and run.state.ending is None:
            run.change(is_launched=True)
            run.edges.stub.order(run.edges.launch_order)
            run.edges.timers.set("join", run.edges.clock.now_s() + run.plan.join_timeout_s, RunTimer("join"))

    def take_join(self, node: str, hello: Hello) -> None:
        """Take in a node whose agent has connected, with all that runs there."""
        run = self.run
        has_moved = run.nodes.take_hello(node, hello)
        run.edges.journal.note(node, "AgentJoined", f"agent start {hello.agent_starts}, pid {hello.host_pid}")
        run.egress.take_join(node, hello)
        run.fleet.reconcile(node, hello.observed)
        if has_moved and any(seat.replica.phase is Phase.READY for seat in run.fleet.on_node(node)):
            run.fleet.new_routes.add(node)
        if run.state.phase is RunPhase.ENDING:
            # Its line was cut just when it was to be told.
            run.edges.agents.send(node, EndNode("the run is over"))

    def take_message(self, node: str, message: FromAgent) -> None:
        """Take what an agent says of its node."""
        run = self.run
        match message:
            case Beat():
                run.nodes.change(node, beat=message)
            case GatewayFacts():
                run.nodes.take_facts(node, message)
            case GatewayBound(port=port, is_bound=is_bound, holder=holder, hop_port=hop_port):
                if is_bound:
                    run.nodes.change(node, gateway_port=port)
                    run.nodes.take_hop_port(node, hop_port)
                elif port == run.nodes.port:
                    run.nodes.refuse_port(node, port, holder)
                    self._propose_port()
            case EgressDenied():
                run.egress.take(node, message)
            case TasksSeen():
                run.teardown.trainer.take_seen(node, message)
            case NodeFacts():
                run.inquiries.take(node, message)
            case NodeNote(what=what, reason=reason):
                run.edges.journal.note(node, what, reason)
            case NodeEnding(reason=reason):
                run.edges.journal.note(node, "NodeEnding", reason)

    def take_leave(self, node: str) -> None:
        """An agent that leaves comes back, but not at the end of the run."""
        run = self.run
        if run.state.ending_is(Cause.STUB_LOST):
            self.lose(node, "its agent left while the run ended")
        elif run.state.phase is RunPhase.ENDING:
            run.nodes.change(node, has_left=True)
            run.edges.agents.forget(node)

    def take_report(self, node: str, report: dict[str, object]) -> None:
        """A node's outer process ended: one that had not even a keeper has refused, any other is lost."""
        run = self.run
        if node not in run.nodes.views:
            return
        run.nodes.change(node, report=report)
        if run.state.phase in (RunPhase.ENDING, RunPhase.OVER):
            return
        note = _first_line(str(report.get("note", ""))) or "it ended and did not say why"
        if run.state.phase is RunPhase.JOINING and not report.get("rung"):
            run.teardown.begin(Cause.NOT_READY, f"node {node} cannot take part: {note}")
        # Slurm's TERM to all of the job was the end of the run: each node ends by itself.
        is_end = run.state.signalled_utc is not None and report.get("asked_by") == "SIGTERM"
        self.lose(node, note, is_end)

    def take_words(self, line: str) -> None:
        """srun's own words about a node: it could not start there, or what it had started ended unasked."""
        run = self.run
        said = parse_srun_words(line)
        if said is None:
            self._words.append(line.strip())
            return
        nodes = [name for name in said.nodes if name in run.nodes.views and not run.nodes.views[name].is_lost]
        if not nodes or run.state.phase in (RunPhase.ENDING, RunPhase.OVER):
            return
        cause = "; ".join([*self._words, said.text])
        if run.state.phase is RunPhase.JOINING:
            run.teardown.begin(Cause.NOT_READY, f"node {', '.join(nodes)} cannot take part: {cause}")
        for node in nodes:
            self.lose(node, cause)

    def take_launch_end(self, how: str) -> None:
        """Without their launch no node is left; what a node said last tells more than how its launch ended."""
        for node in self.run.nodes.live():
            if self.run.state.phase not in (RunPhase.ENDING, RunPhase.OVER):
                note = (self.run.nodes.views[node].report or {}).get("note")
                self.lose(
                    node, _first_line(str(note)) if note else "; ".join([f"its launch ended ({how})", *self._words])
                )

    def take_timer(self) -> None:
        """The time to join is over."""
        run = self.run
        if run.state.phase is RunPhase.JOINING:
            missing = ", ".join(run.nodes.missing()) or "no node"
            run.teardown.begin(Cause.NOT_READY, f"did not join within {run.plan.join_timeout_s:g} s: {missing}")

    def advance(self) -> None:
        """While nodes join: agree on a port when all are there, and begin to start services when all have bound it."""
        run = self.run
        if run.nodes.has_missing:
            return
        if run.nodes.port is None:
            self._propose_port()
        elif run.nodes.are_bound():
            run.edges.timers.cancel("join")
            run.egress.tell_all()
            run.fleet.shared_env = run.surroundings.build_shared_env(run.nodes.port)
            run.change(phase=RunPhase.STARTING, gateway_port=run.nodes.port)
            run.edges.journal.note("run", "NodesJoined", f"gateways listen on port {run.nodes.port}")

    def _propose_port(self) -> None:
        run = self.run
        port = run.nodes.propose_port()
        if port is None:
            tried = "; ".join(run.nodes.refusals[-3:])
            run.teardown.begin(Cause.NOT_READY, f"no port for the gateways could be bound: {tried}")
            return
        for view in run.nodes.joined():
            run.edges.agents.send(view.name, BindGateway(port=port))

    def lose(self, node: str, cause: str, is_end: bool = False) -> None:
        """Give a node up, once: its replicas are placed again, or the run ends. `is_end`: that is why it went."""
        run = self.run
        if run.nodes.views[node].is_lost:
            return
        run.nodes.change(node, is_lost=True, lost_cause=cause)
        run.edges.agents.forget(node)
        run.fleet.lost_nodes.add(node)
        run.edges.journal.note(node, "NodeEnded" if is_end else "NodeLost", cause)
        is_fatal = node in self._trainer_nodes() or not run.nodes.live()
        if is_fatal and not is_end and run.state.phase is not RunPhase.ENDING:
            run.teardown.begin(Cause.NODE_LOST, f"node {node} was lost: {cause}")
        for seat in run.fleet.on_node(node):
            run.fleet.apply(seat.replica.id, NodeLost(seat.replica.incarnation, f"node {node}: {cause}"))

    def _trainer_nodes(self) -> tuple[str, ...]:
        run = self.run
        if not run.plan.trainer.argv:
            return ()
        for group in run.plan.groups:
            if group.name == run.plan.trainer.group:
                return group.nodes
        return tuple(run.nodes.views)


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")
