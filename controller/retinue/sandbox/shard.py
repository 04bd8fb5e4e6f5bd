"""One shard: holds the control sockets of its part of a node's sandboxes and serves what is asked about them.

Its end is theirs: their sockets close, and the kernel ends them. Another shard's stay. Ends itself when the front does.
"""

import asyncio
import errno
import platform
import socket
import traceback
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from retinue.sandbox.box import Box
from retinue.sandbox.config import BoxConfig
from retinue.sandbox.link import LinkLost, Refused
from retinue.sandbox.requests import BoxMade, BoxOrder, ErrorBody, ErrorWords, Fault
from retinue.sandbox.shard_box import Ending, LiveBox, build_gone_fault
from retinue.sandbox.shard_execs import Execs
from retinue.sandbox.shard_files import answer_files, make_workdir
from retinue.sandbox.shard_link import Exchange, Peer, ShardLost
from retinue.sandbox.shard_wire import Answer, Ask, Happening, parse_ask
from retinue.sandbox.wire import WireError
from retinue.sandbox.zygote import Zygote
from retinue.terms.record import from_json, to_json

NO_ZYGOTE = "no_zygote"
"""Type of the answer that the front tries again after, with another zygote."""
FULL_ERRNOS = (errno.EAGAIN, errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EUSERS)
"""The node has no room for another one: its limits of processes, namespaces, mounts or memory."""
WEIGH_S = 2.0
"""How long one sandbox may take to say what it uses."""
_NPROC_PER_NAMESPACE = (5, 14)
Work = Callable[[Exchange, Ask, bytes], Awaitable[Answer | None]]


class Shard:
    """The sandboxes of one shard process."""

    def __init__(self, peer_sock: socket.socket, fd_sock: socket.socket, service: str, node: str) -> None:
        """peer_sock: asks and answers; fd_sock: the sockets of zygotes."""
        self._peer_sock = peer_sock
        self._fd_sock = fd_sock
        fd_sock.setblocking(False)
        self._service = service
        self._node = node
        self._zygotes: dict[int, tuple[Zygote, asyncio.Future[None]]] = {}
        """Each with when it takes requests: what is asked before is taken for answered."""
        self._boxes: dict[str, LiveBox] = {}
        self._execs: dict[str, Execs] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """Exchange -> who works on it."""
        self._peer: Peer
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the front has hung up."""
        self._counts_pids = read_kernel() >= _NPROC_PER_NAMESPACE
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
            zygote = await self._find_zygote(order.zygote)
        except (LinkLost, Refused) as error:
            raise _build_no_zygote(str(error)) from None
        try:
            box = await zygote.create(build_config(order, self._counts_pids))
        except LinkLost:
            raise _build_no_zygote("it died") from None
        except Refused as refused:
            if refused.errno in FULL_ERRNOS:
                raise Fault(429, "sandbox_full", f"cannot make a sandbox: {refused}", str(refused), 1) from None
            raise
        live = LiveBox(ask.box, box, order)
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

    async def _find_zygote(self, number: int) -> Zygote:
        """Find one, ready; its socket was sent before whatever names it. Errors: LinkLost, Refused, Fault."""
        while number not in self._zygotes:
            try:
                message, fds, _, _ = socket.recv_fds(self._fd_sock, 4, 1)
            except BlockingIOError:
                raise _build_no_zygote("it died") from None
            for fd in fds:
                self._add_zygote(int.from_bytes(message, "little"), socket.socket(fileno=fd))
        zygote, ready = self._zygotes[number]
        if not ready.done():
            await asyncio.wait([ready])
        ready.result()
        return zygote

    def _add_zygote(self, number: int, sock: socket.socket) -> None:
        sock.setblocking(False)
        zygote = Zygote(sock)
        self._zygotes[number] = zygote, asyncio.ensure_future(zygote.wait_ready())
        zygote.lost.add_done_callback(lambda lost: self._lose_zygote(number))

    def _lose_zygote(self, number: int) -> None:
        known = self._zygotes.pop(number, None)
        if known is not None:
            known[1].add_done_callback(lambda ready: ready.cancelled() or ready.exception())
            self._peer.tell(Happening("zygote_lost", zygote=number))

    async def _drop_zygote(self, _exchange: Exchange, ask: Ask, _body: bytes) -> Answer:
        """End a zygote; `cause` says whose fault it is that its sandboxes go with it."""
        number = int(ask.words["zygote"])
        known = self._zygotes.pop(number, None)
        for live in [live for live in self._boxes.values() if live.zygote == number]:
            live.ending = live.ending or Ending("infra_failed", ask.words.get("cause", "its image was put away"))
        if known is not None:
            known[0].close()
        return Answer(200, b"{}")

    async def _ping(self, _exchange: Exchange, _ask: Ask, _body: bytes) -> Answer:
        return Answer(200, b"{}")


def build_config(order: BoxOrder, counts_pids: bool) -> BoxConfig:
    """Build what the sandbox program is told."""
    limits = order.limits
    env = dict(BoxConfig().env) | ({} if order.uid == 0 else {"USER": "user"}) | order.env
    return BoxConfig(
        hostname=order.hostname,
        disk_bytes=limits.disk,
        inode_count=limits.inodes,
        shm_bytes=limits.shm,
        memory_bytes=limits.memory,
        pid_count=limits.pids if counts_pids else 0,
        uid=order.uid,
        gid=order.uid,
        has_net=order.net,
        env=tuple(env.items()),
    )


def read_kernel() -> tuple[int, int]:
    """The kernel's version, as far as it matters."""
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(digit for digit in minor if digit.isdigit()) or 0)


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
