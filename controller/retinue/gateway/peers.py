"""Where the gateways of other nodes answer: of the addresses that a node has, one that works is kept.

The likeliest address is tried first and alone for a moment, then the others beside it: one that swallows every
packet costs that moment, once per node. What answers must be that node's gateway: the same private address may
lead to another host, or back to this one. Never opens a connection itself; `ask` does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from retinue.channel.messages import Peer
from retinue.gateway.faults import Blame, Fault
from retinue.gateway.notes import log

STAGGER_S = 0.5
"""An address that has not answered by then gets company."""
DOWN_S = 2.0
"""How long a node that answered at no address is not tried again: its replicas fail at once, not each for seconds."""

Ask = Callable[[Peer, str], Awaitable[str]]
"""(peer, address) -> "" when its gateway answers there, else why not."""


@dataclass(slots=True, eq=False)
class _Place:
    """One node as this gateway reaches it."""

    peer: Peer
    pinned: str = ""
    """The address that is used; empty while none is known to work."""
    doubted: str = ""
    """The last one that stopped working: tried last."""
    search: "asyncio.Task[None] | None" = None
    down_until_s: float = 0.0
    cause: str = ""
    """Why no address works, or worked last."""


class Peers:
    """The other nodes, each with its pinned address."""

    def __init__(self, known: Callable[[], Mapping[str, Peer]], ask: Ask) -> None:
        self._known = known
        self._ask = ask
        self._places: dict[str, _Place] = {}
        self._searches: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    async def find(self, node: str) -> tuple[Peer, str]:
        """Return the node's gateway and the address to use; waits while that is being found out.

        Errors: Fault UNREACHED names the node and every address that was tried.
        """
        place = self._find_place(node)
        if not place.pinned:
            if place.search is None and self._loop.time() < place.down_until_s:
                raise Fault(Blame.UNREACHED, place.cause)
            if place.search is None:
                place.search = asyncio.create_task(self._search(place))
                self._searches.add(place.search)
                place.search.add_done_callback(self._searches.discard)
            # Whoever else waits for it is not to lose it with this request.
            await asyncio.shield(place.search)
        if not place.pinned:
            raise Fault(Blame.UNREACHED, place.cause)
        return place.peer, place.pinned

    def doubt(self, node: str, address: str) -> None:
        """Note that a connect to this address failed: unless another one is in use by now, all are tried again."""
        place = self._places.get(node)
        if place is not None and place.pinned == address:
            place.pinned, place.doubted = "", address

    async def close(self) -> None:
        """End what is being tried."""
        searches = list(self._searches)
        for search in searches:
            search.cancel()
        await asyncio.gather(*searches, return_exceptions=True)

    def _find_place(self, node: str) -> _Place:
        peer = self._known().get(node)
        if peer is None:
            raise Fault(Blame.UNREACHED, f"cannot reach node {node}: nobody has said where its gateway is")
        place = self._places.get(node)
        if place is None or place.peer != peer:
            place = self._places[node] = _Place(peer)
        return place

    async def _search(self, place: _Place) -> None:
        """Ask at all addresses until one answers; pin it, or remember why there is none."""
        # Stable: but for the doubted one they keep their order.
        waiting = sorted(place.peer.addresses, key=lambda address: address == place.doubted)
        asked: dict[asyncio.Task[str], str] = {}
        causes: list[str] = []
        try:
            while not place.pinned and (waiting or asked):
                if waiting:
                    address = waiting.pop(0)
                    asked[asyncio.ensure_future(self._ask(place.peer, address))] = address
                patience_s = STAGGER_S if waiting else None
                done, _ = await asyncio.wait(asked, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                for answer in done:
                    address, cause = asked.pop(answer), answer.result()
                    if not cause and not place.pinned:
                        place.pinned = address
                    elif cause:
                        causes.append(f"{address}: {cause}")
        finally:
            place.search = None
            for answer in asked:
                answer.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        self._note(place, causes)

    def _note(self, place: _Place, causes: list[str]) -> None:
        node = place.peer.node
        if place.pinned:
            log.info("reach node %s at %s%s", node, place.pinned, f" (not at {'; '.join(causes)})" if causes else "")
            return
        tried = "; ".join(causes) or "it has no address that leads there"
        place.cause = f"cannot reach the gateway of node {node}: tried {tried}"
        place.down_until_s = self._loop.time() + DOWN_S
        log.warning("%s", place.cause)
