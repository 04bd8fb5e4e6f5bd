"""What a guarded service may do feels as if there were no guard: same answers, same errors, same signals."""

from collections.abc import Iterator

import pytest
from egress_scenes import HELLO, OWN, Guarded, Stage, needs_ip

from retinue.node.orders import TellAddresses
from retinue.terms.egress import EgressRule

pytestmark = needs_ip
PROFILES = ("none", "loopback", "full")
TOLD = "203.0.113.20"


@pytest.fixture(scope="module")
def services() -> Iterator[dict[str, Guarded]]:
    with Stage() as stage:
        stage.agent.send(TellAddresses((TOLD, "2001:db8:0:7::20", "no address at all")))
        outside = stage.start("outside/0", None)
        port = outside.ask("serve()")
        allow = (f"203.0.113.9/32:{port}", f"[2001:db8:0:7::a]:{port}", "10.9.0.77/32")
        found = {"outside": outside}
        for udp in PROFILES:
            found[udp] = stage.start(f"{udp}/0", EgressRule(udp=udp, allow=allow))
            found[udp].ask(f"globals().update(PORT={port})")
        yield found


@pytest.mark.parametrize("udp", PROFILES)
@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"),
        *(OWN, "10.9.0.2", "fd09::1", "::ffff:10.9.0.1"),
        *(TOLD, "2001:db8:0:7::20", "203.0.113.9", "2001:db8:0:7::a"),
    ],
)
def test_loopback_the_allocation_and_the_allow_list_are_reached(
    services: dict[str, Guarded], udp: str, address: str
) -> None:
    assert services[udp].ask(f"tcp('{address}', PORT)") == HELLO
    assert services[udp].ask(f"tcp('{address}', PORT, timeout=None)") == HELLO


@pytest.mark.parametrize("udp", PROFILES)
@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("tcp('127.0.0.1', 1)", "ECONNREFUSED"),
        ("tcp('127.0.0.1', 1, timeout=None)", "ECONNREFUSED"),
        # A socket that is connected already, one that is no socket, an address that is none.
        ("[end := socket.create_connection(('127.0.0.1', PORT)), end.connect(('127.0.0.1', PORT))]", "EISCONN"),
        ("connect_raw(2, 1, in4('127.0.0.1', PORT)[:7])", "EINVAL"),
        ("connect_raw(2, 1, in4('127.0.0.1', PORT, family=99))", "EAFNOSUPPORT"),
        ("call(42 if os.uname().machine == 'x86_64' else 203, 0, 0, 16)", "ENOTSOCK"),
        ("call(42 if os.uname().machine == 'x86_64' else 203, 999, 0, 16)", "EBADF"),
        ("[end := socket.socket(), LIBC.connect(end.fileno(), 8, 16), ctypes.get_errno()][2]", 14),
        # Undoing a connect.
        ("connect_raw(2, 1, struct.pack('=H14x', 0))", 0),
        # A connect that does not wait, and one that was begun so.
        ("[end := socket.socket(), end.setblocking(False), end.connect_ex(('127.0.0.1', PORT)) in (0, 115)][2]", True),
        # Fast open falls back, by the flag of a send and by the option of a socket.
        ("sendto_raw(2, in4('127.0.0.1', PORT), flags=0x20000000, kind=1)", "ENOTSUP"),
        (
            "[end := socket.socket(), end.setsockopt(6, 30, 1), end.connect(('127.0.0.1', PORT)), end.recv(9)[0]][3]",
            ord("i"),
        ),
        # The kernel's own tables, and the way to other processes of this node.
        ("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).connect((0, 0))", None),
        (
            "struct.unpack('3i', socket.socketpair()[0].getsockopt(1, 17, 12))[0] == os.getpid()",
            True,
        ),
    ],
)
def test_answers_are_the_kernels_own(services: dict[str, Guarded], udp: str, code: str, answer: object) -> None:
    assert services[udp].ask(code) == answer


@pytest.mark.parametrize("name", ["'\\0retinue-egress-test-' + str(os.getpid())", "'relative'"])
@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM", "SOCK_SEQPACKET"])
def test_unix_sockets_know_who_calls(services: dict[str, Guarded], name: str, kind: str) -> None:
    service = services["none"]
    service.ask("KEPT.clear()")
    service.ask(f"KEPT.append(socket.socket(socket.AF_UNIX, socket.{kind})) or KEPT[0].bind({name})")
    if kind != "SOCK_DGRAM":
        service.ask("KEPT[0].listen()")
    service.ask(f"KEPT.append(socket.socket(socket.AF_UNIX, socket.{kind})) or KEPT[1].connect({name})")
    if kind == "SOCK_DGRAM":
        assert service.ask(f"socket.socket(socket.AF_UNIX, socket.{kind}).sendto(b'x', {name})") == 1
    else:
        service.ask("KEPT.append(KEPT[0].accept()[0])")
        assert service.ask("struct.unpack('3i', KEPT[2].getsockopt(1, 17, 12))[0] == os.getpid()") is True
    service.ask("[end.close() for end in KEPT] and os.path.exists('relative') and os.unlink('relative')")


@pytest.mark.parametrize("udp", PROFILES)
def test_a_signal_ends_a_connect_that_nobody_answers(services: dict[str, Guarded], udp: str) -> None:
    assert services[udp].ask("connect_blocking('10.9.0.77', 5, alarm_s=0.2)") == "EINTR"


def test_a_sockets_own_send_timeout_ends_a_connect_and_is_kept(services: dict[str, Guarded]) -> None:
    # Without a guard it is EINPROGRESS: the price of a connect that is begun by somebody else.
    assert services["none"].ask("connect_blocking('10.9.0.77', 5, send_timeout_s=0.2)") == "EALREADY"
    assert services["none"].ask("connect_blocking('127.0.0.1', PORT, send_timeout_s=0.5)")[0] == 0
    assert services["none"].ask("connect_blocking('127.0.0.1', PORT, send_timeout_s=0.5)")[1] >= 500_000
    assert services["none"].ask("connect_blocking('127.0.0.1', PORT)") == [0, 0]


def test_a_connect_waits_for_as_long_as_it_takes(services: dict[str, Guarded]) -> None:
    """A full accept queue: the first packet is lost, and the connect ends when there is room."""
    service, outside = services["none"], services["outside"]
    port = outside.ask("KEPT.append(socket.create_server(('127.0.0.1', 0), backlog=0)) or KEPT[0].getsockname()[1]")
    service.ask(f"KEPT.clear() or KEPT.append(socket.create_connection(('127.0.0.1', {port})))")
    service.begin(f"KEPT.append(socket.create_connection(('127.0.0.1', {port}))) or KEPT[1].getpeername()[1]")
    outside.ask("[KEPT.append(KEPT[0].accept()[0]) for _ in range(2)] and 0")
    assert service.finish() == port


def test_two_hundred_connects_at_once_all_get_their_answer(services: dict[str, Guarded]) -> None:
    code = (
        "[found := [], pool := [threading.Thread(target=lambda: found.append(tcp('127.0.0.1', PORT, timeout=30)))"
        " for _ in range(200)], [each.start() for each in pool], [each.join() for each in pool], len(found)][4]"
    )
    assert services["none"].ask(code) == 200


@pytest.mark.parametrize("udp", ["loopback", "full"])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_datagrams_reach_loopback(services: dict[str, Guarded], udp: str, address: str) -> None:
    assert services[udp].ask(f"udp('{address}', PORT)") == HELLO
    connected = "[end := socket.socket({f}, 2), end.connect(('{a}', PORT)), end.send(b'x'), end.recv(99).decode()][3]"
    family = "10" if ":" in address else "2"
    assert services[udp].ask(connected.replace("{f}", family).replace("{a}", address)) == HELLO


def test_datagrams_with_full_reach_the_allow_list_in_every_way(services: dict[str, Guarded]) -> None:
    service = services["full"]
    assert service.ask("udp('203.0.113.9', PORT, b'x' * 60000)") == HELLO
    assert service.ask("udp('203.0.113.9', PORT, b'')") == HELLO
    assert service.ask("udp('::ffff:203.0.113.9', PORT)") == HELLO
    sent = "[end := socket.socket(2, 2), end.sendmsg([b'a', b'b'], [], 0, ('203.0.113.9', PORT)), end.recv(99)[0]][1:]"
    assert service.ask(sent) == [2, ord("i")]
    assert service.ask("udp('203.0.113.9', PORT, b'x' * 70000)") == "EMSGSIZE"
