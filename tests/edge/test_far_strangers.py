"""Who is no node of this run gets no word in at a hop port, and is told nothing behind one."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from channel_scenes import RUN, authority, certificate
from far_scenes import FarNode, answer_with, listen_at, open_nodes, publish_all
from gateway_scenes import DEADLINE_S, make_route

from retinue.channel.admission import Admission
from retinue.channel.context import build_hop_contexts, limit_tls_buffers
from retinue.channel.server import order_addresses
from retinue.gateway.far_door import HANDSHAKES_MAX

OTHER = "otherrun0000"
ASK = b"GET / HTTP/1.1\r\nHost: g\r\nX-Retinue-Far-Replica: judge/0#1\r\n\r\n"
STRANGERS = {
    "no certificate": None,
    "another run's agent": ("agent", "n1", OTHER),
    "the operator": ("operator", "operator", RUN),
    "the controller": ("controller", "controller", RUN),
}


def build_context(who: tuple[str, str, str] | None, tmp_path: object) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if who is not None:
        path = f"{tmp_path}/stranger.pem"
        with open(path, "w", encoding="ascii") as file:
            file.write("".join(certificate(*who)))
        context.load_cert_chain(path)
    return context


async def talk(node: FarNode, context: ssl.SSLContext | None, said: bytes) -> bytes:
    """Connect, say it, and return all that comes back."""
    answer = b""
    try:
        async with asyncio.timeout(DEADLINE_S):
            name = node.name if context is not None else None
            reader, writer = await asyncio.open_connection(
                node.address, node.hop_port, ssl=context, server_hostname=name
            )
            try:
                writer.write(said)
                while part := await reader.read(4096):
                    answer += part
            finally:
                writer.transport.abort()
    except OSError:
        pass
    return answer


@pytest.mark.parametrize("who", STRANGERS, ids=lambda who: who.replace(" ", "-"))
async def test_a_stranger_at_the_hop_port_is_ended_before_a_word_of_http(who: str, tmp_path: object) -> None:
    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        publish_all(nodes, await far.open_replica(answer_with("secret")))
        assert await talk(far, build_context(STRANGERS[who], tmp_path), ASK) == b""
        assert far.scene.proxy.counts.far == 0
        assert (await near.scene.ask("/judge/")).body == b"secret", "and it disturbs nobody"


async def test_the_certificate_of_a_node_is_what_opens_it(tmp_path: object) -> None:
    async with open_nodes("n1", "n2") as nodes:
        far = nodes[1]
        publish_all(nodes, await far.open_replica(answer_with("secret")))
        context = build_context(("agent", "n1", RUN), tmp_path)
        answer = await talk(far, context, ASK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert answer.endswith(b"secret")
        nothing = await talk(far, context, b"GET /judge/ HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n")
        assert nothing.startswith(b"HTTP/1.1 404")


async def test_a_refused_body_that_was_not_read_is_never_taken_for_the_next_request(tmp_path: object) -> None:
    async with open_nodes("n1", "n2") as nodes:
        publish_all(nodes, await nodes[1].open_replica(answer_with("secret"), incarnation=2))
        refused = ASK.replace(b"GET", b"POST").replace(
            b"\r\n\r\n", b"\r\nExpect: 100-continue\r\nContent-Length: 99\r\n\r\n"
        )
        answer = await talk(
            nodes[1], build_context(("agent", "n1", RUN), tmp_path), refused + ASK.replace(b"#1", b"#2")
        )
        assert b"X-Retinue-Far-Fault: gone on its node n2 runs #2 by now" in answer
        assert (answer.count(b"HTTP/1.1 "), b"secret" in answer) == (1, False)


async def test_plain_http_gets_nothing_at_the_hop_port() -> None:
    async with open_nodes("n1", "n2") as nodes:
        publish_all(nodes, await nodes[1].open_replica(answer_with("secret")))
        assert b"secret" not in await talk(nodes[1], None, ASK)
        assert nodes[1].scene.proxy.counts.far == 0


class _Eager(asyncio.Protocol):
    """A server that answers anything with a forged answer, and keeps what it was told."""

    told = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        type(self).told += data
        self.transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")  # type: ignore[attr-defined]


@asynccontextmanager
async def impersonate(who: tuple[str, str, str], address: str, port: int) -> AsyncIterator[type[_Eager]]:
    """Serve TLS where a node's gateway should be, with somebody else's certificate."""
    limit_tls_buffers()
    eager = type("Eager", (_Eager,), {"told": b""})
    server, _ = build_hop_contexts(who[2], authority(who[2]).ca_pem, *certificate(*who))
    server.sslobject_class = ssl.SSLObject
    server.verify_mode = ssl.CERT_NONE
    with listen_at(address, port) as listen:
        task = asyncio.create_task(Admission(listen, server, eager).run())
        try:
            yield eager
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    "who",
    [("agent", "n2", OTHER), ("operator", "operator", RUN), ("controller", "n2", RUN), ("agent", "n3", RUN)],
    ids=lambda who: "-".join(who),
)
async def test_who_answers_in_place_of_a_node_is_told_nothing(who: tuple[str, str, str]) -> None:
    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        replica = await far.open_replica(answer_with("ok"))
        far.scene.publish(make_route(replica))
        async with impersonate(who, "127.0.2.6", far.hop_port) as eager:
            near.scene.publish(make_route(replica), peers=(far.peer("127.0.2.6"),))
            answer = await near.scene.ask("/judge/", headers="X-Retinue-Retry: never\r\n")
            assert (answer.status, eager.told) == (409, b"")
            assert b"tried 127.0.2.6: no TLS with the run's node there: " in answer.body
            near.scene.publish(make_route(replica), peers=(far.peer("127.0.2.6", far.address),))
            assert (await near.scene.ask("/judge/")).body == b"ok"
            assert eager.told == b""


async def test_strangers_who_shake_no_hands_do_not_keep_nodes_out() -> None:
    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        publish_all(nodes, await far.open_replica(answer_with("ok")))
        crowd = [await asyncio.open_connection(far.address, far.hop_port) for _ in range(HANDSHAKES_MAX + 10)]
        try:
            asked = near.scene.start_asking("/judge/")
            assert (await asyncio.wait_for(asked, DEADLINE_S)).body == b"ok"
        finally:
            for _, writer in crowd:
                writer.transport.abort()


@pytest.mark.parametrize(
    ("source", "offered", "expected"),
    [
        ("10.0.0.7", ("10.1.0.7", "10.0.0.7"), ("10.0.0.7", "10.1.0.7")),
        ("::ffff:10.0.0.7", ("10.1.0.7",), ("10.0.0.7", "10.1.0.7")),
        ("127.0.0.1", ("10.1.0.7",), ("10.1.0.7",)),
        ("::1", ("10.1.0.7",), ("10.1.0.7",)),
        ("::ffff:127.0.0.1", ("10.1.0.7",), ("10.1.0.7",)),
        ("fe80::1%eth0", ("fd00::7",), ("fd00::7",)),
        ("fd00::8", ("fd00::7",), ("fd00::8", "fd00::7")),
        ("", ("10.1.0.7",), ("10.1.0.7",)),
    ],
)
def test_the_address_a_node_called_from_comes_first_unless_it_leads_nowhere(
    source: str, offered: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert order_addresses(source, offered) == expected
