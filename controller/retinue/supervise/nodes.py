"""The nodes of the run as the controller sees them: joined, heard, gateway, lost."""

from collections.abc import Sequence

from retinue.channel.messages import Beat, GatewayFacts, Hello, Peer
from retinue.journal.verdict import Requests
from retinue.terms.record import Record, replace

ADDRESSES_MAX = 8
"""Of one node, told to the gateways of all others; a host's later ones lead to its own containers and bridges."""


class NodeView(Record, frozen=True):
    """One node."""

    name: str
    hello: Hello | None = None
    """None: has not joined this controller."""
    beat: Beat = Beat()
    facts: GatewayFacts = GatewayFacts()
    earlier: Requests = Requests()
    """Counted by gateway processes of this node that were killed."""
    gateway_port: int | None = None
    hop_port: int | None = None
    has_left: bool = False
    """Its agent has ended with the run; its outer process has the last word."""
    is_lost: bool = False
    lost_cause: str = ""
    report: dict[str, object] | None = None
    """What its outer process said at the end."""

    @property
    def is_joined(self) -> bool:
        return self.hello is not None and not self.is_lost and not self.has_left


class Nodes:
    """All nodes, in allocation order, and the one gateway port they agree on."""

    def __init__(self, names: Sequence[str], ports: Sequence[int]) -> None:
        self.views: dict[str, NodeView] = {name: NodeView(name=name) for name in names}
        self._missing = dict.fromkeys(names)
        """Nodes that have neither joined nor been lost, in allocation order."""
        self._ports = list(ports)
        self.peers: dict[str, Peer] = {}
        """Where each node's gateway is called by those of other nodes, as far as this controller has heard."""
        self.port: int | None = None
        """The port proposed now, or agreed when every joined node reports it."""
        self.refusals: list[str] = []
        """One sentence per refused proposal: node, port, holder."""

    def change(self, name: str, **fields: object) -> None:
        view = self.views[name] = replace(self.views[name], **fields)
        if view.is_joined or view.is_lost:
            self._missing.pop(name, None)

    def take_hello(self, name: str, hello: Hello) -> bool:
        """Take in what an agent says as it connects; True when its gateway is to be called elsewhere than before."""
        before = self.peers.get(name)
        self.change(name, hello=hello, gateway_port=hello.gateway_port, has_left=False)
        self.take_hop_port(name, hello.hop_port)
        return self.peers.get(name) != before

    def take_hop_port(self, name: str, hop_port: int | None) -> None:
        """Take in where a node's gateway listens for those of other nodes."""
        self.change(name, hop_port=hop_port)
        hello = self.views[name].hello
        if hello is not None and hop_port is not None:
            self.peers[name] = Peer(name, hello.addresses[:ADDRESSES_MAX], hop_port)

    def find_listen_host(self, name: str) -> str:
        """Name the address on which a service of this node that says `listen: node` listens."""
        hello = self.views[name].hello
        return hello.listen_host if hello is not None else "127.0.0.1"

    def take_facts(self, name: str, facts: GatewayFacts) -> None:
        """Take over what a gateway counted; a lower count is a new process that began again."""
        view = self.views[name]
        if facts.requests < view.facts.requests:
            self.change(name, earlier=_add(view.earlier, _count(view.facts)))
        self.change(name, facts=facts)

    def count_requests(self) -> Requests:
        """Add up what all gateways counted over the run."""
        total = Requests()
        for view in self.views.values():
            total = _add(_add(total, view.earlier), _count(view.facts))
        return total

    def joined(self) -> list[NodeView]:
        return [view for view in self.views.values() if view.is_joined]

    def missing(self) -> list[str]:
        return list(self._missing)

    @property
    def has_missing(self) -> bool:
        return bool(self._missing)

    def live(self) -> list[str]:
        return [view.name for view in self.views.values() if not view.is_lost]

    def are_bound(self) -> bool:
        """Say whether the gateways of all joined nodes are on the agreed port."""
        return all(view.gateway_port == self.port for view in self.views.values() if view.is_joined)

    def propose_port(self) -> int | None:
        """Take the next candidate; None when all were refused."""
        self.port = self._ports.pop(0) if self._ports else None
        return self.port

    def refuse_port(self, name: str, port: int, holder: str) -> None:
        self.refusals.append(f"node {name}: port {port} is held by {holder or 'somebody'}")


def _count(facts: GatewayFacts) -> Requests:
    return Requests(facts.requests - facts.failed, facts.held_total, facts.retried, facts.failed)


def _add(one: Requests, other: Requests) -> Requests:
    return Requests(
        one.answered + other.answered, one.held + other.held, one.retried + other.retried, one.failed + other.failed
    )
