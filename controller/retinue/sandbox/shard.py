"""One shard: holds the control sockets of its part of a node's sandboxes and serves what is asked about them.

Its end is theirs: their sockets close, and the kernel ends them. Another shard's stay. Ends itself when the front does.
"""

import asyncio
import errno
import socket
import traceback
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from retinue.sandbox.box import Box
from retinue.sandbox.link import LinkLost, Refused
from retinue.sandbox.requests import BoxMade, BoxOrder, ErrorBody, ErrorWords, Fault
from retinue.sandbox.shard_box import Ending, LiveBox, build_gone_fault
from retinue.sandbox.shard_config import build_config, counts_pids
from retinue.sandbox.shard_execs import Execs
from retinue.sandbox.shard_files import answer_files, make_workdir
from retinue.sandbox.shard_link import Exchange, Peer, ShardLost
from retinue.sandbox.shard_wire import Answer, Ask, Happening, parse_ask
from retinue.sandbox.shard_zygotes import SeatedZygotes, ZygoteGone
from retinue.sandbox.wire import WireError
from retinue.terms.record import from_json, to_json

NO_ZYGOTE = "no_zygote"
"""Type of the answer that the front tries again after, with another zygote."""
FULL_ERRNOS = (errno.EAGAIN, errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EUSERS)
"""The node has no room for another one: its limits of processes, namespaces, mounts or memory."""
WEIGH_S = 2.0
"""How long one sandbox may take to say what it uses."""
Work = Callable[[Exchange, Ask, bytes], Awaitable[Answer | None]]


class Shard:
    """The sandboxes of one shard process."""

    def __init__(self, peer_sock: socket.socket, fd_sock: socket.socket, service: str, node: str) -> None:
        """peer_sock: asks and answers; fd_sock: the sockets of zygotes."""
        self._peer_sock = peer_sock
        self._service = service
        self._node = node
        self._zygotes = SeatedZygotes(fd_sock, self._lose_zygote)
        self._boxes: dict[str, LiveBox] = {}
        self._execs: dict[str, Execs] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """Exchange -> who works on it."""
        self._peer: Peer
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the front has hung up."""
        self._counts_pids = counts_pids()
        self._works: dict[str, Work] = {
            "create": self._create,
            "destroy": self._destroy,
            "exec": self._exec,
            "show": self._show,
            "process": self._use_process,
            "file": self._use_files,
            "weigh": self._weigh,
            "drop_zygote": self._drop_zygote,
            "ping": self._ping,
        }

    async def run(self) -> None:
        """Serve until the front hangs up."""
        loop = asyncio.get_running_loop()
        _, self._peer = await loop.create_unix_connection(
            lambda: Peer(self._take, self._cancel, on_lost=self._lose), sock=self._peer_sock
        )
        await self.ended

    # --- asks -----------------------------------------------------------------------------

    def _take(self, exchange: Exchange, payload: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._work(exchange, payload))
        self._tasks[exchange.number] = task

    def _cancel(self, number: int) -> None:
        if (task := self._tasks.get(number)) is not None:
            task.cancel()

    def _lose(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    async def _work(self, exchange: Exchange, payload: bytes) -> None:
        try:
            answer = await self._answer(exchange, payload)
            if answer is not None:
                exchange.reply(answer)
        except ShardLost:
            pass  # Nobody is there to be told.
        finally:
            self._tasks.pop(exchange.number, None)
            self._peer.forget(exchange)

    async def _answer(self, exchange: Exchange, payload: bytes) -> Answer | None:
        ask, body = parse_ask(payload)
        try:
            return await self._works[ask.op](exchange, ask, body)
        except Fault as fault:
            return self._build_fault(fault)
        except WireError as error:
            return self._build_fault(Fault(400, "sandbox_bad_request", str(error)))
        except LinkLost:
            live = self._boxes.get(ask.box)
            if live is not None:
                await live.wait_ended()
            return self._build_fault(live.build_fault() if live else _build_unknown(ask.box))
        except Refused as refused:
            return self._build_fault(Fault(503, "infra_failed", str(refused), str(refused)))
        except OSError as error:
            # EMFILE and its kin: this process has no room for another pipe.
            traceback.print_exception(error)
            return self._build_fault(Fault(503, "infra_failed", f"cannot serve this: {error}", str(error)))

    def _build_fault(self, fault: Fault) -> Answer:
        is_retryable = fault.retry_after_s is not None or fault.status == 503
        words = ErrorWords(fault.kind, str(fault), self._service, self._node, is_retryable, fault.cause, fault.position)
        headers = {} if fault.retry_after_s is None else {"Retry-After": str(fault.retry_after_s)}
        return Answer(fault.status, to_json(ErrorBody(words)) + b"\n", headers=headers)

    def _find(self, ask: Ask) -> LiveBox:
        live = self._boxes.get(ask.box)
        if live is None:
            raise _build_unknown(ask.box)
        if live.ending is not None:
            raise live.build_fault()
        return live

    def _find_execs(self, live: LiveBox) -> Execs:
        if live.name not in self._execs:
            self._execs[live.name] = Execs(live, self._node)
        return self._execs[live.name]

    # --- sandboxes ------------------------------------------------------------------------

    async def _create(self, _exchange: Exchange, ask: Ask, body: bytes) -> Answer:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        order = from_json(body, BoxOrder)
        try:
            seated = await self._zygotes.find(order.zygote)
        except (ZygoteGone, LinkLost, Refused) as error:
            raise _build_no_zygote(str(error)) from None
        try:
            box = await seated.zygote.create(build_config(order, self._counts_pids))
        except LinkLost:
            raise _build_no_zygote("it died") from None
        except Refused as refused:
            if refused.errno in FULL_ERRNOS:
                raise Fault(429, "sandbox_full", f"cannot make a sandbox: {refused}", str(refused), 1) from None
            raise
        live = LiveBox(ask.box, box, order, seated.has_image)
        self._boxes[ask.box] = live
        live.ended.add_done_callback(lambda ended: self._note_ended(live))
        with ExitStack() as unless_made:
            unless_made.callback(live.close, Ending("sandbox_destroyed", "whoever wanted it went away"))
            if order.workdir != "/":
                await make_workdir(live, order.workdir)
            unless_made.pop_all()
        return Answer(200, to_json(BoxMade(round(loop.time() - began_s, 6))))

    async def _destroy(self, _exchange: Exchange, ask: Ask, _body: bytes) -> Answer:
        live = self._boxes.get(ask.box)
        if live is None:
            return Answer(200, b"{}")
        live.close(Ending(ask.words.get("type", "sandbox_destroyed"), ask.words.get("cause", "it was destroyed")))
        await live.wait_ended()
        return Answer(200, to_json({"is_late": not live.ended.done()}))

    def _note_ended(self, live: LiveBox) -> None:
        self._boxes.pop(live.name, None)
        self._execs.pop(live.name, None)
        ending = live.ending
        if ending is not None and not live.is_ordered:
            self._peer.tell(Happening("box_lost", live.name, live.zygote, ending.type, ending.cause))

    async def _show(self, _exchange: Exchange, ask: Ask, _body: bytes) -> Answer:
        live = self._find(ask)
        usage = await live.box.read_usage()
        shown = {name: getattr(usage, name) for name in usage.__slots__}
        execs = self._execs.get(ask.box)
        return Answer(200, to_json({"usage": shown, "processes": execs.list() if execs else []}))

    async def _weigh(self, _exchange: Exchange, _ask: Ask, _body: bytes) -> Answer:
        """What each sandbox uses of the node's memory."""
        live = list(self._boxes.values())
        weights = await asyncio.gather(*(weigh_box(one.box) for one in live))
        return Answer(200, to_json({one.name: weight for one, weight in zip(live, weights, strict=True)}))

    # --- commands and files -----------------------------------------------------------------

    async def _exec(self, exchange: Exchange, ask: Ask, body: bytes) -> Answer | None:
        return await self._find_execs(self._find(ask)).execute(exchange, body)

    async def _use_process(self, _exchange: Exchange, ask: Ask, body: bytes) -> Answer:
        execs = self._find_execs(self._find(ask))
        match ask.words.get("do"):
            case "list":
                return Answer(200, to_json({"processes": execs.list()}) + b"\n")
            case "output":
                return execs.read_output(ask)
            case "signal":
                return await execs.signal(ask, body)
            case "kill":
                return await execs.kill(ask)
            case "stdin":
                return execs.write_stdin(ask, body)
            case "forget":
                return await execs.forget(ask)
            case _:
                return await execs.show(ask)

    async def _use_files(self, exchange: Exchange, ask: Ask, _body: bytes) -> Answer | None:
        return await answer_files(exchange, self._find(ask), ask)

    # --- zygotes --------------------------------------------------------------------------

    def _lose_zygote(self, number: int) -> None:
        self._peer.tell(Happening("zygote_lost", zygote=number))

    async def _drop_zygote(self, _exchange: Exchange, ask: Ask, _body: bytes) -> Answer:
        """End a zygote; `cause` says whose fault it is that its sandboxes go with it."""
        number = int(ask.words["zygote"])
        for live in [live for live in self._boxes.values() if live.zygote == number]:
            live.ending = live.ending or Ending("infra_failed", ask.words.get("cause", "its image was put away"))
        self._zygotes.drop(number)
        return Answer(200, b"{}")

    async def _ping(self, _exchange: Exchange, _ask: Ask, _body: bytes) -> Answer:
        return Answer(200, b"{}")


async def weigh_box(box: Box) -> int:
    """Say what a sandbox uses of the node's memory; 0 when it does not say."""
    try:
        async with asyncio.timeout(WEIGH_S):
            usage = await box.read_usage()
    except (TimeoutError, LinkLost, Refused):
        return 0
    return usage.memory_bytes + usage.disk_bytes


def _build_no_zygote(why: str) -> Fault:
    return Fault(503, NO_ZYGOTE, f"cannot make a sandbox: the zygote of its image does not serve: {why}", why, 1)


def _build_unknown(name: str) -> Fault:
    return build_gone_fault(name, Ending("infra_failed", "its shard does not know it"))
